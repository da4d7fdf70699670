//! Ends an elected coordinator whose process is ending, so that another voter continues the job.
//!
//! 1. The node in the coordinator's process leaves like any other. The other nodes run until its
//!    workers have ended, and are informed that it has left.
//! 2. The coordinator ends before it forms a round without that node.
//! 3. The node registers with the next coordinator, which dismisses it.

use std::time::Instant;

use tracing::info;

use crate::{
    effect::Effect,
    ids::NodeId,
    job::Availability,
    machine::{Rendezvous, closing::Failures},
    message::{JobResult, NodeState},
    phase::Phase,
    settings::SharedSettings,
};

impl Rendezvous {
    /// Returns true if `id` is the node in the coordinator's process, and no other process can
    /// coordinate the job.
    pub(super) fn is_sole_host(&self, id: &NodeId) -> bool {
        self.job.is_host(id) && self.job.grant.is_none()
    }

    /// Returns true if an elected coordinator should end because the node in its process has left.
    ///
    /// Returns false in these cases:
    ///
    /// - The job is closed: its nodes receive the outcome first.
    /// - The node has succeeded and the round runs: the node serves the round until it ends.
    /// - There is no round yet and all nodes leave: they are dismissed at once.
    pub(super) fn has_left_with_host(&self) -> bool {
        let host = self.job.settings.host.as_ref().filter(|_| self.job.grant.is_some());
        let Some(host) = host else { return false };
        if self.state(host) != Some(NodeState::Leaving { reaped: true }) {
            return false;
        }
        match &self.job.phase {
            Phase::Recovering(_) | Phase::Regathering(_) => true,
            Phase::Gathering(_) => !self.job.roster.all_leaving(),
            Phase::Running(running) => !running.group.has_succeeded(host),
            Phase::Closed(_) => false,
        }
    }

    /// Closes the job if all nodes have left. Otherwise ends this coordinator.
    pub(super) fn close_or_hand_over(&mut self, now: Instant, shared: SharedSettings) {
        // A failure without a restart left closes the job as failed.
        if !self.have_all_left() {
            self.hand_over();
        } else if !self.judge(now, shared) {
            self.close(JobResult::AllLeft, Failures::default());
        }
    }

    /// Ends this elected coordinator, after all members were informed of the end of their round.
    pub(super) fn hand_over(&mut self) {
        if self.job.availability == Availability::Ended {
            return;
        }
        info!(term = %self.job.state.term, "coordinator handing over to another process");
        self.out.coordinator_ended(&self.job, true);
        // The next coordinator dismisses this process's node, and so knows that it has left.
        let is_host = |id: &&NodeId| self.job.is_host(id);
        let others = self.job.roster.iter().map(|(id, _)| id).filter(|id| !is_host(id));
        for id in others.cloned().collect::<Vec<_>>() {
            self.sync(&id);
        }
        self.job.availability = Availability::Ended;
        self.out.queue.push_back(Effect::HandOver);
    }

    /// Ends this elected coordinator if `id` was the node in its process, and was dismissed.
    pub(super) fn follow_elected_host(&mut self, id: &NodeId) {
        let is_elected = self.job.grant.is_some();
        if self.job.is_host(id) && is_elected && !matches!(self.job.phase, Phase::Closed(_)) {
            self.hand_over();
        }
    }
}
