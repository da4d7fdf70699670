//! Draws the state of the job, above the lists.

use ragent_base::report::{
    status_text::{memory, progress, saving, stall},
    time_text::short_time,
};
use ragent_rendezvous::snapshot::{JobProgress, NodeStateName, PhaseName, Snapshot};
use ratatui::{layout::Size, style::Style, text::Line};

use super::Palette;
use crate::commands::top::{model::Model, text};

/// Returns the lines of the header in a terminal of `size`.
pub(super) fn lines(model: &Model, size: Size, palette: Palette) -> Vec<Line<'static>> {
    let width = usize::from(size.width);
    let snapshot = &model.snapshot;
    let mut lines = Vec::new();
    let mut put = |text: String, style| lines.push(Line::styled(text::fit(&text, width), style));
    for text in flow(&job(model), width).into_iter().take(3) {
        put(text, palette.bold());
    }
    if let Some(text) = connection(model) {
        put(text, palette.fault());
    }
    if let Some(progress) = &snapshot.progress {
        put(step(progress, model), palette.plain());
    }
    for text in stalled(model) {
        put(text, palette.fault());
    }
    if let Some(phase) = &snapshot.saving {
        put(saving::phase(phase), palette.warning());
    }
    put(time(model), palette.plain());
    // The lists get most of the lines.
    for (text, style) in notes(snapshot, palette).into_iter().take((size.height / 6).into()) {
        put(text, style);
    }
    lines
}

/// Joins parts with ` · ` to lines of at most `width` columns.
fn flow(parts: &[String], width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for part in parts {
        let part = text::fit(part, width);
        match lines.last_mut() {
            Some(line) if text::width(line) + 3 + text::width(&part) <= width => {
                line.push_str(" · ");
                line.push_str(&part);
            }
            Some(_) | None => lines.push(part),
        }
    }
    lines
}

/// Returns the parts about the job, the most important ones first.
fn job(model: &Model) -> Vec<String> {
    let snapshot = &model.snapshot;
    let phase = match snapshot.phase {
        PhaseName::Closed => snapshot.phase.name().to_owned(),
        PhaseName::Recovering | PhaseName::Gathering | PhaseName::Running | PhaseName::Stopping => {
            let time = snapshot.phase_ms.saturating_add(model.age_ms());
            format!("{} for {}", snapshot.phase.name(), short_time(time))
        }
    };
    vec![
        format!("job {}", snapshot.run_id),
        format!("round {}", snapshot.round),
        phase,
        format!("{} of {} nodes", present(snapshot), range(snapshot)),
        format!("{} workers", snapshot.world_size),
        format!(
            "restarts {}/{}",
            snapshot.restarts_used.saturating_sub(snapshot.restarts_forgiven),
            snapshot.max_restarts
        ),
    ]
}

fn range(snapshot: &Snapshot) -> String {
    let Snapshot { min_nodes, max_nodes, .. } = snapshot;
    if min_nodes == max_nodes { min_nodes.to_string() } else { format!("{min_nodes}:{max_nodes}") }
}

/// Returns the number of nodes in the round, or of nodes for the next round.
fn present(snapshot: &Snapshot) -> usize {
    let is_present = |state: NodeStateName| state != NodeStateName::Lost && !state.is_kept_out();
    let nodes = snapshot.nodes.iter().filter(|node| is_present(node.state));
    match snapshot.phase {
        PhaseName::Recovering | PhaseName::Gathering => nodes.count(),
        PhaseName::Running | PhaseName::Stopping | PhaseName::Closed => {
            nodes.filter(|node| node.group_rank.is_some()).count()
        }
    }
}

fn connection(model: &Model) -> Option<String> {
    let (lost, why) = model.lost_for()?;
    // Whole seconds, so that the line changes once a second.
    let time = match lost.as_secs() {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds => short_time(seconds.saturating_mul(1000)),
    };
    let why = why.map_or_else(String::new, |why| format!(" ({why})"));
    Some(format!("connection lost {time} ago; this is the last state{why}"))
}

/// Returns the line about the training step.
fn step(progress: &JobProgress, model: &Model) -> String {
    let JobProgress { source, step, highest, steps_left, step_time, age } = progress;
    let mut line = format!("step {}", progress::grouped(*step));
    if let Some(left) = steps_left {
        line += &format!(" of {}", progress::grouped(step.saturating_add(*left)));
    }
    line += &format!(" ({})", progress::origin(*source));
    let bars = model.rates.bars();
    let age = u64::try_from(age.as_millis()).unwrap_or(u64::MAX).saturating_add(model.age_ms());
    let parts = [
        (!bars.is_empty()).then_some(bars),
        step_time.map(|time| format!("{} a step", progress::short(time))),
        (highest > step).then(|| format!("highest {}", progress::grouped(*highest))),
        Some(format!("the last {} ago", short_time(age))),
    ];
    parts.into_iter().flatten().fold(line, |line, part| line + "  " + &part)
}

/// Returns the lines about the stall, without further facts; none if the workers make progress.
fn stalled(model: &Model) -> Vec<String> {
    let Some(mut stall) = model.snapshot.stall.clone() else { return Vec::new() };
    stall.for_ms = stall.for_ms.saturating_add(model.age_ms());
    stall.facts.clear();
    let usual = model.snapshot.progress.and_then(|progress| progress.step_time);
    stall::lines(&stall, usual)
}

/// The columns of the bar of the productive time.
const BAR: usize = 20;

/// Returns the line about the productive time.
fn time(model: &Model) -> String {
    let time = model.time();
    if time.age_ms() == 0 {
        return "productive: no time yet".to_owned();
    }
    let mut line = match time.productive_ratio() {
        Some(ratio) => format!("productive {:.1} % {}", ratio * 100.0, text::bar(ratio, BAR)),
        None => "productive: unknown, no progress is reported;".to_owned(),
    };
    let mut lost: Vec<(&str, u64)> = (time.states.iter())
        .filter(|state| !["productive", "unknown"].contains(&state.state.as_str()))
        .map(|state| (state.state.as_str(), state.ms))
        .chain([("redone", time.redone_ms)])
        .filter(|(_, ms)| *ms >= 10)
        .collect();
    lost.sort_by_key(|(_, ms)| std::cmp::Reverse(*ms));
    line += &format!(" of {}", short_time(time.age_ms()));
    if !lost.is_empty() {
        let list: Vec<String> =
            lost.iter().map(|(state, ms)| format!("{state} {}", short_time(*ms))).collect();
        line += &format!("; lost: {}", list.join(", "));
    }
    line
}

/// Returns what is unusual about the job, the most important first.
fn notes(snapshot: &Snapshot, palette: Palette) -> Vec<(String, Style)> {
    let mut notes = Vec::new();
    if let Some(outcome) = &snapshot.outcome {
        let kind = outcome.result.name();
        let color = if kind == "succeeded" { palette.good() } else { palette.fault() };
        notes.push((format!("the job is closed: {kind}"), color));
    }
    if let Some(why) = &snapshot.incomplete {
        notes.push((format!("not complete: {}", why.text), palette.warning()));
    }
    let memory = snapshot.memory.as_ref();
    let memory = memory.map(|memory| (memory::line(memory), memory.text.is_some()));
    if let Some((line, true)) = &memory {
        notes.push((line.clone(), palette.warning()));
    }
    let silent: Vec<&str> = (snapshot.voters.iter())
        .filter(|voter| voter.is_silent())
        .map(|voter| voter.endpoint.as_str())
        .collect();
    if !silent.is_empty() {
        notes.push((format!("no answer from the voters {}", silent.join(", ")), palette.warning()));
    }
    if let Some(leader) = &snapshot.leader {
        notes.push((format!("leader: {leader} (term {})", snapshot.term), palette.plain()));
    }
    if !snapshot.refused_clients.is_empty() {
        let addresses: Vec<String> =
            snapshot.refused_clients.iter().map(ToString::to_string).collect();
        let addresses = addresses.join(", ");
        notes.push((
            format!("the store of round {} refused {addresses}", snapshot.round),
            palette.warning(),
        ));
    }
    let unreached = snapshot.unreached.iter();
    notes.extend(unreached.map(|unreached| (unreached.to_string(), palette.warning())));
    for peer in &snapshot.refused_peers {
        let text = format!("refused: {} from {} ({})", peer.count, peer.address, peer.reason);
        notes.push((text, palette.warning()));
    }
    if let Some((line, false)) = memory {
        notes.push((line, palette.plain()));
    }
    notes
}
