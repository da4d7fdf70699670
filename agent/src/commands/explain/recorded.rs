//! Explains a job from a file of `--journal`, which has no current state.

use std::{collections::BTreeMap, fmt::Write as _};

use ragent_options::spec::UsageError;
use ragent_rendezvous::{
    event::{EventId, RestartCause, RestartSum},
    snapshot::RestartsByCause,
};
use serde::Serialize;

use super::{
    details::Happened,
    explanation::{ExplainedRestart, list_of_sums, restarts},
    topic::Topic,
};
use crate::commands::events::{JournalEntry, RecordedRun};

/// The number of restarts in the explanation of the job.
const OF_JOB: usize = 3;

/// The number of restarts in the answer to `restart`.
const OF_RESTART: usize = 10;

/// The explanation of a recorded run.
#[derive(Debug, Serialize)]
pub(super) struct Recorded {
    run_id: String,
    job_uid: String,
    /// The time of the newest event.
    until: String,
    /// The newest event.
    last: String,
    /// The newest round.
    round: u64,
    /// The number of events that were read.
    events_read: usize,
    /// True if older events of the run were omitted.
    is_cut: bool,
    /// True if the file has events of other runs.
    has_other_runs: bool,
    /// The number of lines that are not events.
    other_lines: u64,
    #[serde(flatten)]
    part: Part,
}

/// The part that is explained.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Part {
    Restarts {
        /// The newest restarts, newest first.
        restarts: Vec<ExplainedRestart>,
        /// All restarts in the journal, by cause.
        by_cause: Vec<RestartsByCause>,
    },
    Events {
        /// The newest events of a worker or host, or about stalls, newest first.
        events: Vec<Happened>,
    },
}

impl Recorded {
    /// Explains a run, or a part of it.
    ///
    /// # Errors
    ///
    /// Returns [`UsageError`] for a topic that needs the current state of the job.
    pub(super) fn new(topic: &Topic, run: &RecordedRun) -> Result<Self, UsageError> {
        let entries = &run.entries[..];
        let restarts = |most| Part::Restarts {
            restarts: restarts(entries, most),
            by_cause: by_cause(entries),
        };
        let part = match topic {
            Topic::Job => restarts(OF_JOB),
            Topic::Restart => restarts(OF_RESTART),
            Topic::Rank(rank) => Part::Events {
                events: Happened::newest(entries, |entry| entry.data["rank"] == *rank),
            },
            Topic::Node(host) => Part::Events {
                events: Happened::newest(entries, |entry| entry.host.as_ref() == Some(host)),
            },
            Topic::Stall => Part::Events {
                events: Happened::newest(entries, |entry| entry.kind.starts_with("stall_")),
            },
            Topic::Time => return Err(needs_state("time")),
            Topic::Wait => return Err(needs_state("wait")),
        };
        let last = entries.last();
        let of_last = |get: fn(&JournalEntry) -> String| last.map(get).unwrap_or_default();
        Ok(Self {
            run_id: of_last(|entry| entry.run_id.clone()),
            job_uid: of_last(|entry| entry.job_uid.clone()),
            until: of_last(|entry| entry.at.to_string()),
            last: of_last(|entry| entry.text.clone()),
            round: last.map_or(0, |entry| entry.round),
            events_read: entries.len(),
            is_cut: run.is_cut,
            has_other_runs: run.has_others,
            other_lines: run.other_lines,
            part,
        })
    }

    /// Returns the explanation for people.
    pub(super) fn text(&self) -> String {
        let Self { run_id, job_uid, until, last, round, .. } = self;
        let mut text = format!(
            "{run_id} until {until}, at round {round}: the journal ends there.\n  last event: {last}\n"
        );
        // Writing to a string does not fail.
        if self.has_other_runs {
            let _ = writeln!(
                text,
                "  the file has several runs; this is the newest one, with job_uid {job_uid}"
            );
        }
        if self.is_cut {
            let count = self.events_read;
            let _ = writeln!(text, "  only the newest {count} events of the run were read");
        }
        if self.other_lines > 0 {
            let count = self.other_lines;
            let _ = writeln!(text, "  lines of the file that are not events: {count}");
        }
        match &self.part {
            Part::Restarts { restarts, by_cause } => {
                if restarts.is_empty() {
                    let _ = writeln!(text, "No round has ended.");
                }
                restarts.iter().for_each(|restart| restart.write(&mut text));
                text += &list_of_sums(by_cause);
            }
            Part::Events { events } if events.is_empty() => {
                let _ = writeln!(text, "The journal has no events of it.");
            }
            Part::Events { events } => text += &Happened::list(events),
        }
        text
    }
}

fn needs_state(topic: &str) -> UsageError {
    UsageError::new(format!(
        "`ragent explain {topic}` needs the current state of the job, which a journal does not have"
    ))
    .with_hint("with `--journal`, topics are `restart`, `stall`, `rank N` and `node HOST`; without one, the job is explained")
}

/// Sums the costs of restarts by cause. A later cost with the same cause replaces an earlier one.
fn by_cause(entries: &[JournalEntry]) -> Vec<RestartsByCause> {
    let costs = entries.iter().filter(|entry| entry.kind == "restart_cost");
    let newest: BTreeMap<EventId, &JournalEntry> =
        costs.map(|entry| (entry.cause.unwrap_or(entry.id), entry)).collect();
    let mut sums: BTreeMap<RestartCause, RestartSum> = BTreeMap::new();
    for entry in newest.values() {
        // A later version may have other causes.
        let why = RestartCause::ALL.into_iter().find(|why| entry.data["why"] == why.name());
        let Some(why) = why else { continue };
        let sum = sums.entry(why).or_default();
        sum.count = sum.count.saturating_add(1);
        sum.cost_ms = sum.cost_ms.saturating_add(cost_ms(entry));
        let redone = entry.data["redone_steps"].as_u64().unwrap_or(0);
        sum.redone_steps = sum.redone_steps.saturating_add(redone);
    }
    sums.into_iter().map(|(cause, sum)| RestartsByCause { cause, sum }).collect()
}

fn cost_ms(entry: &JournalEntry) -> u64 {
    let stages = ["stopping_ms", "waiting_ms", "rendezvous_ms", "starting_ms"];
    let ms = stages.map(|stage| entry.data["stages"][stage].as_u64().unwrap_or(0));
    ms.into_iter().fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn entry(id: &str, second: u32, kind: &str, cause: Option<&str>, data: Value) -> JournalEntry {
        let line = json!({
            "schema": 1, "id": id, "at": format!("2026-11-21T20:31:{second:02}Z"), "round": 7,
            "run_id": "j", "job_uid": "u", "kind": kind, "cause": cause,
            "text": format!("text of {kind}"), "host": "n1", "data": data,
        });
        JournalEntry::read(&line.to_string()).expect("an event")
    }

    fn cost(why: &str, starting_ms: u64, redone: Option<u64>) -> Value {
        let stages = json!({"stopping_ms": 10, "waiting_ms": 0, "rendezvous_ms": 5, "starting_ms": starting_ms});
        json!({"why": why, "stages": stages, "redone_steps": redone, "is_complete": true})
    }

    fn run() -> RecordedRun {
        let entries = vec![
            entry("1.1", 0, "coordinator_started", None, Value::Null),
            entry("1.2", 1, "restart_cost", Some("1.1"), cost("first_start", 85, None)),
            entry("1.3", 2, "worker_failed", None, json!({"rank": 3})),
            entry("1.4", 3, "round_ended", Some("1.3"), Value::Null),
            entry("1.5", 4, "restart_cost", Some("1.4"), cost("worker_failed", 85, None)),
            entry("1.6", 5, "restart_cost", Some("1.4"), cost("worker_failed", 985, Some(7))),
            entry("1.7", 6, "round_ended", None, Value::Null),
            entry("1.8", 7, "restart_cost", Some("1.7"), cost("worker_failed", 85, None)),
            entry("1.9", 8, "restart_cost", None, cost("a later one", 85, None)),
        ];
        RecordedRun { entries, ..RecordedRun::default() }
    }

    /// A recorded run is explained by its restarts and their sums. A cost that was replaced does not count.
    #[test]
    fn restarts_are_explained() {
        let text = Recorded::new(&Topic::Job, &run()).unwrap().text();
        let begin = "j until 2026-11-21T20:31:08Z, at round 7: the journal ends there.\n  \
                     last event: text of restart_cost\nRound 7 has ended:\n";
        assert!(text.starts_with(begin), "{text}");
        let end = "Starts so far, by cause:\n  \
                   1 × first start: 100 ms\n  \
                   2 × failure of a worker: 1.1 s, 7 steps done again\n";
        assert!(text.ends_with(end), "{text}");
        assert!(text.contains("  text of worker_failed\n"), "{text}");
        let whole = RecordedRun { is_cut: true, has_others: true, other_lines: 2, ..run() };
        let text = Recorded::new(&Topic::Restart, &whole).unwrap().text();
        for part in [
            "the file has several runs; this is the newest one, with job_uid u\n",
            "only the newest 9 events of the run were read\n",
            "lines of the file that are not events: 2\n",
        ] {
            assert!(text.contains(part), "no `{part}` in {text}");
        }
    }

    /// Workers and hosts have their events. Topics that need the state of the job are refused.
    #[test]
    fn parts_are_explained() {
        let text = |topic| Recorded::new(&topic, &run()).unwrap().text();
        let rank = text(Topic::Rank(3));
        assert!(rank.contains("Events, newest first:\n"), "{rank}");
        assert_eq!(rank.matches("text of worker_failed").count(), 1, "{rank}");
        assert!(text(Topic::Rank(4)).ends_with("The journal has no events of it.\n"));
        assert_eq!(text(Topic::Node("n1".to_owned())).matches("  text of ").count(), 9);
        for topic in [Topic::Time, Topic::Wait] {
            let error = Recorded::new(&topic, &run()).unwrap_err().to_string();
            assert!(error.contains("needs the current state of the job"), "{error}");
        }
        let json = serde_json::to_value(Recorded::new(&Topic::Job, &run()).unwrap()).unwrap();
        assert_eq!((&json["run_id"], &json["events_read"]), (&json!("j"), &json!(9)), "{json}");
        assert_eq!(json["by_cause"][0]["cause"], "first_start", "{json}");
    }
}
