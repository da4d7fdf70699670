//! Draws the state of the job, above the lists.

use ragent_base::report::{
    status_text::{memory, progress, saving, stall},
    time_text::short_time,
};
use ragent_rendezvous::snapshot::{JobProgress, NodeStateName, PhaseName, Snapshot};
use ratatui::{layout::Size, style::Style, text::Line};

use super::Palette;
use crate::commands::top::{model::Model, text};

/// A terminal with fewer lines has a short header.
const LOW: u16 = 14;

/// The columns that are left for the step rates, at least.
const BARS_MIN: usize = 8;

/// A line of the header.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(in crate::commands::top) struct HeaderLine {
    text: String,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Job,
    Plain,
    Good,
    Warning,
    Fault,
}

impl HeaderLine {
    /// Returns the line with its colours.
    pub(super) fn styled(&self, palette: Palette) -> Line<'_> {
        let style: Style = match self.kind {
            Kind::Job => palette.focused(),
            Kind::Plain => palette.plain(),
            Kind::Good => palette.good(),
            Kind::Warning => palette.warning(),
            Kind::Fault => palette.fault(),
        };
        Line::styled(self.text.as_str(), style)
    }
}

/// Returns the lines of the header in a terminal of `size`.
pub(in crate::commands::top) fn lines(model: &Model, size: Size) -> Vec<HeaderLine> {
    let width = usize::from(size.width);
    let is_low = size.height < LOW;
    let mut job = flow(&job(model), width);
    job.truncate(if is_low { 2 } else { 3 });
    let mut lines: Vec<HeaderLine> =
        job.into_iter().map(|text| HeaderLine { text, kind: Kind::Job }).collect();
    if let Some(text) = connection(model) {
        lines.push(HeaderLine { text: text::fit(&text, width), kind: Kind::Fault });
    }
    if let Some(progress) = &model.snapshot.progress {
        let text = step(progress, model, width);
        lines.push(HeaderLine { text, kind: Kind::Plain });
    }
    for line in stalled(model) {
        lines.push(HeaderLine { text: text::fit(&line, width), kind: Kind::Fault });
    }
    if let Some(phase) = &model.snapshot.saving {
        let text = text::fit(&saving::phase(phase), width);
        lines.push(HeaderLine { text, kind: Kind::Warning });
    }
    lines.push(HeaderLine { text: time(model, width), kind: Kind::Plain });
    let most = match size.height {
        0..LOW => 1,
        LOW..30 => 3,
        30.. => 8,
    };
    let notes = notes(&model.snapshot).into_iter().take(most);
    lines.extend(notes.map(|(text, kind)| HeaderLine { text: text::fit(&text, width), kind }));
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

/// Returns the line about the training step. Parts that do not fit are omitted.
fn step(progress: &JobProgress, model: &Model, width: usize) -> String {
    let JobProgress { source, step, highest, steps_left, step_time, age } = progress;
    let bars = model.rates.sparkline(width);
    let reserved = if bars.is_empty() { 0 } else { BARS_MIN + 2 };
    let room = width.saturating_sub(reserved);
    let mut line = format!("step {}", progress::grouped(*step));
    if let Some(left) = steps_left {
        line += &format!(" of {}", progress::grouped(step.saturating_add(*left)));
    }
    let origin = progress::origin(*source);
    // If there is little room, the first word is enough.
    let short = origin.split(' ').next().unwrap_or_default();
    let fits = |line: &str, part: &str| text::width(line) + text::width(part) <= room;
    let origin = [origin, short].map(|origin| format!(" ({origin})"));
    if let Some(origin) = origin.iter().find(|origin| fits(&line, origin)) {
        line += origin;
    }
    let age = u64::try_from(age.as_millis()).unwrap_or(u64::MAX).saturating_add(model.age_ms());
    let parts = [
        step_time.map(|time| format!("  {} a step", progress::short(time))),
        Some(format!("  the last {} ago", short_time(age))),
        (highest > step).then(|| format!("  highest {}", progress::grouped(*highest))),
    ];
    for part in parts.into_iter().flatten() {
        if fits(&line, &part) {
            line += &part;
        }
    }
    let left = width.saturating_sub(text::width(&line) + 2);
    let bars = model.rates.sparkline(left);
    if !bars.is_empty() {
        line += &format!("  {bars}");
    }
    text::fit(&line, width)
}

/// Returns the lines about the stall, without further facts; none if the workers make progress.
fn stalled(model: &Model) -> Vec<String> {
    let Some(mut stall) = model.snapshot.stall.clone() else { return Vec::new() };
    stall.for_ms = stall.for_ms.saturating_add(model.age_ms());
    stall.facts.clear();
    let usual = model.snapshot.progress.and_then(|progress| progress.step_time);
    stall::lines(&stall, usual)
}

/// Returns the line about the productive time.
fn time(model: &Model, width: usize) -> String {
    let time = model.time();
    if time.age_ms() == 0 {
        return "productive: no time yet".to_owned();
    }
    let columns = if width < 60 { 8 } else { 20 };
    let mut line = match time.productive_ratio() {
        Some(ratio) => format!("productive {:.1} % {}", ratio * 100.0, text::bar(ratio, columns)),
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
    text::fit(&line, width)
}

/// Returns what is unusual about the job, the most important first.
fn notes(snapshot: &Snapshot) -> Vec<(String, Kind)> {
    let mut notes = Vec::new();
    if let Some(outcome) = &snapshot.outcome {
        let kind = outcome.result.kind();
        let color = if kind == "succeeded" { Kind::Good } else { Kind::Fault };
        notes.push((format!("the job is closed: {kind}"), color));
    }
    if let Some(why) = &snapshot.incomplete {
        notes.push((format!("not complete: {}", why.text), Kind::Warning));
    }
    let memory = snapshot.memory.as_ref();
    let memory = memory.map(|memory| (memory::line(memory), memory.text.is_some()));
    if let Some((line, true)) = &memory {
        notes.push((line.clone(), Kind::Warning));
    }
    let silent: Vec<&str> = (snapshot.voters.iter())
        .filter(|voter| voter.is_silent())
        .map(|voter| voter.endpoint.as_str())
        .collect();
    if !silent.is_empty() {
        notes.push((format!("no answer from the voters {}", silent.join(", ")), Kind::Warning));
    }
    if let Some(leader) = &snapshot.leader {
        notes.push((format!("leader: {leader} (term {})", snapshot.term), Kind::Plain));
    }
    if !snapshot.refused_clients.is_empty() {
        let addresses: Vec<String> =
            snapshot.refused_clients.iter().map(ToString::to_string).collect();
        let addresses = addresses.join(", ");
        notes.push((
            format!("the store of round {} refused {addresses}", snapshot.round),
            Kind::Warning,
        ));
    }
    let unreached = snapshot.unreached.iter();
    notes.extend(unreached.map(|unreached| (unreached.to_string(), Kind::Warning)));
    for peer in &snapshot.refused_peers {
        let text = format!("refused: {} from {} ({})", peer.count, peer.address, peer.reason);
        notes.push((text, Kind::Warning));
    }
    if let Some((line, false)) = memory {
        notes.push((line, Kind::Plain));
    }
    notes
}
