//! Explains a job by its state and its journal.

use std::fmt::Write as _;

use ragent_base::report::{
    event_text,
    status_text::{memory, progress::grouped, saving, stall_lines, unreached_text},
    time_text::{self, short_time},
};
use ragent_rendezvous::{
    event::EventId,
    snapshot::{
        CheckpointTimes, JobTime, MemoryStatus, PhaseName, RestartsByCause, Saving, Snapshot,
        Stall, Unreached, size,
    },
};
use serde::Serialize;

use super::advice::{self, Advice};
use crate::commands::events::JournalEntry;

/// The number of restarts in the list. The sums count all of them.
const RESTARTS_MAX: usize = 3;

/// The explanation of a job.
#[derive(Debug, Serialize)]
pub(super) struct JobExplanation {
    run_id: String,
    /// The current activity of the job.
    now: String,
    /// The stall of the workers.
    stall: Option<Stall>,
    /// The same, a line for each fact.
    #[serde(skip)]
    stall_lines: Vec<String>,
    /// The reason why the job does not run.
    waits_for: Option<String>,
    /// The connections between nodes that could not be opened.
    unreached: Vec<Unreached>,
    /// The newest restarts, newest first.
    restarts: Vec<ExplainedRestart>,
    /// The restarts so far, by cause.
    by_cause: Vec<RestartsByCause>,
    time: JobTime,
    /// The phase of a notice, in which all ranks may save.
    saving: Option<Saving>,
    /// How often the job saves, and how often it should.
    checkpoints: Option<CheckpointTimes>,
    /// The checkpoints in memory.
    memory: Option<MemoryStatus>,
    /// The changes that the numbers suggest.
    advice: Vec<Advice>,
}

/// A restart: the end of a round, its causes, and what followed.
#[derive(Debug, Serialize)]
pub(super) struct ExplainedRestart {
    /// The round that has ended.
    round: u64,
    steps: Vec<RestartStep>,
    /// The sentence about its cost; `None` while it is under way.
    cost: Option<String>,
    /// The sentence about the checkpoint in memory with which the next round has begun, or the reason why it has
    /// begun without; `None` if memory had no part in it.
    memory: Option<String>,
}

/// A step of a restart.
#[derive(Debug, Serialize)]
struct RestartStep {
    /// The local time of day.
    at: String,
    /// The time since the first step, in milliseconds.
    after_ms: i64,
    text: String,
}

impl JobExplanation {
    /// Explains the state of a job by its journal, which has the oldest event first.
    pub(super) fn new(snapshot: &Snapshot, entries: &[JournalEntry]) -> Self {
        Self {
            run_id: snapshot.run_id.to_string(),
            now: now(snapshot),
            stall: snapshot.stall.clone(),
            stall_lines: stall_lines(snapshot),
            waits_for: snapshot.incomplete.as_ref().map(|why| why.text.clone()),
            unreached: snapshot.unreached.clone(),
            restarts: restarts(entries, RESTARTS_MAX),
            by_cause: snapshot.restarts.clone(),
            time: snapshot.time.clone(),
            saving: snapshot.saving.clone(),
            checkpoints: snapshot.checkpoints,
            memory: snapshot.memory.clone(),
            advice: [
                advice::of(snapshot),
                advice::of_memory(snapshot),
                advice::of_leases(snapshot, entries),
            ]
            .concat(),
        }
    }

    /// Returns the explanation for people.
    pub(super) fn text(&self) -> String {
        let mut text = format!("{} {}\n", self.run_id, self.now);
        // Writing to a string does not fail.
        for line in &self.stall_lines {
            let _ = writeln!(text, "  {line}");
        }
        if let Some(waits_for) = &self.waits_for {
            let _ = writeln!(text, "  not complete: {waits_for}");
        }
        if let Some(phase) = &self.saving {
            let _ = writeln!(text, "  {}", saving::phase(phase));
        }
        for unreached in &self.unreached {
            let _ = writeln!(text, "  {}", unreached_text(unreached));
        }
        for restart in &self.restarts {
            restart.write(&mut text);
        }
        text += &list_of_sums(&self.by_cause);
        let _ = writeln!(text, "Time: {}", time_text::of_account(&self.time));
        if let Some(times) = &self.checkpoints {
            for line in saving::times(times) {
                let _ = writeln!(text, "  {line}");
            }
        }
        if let Some(memory) = &self.memory {
            let _ = writeln!(text, "  {}", memory::line(memory));
        }
        for advice in &self.advice {
            let _ = writeln!(text, "What would help: {}", advice.text);
        }
        text
    }
}

impl ExplainedRestart {
    /// Adds its lines to `text`.
    pub(super) fn write(&self, text: &mut String) {
        let _ = writeln!(text, "Round {} has ended:", self.round);
        for (place, RestartStep { at, after_ms, text: step }) in self.steps.iter().enumerate() {
            let when = match place {
                0 => at.clone(),
                _ => format!("+{:.3} s", *after_ms as f64 / 1000.0),
            };
            let _ = writeln!(text, "  {when:<12}  {step}");
        }
        let cost = self.cost.as_deref().unwrap_or("the restart is under way");
        let _ = writeln!(text, "  {:<12}  {cost}", "cost");
        if let Some(memory) = &self.memory {
            let _ = writeln!(text, "  {:<12}  {memory}", "memory");
        }
    }
}

/// Returns what the job does, and for how long.
pub(super) fn now(snapshot: &Snapshot) -> String {
    let time = short_time(snapshot.phase_ms);
    let round = snapshot.round;
    match snapshot.phase {
        PhaseName::Recovering => {
            format!(
                "has been waiting for the members of round {round} for {time}, after the loss of its coordinator."
            )
        }
        PhaseName::Gathering if round.0 == 0 => {
            format!("has been forming its first round for {time}.")
        }
        PhaseName::Gathering => {
            format!("has been forming its next round for {time}; the last one was {round}.")
        }
        PhaseName::Running => format!("has been running round {round} for {time}."),
        PhaseName::Stopping => format!("has been stopping round {round} for {time}."),
        PhaseName::Closed => {
            let result = snapshot.outcome.as_ref().map_or("", |outcome| outcome.result.name());
            format!("is closed: {result}.")
        }
    }
}

/// Returns at most `most` restarts, newest first.
pub(super) fn restarts(entries: &[JournalEntry], most: usize) -> Vec<ExplainedRestart> {
    let placed = entries.iter().enumerate().rev();
    let ends = placed.filter(|(_, entry)| entry.round > 0 && begins_restart(entry));
    let restarts = ends.map(|(place, end)| (end, restart(end, &entries[place + 1..], entries)));
    // After a takeover, the new coordinator may record the end of the round again, a moment later.
    let listed =
        restarts.filter(|(end, restart)| restart.steps.len() > 1 || end.kind == ROUND_ENDED);
    listed.map(|(_, restart)| restart).take(most).collect()
}

const ROUND_ENDED: &str = "round_ended";

/// Returns true if a restart begins with this event. A lost coordinator cannot record the end of its round, so a takeover counts too.
fn begins_restart(entry: &JournalEntry) -> bool {
    entry.kind == ROUND_ENDED || entry.kind == "coordinator_took_over"
}

/// Describes a restart: the causes of the end of a round, oldest first, the end itself, and its consequences among the `later` events.
fn restart(
    end: &JournalEntry,
    later: &[JournalEntry],
    entries: &[JournalEntry],
) -> ExplainedRestart {
    let by_id = |id: EventId| {
        let place = entries.binary_search_by_key(&id, |entry| entry.id).ok()?;
        entries.get(place)
    };
    let mut chain = vec![end];
    let mut cause = end.cause;
    while let Some(entry) = cause.and_then(by_id)
        && chain.len() < 8
    {
        chain.insert(0, entry);
        // A cause is older than its effect, so this ends.
        cause = entry.cause.filter(|cause| *cause < entry.id);
    }
    let first = chain[0].at;
    // The events after the end of the next round belong to the next restart.
    let followed: Vec<&JournalEntry> = later
        .iter()
        .take_while(|entry| !begins_restart(entry))
        .filter(|entry| is_stage(entry, end))
        .collect();
    let cost = followed.iter().rev().find(|entry| entry.kind == "restart_cost").copied();
    let memory = of_memory(end, later, entries, cost);
    let cost = cost.map(|entry| entry.text.clone());
    let stages = followed.iter().copied().filter(|entry| entry.kind != "restart_cost");
    let steps = chain.iter().copied().chain(stages).map(|entry| RestartStep {
        at: entry.time_of_day(),
        after_ms: entry.at.as_millisecond() - first.as_millisecond(),
        text: entry.text.clone(),
    });
    ExplainedRestart { round: end.round, steps: steps.collect(), cost, memory }
}

/// Returns what memory had to do with a restart: the checkpoint with which the next round has begun, or the reason why there was none.
fn of_memory(
    end: &JournalEntry,
    later: &[JournalEntry],
    entries: &[JournalEntry],
    cost: Option<&JournalEntry>,
) -> Option<String> {
    let before = &entries[..entries.len().saturating_sub(later.len())];
    let later = || later.iter().take_while(|entry| !begins_restart(entry));
    if let Some(entry) = later().find(|entry| entry.kind == "memory_restored") {
        let number = |name| entry.data[name].as_u64().unwrap_or(0);
        let is_complete = cost.is_some_and(|cost| cost.data["is_complete"] == true);
        let done = if is_complete { "restored" } else { "the next round begins with" };
        let mut text = format!("{done} step {} from memory", grouped(number("step")));
        if entry.data["is_resharded"] == true {
            text += ", saved with other ranks";
        } else if let Some(fetched) = later().find(|entry| entry.kind == "memory_fetched") {
            text += &format!("; {}", fetched.text);
        } else if number("fetching") > 0 {
            text += &format!(", with {} from other nodes", size(number("bytes")));
        }
        let redone = cost.and_then(|cost| cost.data["redone_steps"].as_u64());
        match redone.filter(|_| is_complete) {
            None | Some(0) => {}
            Some(1) => text += "; 1 step done again",
            Some(steps) => text += &format!("; {} steps done again", grouped(steps)),
        }
        return Some(text);
    }
    // Only what went wrong in the round that has ended, or at its end, is a reason.
    let of_round = |entry: &&JournalEntry| entry.round == end.round;
    let is_reason =
        |entry: &&JournalEntry| matches!(entry.kind.as_str(), "memory_off" | "memory_struck");
    let after = later().filter(of_round).filter(is_reason).last();
    let why = after.or_else(|| before.iter().rev().take_while(of_round).find(is_reason))?;
    Some(format!("nothing restored: {}", why.text))
}

/// Returns true if an event after the end of a round is a stage of the restart.
fn is_stage(entry: &JournalEntry, end: &JournalEntry) -> bool {
    let is_effect = entry.cause.is_some_and(|cause| cause >= end.id);
    match entry.kind.as_str() {
        "workers_started" | "first_progress" | "round_admitted" | "round_stopped"
        | "restart_cost" | "job_closed" => is_effect,
        "failure_charged"
        | "failure_not_charged"
        | "node_quarantined"
        | "node_replaced"
        | "node_lost" => true,
        _ => false,
    }
}

/// Returns a line for each cause of restarts. Empty if there were no restarts.
pub(super) fn list_of_sums(by_cause: &[RestartsByCause]) -> String {
    if by_cause.is_empty() {
        return String::new();
    }
    let sums: String = by_cause.iter().map(sum).collect();
    format!("Starts so far, by cause:\n{sums}")
}

fn sum(RestartsByCause { cause, sum }: &RestartsByCause) -> String {
    let what = event_text::cause(*cause);
    let steps = match sum.redone_steps {
        0 => String::new(),
        steps => format!(", {steps} steps done again"),
    };
    format!("  {} × {what}: {}{steps}\n", sum.count, short_time(sum.cost_ms))
}

#[cfg(test)]
mod tests {
    use ragent_base::testing::empty_snapshot;
    use ragent_rendezvous::{
        event::{RestartCause, RestartSum},
        ids::Round,
        snapshot::StateTime,
    };

    use super::*;

    fn entry(id: &str, at: &str, kind: &str, cause: Option<&str>, text: &str) -> JournalEntry {
        let line = serde_json::json!({
            "schema": 1, "id": id, "at": format!("2026-11-21T20:31:{at}Z"), "round": 7,
            "kind": kind, "cause": cause, "text": text,
        });
        JournalEntry::read(&line.to_string()).expect("an event")
    }

    fn snapshot() -> Snapshot {
        let state = |state: &str, ms| StateTime { state: state.to_owned(), ms, settled_ms: ms };
        Snapshot {
            phase: PhaseName::Running,
            phase_ms: 14_000,
            round: Round(8),
            time: JobTime {
                states: vec![state("productive", 96_000), state("starting", 4_000)],
                redone_ms: 1_000,
                now: Some("productive".to_owned()),
            },
            restarts: vec![RestartsByCause {
                cause: RestartCause::WorkerFailed,
                sum: RestartSum { count: 2, cost_ms: 24_000, redone_steps: 80 },
            }],
            ..empty_snapshot()
        }
    }

    /// A restart is described from its first cause to its cost.
    #[test]
    fn restart_begins_with_its_cause() {
        let entries = [
            entry("2.1", "00.000", "coordinator_started", None, "the coordinator has started"),
            entry("2.7", "07.412", "worker_failed", None, "rank 11 on n1 killed by SIGKILL"),
            entry("2.8", "07.416", "round_ended", Some("2.7"), "round 7 has ended"),
            entry("2.9", "07.500", "node_refused", None, "refused"),
            entry("2.10", "07.533", "round_stopped", Some("2.8"), "no process of round 7 is left"),
            entry("2.11", "07.535", "round_admitted", Some("2.8"), "round 8 begins"),
            entry("2.12", "07.592", "workers_started", Some("2.11"), "all workers of round 8 run"),
            entry("2.13", "19.800", "restart_cost", Some("2.8"), "the restart took 12.3 s"),
        ];
        let text = JobExplanation::new(&snapshot(), &entries).text();
        let at = entries[1].time_of_day();
        let expected = format!(
            "job has been running round 8 for 14.0 s.\n\
             Round 7 has ended:\n  \
             {at}  rank 11 on n1 killed by SIGKILL\n  \
             +0.004 s      round 7 has ended\n  \
             +0.121 s      no process of round 7 is left\n  \
             +0.123 s      round 8 begins\n  \
             +0.180 s      all workers of round 8 run\n  \
             cost          the restart took 12.3 s\n\
             Starts so far, by cause:\n  \
             2 × failure of a worker: 24.0 s, 80 steps done again\n\
             Time: 1 min 40 s in all, 95.0 % productive; lost: starting 4.0 s, redone 1.0 s\n"
        );
        assert_eq!(text, expected);
    }

    fn with_data(entry: JournalEntry, round: u64, data: serde_json::Value) -> JournalEntry {
        JournalEntry { round, data, ..entry }
    }

    /// A restart from memory names the step, the nodes that have fetched their part, and the steps that are done again.
    #[test]
    fn restart_from_memory_is_explained() {
        let restored = |fetching, bytes| {
            let restored =
                entry("2.10", "07.535", "memory_restored", Some("2.9"), "round 8 begins");
            let data = serde_json::json!({"step": 48_210, "fetching": fetching, "bytes": bytes});
            with_data(restored, 8, data)
        };
        let cost = |redone: Option<u64>, is_complete: bool| {
            let cost =
                entry("2.12", "19.800", "restart_cost", Some("2.8"), "the restart took 12.3 s");
            let data = serde_json::json!({"redone_steps": redone, "is_complete": is_complete});
            with_data(cost, 8, data)
        };
        let explained_with =
            |restored: JournalEntry, fetched: Option<&str>, cost: Option<JournalEntry>| {
                let mut entries =
                    vec![entry("2.8", "07.416", "round_ended", None, "round 7 has ended")];
                entries.push(with_data(
                    entry("2.9", "07.535", "round_admitted", Some("2.8"), "round 8 begins"),
                    8,
                    serde_json::Value::Null,
                ));
                entries.push(restored);
                let fetched = fetched.map(|text| {
                    let fetched = entry("2.11", "12.547", "memory_fetched", Some("2.9"), text);
                    with_data(fetched, 8, serde_json::Value::Null)
                });
                entries.extend(fetched);
                entries.extend(cost);
                restarts(&entries, 1)[0].memory.clone().unwrap()
            };
        let explained = |restored, cost| explained_with(restored, None, cost);
        let by_name = explained_with(
            restored(1, 61_200_000_000_u64),
            Some("n4 fetched 61 GB in 5.0 s"),
            Some(cost(Some(6), true)),
        );
        let named =
            "restored step 48,210 from memory; n4 fetched 61 GB in 5.0 s; 6 steps done again";
        assert_eq!(by_name, named);
        // Not all of them have finished.
        let fetched =
            "restored step 48,210 from memory, with 61 GB from other nodes; 6 steps done again";
        assert_eq!(explained(restored(1, 61_200_000_000_u64), Some(cost(Some(6), true))), fetched);
        let mut resharded = restored(3, 61_200_000_000);
        resharded.data["is_resharded"] = true.into();
        let saved = "restored step 48,210 from memory, saved with other ranks; 6 steps done again";
        assert_eq!(explained(resharded, Some(cost(Some(6), true))), saved);
        let own = "restored step 48,210 from memory; 1 step done again";
        assert_eq!(explained(restored(0, 0), Some(cost(Some(1), true))), own);
        let none = "restored step 48,210 from memory";
        assert_eq!(explained(restored(0, 0), Some(cost(Some(0), true))), none);
        assert_eq!(explained(restored(0, 0), Some(cost(None, true))), none);
        let begun = "the next round begins with step 48,210 from memory";
        assert_eq!(explained(restored(0, 0), None), begun);
        assert_eq!(explained(restored(0, 0), Some(cost(None, false))), begun);
    }

    /// A restart without memory names the newest reason of the round that has ended, if there is one.
    #[test]
    fn restart_without_memory_has_a_reason() {
        let memory = |entries: &[JournalEntry]| restarts(entries, 1)[0].memory.clone();
        let end = || entry("2.8", "07.416", "round_ended", None, "round 7 has ended");
        let off = |round| {
            let off = entry("2.5", "01.000", "memory_off", None, "memory is off");
            with_data(off, round, serde_json::Value::Null)
        };
        assert_eq!(memory(&[end()]), None);
        assert_eq!(memory(&[off(6), end()]), None, "of an earlier round");
        let expected = Some("nothing restored: memory is off".to_owned());
        assert_eq!(memory(&[off(7), end()]), expected);
        let struck = entry("2.9", "07.416", "memory_struck", None, "step 20 is not used again");
        let expected = Some("nothing restored: step 20 is not used again".to_owned());
        assert_eq!(memory(&[end(), struck.clone()]), expected);
        let text = JobExplanation::new(&snapshot(), &[end(), struck]).text();
        assert!(text.contains("\n  memory        nothing restored: step 20 is not used"), "{text}");
        let later = JournalEntry { id: EventId { number: 12, ..end().id }, ..off(8) };
        assert_eq!(memory(&[end(), later]), None, "of the next round");
    }

    /// The restart after the loss of the coordinator begins with the takeover. It is apart from the restart before it.
    #[test]
    fn takeover_is_a_restart() {
        let entries = [
            entry("2.8", "07.000", "round_ended", None, "round 7 has ended"),
            entry("2.9", "07.100", "round_admitted", Some("2.8"), "round 8 begins"),
            entry("3.1", "17.000", "coordinator_took_over", None, "n1 has taken over"),
            entry("3.2", "17.200", "round_admitted", Some("3.1"), "round 9 begins"),
            entry("3.3", "17.300", "restart_cost", Some("3.1"), "the restart took 0.3 s"),
            entry("4.1", "27.000", "coordinator_took_over", None, "n2 has taken over"),
            entry("4.2", "27.100", "round_ended", Some("4.1"), "round 9 has ended"),
        ];
        let found: Vec<_> = restarts(&entries, 5)
            .iter()
            .map(|restart| {
                (restart.steps.len(), restart.steps[0].text.clone(), restart.cost.clone())
            })
            .collect();
        let expected = [
            (2, "n2 has taken over", None),
            (2, "n1 has taken over", Some("the restart took 0.3 s".to_owned())),
            (2, "round 7 has ended", None),
        ];
        assert_eq!(found, expected.map(|(len, text, cost)| (len, text.to_owned(), cost)));
    }

    /// A restart that has just begun has no cost yet. A circle of causes ends, although no coordinator sends one.
    #[test]
    fn odd_journals_are_explained() {
        let entries = [
            entry("2.7", "07.412", "worker_failed", Some("2.8"), "failed"),
            entry("2.8", "07.416", "round_ended", Some("2.7"), "ended"),
        ];
        let text = JobExplanation::new(&snapshot(), &entries).text();
        assert!(text.contains("the restart is under way"), "{text}");
        let none = JobExplanation::new(&empty_snapshot(), &[]).text();
        assert!(none.ends_with("Time: none yet\n"), "{none}");
    }
}
