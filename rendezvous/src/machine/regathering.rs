//! Forms the next round after one has ended, from its members and the nodes that replace them.

use std::time::Instant;

use tracing::{info, warn};

use crate::{
    event::FreeReason,
    group::MemberState,
    ids::NodeId,
    job::Availability,
    limits::after,
    machine::{Rendezvous, closing::Failures, is_enough, state_by_report},
    message::{Departure, EvictReason, JobResult, NodeState},
    phase::Regathering,
    settings::{Leases, SharedSettings},
};

impl Regathering {
    /// Returns the number of nodes of a full group: as many as before, except the leavers.
    pub(super) fn wanted(&self, shared: SharedSettings) -> usize {
        let stayed = (self.group.size as usize).saturating_sub(self.group.leavers().len());
        shared.nodes.fit(stayed).max(shared.nodes.min() as usize)
    }

    /// Returns the time from which the group may shrink.
    pub(super) fn shrinks_at(&self, shared: SharedSettings) -> Instant {
        after(self.last_loss, shared.timeouts.shrink)
    }

    /// Returns the time at which members that are not back are evicted.
    ///
    /// A member that is unreachable may have received the restart late, or not at all. If late, its workers
    /// run for the grace that begins then. If not at all, they run for up to a lease.
    pub(super) fn overdue_at(&self, shared: SharedSettings, leases: Leases) -> Instant {
        let timeouts = shared.timeouts;
        let silent = timeouts.stop_grace.saturating_add(leases.coordinator);
        after(self.since, timeouts.rejoin().max(silent))
    }
}

impl Rendezvous {
    /// Applies the state that a member has reported.
    pub(super) fn on_report_in_regathering(&mut self, id: &NodeId) {
        let Some(regathering) = self.job.phase.regathering_mut() else { return };
        let group = &mut regathering.group;
        let Some(node) = self.job.roster.get(id).filter(|_| group.held(id).is_some()) else {
            return;
        };
        if node.report.round > group.round {
            group.set_state(id, MemberState::Lost(EvictReason::Silent));
            regathering.last_loss = self.job.clock;
            self.out.record_eviction(&self.job, id, EvictReason::Silent);
            self.drop_verdict(id);
            return;
        }
        let has_expired = node.report.lease_expired && node.report.round == group.round;
        if has_expired {
            group.note_expired(id, self.job.clock);
        }
        if let Some(state) = state_by_report(group, node) {
            group.set_state(id, state);
        }
        match (&node.report.state, node.report.failure.clone()) {
            (NodeState::Leaving { .. }, _) => self.drop_verdict(id),
            // A member that was unreachable counts like a lost member.
            _ if has_expired => self.drop_verdict(id),
            (
                NodeState::Preparing
                | NodeState::Ready { .. }
                | NodeState::Running
                | NodeState::Stopping
                | NodeState::Succeeded,
                failure,
            ) => {
                self.note_unusable_late(id);
                self.record(id, failure.map(|failure| *failure));
                self.record_sign_of_life_by_report(id);
            }
        }
    }

    /// Applies a report that a node cannot use the checkpoint with which the round began. A failure that has ended it was a consequence.
    fn note_unusable_late(&mut self, id: &NodeId) {
        let Some(unusable) = self.memory.unusable(&self.job, id) else { return };
        self.memory.note_unusable(&self.job, id, &unusable, &mut self.out);
        if let Some(regathering) = self.job.phase.regathering_mut()
            && regathering.verdict.take().is_some()
        {
            info!(node = %id, "failure not charged: the checkpoint in memory cannot be used");
            self.out.record_free_failure(&self.job, FreeReason::MemoryUnusable);
        }
    }

    /// Applies the loss of `id`.
    pub(super) fn on_lost_in_regathering(&mut self, now: Instant, id: &NodeId, how: EvictReason) {
        let Some(regathering) = self.job.phase.regathering_mut() else { return };
        let group = &mut regathering.group;
        if group.held(id).is_none() {
            return;
        }
        if group.leavers().contains(id) {
            group.set_state(id, MemberState::Left);
        } else {
            group.set_state(id, MemberState::Lost(how));
            regathering.last_loss = now;
        }
        self.drop_verdict(id);
    }

    /// Completes the next round as soon as possible: when every member is back, or no other will be.
    pub(super) fn step_in_regathering(&mut self, now: Instant, shared: SharedSettings) -> bool {
        if self.have_all_left() {
            // A failure without a restart left closes the job as failed.
            if self.judge(now, shared) {
                return true;
            }
            if self.job.phase.regathering().is_some_and(|ended| ended.verdict.is_none()) {
                self.close(JobResult::AllLeft, Failures::default());
                return true;
            }
        }
        self.evict_overdue(now, shared);
        self.dismiss_leavers();
        let Some(regathering) = self.job.phase.regathering() else { return false };
        match self.job.availability {
            Availability::Available => {}
            Availability::ShuttingDown if regathering.group.unstopped().is_empty() => {
                self.finish();
                return false;
            }
            // The nodes need not wait for another coordinator.
            Availability::HostLeaving => return self.close_if_ending(),
            Availability::ShuttingDown | Availability::Ended => return false,
        }
        if self.judge(now, shared) {
            return true;
        }
        let Some(regathering) = self.job.phase.regathering() else { return false };
        if regathering.verdict.is_none() && self.close_if_ending() {
            return true;
        }
        let Some(regathering) = self.job.phase.regathering() else { return false };
        if regathering.verdict.is_some() || !regathering.group.pending().is_empty() {
            return false;
        }
        self.count_expired(now);
        let Some(regathering) = self.job.phase.regathering() else { return false };
        let ready = self.candidates(shared);
        if ready >= regathering.wanted(shared) {
            return self.complete(now, shared);
        }
        let since = regathering.last_loss;
        let may_shrink = regathering.shrinks_at(shared) <= now;
        if !self.reaches_min(shared) {
            return self.give_up_after(now, since, shared);
        }
        if !may_shrink {
            return false;
        }
        if !is_enough(ready, shared) {
            self.recall(shared);
            if !is_enough(self.candidates(shared), shared) {
                return true;
            }
        }
        self.complete(now, shared)
    }

    pub(super) fn regathering_deadline(
        &self,
        regathering: &Regathering,
        shared: SharedSettings,
    ) -> Option<Instant> {
        if !regathering.group.pending().is_empty() {
            return Some(regathering.overdue_at(shared, self.leases()));
        }
        if regathering.verdict.is_some() || self.job.availability != Availability::Available {
            return None;
        }
        Some(if self.reaches_min(shared) {
            regathering.shrinks_at(shared)
        } else {
            after(regathering.last_loss, shared.timeouts.join)
        })
    }

    /// Returns true if there are enough nodes for a round, including quarantined nodes if necessary.
    pub(super) fn reaches_min(&self, shared: SharedSettings) -> bool {
        let recallable = self.job.roster.quarantined().recallable().len();
        is_enough(self.candidates(shared) + recallable, shared)
    }

    /// Evicts members that did not stop and come back in time.
    ///
    /// Their workers were killed at the end of the grace, so the next round may start without them.
    fn evict_overdue(&mut self, now: Instant, shared: SharedSettings) {
        let leases = self.leases();
        let Some(regathering) = self.job.phase.regathering_mut() else { return };
        if now < regathering.overdue_at(shared, leases) || regathering.group.pending().is_empty() {
            return;
        }
        let overdue: Vec<NodeId> = regathering.group.pending().iter().cloned().collect();
        regathering.last_loss = now;
        let round = regathering.group.round;
        for id in &overdue {
            warn!(node = %id, "member was not ready for the next round in time");
            self.count_loss(now, id);
            if let Some(node) = self.job.roster.get(id) {
                self.departures.add(node, Departure::NotReady, now);
            }
            if let Some(group) = self.job.phase.group_mut() {
                group.set_state(id, MemberState::Lost(EvictReason::NotBack));
            }
            self.out.record_eviction(&self.job, id, EvictReason::NotBack);
            self.index_readiness(id);
            // It may have missed its admission, and not have reported since.
            self.job.roster.distrust_store(id, round);
            self.sync(id);
            self.drop_verdict(id);
        }
    }
}
