//! The sentence of each event of a job.

use std::time::Duration;

use ragent_rendezvous::{
    event::{Event, EventKind, FreeReason, RestartCause, RestartCost},
    message::Notice,
    snapshot::size,
};

use super::{
    news::{evicted, failed, notice_given, restarting},
    status_text::{progress::grouped, stall::stalled},
    time_text::short_time,
};

/// Returns what happened, as a sentence without a full stop.
pub fn sentence(event: &Event) -> String {
    let round = event.round;
    let host = event.node.as_ref().map_or("a node", |node| node.host_name.as_str());
    match &event.kind {
        EventKind::CoordinatorStarted { nodes: 0, .. } => "the coordinator has started".to_owned(),
        EventKind::CoordinatorStarted { nodes, restarts_used } => format!(
            "the coordinator has started again; round {round} had {nodes} nodes, and {restarts_used} restarts \
             are used"
        ),
        EventKind::CoordinatorTookOver { lost_host, .. } => match lost_host {
            Some(lost) => {
                format!("another process has taken over the job from the coordinator on {lost}")
            }
            None => "another process has taken over the job".to_owned(),
        },
        EventKind::RunAdopted => {
            format!("the run of {host} was adopted: the coordinator had no state")
        }
        EventKind::StateLearned { nodes, restarts_used } => format!(
            "{host} knows round {round} of {nodes} nodes, with {restarts_used} restarts used"
        ),
        EventKind::Recovering => format!("waiting for the members of round {round}"),
        EventKind::RunBegan { .. } => {
            "no node of the last round is left; a new run begins".to_owned()
        }
        EventKind::CoordinatorLeaving => "the coordinator's host is leaving".to_owned(),
        EventKind::CoordinatorEnded { hands_over: true } => {
            "the coordinator has ended; another process continues the job".to_owned()
        }
        EventKind::CoordinatorEnded { hands_over: false } => "the coordinator has ended".to_owned(),
        EventKind::Gathering => "waiting for nodes".to_owned(),
        EventKind::Recovered { back, nodes } => {
            format!("{back} of {nodes} members of round {round} are back")
        }
        EventKind::RoundAdmitted { nodes, workers, newcomers } => format!(
            "round {round} begins with {} and {}; {}",
            counted(*nodes, "node"),
            counted(*workers, "worker"),
            match newcomers {
                0 => "no node is new".to_owned(),
                1 => "1 node is new".to_owned(),
                some => format!("{some} nodes are new"),
            }
        ),
        EventKind::WorkersStarted => format!("all workers of round {round} run"),
        EventKind::FirstProgress { step } => {
            format!("the workers of round {round} make progress, at step {step}")
        }
        EventKind::RoundEnded { reason } => {
            format!("round {round} has ended: {}", restarting(reason))
        }
        EventKind::RoundStopped => format!("no process of round {round} is left"),
        EventKind::RoundStillStopping => {
            format!("a member still has processes of round {round}")
        }
        EventKind::StallBegan { step, after_ms } => stalled(*step, *after_ms),
        EventKind::StallExplained { text, .. } => format!("why the workers are stalled: {text}"),
        EventKind::StallEnded { step: Some(step), after_ms } => format!(
            "the workers make progress again, at step {}, after {}",
            grouped(*step),
            short_time(*after_ms)
        ),
        EventKind::StallEnded { step: None, after_ms } => {
            format!("the round has ended after {} without progress", short_time(*after_ms))
        }
        EventKind::MemoryRestored { step, bytes, is_resharded: true, .. } => format!(
            "round {round} begins with step {} from memory, saved with other ranks; its nodes read what they need \
             of {}",
            grouped(*step),
            size(*bytes)
        ),
        EventKind::MemoryRestored { step, fetching: 0, .. } => format!(
            "round {round} begins with step {} from memory; every node has its part",
            grouped(*step)
        ),
        EventKind::MemoryRestored { step, fetching, bytes, .. } => format!(
            "round {round} begins with step {} from memory; {} {} from others",
            grouped(*step),
            match fetching {
                1 => "1 node fetches".to_owned(),
                some => format!("{some} nodes fetch"),
            },
            size(*bytes)
        ),
        EventKind::MemoryFetched { nodes, fetching, bytes, longest_ms } => format!(
            "{} fetched {}{} in {}",
            fetchers(nodes, *fetching),
            size(*bytes),
            if *fetching > 1 { " in all, the slowest" } else { "" },
            short_time(*longest_ms)
        ),
        EventKind::MemoryStruck { step, reason } => {
            format!("step {} in memory is not used again: {}", grouped(*step), reason.text())
        }
        EventKind::MemoryOff { reason } => format!("checkpoints in memory are off: {reason}"),
        EventKind::SaveFailed { reason } => format!("failed to write a checkpoint: {reason}"),
        EventKind::RestartCost(cost) => cost_sentence(cost),
        EventKind::WorkerFailed { rank, end, oom, hardware, .. } => {
            format!("rank {rank} on {host} {}", failed(end, *oom, hardware))
        }
        EventKind::FailureCharged { restarts_used, max_restarts, others } => {
            let others = match others {
                0 => String::new(),
                some => format!(" (and {} failed)", counted(*some, "other node")),
            };
            format!(
                "the failure on {host}{others} is charged: {restarts_used} of {max_restarts} restarts"
            )
        }
        EventKind::FailureNotCharged { reason } => {
            let why = match reason {
                FreeReason::MemberLost => "a member was lost at the same time",
                FreeReason::StandbyUnfit => "a standby did not fit the script",
                FreeReason::MemoryUnusable => "a checkpoint in memory could not be used",
                FreeReason::BadMachine => {
                    "the machine is unhealthy, and the other nodes reach MIN of `--nnodes`"
                }
            };
            format!("the failure is not charged: {why}")
        }
        EventKind::NoticeGiven { notice, about, hosts, source, left_ms } => notice_given(&Notice {
            number: *notice,
            kind: *about,
            hosts: hosts.clone(),
            left: left_ms.map(Duration::from_millis),
            text: source.clone(),
        }),
        EventKind::NoticeOver { notice, is_withdrawn: true, .. } => {
            format!("notice {notice}: withdrawn, the waiting nodes are gone")
        }
        EventKind::NoticeOver { notice, step: Some(step), after_ms, .. } => format!(
            "notice {notice}: all ranks have saved step {} after {}",
            grouped(*step),
            short_time(*after_ms)
        ),
        EventKind::NoticeOver { notice, memory_step: Some(step), after_ms, .. } => format!(
            "notice {notice}: all ranks have saved step {} in memory after {}",
            grouped(*step),
            short_time(*after_ms)
        ),
        EventKind::NoticeOver { notice, missing, after_ms, .. } => format!(
            "notice {notice}: over after {}; {}",
            short_time(*after_ms),
            match missing.as_str() {
                "" => "the ranks have saved different steps".to_owned(),
                missing => format!("not all ranks of these nodes have saved: {missing}"),
            }
        ),
        EventKind::NodeLost { how, .. } => format!("{host} was lost: {}", evicted(*how)),
        EventKind::NodeLeaseExpired => {
            format!(
                "{host} has stopped its workers: no answer of the coordinator had reached it within its lease"
            )
        }
        EventKind::NodeLeft => format!("{host} has left"),
        EventKind::NodeQuarantined => {
            format!("{host} is quarantined: it failed soon after it joined, or repeatedly")
        }
        EventKind::NodeReplaced { by } => {
            format!("{by} takes the place of {host}, whose worker has failed")
        }
        EventKind::NodeReleased { early: true } => {
            format!("{host} is not quarantined any more: the job needs it")
        }
        EventKind::NodeReleased { early: false } => {
            format!("{host} is not quarantined any more")
        }
        EventKind::NodeUnhealthy { class, reason, is_set_aside } => {
            let place = if *is_set_aside { "it gets no place" } else { "it keeps its place" };
            format!("{host} is unhealthy ({}): {reason}; {place}", class.name())
        }
        EventKind::NodeHealthy => format!("{host} is healthy again"),
        EventKind::NodeExcluded { reason: Some(reason) } => {
            format!("{host} is excluded, and gets no place in the next round: {reason}")
        }
        EventKind::NodeExcluded { reason: None } => format!("{host} is not excluded any more"),
        EventKind::NodeRefused { reason } => {
            format!("the registration of {host} was refused ({reason})")
        }
        EventKind::StoreClientsRefused { addresses } => {
            format!(
                "the store of round {round} has refused connections from {}",
                addresses.join(", ")
            )
        }
        EventKind::VotersChanged { voters } if voters.is_empty() => {
            "the job has no voters".to_owned()
        }
        EventKind::VotersChanged { voters } => format!("the voters are {}", voters.join(", ")),
        EventKind::VoterSilent { voter } => format!("the voter {voter} does not answer"),
        EventKind::VoterBack { voter } => format!("the voter {voter} answers again"),
        EventKind::JobClosed { result } => format!("the job is closed: {}", result.name()),
    }
}

fn cost_sentence(cost: &RestartCost) -> String {
    let what = match cost.why {
        RestartCause::FirstStart => "the first start took",
        RestartCause::WorkerFailed
        | RestartCause::NodeLost
        | RestartCause::NodeLeft
        | RestartCause::NodesWaiting
        | RestartCause::CoordinatorLost
        | RestartCause::CoordinatorRestarted
        | RestartCause::HostLeft
        | RestartCause::Notice
        | RestartCause::BadMachine
        | RestartCause::MemoryUnusable => {
            if cost.is_complete {
                "the restart took"
            } else {
                "the restart ended without progress after"
            }
        }
    };
    let stages = [
        ("saving", cost.stages.saving_ms),
        ("stopping", cost.stages.stopping_ms),
        ("waiting", cost.stages.waiting_ms),
        ("rendezvous", cost.stages.rendezvous_ms),
        ("starting", cost.stages.starting_ms),
    ];
    let stages: Vec<String> = stages
        .into_iter()
        .filter(|(_, ms)| *ms > 0)
        .map(|(stage, ms)| format!("{stage} {}", short_time(ms)))
        .collect();
    let mut text = format!("{what} {}", short_time(cost.total_ms()));
    if !stages.is_empty() {
        text += &format!(" ({})", stages.join(", "));
    }
    match cost.redone_steps {
        Some(0) | None => {}
        Some(steps) => text += &format!(", and {steps} steps are done again"),
    }
    text
}

fn counted(count: u32, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// Returns the cause of a restart.
pub fn cause(cause: RestartCause) -> &'static str {
    match cause {
        RestartCause::FirstStart => "first start",
        RestartCause::WorkerFailed => "failure of a worker",
        RestartCause::NodeLost => "loss of a node",
        RestartCause::NodeLeft => "leave of a node",
        RestartCause::NodesWaiting => "new nodes",
        RestartCause::CoordinatorLost => "loss of the coordinator",
        RestartCause::CoordinatorRestarted => "restart of the coordinator",
        RestartCause::HostLeft => "leave of the coordinator's host",
        RestartCause::Notice => "notice",
        RestartCause::BadMachine => "unhealthy machine",
        RestartCause::MemoryUnusable => "unusable checkpoint in memory",
    }
}

/// Returns the nodes that have fetched their part: `n4`, `n4 and n5`, `n4, n5, n6 and 2 more`.
fn fetchers(nodes: &[String], number: u32) -> String {
    let more = (number as usize).saturating_sub(nodes.len());
    match nodes {
        _ if more > 0 => format!("{} and {more} more", nodes.join(", ")),
        [others @ .., last] if !others.is_empty() => format!("{} and {last}", others.join(", ")),
        nodes => nodes.concat(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ragent_rendezvous::{
        event::{EventId, RestartStages, StrikeReason},
        ids::{Round, Term},
    };
    use strum::VariantNames;

    use super::*;

    /// `docs/events.md` has a row for each kind of event, and no other.
    #[test]
    fn kinds_are_documented() {
        let page = include_str!("../../../../docs/events.md");
        let table = page.split_once("| kind |").expect("a table").1;
        let table = table.split_once("\n\n").expect("its end").0;
        let rows = table.lines().filter_map(|row| row.strip_prefix("| `")?.split('`').next());
        assert_eq!(
            rows.collect::<BTreeSet<_>>(),
            EventKind::VARIANTS.iter().copied().collect::<BTreeSet<_>>()
        );
    }

    /// The events of checkpoints in memory have a sentence each.
    #[test]
    fn memory_has_sentences() {
        let text = |kind| {
            let round = Round(8);
            let id = EventId { term: Term(1), number: 1 };
            sentence(&Event { id, cause: None, round, node: None, kind })
        };
        let restored = |fetching, is_resharded| EventKind::MemoryRestored {
            step: 48_210,
            fetching,
            bytes: 61_200_000_000,
            is_resharded,
        };
        let begin = "round 8 begins with step 48,210 from memory; ";
        assert_eq!(text(restored(0, false)), format!("{begin}every node has its part"));
        assert_eq!(text(restored(1, false)), format!("{begin}1 node fetches 61 GB from others"));
        assert_eq!(text(restored(2, false)), format!("{begin}2 nodes fetch 61 GB from others"));
        let resharded = "round 8 begins with step 48,210 from memory, saved with other ranks; its nodes read what they \
                         need of 61 GB";
        assert_eq!(text(restored(3, true)), resharded);
        let fetched = |nodes: &[&str], fetching| {
            let nodes = nodes.iter().map(|name| (*name).to_owned()).collect();
            text(EventKind::MemoryFetched {
                nodes,
                fetching,
                bytes: 61_200_000_000,
                longest_ms: 5_012,
            })
        };
        assert_eq!(fetched(&["n4"], 1), "n4 fetched 61 GB in 5.0 s");
        assert_eq!(
            fetched(&["n4", "n5"], 2),
            "n4 and n5 fetched 61 GB in all, the slowest in 5.0 s"
        );
        let many = "n4, n5, n6 and 2 more fetched 61 GB in all, the slowest in 5.0 s";
        assert_eq!(fetched(&["n4", "n5", "n6"], 5), many);
        for (reason, why) in [
            (StrikeReason::Failures, "two rounds that began with it have failed"),
            (StrikeReason::Sum, "the checksum of a part is wrong"),
            (StrikeReason::Script, "the script has refused it"),
            (StrikeReason::Unread, "workers fail before they receive it"),
        ] {
            let expected = format!("step 48,210 in memory is not used again: {why}");
            assert_eq!(text(EventKind::MemoryStruck { step: 48_210, reason }), expected);
        }
        let off = EventKind::MemoryOff { reason: "n17 has 40 GB and needs 84".to_owned() };
        assert_eq!(text(off), "checkpoints in memory are off: n17 has 40 GB and needs 84");
    }

    /// The cost of a restart names its stages.
    #[test]
    fn cost_names_its_stages() {
        let stages = RestartStages {
            saving_ms: 0,
            stopping_ms: 117,
            waiting_ms: 0,
            rendezvous_ms: 2,
            starting_ms: 3_020,
        };
        let cost = RestartCost {
            why: RestartCause::WorkerFailed,
            stages,
            redone_steps: Some(40),
            is_complete: true,
        };
        assert_eq!(
            cost_sentence(&cost),
            "the restart took 3.1 s (stopping 117 ms, rendezvous 2 ms, starting 3.0 s), and 40 steps are done \
             again"
        );
    }
}
