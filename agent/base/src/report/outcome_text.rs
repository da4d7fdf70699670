//! How a job has ended, as text.

use std::fmt::Write as _;

use ragent_rendezvous::{
    ids::Round,
    message::{JobResult, Outcome},
    settings::SharedSettings,
};

use super::{failure::failure, news, status_text::progress::grouped};
use crate::sys::clock;

/// Describes how a job ended, for people.
pub fn closed(outcome: &Outcome, title: &str) -> String {
    match &outcome.result {
        JobResult::Succeeded => "ragent: the job has succeeded".to_owned(),
        JobResult::Saved { step } => format!(
            "ragent: the job is saved at step {}: start it again, and it goes on from there",
            grouped(*step)
        ),
        JobResult::NoProgress { rounds, step } => {
            let rounds: Vec<String> = rounds.iter().map(ToString::to_string).collect();
            let place = match step {
                Some(step) => format!("at step {}", grouped(*step)),
                None => "before a first step".to_owned(),
            };
            let what = format!(
                "error: the job fails again and again before a new step; another start would too\n  \
                 rounds {}  {place}\n{}",
                rounds.join(", "),
                failure(outcome, title)
            );
            let hint = "correct what fails, or start the job from an older checkpoint; \
                        `--no-progress-limit 0` restarts it nevertheless";
            with_hint(what, Some(hint))
        }
        JobResult::BudgetSpent | JobResult::FinalFailure => failure(outcome, title),
        JobResult::JoinTimeout { present, min, waited, after, departed } => {
            let (seconds, missing) = (waited.as_secs(), min.saturating_sub(*present));
            let when = match after {
                Round(0) => format!("after {seconds} s"),
                round => {
                    format!("{seconds} s after the end of round {round} or the last loss of a node")
                }
            };
            let mut what = format!(
                "error: only {present} of at least {min} nodes had joined {when}; {missing} missing"
            );
            if !departed.first.is_empty() {
                let departed = news::departed_nodes(departed);
                // Writing to a string does not fail.
                let _ = write!(what, "\n  nodes that were lost or have left: {departed}");
            }
            let hint = "start the missing nodes, lower MIN in `--nnodes`, or raise `join_timeout`";
            with_hint(what, Some(hint))
        }
        JobResult::RecoveryTimeout { present, needed, waited } => with_hint(
            format!(
                "error: the coordinator was started without the job's state, and only {present} \
                 of at least {needed} nodes had joined after {} s\n  caused by: the other nodes \
                 may run the job with another coordinator, so half of the last round or fewer do \
                 not continue without them",
                waited.as_secs()
            ),
            Some("start the missing nodes, or end all agents and start the job again"),
        ),
        JobResult::AllLeft => match outcome.complete_step {
            Some(step) => format!(
                "ragent: all nodes have left; the job is saved at step {}: start it again, and it goes on from there",
                grouped(step)
            ),
            None => "ragent: all nodes have left the job".to_owned(),
        },
        JobResult::OtherJob { endpoint, born_ms: None } => with_hint(
            format!("error: this job did not begin within `join_timeout`: {endpoint}"),
            Some(
                "start the missing voters of that job again, or use another `--rdzv-id` for a new job",
            ),
        ),
        JobResult::OtherJob { endpoint, born_ms: Some(born_ms) } => with_hint(
            format!(
                "error: another job of this name, begun at {}, runs at {endpoint}; this one is closed",
                clock::time_of_day_at(*born_ms)
            ),
            Some(
                "start the agents again, and they join that job; if you want both jobs, give each a name of its own (`--rdzv-id`)",
            ),
        ),
        JobResult::LoopbackMaster { address, host_name } => loopback(address, host_name),
        JobResult::RestartLoop { rounds } => with_hint(
            format!(
                "error: the job was restarted {rounds} times in a row because nodes or the \
                 coordinator were lost, and never ran for 10 minutes in between"
            ),
            Some(
                "find out what ends agents or disconnects them (out of memory, a watchdog, the \
                 network): the `round has ended` lines of `agent.log`, or of `RAGENT_LOG=info`, name the nodes",
            ),
        ),
        JobResult::AllQuarantined => {
            let what = "error: every available node failed repeatedly and was quarantined";
            match &outcome.first_failure {
                Some(_) => format!("{what}\n{}", failure(outcome, title)),
                None => what.to_owned(),
            }
        }
    }
}

fn loopback(address: &str, host_name: &str) -> String {
    with_hint(
        format!(
            "error: {host_name} has the address {address}, which other machines cannot reach, \
             but the job has nodes on other machines"
        ),
        Some("give an address that all nodes can reach as `--rdzv-endpoint` or `--local-addr`"),
    )
}

/// Adds a hint to the text of an error.
pub fn with_hint(mut text: String, hint: Option<&str>) -> String {
    if let Some(hint) = hint {
        // Writing to a string does not fail.
        let _ = write!(text, "\nhint: {hint}");
    }
    text
}

/// Lists the settings that differ between two nodes, with both values.
pub fn differences(here: &SharedSettings, there: &SharedSettings) -> String {
    let seconds = |duration: std::time::Duration| format!("{} s", duration.as_secs_f64());
    let backend = |settings: &SharedSettings| if settings.fixed_ranks { "static" } else { "c10d" };
    let hangs = |settings: &SharedSettings| if settings.hang_auto { "auto" } else { "not auto" };
    let program =
        |settings: &SharedSettings| if settings.as_torchrun { "torchrun" } else { "ragent" };
    let rows = [
        ("--nnodes", here.nodes.to_string(), there.nodes.to_string()),
        ("--rdzv-backend", backend(here).to_owned(), backend(there).to_owned()),
        ("--max-restarts", here.max_restarts.to_string(), there.max_restarts.to_string()),
        ("join_timeout", seconds(here.timeouts.join), seconds(there.timeouts.join)),
        ("last_call_timeout", seconds(here.timeouts.last_call), seconds(there.timeouts.last_call)),
        ("join_settle", seconds(here.timeouts.join_settle), seconds(there.timeouts.join_settle)),
        ("shrink_timeout", seconds(here.timeouts.shrink), seconds(there.timeouts.shrink)),
        (
            "--shutdown-timeout",
            seconds(here.timeouts.stop_grace),
            seconds(there.timeouts.stop_grace),
        ),
        ("--notice", seconds(here.notice), seconds(there.notice)),
        (
            "--no-progress-limit",
            here.no_progress_limit.to_string(),
            there.no_progress_limit.to_string(),
        ),
        ("--hang-timeout", hangs(here).to_owned(), hangs(there).to_owned()),
        ("--memory-copies", here.memory_copies.to_string(), there.memory_copies.to_string()),
        ("the name of the program", program(here).to_owned(), program(there).to_owned()),
        ("--store-access", here.store_access.to_string(), there.store_access.to_string()),
    ];
    let differing = rows.into_iter().filter(|(_, here, there)| here != there);
    differing
        .map(|(name, here, there)| format!("{name} is {here} here and {there} there"))
        .collect::<Vec<_>>()
        .join(", ")
}
