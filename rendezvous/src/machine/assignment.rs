//! Computes the assignment of each node, and sends it when it has changed.

use tracing::info;

use crate::{
    event::EventKind,
    group::{GroupMember, MemberState},
    ids::NodeId,
    job::Availability,
    machine::Rendezvous,
    message::{Assignment, EvictReason, NodeState, ToNode, WaitReason},
    phase::Phase,
    roster::{RosterNode, SentAssignment},
};

impl Rendezvous {
    /// Sends `id` its assignment, unless it was the last one sent on its stream.
    pub(super) fn sync(&mut self, id: &NodeId) {
        if self.job.availability == Availability::Ended {
            return;
        }
        let Some(assignment) = self.assignment(id) else { return };
        let sent = SentAssignment::from(&assignment);
        let Some(node) = self.job.roster.get_mut(id) else { return };
        if node.sent == Some(sent) {
            return;
        }
        node.sent = Some(sent);
        if let SentAssignment::Admit(_) = sent {
            node.admitted_on = node.stream;
        }
        let peer = node.peer();
        self.out.send(peer, ToNode::Assignment(assignment));
    }

    /// Sends each node its assignment, if it has changed.
    pub(super) fn sync_all(&mut self) {
        let ids: Vec<NodeId> = self.job.roster.iter().map(|(id, _)| id.clone()).collect();
        for id in ids {
            self.sync(&id);
        }
    }

    /// Returns the assignment of `id`; `None` if there is none to send.
    fn assignment(&self, id: &NodeId) -> Option<Assignment> {
        let node = self.job.roster.get(id)?;
        if let Phase::Closed(closed) = &self.job.phase {
            return Some(Assignment::Close(closed.outcome.clone()));
        }
        if let NodeState::Leaving { reaped } = node.report.state {
            return (reaped && !self.is_served_by(id)).then_some(Assignment::Dismiss);
        }
        // Only for what the node has reported on this stream: it may have replaced its store while it read from an earlier one.
        if let Some(round) = node.missed_round.filter(|_| node.has_reported) {
            return Some(Assignment::Evict { round, reason: EvictReason::Silent });
        }
        match &self.job.phase {
            Phase::Recovering(recovering) if recovering.ranks.contains_key(id) => {
                let complete_step = self.progress.training().complete_step;
                recovering.assignment(node, self.why_last_round_ended(), complete_step)
            }
            Phase::Running(running) => match running.group.held(id) {
                Some(GroupMember { rank, .. }) => {
                    let admission = running.group.table.as_ref()?.admission(rank)?;
                    Some(Assignment::Admit(self.memory.complete(admission)))
                }
                None => Some(self.outsider(id, node)),
            },
            Phase::Regathering(regathering) => match regathering.group.held(id) {
                Some(GroupMember { state: MemberState::Active | MemberState::Stopped, .. }) => {
                    Some(Assignment::Restart {
                        round: regathering.group.round,
                        reason: regathering.reason.clone(),
                        complete_step: self.progress.training().complete_step,
                        memory_step: regathering.memory_step,
                    })
                }
                Some(GroupMember {
                    state:
                        MemberState::Back
                        | MemberState::Leaving
                        | MemberState::Left
                        | MemberState::Lost(_),
                    ..
                })
                | None => Some(self.outsider(id, node)),
            },
            Phase::Recovering(_) | Phase::Gathering(_) | Phase::Closed(_) => {
                Some(self.outsider(id, node))
            }
        }
    }

    /// Returns the assignment of a node that is not a member, or has stopped running.
    fn outsider(&self, id: &NodeId, node: &RosterNode) -> Assignment {
        match node.report.state {
            NodeState::Running | NodeState::Stopping | NodeState::Succeeded => {
                Assignment::Evict { round: node.report.round, reason: self.why_not_member(id) }
            }
            NodeState::Preparing | NodeState::Ready { .. } | NodeState::Leaving { .. } => {
                let (round, reason) = (self.newest_round(), self.why_waiting(node));
                Assignment::Wait { round, reason, memory: self.memory.kept_for_round(&self.job) }
            }
        }
    }

    fn why_not_member(&self, id: &NodeId) -> EvictReason {
        match self.job.phase.group().and_then(|group| group.member(id)) {
            Some(GroupMember { state: MemberState::Lost(reason), .. }) => reason,
            Some(GroupMember {
                state:
                    MemberState::Active
                    | MemberState::Stopped
                    | MemberState::Back
                    | MemberState::Leaving
                    | MemberState::Left,
                ..
            })
            | None => EvictReason::Silent,
        }
    }

    pub(super) fn why_waiting(&self, node: &RosterNode) -> WaitReason {
        if node.tally.quarantined_until().is_some() {
            return WaitReason::Quarantined;
        }
        if self.job.roster.is_job_ending() {
            return WaitReason::Ending;
        }
        if node.is_aside && node.is_ready() && node.is_unfit() {
            return match &node.report.unhealthy {
                Some(_) => WaitReason::Unhealthy,
                None => WaitReason::Excluded,
            };
        }
        match &self.job.phase {
            Phase::Recovering(_) => WaitReason::Recovering,
            Phase::Gathering(_) | Phase::Regathering(_) | Phase::Closed(_) => WaitReason::Gathering,
            Phase::Running(running) => {
                // A node that prepares is not counted yet.
                let itself = usize::from(!node.is_ready());
                if self.has_room(&running.group, itself) {
                    WaitReason::NextRound
                } else {
                    WaitReason::Spare
                }
            }
        }
    }

    /// Returns true if a round may still need what a leaving node serves: its store, or the
    /// coordinator.
    fn is_served_by(&self, id: &NodeId) -> bool {
        match &self.job.phase {
            Phase::Running(_) | Phase::Regathering(_) => {
                self.job.phase.group().is_some_and(|group| {
                    (group.held(id).is_some() || self.is_sole_host(id))
                        && !group.unstopped().is_empty()
                })
            }
            Phase::Recovering(_) | Phase::Gathering(_) | Phase::Closed(_) => false,
        }
    }

    /// Dismisses leavers once the round that they served has stopped.
    pub(super) fn dismiss_leavers(&mut self) {
        let Some(group) = self.job.phase.group_mut() else { return };
        if !group.unstopped().is_empty() {
            return;
        }
        // Each of them once. Its next report is then answered.
        let leavers = group.take_undismissed();
        for id in leavers.into_iter().chain(self.job.settings.host.clone()) {
            if self.job.roster.get(&id).is_some_and(RosterNode::is_leaving) {
                self.sync(&id);
            }
        }
    }

    /// Announces that this coordinator forms no further round.
    pub(super) fn leave(&mut self, availability: Availability) {
        if self.job.availability != Availability::Available {
            return;
        }
        self.job.availability = availability;
        info!("the coordinator's host is leaving");
        self.out.record_cause(&self.job, None, None, EventKind::CoordinatorLeaving);
        let peers: Vec<_> = self.job.roster.iter().map(|(_, node)| node.peer()).collect();
        for peer in peers {
            self.out.send(peer, ToNode::HostLeaving);
        }
    }
}
