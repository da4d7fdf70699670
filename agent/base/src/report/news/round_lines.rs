//! The lines that an agent prints by default: at most three in each round of a job of several nodes, without those of a wait. There are none in a
//! job of one node that needs no restart.
//!
//! A pure machine: the agent's news in, lines out.

use ragent_core::agent::{News, WaitReport};
use ragent_rendezvous::{
    ids::{GroupRank, RunId},
    message::{Admission, Replaced, RestartReason, WaitReason},
    settings::{NodeRange, SharedSettings},
};

use crate::{
    net::Endpoint,
    report::{news, status_text::progress::grouped},
};

/// The lines of one agent.
#[derive(Debug)]
pub struct RoundLines {
    nodes: NodeRange,
    max_restarts: u32,
    /// Prints the lines of group rank 0 only.
    is_first_only: bool,
    /// True if this node had group rank 0 at the last admission.
    is_first: bool,
    /// The reason why the last round has ended.
    reason: Option<String>,
    /// True if it was the failure of a worker.
    is_failure: bool,
    /// The number of restarts at the last admission.
    restarts: Option<u32>,
}

impl RoundLines {
    /// The lines of an agent with these settings; if `is_first_only`, only while it is group rank 0.
    pub fn new(shared: &SharedSettings, is_first_only: bool) -> Self {
        Self {
            nodes: shared.nodes,
            max_restarts: shared.max_restarts,
            is_first_only,
            is_first: false,
            reason: None,
            is_failure: false,
            restarts: None,
        }
    }

    /// The line for the first registration at `endpoint`.
    pub fn registered(&self, endpoint: &str) -> Option<String> {
        let is_shown = self.has_several_nodes() && !self.is_first_only;
        is_shown.then(|| format!("registered at {endpoint} (job of {} nodes)", self.nodes))
    }

    /// The line for a wait in the job `run_id` at `endpoint`.
    pub fn waiting(&self, wait: &WaitReport, endpoint: &str, run_id: &RunId) -> Option<String> {
        if !self.has_several_nodes() || self.are_repeated() {
            return None;
        }
        let text = news::waiting_for(wait);
        Some(format!("{text} (endpoint {endpoint}, run id {run_id})"))
    }

    /// The line for the success of the job.
    pub fn succeeded(&self) -> Option<String> {
        let is_shown = self.has_several_nodes() && !self.is_first_only;
        is_shown.then(|| "the job has succeeded".to_owned())
    }

    /// Returns true if this agent prints lines while it has this rank.
    pub fn is_shown(&self, group_rank: GroupRank) -> bool {
        !self.is_first_only || group_rank.0 == 0
    }

    /// Returns true if another agent on the same console prints the lines of its round.
    pub fn are_repeated(&self) -> bool {
        self.is_first_only && !self.is_first
    }

    /// The line for a piece of news.
    pub fn line(&mut self, news: &News) -> Option<String> {
        match news {
            News::Admitted(admission) => self.admitted(admission),
            // A warning has announced it.
            News::Restarting(_, reason @ RestartReason::HostLeft) => {
                self.reason = Some(news::restarting(reason));
                None
            }
            News::Restarting(round, reason) => {
                self.is_failure = matches!(reason, RestartReason::WorkerFailed { .. });
                let reason = news::restarting(reason);
                let text = format!("round {} ended: {reason}", round.round);
                self.ended(reason, text)
            }
            // Logged as a warning, which is always shown.
            News::Evicted(round, _) => {
                self.reason = Some(format!("this node was evicted from round {}", round.round));
                None
            }
            News::WorkerFailed(failure) | News::Cause(failure) => {
                let hardware = failure.hardware_lines();
                let end = news::failed(&failure.end, failure.oom, &hardware);
                self.is_failure = true;
                self.reason =
                    Some(format!("rank {} on {} {end}", failure.global_rank, failure.host_name));
                None
            }
            News::Waiting(round, reason) => {
                let text = match reason {
                    WaitReason::Spare
                    | WaitReason::Quarantined
                    | WaitReason::Unhealthy
                    | WaitReason::Excluded => news::waiting(*reason),
                    WaitReason::Gathering
                    | WaitReason::NextRound
                    | WaitReason::Ending
                    | WaitReason::Recovering => {
                        return None;
                    }
                };
                let is_shown = !self.is_first_only;
                is_shown.then(|| format!("round {}: {text}", round.round))
            }
            News::NoticeGiven(notice) if notice.left.is_some() => {
                (!self.are_repeated()).then(|| news::notice_given(notice))
            }
            News::NoticeOver(end) => (!self.are_repeated()).then(|| news::notice_over(end)),
            News::NoticeGiven(_)
            | News::HostLeaving
            | News::Succeeded(_)
            // A warning has announced it.
            | News::MemoryOff(..)
            | News::ClientRefused(..) => None,
        }
    }

    fn admitted(&mut self, admission: &Admission) -> Option<String> {
        let (reason, is_failure) = (self.reason.take(), std::mem::take(&mut self.is_failure));
        let before = self.restarts.replace(admission.restart_count);
        // A node that joins did not see the restarts before.
        let is_charged = before.is_some_and(|before| before < admission.restart_count);
        let is_free = is_failure && before.is_some() && !is_charged;
        self.is_first = admission.group_rank.0 == 0;
        if !self.is_shown(admission.group_rank) || !self.has_several_nodes() && reason.is_none() {
            return None;
        }
        let Admission { round, group_world_size: nodes, world_size: workers, .. } = admission;
        let master =
            Endpoint { host: admission.master_address.clone(), port: admission.master_port };
        let mut line = format!(
            "round {}: {nodes} {}, {workers} {}, master {master}",
            round.round,
            if *nodes == 1 { "node" } else { "nodes" },
            if *workers == 1 { "worker" } else { "workers" },
        );
        if let Some(plan) = &admission.memory {
            line.push_str(&format!(", step {} from memory", grouped(plan.checkpoint.step)));
        }
        if is_charged {
            // Those since the last progress.
            let restart = admission.restart_count.saturating_sub(admission.restarts_forgiven);
            line.push_str(&format!(", restart {restart} of {}", self.max_restarts));
        }
        let charge = if is_free { "; not charged" } else { "" };
        let reason = reason.map(|reason| format!("{reason}{charge}"));
        let replaced = admission.replaced.as_ref();
        let replaced =
            replaced.map(|Replaced { host, by }| format!("{by} takes the place of {host}"));
        let remarks: Vec<String> = reason.into_iter().chain(replaced).collect();
        if !remarks.is_empty() {
            line.push_str(&format!(" ({})", remarks.join("; ")));
        }
        Some(line)
    }

    fn ended(&mut self, reason: String, text: String) -> Option<String> {
        self.reason = Some(reason);
        (self.has_several_nodes() && !self.is_first_only).then_some(text)
    }

    /// Returns true if a round may have several nodes.
    fn has_several_nodes(&self) -> bool {
        self.nodes.max() > 1
    }
}

#[cfg(test)]
mod tests {
    use ragent_rendezvous::{
        ids::{GlobalRank, LocalRank, Round, RoundId, Term},
        message::{CheckpointId, EvictReason, MemoryKind, MemoryPlan, WorkerEnd, WorkerFailure},
        snapshot::Explanation,
    };

    use super::*;

    fn lines(max_nodes: u32, is_first_only: bool) -> RoundLines {
        let nodes = NodeRange::new(1, max_nodes).unwrap();
        let shared = SharedSettings { max_restarts: 3, ..SharedSettings::new(nodes) };
        RoundLines::new(&shared, is_first_only)
    }

    fn round(number: u64) -> RoundId {
        RoundId { term: Term(1), round: Round(number) }
    }

    fn admitted(number: u64, nodes: u32, rank: u32, restart_count: u32) -> News {
        News::Admitted(Box::new(Admission {
            round: round(number),
            group_rank: GroupRank(rank),
            group_world_size: nodes,
            world_size: 8 * nodes,
            role_world_size: 8 * nodes,
            restart_count,
            master_address: "10.0.0.1".to_owned(),
            master_port: 41000,
            ..Admission::default()
        }))
    }

    fn failed() -> News {
        News::WorkerFailed(Box::new(WorkerFailure::new(
            "node-b",
            round(1),
            (GlobalRank(5), LocalRank(1)),
            7,
            WorkerEnd::Exited(1),
        )))
    }

    fn restarting() -> News {
        let reason = RestartReason::WorkerFailed {
            host_name: "node-b".to_owned(),
            global_rank: GlobalRank(5),
            end: WorkerEnd::Exited(1),
            oom: None,
            hardware: Vec::new(),
        };
        News::Restarting(round(1), reason)
    }

    /// A job of one node prints nothing, but for the round after a failure.
    #[test]
    fn one_node_is_quiet() {
        let mut lines = lines(1, false);
        assert_eq!(lines.line(&admitted(1, 1, 0, 0)), None);
        assert_eq!(lines.line(&News::Succeeded(round(1))), None);
        assert_eq!(lines.line(&failed()), None, "the error is logged");
        let line = "round 2: 1 node, 8 workers, master 10.0.0.1:41000, restart 1 of 3 (rank 5 on \
                    node-b exited with code 1)";
        assert_eq!(lines.line(&admitted(2, 1, 0, 1)).as_deref(), Some(line));
        assert_eq!(lines.line(&admitted(3, 1, 0, 1)), None);
    }

    /// A round of several nodes prints a line for its start, and one for its end with the reason.
    #[test]
    fn rounds_of_several_nodes_have_lines() {
        let mut lines = lines(8, false);
        let first = "round 1: 3 nodes, 24 workers, master 10.0.0.1:41000";
        assert_eq!(lines.line(&admitted(1, 3, 1, 0)).as_deref(), Some(first));
        let ended = "round 1 ended: rank 5 on node-b exited with code 1";
        assert_eq!(lines.line(&restarting()).as_deref(), Some(ended));
        let next = format!(
            "{}, restart 1 of 3 (rank 5 on node-b exited with code 1)",
            first.replace("round 1", "round 2")
        );
        assert_eq!(lines.line(&admitted(2, 3, 1, 1)), Some(next));
        let News::Admitted(mut admission) = admitted(2, 3, 1, 9) else { unreachable!() };
        admission.restarts_forgiven = 7;
        let [host, by] = ["node-b", "node-c"].map(str::to_owned);
        admission.replaced = Some(Replaced { host, by });
        lines.line(&restarting());
        let line = lines.line(&News::Admitted(admission)).unwrap();
        let end = "restart 2 of 3 (rank 5 on node-b exited with code 1; node-c takes the place of node-b)";
        assert!(line.ends_with(end), "{line}");
        let evicted = News::Evicted(round(2), EvictReason::Silent);
        assert_eq!(lines.line(&evicted), None);
        let back = lines.line(&admitted(3, 3, 1, 1)).unwrap();
        assert!(back.ends_with(":41000 (this node was evicted from round 2)"), "{back}");
        assert!(lines.line(&News::Waiting(round(3), WaitReason::Spare)).is_some());
        assert_eq!(lines.line(&News::Waiting(round(3), WaitReason::Gathering)), None);
    }

    /// A round that begins from memory names the step.
    #[test]
    fn step_from_memory_is_in_the_line() {
        let mut lines = lines(1, false);
        lines.line(&admitted(1, 1, 0, 0));
        lines.line(&failed());
        let News::Admitted(mut admission) = admitted(2, 1, 0, 1) else { unreachable!() };
        let checkpoint = CheckpointId { round: round(1), step: 48_210 };
        admission.memory = Some(Box::new(MemoryPlan {
            checkpoint,
            kind: MemoryKind::State,
            sources: Vec::new(),
            is_resharded: false,
            all_sources: Vec::new(),
        }));
        let line = "round 2: 1 node, 8 workers, master 10.0.0.1:41000, step 48,210 from memory, restart 1 of 3 \
                    (rank 5 on node-b exited with code 1)";
        assert_eq!(lines.line(&News::Admitted(admission)).as_deref(), Some(line));
        assert_eq!(
            lines.line(&News::MemoryOff(round(2), "full".to_owned())),
            None,
            "it is a warning"
        );
    }

    /// The leave of the host is announced by a warning, not by a line for the round's end.
    #[test]
    fn leave_of_the_host_has_no_line() {
        let mut lines = lines(8, false);
        lines.line(&admitted(1, 3, 1, 0));
        assert_eq!(lines.line(&News::Restarting(round(1), RestartReason::HostLeft)), None);
        let next = lines.line(&admitted(2, 3, 1, 0)).unwrap();
        assert!(next.ends_with(":41000 (the coordinator's host is leaving)"), "{next}");
    }

    /// A wait is one line with the reason, the endpoint and the run id; none in a job of one node, or if
    /// another agent prints the lines.
    #[test]
    fn wait_has_a_line() {
        let text = "waiting for 1 more node (1 of at least 2 are ready), join timeout in 595 s";
        let reason = Explanation { kind: "too_few_nodes".to_owned(), text: text.to_owned() };
        let next = WaitReport::NextRound(reason);
        let line = |lines: RoundLines, wait| lines.waiting(wait, "n:1", &RunId::new("j"));
        let expected = format!("the next round is not complete: {text} (endpoint n:1, run id j)");
        assert_eq!(line(lines(2, false), &next), Some(expected));
        let expected = "all workers of this node have succeeded; waiting for the workers of the other \
                        nodes (endpoint n:1, run id j)";
        assert_eq!(line(lines(2, false), &WaitReport::OtherNodes).as_deref(), Some(expected));
        assert_eq!(line(lines(1, false), &next), None);
        assert_eq!(line(lines(2, true), &next), None);
    }

    /// A node that joins a job does not print earlier restarts as its own.
    #[test]
    fn joining_node_prints_no_restart() {
        let line = lines(8, false).line(&admitted(3, 3, 2, 1));
        assert_eq!(line.as_deref(), Some("round 3: 3 nodes, 24 workers, master 10.0.0.1:41000"));
    }

    /// Of the agents of one `ragent launch` only group rank 0 prints lines.
    #[test]
    fn one_agent_of_a_launch_prints() {
        let mut lines = lines(8, true);
        assert_eq!(lines.line(&admitted(1, 3, 1, 0)), None);
        assert_eq!(lines.line(&restarting()), None);
        assert!(lines.are_repeated());
        assert!(lines.line(&admitted(2, 3, 0, 1)).is_some_and(|line| line.ends_with("code 1)")));
        assert!(!lines.are_repeated());
    }
}
