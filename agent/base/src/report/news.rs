//! Text about events: the agent's log lines about rounds, and the wording of ends and reasons that
//! log, report and status share.

pub mod round_lines;

use std::{error::Error, fmt::Write};

use ragent_core::{
    agent::{News, NoticeEnd, SavedHere, WaitReport},
    signal::Signal,
};
use ragent_rendezvous::{
    ids::RoundId,
    message::{
        DepartedNode, DepartedNodes, Departure, EvictReason, MemoryUnusable, Notice, NoticeKind,
        OomKill, RestartReason, UnusableReason, WaitReason, WorkerEnd,
    },
};
use tracing::{error, info, warn};

use crate::{
    net::Endpoint,
    report::{
        fold,
        status_text::progress::grouped,
        telemetry::{self, RECORD},
    },
};

/// Returns true if the news is a failure, so that the recent log lines are worth a file.
pub fn is_failure(news: &News) -> bool {
    match news {
        News::WorkerFailed(failure) => !matches!(failure.end, WorkerEnd::StandbyUnfit(_)),
        News::Cause(_) | News::Evicted(..) => true,
        News::Restarting(_, reason) => match reason {
            RestartReason::WorkerFailed { end: WorkerEnd::StandbyUnfit(_), .. } => false,
            RestartReason::WorkerFailed { .. }
            | RestartReason::NodeLost { .. }
            | RestartReason::BadMachine { .. }
            | RestartReason::MemoryUnusable { .. }
            | RestartReason::CoordinatorLost { .. }
            | RestartReason::CoordinatorRestarted => true,
            RestartReason::HostLeft
            | RestartReason::Notice { .. }
            | RestartReason::NodesWaiting { .. }
            | RestartReason::NodeLeft { .. } => false,
        },
        News::Admitted(_)
        | News::HostLeaving
        | News::Succeeded(_)
        | News::Waiting(..)
        | News::NoticeGiven(_)
        | News::NoticeOver(_)
        | News::MemoryOff(..)
        | News::ClientRefused(..) => false,
    }
}

/// Returns the warning that `node` does not reach the store of a round, and what to do.
pub fn store_unreached(node: &str, address: &str, why: &str) -> String {
    format!(
        "{node} does not reach the workers' store at {address}: {why}; the workers connect to each other on any port, so let a firewall pass \
         all ports between the nodes (`ragent doctor --peers` tests all pairs)"
    )
}

/// Logs one piece of news. If another agent on the same console warns of something that all agents
/// of a round report, `is_repeated` is true, and this one does not.
pub fn log(news: &News, is_repeated: bool) {
    match news {
        News::Admitted(admission) => info!(
            round = %admission.round,
            group_rank = admission.group_rank.0,
            nodes = admission.group_world_size,
            world_size = admission.world_size,
            master = %Endpoint {
                host: admission.master_address.clone(),
                port: admission.master_port,
            },
            restart_count = admission.restart_count,
            "admitted; starting workers"
        ),
        News::Evicted(round, reason) => {
            let reason = evicted(*reason);
            warn!(target: RECORD, %round, reason, "no longer a member of the round");
            telemetry::warning_line(&format!(
                "this node is no longer a member of round {}: {reason}",
                round.round
            ));
        }
        News::HostLeaving => {
            warn!("the coordinator's host is leaving; the job continues once that agent runs again")
        }
        News::Restarting(round, reason) => {
            info!(%round, reason = restarting(reason), "round has ended; stopping workers");
        }
        News::Succeeded(round) => {
            info!(%round, "all workers of this node have succeeded; waiting for the other nodes");
        }
        News::Waiting(round, reason) => info!(%round, reason = waiting(*reason), "waiting"),
        // A warning about its standby has announced it.
        News::WorkerFailed(failure) if matches!(failure.end, WorkerEnd::StandbyUnfit(_)) => {
            info!(round = %failure.round, rank = failure.global_rank.0, "{}", ended(&failure.end));
        }
        News::WorkerFailed(failure) => {
            let end = failed(&failure.end, failure.oom, &failure.hardware_lines());
            error!(
                target: RECORD,
                round = %failure.round,
                rank = failure.global_rank.0,
                local_rank = failure.local_rank.0,
                pid = failure.pid,
                end,
                "worker failed"
            );
            telemetry::error_line(&format!(
                "rank {} failed in round {}: {end} (local rank {}, process {})",
                failure.global_rank, failure.round.round, failure.local_rank, failure.pid
            ));
        }
        News::ClientRefused(round, address) => {
            let text = format!(
                "the store of round {} refused a connection from {address}: not from an address of \
                 a member, or not from the job's user there; if it was a worker of this job, give \
                 its address with `--local-addr` on its node, or `--store-access any` on all nodes",
                round.round
            );
            if is_repeated { info!("{text}") } else { warn!("{text}") }
        }
        News::NoticeGiven(notice) => info!("{}", notice_given(notice)),
        News::NoticeOver(end) => info!("{}", notice_over(end)),
        News::MemoryOff(round, why) => {
            let text = memory_off(*round, why);
            if is_repeated { info!("{text}") } else { warn!("{text}") }
        }
        News::Cause(failure) => {
            error!(
                target: RECORD,
                round = %failure.round,
                rank = failure.global_rank.0,
                local_rank = failure.local_rank.0,
                error_file = failure.error_file,
                "worker failed first: it wrote its error file before the round was stopped"
            );
            telemetry::error_line(&format!(
                "rank {} failed first in round {}: it wrote its error file {} before the round was \
                 stopped (local rank {})",
                failure.global_rank,
                failure.round.round,
                failure.error_file.as_deref().unwrap_or_default(),
                failure.local_rank
            ));
        }
    }
}

/// Describes how a worker ended.
pub fn ended(end: &WorkerEnd) -> String {
    match end {
        WorkerEnd::Exited(code) => format!("exited with code {code}"),
        WorkerEnd::Signaled(signal) => format!("killed by {}", signal_name(*signal)),
        WorkerEnd::NotStarted(reason) => format!("could not be started: {reason}"),
        WorkerEnd::KeeperLost => "killed because its keeper process has ended".to_owned(),
        WorkerEnd::Hung(time) if time.is_zero() => {
            "killed because it reported a hang (WATCHDOG=trigger)".to_owned()
        }
        WorkerEnd::Hung(time) => {
            format!("killed because it made no progress for {} s", time.as_secs_f64())
        }
        WorkerEnd::StandbyUnfit(reason) => format!("has to start again: {reason}"),
    }
}

/// Describes how a worker ended that has failed, with the first report of its node's hardware.
pub fn failed(end: &WorkerEnd, oom: Option<OomKill>, hardware: &[String]) -> String {
    let end = killed(end, oom);
    match hardware {
        [] => end,
        [only] => format!("{end}; {only}"),
        [first, others @ ..] => format!("{end}; {first} (and {} more)", others.len()),
    }
}

/// Describes how a worker ended, perhaps by the kernel.
pub(crate) fn killed(end: &WorkerEnd, oom: Option<OomKill>) -> String {
    if oom.is_some() {
        return "probably killed by the kernel for lack of memory (SIGKILL)".to_owned();
    }
    ended(end)
}

/// Returns a signal's name and number.
pub(crate) fn signal_name(number: i32) -> String {
    let signal = Signal(number);
    if signal.has_name() { format!("{signal} (signal {number})") } else { signal.to_string() }
}

/// Describes why a node is no longer a member.
pub fn evicted(reason: EvictReason) -> &'static str {
    match reason {
        EvictReason::DeathNotice => "its agent has ended",
        EvictReason::Silent => "it sent no message within its lease",
        EvictReason::NotBack => "it was not ready for the next round in time",
        EvictReason::Quarantined => "it failed shortly after a start",
    }
}

/// Describes nodes that were lost or have left.
pub fn departed_nodes(nodes: &DepartedNodes) -> String {
    let describe = |node: &DepartedNode| {
        let (host, seconds) = (&node.host_name, node.ago.as_secs());
        match node.how {
            Departure::AgentEnded => format!("{host} (its agent ended {seconds} s ago)"),
            Departure::Silent => format!("{host} (silent for {seconds} s)"),
            Departure::NotReady => {
                format!("{host} (evicted {seconds} s ago: not ready for the next round in time)")
            }
            Departure::Left => format!("{host} (left {seconds} s ago)"),
        }
    };
    let mut text = nodes.first.iter().map(describe).collect::<Vec<_>>().join(", ");
    if nodes.more > 0 {
        text.push_str(&format!(" and {} more", nodes.more));
    }
    text
}

/// Describes why a round has ended.
pub fn restarting(reason: &RestartReason) -> String {
    match reason {
        RestartReason::CoordinatorLost { host_name: Some(host) } => {
            format!("the coordinator on {host} was lost, and another process has taken over")
        }
        RestartReason::CoordinatorLost { host_name: None } => {
            "the coordinator was lost, and another process has taken over".to_owned()
        }
        RestartReason::CoordinatorRestarted => "the coordinator was restarted".to_owned(),
        RestartReason::HostLeft => "the coordinator's host is leaving".to_owned(),
        RestartReason::NodesWaiting { waiting: 1 } => {
            "a node is waiting and there is room for it".to_owned()
        }
        RestartReason::NodesWaiting { waiting } => {
            format!("{waiting} nodes are waiting and there is room for them")
        }
        RestartReason::NodeLeft { host_name } => format!("{host_name} has left"),
        RestartReason::Notice { hosts, .. } => match &hosts[..] {
            [] => "a notice was given".to_owned(),
            [host] => format!("{host} leaves"),
            hosts => format!("{} leave", hosts.join(", ")),
        },
        RestartReason::NodeLost { host_name, how } => {
            format!("{host_name} was lost: {}", evicted(*how))
        }
        RestartReason::BadMachine { host_name, reason } => {
            format!("{host_name} is unhealthy: {reason}")
        }
        RestartReason::MemoryUnusable { host_name, unusable } => {
            memory_unusable(host_name, unusable)
        }
        RestartReason::WorkerFailed { host_name, global_rank, end, oom, hardware } => {
            format!("rank {global_rank} on {host_name} {}", failed(end, *oom, hardware))
        }
    }
}

/// Describes why a node cannot use a checkpoint in memory.
fn memory_unusable(host_name: &str, unusable: &MemoryUnusable) -> String {
    let MemoryUnusable { checkpoint, why, text } = unusable;
    let why = match why {
        UnusableReason::Sum => "the checksum of its part is wrong",
        UnusableReason::Script => "the script has refused it",
        UnusableReason::SourceGone { sources } if sources.is_empty() => "it has freed its part",
        UnusableReason::SourceGone { .. } => "the nodes that hold its part do not answer",
    };
    let details = if text.is_empty() { String::new() } else { format!(" ({text})") };
    let step = grouped(checkpoint.step);
    format!("{host_name} cannot use step {step} from memory: {why}{details}")
}

/// Describes that a round goes on without checkpoints in memory.
fn memory_off(round: RoundId, why: &str) -> String {
    let round = round.round;
    format!(
        "checkpoints in memory are off in round {round}: {why}; the next round begins from a checkpoint on disk"
    )
}

/// Describes a notice to all ranks.
pub fn notice_given(notice: &Notice) -> String {
    let Notice { number, kind, hosts, left, text } = notice;
    let source = if text.is_empty() { String::new() } else { format!(" ({text})") };
    let what = match (kind, &hosts[..]) {
        (NoticeKind::Save, _) => return format!("notice {number}: a checkpoint is wanted"),
        (NoticeKind::Members, _) => "nodes join".to_owned(),
        (NoticeKind::Leave, [host]) => format!("{host} leaves"),
        (NoticeKind::Leave, hosts) => format!("{} leave", hosts.join(", ")),
        (NoticeKind::End, _) => "the job ends".to_owned(),
    };
    let seconds = left.unwrap_or_default().as_secs_f64().round();
    format!("notice {number}: {what}{source}; all ranks may save for {seconds} s")
}

/// Describes the end of a notice's phase.
pub fn notice_over(end: &NoticeEnd) -> String {
    let NoticeEnd { number, step, memory_step, here, after } = end;
    let seconds = after.as_secs_f64();
    let text = match (step, memory_step) {
        (Some(step), _) => {
            let step = grouped(*step);
            return format!("notice {number}: all ranks have saved step {step} after {seconds:.1} s");
        }
        (None, Some(step)) => {
            let step = grouped(*step);
            return format!(
                "notice {number}: all ranks have saved step {step} in memory after {seconds:.1} s"
            );
        }
        (None, None) => match here {
            SavedHere::OneStep => "ranks of other nodes have not saved".to_owned(),
            SavedHere::OtherSteps => {
                "the ranks of this node have saved different steps (call `ragent.should_save(step)` on every rank, at each step)".to_owned()
            }
            SavedHere::NotBy(ranks) => {
                let ranks = fold::numbers(ranks.iter().map(|rank| (rank.0, rank.0)));
                format!("these ranks of this node have not saved: {ranks} ({HOW_TO_REPORT})")
            }
            SavedHere::Nothing => format!("no rank of this node has saved ({HOW_TO_REPORT})"),
        },
    };
    format!("notice {number}: over after {seconds:.1} s; {text}")
}

const HOW_TO_REPORT: &str = "call `ragent.saved(step)` on every rank, or on one with `whole=True`";

/// Describes why a node waits.
pub fn waiting(reason: WaitReason) -> &'static str {
    match reason {
        WaitReason::Gathering => "the round is being formed",
        WaitReason::NextRound => "this node will be admitted to the next round",
        WaitReason::Spare => "the round is full; this node is a spare",
        WaitReason::Quarantined => {
            "this node failed soon after it joined, or repeatedly, and is quarantined: it takes part \
             again after 10 minutes without a failure, or when the job has too few nodes"
        }
        WaitReason::Recovering => "the coordinator is waiting for the members of the last round",
        WaitReason::Ending => "the job ends after its next checkpoint",
        WaitReason::Unhealthy => {
            "this machine is unhealthy, and takes part again when a check finds nothing"
        }
        WaitReason::Excluded => {
            "this host is excluded, and takes part again when `--exclude-command` does not print it"
        }
    }
}

/// Describes a wait that has taken a while.
pub fn waiting_for(wait: &WaitReport) -> String {
    match wait {
        WaitReport::NextRound(reason) => {
            format!("the next round is not complete: {}", reason.text)
        }
        WaitReport::OtherNodes => {
            "all workers of this node have succeeded; waiting for the workers \
                                   of the other nodes"
                .to_owned()
        }
    }
}

/// Formats an error and all of its causes on one line.
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        // Writing to a string does not fail.
        let _ = write!(text, ": {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Departed nodes are listed with the reason and the time of each, and the number of the others.
    #[test]
    fn departed_nodes_are_described() {
        let node = |host_name: &str, how, seconds| DepartedNode {
            host_name: host_name.to_owned(),
            how,
            ago: Duration::from_secs(seconds),
        };
        let first = vec![
            node("b", Departure::Silent, 603),
            node("c", Departure::AgentEnded, 601),
            node("d", Departure::NotReady, 600),
            node("e", Departure::Left, 600),
        ];
        assert_eq!(
            departed_nodes(&DepartedNodes { first: first.clone(), more: 14 }),
            "b (silent for 603 s), c (its agent ended 601 s ago), d (evicted 600 s ago: not ready \
             for the next round in time), e (left 600 s ago) and 14 more"
        );
        let one = DepartedNodes { first: first[..1].to_vec(), more: 0 };
        assert_eq!(departed_nodes(&one), "b (silent for 603 s)");
    }

    /// A takeover names the host of the lost coordinator, if it is known.
    #[test]
    fn takeover_names_the_host() {
        let text = |host_name: Option<&str>| {
            restarting(&RestartReason::CoordinatorLost { host_name: host_name.map(str::to_owned) })
        };
        let expected = "the coordinator on n0 was lost, and another process has taken over";
        assert_eq!(text(Some("n0")), expected);
        assert_eq!(text(None), expected.replace(" on n0", ""));
    }

    /// Every signal has a well-known name.
    #[test]
    fn signals_have_names() {
        assert_eq!(signal_name(9), "SIGKILL (signal 9)");
        assert_eq!(signal_name(34), "SIGRTMIN (signal 34)");
        assert_eq!(signal_name(36), "SIGRTMIN+2 (signal 36)");
        assert_eq!(signal_name(99), "SIGRTMIN+65 (signal 99)");
        assert_eq!(signal_name(0), "signal 0");
    }
}
