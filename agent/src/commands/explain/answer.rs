//! Explains parts of a job, such as its restarts or one node.

use std::{fmt::Write as _, time::Duration};

use ragent_base::report::{
    status_text::{stall, table},
    time_text::{self, short_time},
};
use ragent_rendezvous::snapshot::{
    JobTime, NodeSnapshot, NodeStateName, RestartsByCause, Snapshot, Stall,
};
use serde::Serialize;

use super::{
    advice::{self, Advice},
    details::{Happened, of_node},
    explanation::{ExplainedRestart, JobExplanation, list_of_sums, now, restarts},
    hardware::NodeHardware,
    topic::Topic,
};
use crate::commands::events::JournalEntry;

/// The number of restarts in the answer to `ragent explain restart`.
const RESTARTS_MAX: usize = 10;

/// The answer to `ragent explain stall` without steps.
const NO_STEPS: &str = "\
No step of this job is known, so a stall cannot be found (docs/progress.md shows how to report steps).
To see where the workers are, and for which rank they wait, type `ragent stacks` on a machine of the job.
";

/// The explanation of a part of a job.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum ExplainAnswer {
    Job(Box<JobExplanation>),
    Restart {
        run_id: String,
        now: String,
        /// The newest restarts, newest first.
        restarts: Vec<ExplainedRestart>,
        /// The restarts so far, by cause.
        by_cause: Vec<RestartsByCause>,
    },
    Time {
        run_id: String,
        now: String,
        time: JobTime,
        /// The changes that the numbers suggest.
        advice: Vec<Advice>,
    },
    Wait {
        run_id: String,
        now: String,
        /// The reason why the next round is not complete yet.
        waits_for: Option<String>,
        /// The nodes that the next round waits for: their workers do not run, and they are not ready.
        nodes: Vec<NodeSnapshot>,
        /// The voters that do not answer.
        silent_voters: Vec<String>,
    },
    Stall {
        run_id: String,
        /// The stall; `None` if the workers make progress.
        stall: Option<Stall>,
        /// The usual time of a step, if known.
        #[serde(skip)]
        usual: Option<Duration>,
        /// True if the script gives no sign of progress, so that no stall can be found.
        is_unknown: bool,
    },
    Rank {
        run_id: String,
        rank: u32,
        world_size: u32,
        /// Its rank on its node; `None` if no member has it.
        local_rank: Option<u32>,
        /// Its node.
        node: Option<Box<NodeSnapshot>>,
        /// Its newest events, newest first.
        events: Vec<Happened>,
    },
    Node {
        run_id: String,
        host: String,
        /// The nodes on that host.
        nodes: Vec<NodeSnapshot>,
        /// Their hardware, as their agents report it.
        hardware: Vec<NodeHardware>,
        /// Their newest events, newest first.
        events: Vec<Happened>,
    },
}

impl ExplainAnswer {
    /// Explains a part of a job by its state and its journal, which has the oldest event first.
    pub(super) fn new(topic: &Topic, snapshot: &Snapshot, entries: &[JournalEntry]) -> Self {
        let run_id = snapshot.run_id.to_string();
        match topic {
            Topic::Job => Self::Job(Box::new(JobExplanation::new(snapshot, entries))),
            Topic::Restart => Self::Restart {
                run_id,
                now: now(snapshot),
                restarts: restarts(entries, RESTARTS_MAX),
                by_cause: snapshot.restarts.clone(),
            },
            Topic::Time => Self::Time {
                run_id,
                now: now(snapshot),
                time: snapshot.time.clone(),
                advice: advice::of(snapshot),
            },
            Topic::Wait => Self::Wait {
                run_id,
                now: now(snapshot),
                waits_for: snapshot.incomplete.as_ref().map(|why| why.text.clone()),
                nodes: snapshot.nodes.iter().filter(|node| is_missing(node)).cloned().collect(),
                silent_voters: (snapshot.voters.iter())
                    .filter(|voter| voter.is_silent())
                    .map(|voter| voter.endpoint.clone())
                    .collect(),
            },
            Topic::Stall => Self::Stall {
                run_id,
                stall: snapshot.stall.clone(),
                usual: snapshot.progress.and_then(|progress| progress.step_time),
                is_unknown: snapshot.time.now.as_deref() == Some("unknown"),
            },
            Topic::Rank(rank) => {
                let place = snapshot.nodes.iter().find_map(|node| {
                    let local = rank.checked_sub(node.first_global_rank?.0)?;
                    (local < node.local_world_size).then_some((local, node))
                });
                let is_about = |entry: &JournalEntry| entry.data["rank"] == *rank;
                Self::Rank {
                    run_id,
                    rank: *rank,
                    world_size: snapshot.world_size,
                    local_rank: place.map(|(local, _)| local),
                    node: place.map(|(_, node)| Box::new(node.clone())),
                    events: Happened::newest(entries, is_about),
                }
            }
            Topic::Node(host) => {
                let is_there = |node: &&NodeSnapshot| node.host_name == *host;
                Self::Node {
                    run_id,
                    host: host.clone(),
                    nodes: snapshot.nodes.iter().filter(is_there).cloned().collect(),
                    hardware: Vec::new(),
                    events: Happened::newest(entries, |entry| entry.host.as_ref() == Some(host)),
                }
            }
        }
    }

    /// Returns the explanation for people.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        match self {
            Self::Job(explanation) => text = explanation.text(),
            Self::Restart { run_id, now, restarts, by_cause } => {
                let _ = writeln!(text, "{run_id} {now}");
                if restarts.is_empty() {
                    let _ = writeln!(text, "No round has ended.");
                }
                restarts.iter().for_each(|restart| restart.write(&mut text));
                text += &list_of_sums(by_cause);
            }
            Self::Time { run_id, now, time, advice } => {
                let _ = writeln!(text, "{run_id} {now}");
                write_time(&mut text, time);
                for advice in advice {
                    let _ = writeln!(text, "What would help: {}", advice.text);
                }
            }
            Self::Wait { run_id, now, waits_for, nodes, silent_voters } => {
                let _ = writeln!(text, "{run_id} {now}");
                write_wait(&mut text, waits_for.as_deref(), nodes, silent_voters);
            }
            Self::Stall { stall: None, is_unknown: true, .. } => text += NO_STEPS,
            Self::Stall { stall: None, .. } => {
                text += "The workers are not stalled. `ragent stacks` shows where they are now.\n";
            }
            Self::Stall { stall: Some(stall), usual, .. } => {
                for line in stall::lines(stall, *usual) {
                    let _ = writeln!(text, "{line}");
                }
            }
            Self::Rank { run_id, rank, world_size, local_rank, node, events } => {
                match (local_rank, node) {
                    (Some(local), Some(node)) => {
                        let host = &node.host_name;
                        let _ =
                            writeln!(text, "Rank {rank} of {run_id}: local rank {local} on {host}");
                        text += &of_node(node);
                    }
                    _ => {
                        let _ = writeln!(
                            text,
                            "{run_id} has no rank {rank}: its newest round has {world_size} workers"
                        );
                    }
                }
                text += &Happened::list(events);
            }
            Self::Node { run_id, host, nodes, hardware, events } => {
                if nodes.is_empty() {
                    let _ = writeln!(text, "{run_id} has no node on {host}");
                }
                let of_node = |node: &NodeSnapshot| {
                    let own = |of: &&NodeHardware| of.node_id == node.node_id.as_str();
                    let hardware = hardware.iter().find(own).map(NodeHardware::text);
                    of_node(node) + &hardware.unwrap_or_default()
                };
                text += &nodes.iter().map(of_node).collect::<Vec<_>>().join("\n");
                text += &Happened::list(events);
            }
        }
        text
    }
}

/// Returns true if the next round waits for this node: its workers do not run, and it is not ready.
fn is_missing(node: &NodeSnapshot) -> bool {
    match node.state {
        NodeStateName::Running
        | NodeStateName::Succeeded
        | NodeStateName::Joined
        | NodeStateName::Spare => false,
        NodeStateName::Preparing
        | NodeStateName::Stopping
        | NodeStateName::Failed
        | NodeStateName::Leaving
        | NodeStateName::Waiting
        | NodeStateName::Quarantined
        | NodeStateName::Unhealthy
        | NodeStateName::Excluded
        | NodeStateName::Lost => true,
    }
}

fn write_time(text: &mut String, time: &JobTime) {
    let _ = writeln!(text, "Time: {}", time_text::of_account(time));
    let all = time.age_ms();
    for state in time.states.iter().filter(|state| state.ms > 0) {
        let share = state.ms as f64 * 100.0 / all as f64;
        let _ =
            writeln!(text, "  {:<11} {:>12}  {share:>5.1} %", state.state, short_time(state.ms));
    }
    if time.redone_ms > 0 {
        let redone = short_time(time.redone_ms);
        let _ = writeln!(text, "  {redone} of the productive time were done again after a failure");
    }
    if let Some(now) = &time.now {
        let _ = writeln!(text, "  now: {now}");
    }
}

fn write_wait(
    text: &mut String,
    waits_for: Option<&str>,
    nodes: &[NodeSnapshot],
    silent_voters: &[String],
) {
    let _ = match waits_for {
        Some(why) => writeln!(text, "  not complete: {why}"),
        None => writeln!(text, "  it does not wait for nodes"),
    };
    for group in table::groups(nodes) {
        let group: Vec<&NodeSnapshot> = group.into_iter().map(|index| &nodes[index]).collect();
        let [_, hosts, _, state, _] = table::row(&group);
        let _ = writeln!(text, "  {state}: {hosts}");
    }
    if !silent_voters.is_empty() {
        let _ = writeln!(text, "  no answer from the voters {}", silent_voters.join(", "));
    }
}

#[cfg(test)]
mod tests;
