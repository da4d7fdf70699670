//! Runs a round: handles the events that end it, and interrupts it for waiting nodes.

use std::time::Instant;

use tracing::info;

use crate::{
    event::EventKind,
    group::{Group, MemberState},
    ids::NodeId,
    job::Availability,
    machine::{Rendezvous, closing::Failures, state_by_report},
    message::{EvictReason, JobResult, NodeState, RestartReason, StepProgress},
    phase::{Phase, Regathering, RoundEnd, Running},
    roster::RosterNode,
    settings::SharedSettings,
    snapshot::PhaseName,
};

impl Rendezvous {
    /// Applies the state that a member has reported.
    pub(super) fn on_report_in_running(&mut self, now: Instant, id: &NodeId) {
        if let Some(unusable) = self.memory.unusable(&self.job, id) {
            self.memory.note_unusable(&self.job, id, &unusable, &mut self.out);
            let host_name = self.job.host_name(id);
            info!(node = %id, why = unusable.why.name(), "the checkpoint in memory cannot be used");
            // A failure of its workers is a consequence.
            self.end_round(now, RestartReason::MemoryUnusable { host_name, unusable });
            return;
        }
        if let Some(reason) = self.health.why_end(&self.job, id, self.notices.is_saving()) {
            self.end_round(now, reason);
            return;
        }
        let Some(Running { group, .. }) = self.job.phase.running_mut() else { return };
        let Some(node) = self.job.roster.get(id).filter(|_| group.held(id).is_some()) else {
            return;
        };
        let (round, state) = (node.report.round, node.report.state);
        let host_name = node.description.host_name.clone();
        let has_succeeded = group.has_succeeded(id);
        if round > group.round {
            // Another coordinator has admitted the node. Here it counts as silent.
            group.set_state(id, MemberState::Lost(EvictReason::Silent));
            self.out.record_eviction(&self.job, id, EvictReason::Silent);
            let reason = RestartReason::NodeLost { host_name, how: EvictReason::Silent };
            self.end_round(now, reason);
            return;
        }
        if let NodeState::Leaving { reaped } = state {
            group.set_state(id, MemberState::of(state));
            if reaped && !has_succeeded && !self.is_sole_host(id) {
                self.end_round(now, RestartReason::NodeLeft { host_name });
            }
            return;
        }
        if let Some(failure) = node.report.failure.clone() {
            self.fail(now, id, *failure);
            return;
        }
        match state {
            NodeState::Leaving { .. } => {}
            NodeState::Running => self.note_running(id),
            NodeState::Succeeded if self.notices.note_exit(id) => {
                self.note_running(id);
            }
            NodeState::Succeeded => {
                group.set_succeeded(id);
                let group_round = group.round;
                self.note_running(id);
                info!(round = %group_round, node = %id, "node succeeded");
            }
            NodeState::Stopping | NodeState::Preparing | NodeState::Ready { .. } => {
                if !has_succeeded {
                    group.note_expired(id, now);
                    // The node's keeper found that the lease was over, although it was not over here.
                    let node = Some(self.job.event_node(id));
                    self.out.record_cause(&self.job, None, node, EventKind::NodeLeaseExpired);
                    let reason = RestartReason::NodeLost { host_name, how: EvictReason::Silent };
                    self.end_round(now, reason);
                }
            }
        }
    }

    /// Notes that the workers of a member run.
    fn note_running(&mut self, id: &NodeId) {
        if let Some(Running { group, .. }) = self.job.phase.running_mut()
            && group.note_running(id)
        {
            self.progress.workers_started(&self.job, &mut self.out);
        }
    }

    /// Records the training step that a node has sent.
    pub(super) fn record_steps(&mut self, now: Instant, id: &NodeId, progress: &StepProgress) {
        if !self.progress.record_steps(&self.job, id, progress, &mut self.out) {
            return;
        }
        if let Some(step) = self.progress.follow_steps(&self.job, &mut self.out) {
            self.stalls.end_stall(&self.job, Some(step), &mut self.out);
        }
        self.follow_stall(now);
        // A worker that was named as hung may have made a step.
        self.send_new_guidance(now);
    }

    /// Handles the loss of `node`.
    ///
    /// The round does not wait for a member that has succeeded. A leaver counts as having left.
    pub(super) fn on_lost_in_running(&mut self, now: Instant, node: &RosterNode, how: EvictReason) {
        let Some(Running { group, .. }) = self.job.phase.running_mut() else { return };
        let id = &node.description.node_id;
        if group.held(id).is_none() {
            return;
        }
        let host_name = node.description.host_name.clone();
        let is_leaver = group.leavers().contains(id);
        group.set_state(id, if is_leaver { MemberState::Left } else { MemberState::Lost(how) });
        if group.has_succeeded(id) {
            return;
        }
        if is_leaver {
            self.end_round(now, RestartReason::NodeLeft { host_name });
        } else {
            let reason = RestartReason::NodeLost { host_name, how };
            self.end_round(now, reason);
        }
    }

    /// Closes a job that has succeeded, or that all nodes have left. Interrupts the round for waiting nodes.
    pub(super) fn step_in_running(&mut self, now: Instant, shared: SharedSettings) -> bool {
        let Some(Running { group, .. }) = self.job.phase.running() else { return false };
        if group.all_succeeded() {
            self.close(JobResult::Succeeded, Failures::default());
            return true;
        }
        if self.step_of_notice(now) {
            return true;
        }
        if self.have_all_left() {
            self.close(JobResult::AllLeft, Failures::default());
            return true;
        }
        self.calm_down(now);
        let Some(Running { group, .. }) = self.job.phase.running() else { return false };
        let has_room = self.would_be_better(group);
        let Some(running) = self.job.phase.running_mut() else { return false };
        running.waiting_since = if has_room { running.waiting_since.or(Some(now)) } else { None };
        let Some(running) = self.job.phase.running() else { return false };
        if self.voluntary_at(running, shared).is_none_or(|at| now < at) {
            return false;
        }
        if !shared.notice.is_zero() && self.progress.training().saved_step.is_some() {
            self.notices.give_for_members(&self.job, shared, &mut self.out);
            return true;
        }
        let reason = self.note_waiting(now);
        self.end_round(now, reason);
        true
    }

    /// Notes that the round ends so that waiting nodes can join: the next round is not ended for this reason at once.
    pub(super) fn note_waiting(&mut self, now: Instant) -> RestartReason {
        if let Some(shared) = self.job.settings.shared {
            self.spacing.note(now, shared.timeouts.join_settle);
        }
        let waiting = u32::try_from(self.job.roster.ready().len()).unwrap_or(u32::MAX);
        RestartReason::NodesWaiting { waiting }
    }

    pub(super) fn running_deadline(
        &self,
        running: &Running,
        shared: SharedSettings,
    ) -> Option<Instant> {
        let voluntary = self.voluntary_at(running, shared);
        let (calm, notice) = (self.calms_down_at(running), self.notices.deadline(&self.job));
        let stall = self.stalls.deadline(&self.job, &self.progress);
        [voluntary, calm, notice, stall].into_iter().flatten().min()
    }

    /// Returns the time at which the round is interrupted for waiting nodes, if nothing else happens.
    ///
    /// It is not interrupted if a member has succeeded, because its work would be repeated. The same holds if
    /// a member is leaving or has received a notice: this ends the round soon, and until then its workers may
    /// save.
    pub(super) fn voluntary_at(
        &self,
        running: &Running,
        shared: SharedSettings,
    ) -> Option<Instant> {
        let may = self.job.availability == Availability::Available
            && !running.group.any_succeeded()
            && running.group.leavers().is_empty()
            && self.job.roster.noticed().is_empty()
            && !self.notices.is_saving();
        let waiting_since = running.waiting_since.filter(|_| may)?;
        Some(self.spacing.earliest(waiting_since, shared.timeouts.join_settle))
    }

    /// Returns true if a round with the ready nodes, and `further` more, would be larger.
    pub(super) fn has_room(&self, group: &Group, further: usize) -> bool {
        let size = group.size as usize;
        let all = size + self.job.roster.ready().len() + further;
        self.job.settings.shared.is_some_and(|shared| shared.nodes.fit(all) > size)
    }

    /// Returns true if a round with the ready nodes would be larger, or one without excluded members.
    pub(super) fn would_be_better(&self, group: &Group) -> bool {
        let has_saved = self.progress.training().saved_step.is_some();
        self.has_room(group, 0) || self.health.can_replace_excluded(&self.job, group, has_saved)
    }

    /// Ends the running round. All members stop, and the next round waits for them.
    pub(super) fn end_round(&mut self, now: Instant, end: impl Into<RoundEnd>) {
        let end = end.into();
        self.end_features();
        self.forgive_charges(now);
        let Some(group) = self.job.phase.take_group() else { return };
        let reason = end.reason.name();
        info!(round = %group.round, nodes = group.size, reason, "round ended");
        self.job.shown = (PhaseName::Stopping, now);
        self.progress.end_round(&self.job, group.round, &end.reason, &mut self.out);
        self.regather(now, group, end);
    }

    /// Ends what belongs to the running round, if one runs.
    pub(super) fn end_features(&mut self) {
        self.notices.end_round(&self.job, &mut self.out);
        self.stalls.end_round(&self.job, &mut self.out);
    }

    /// Waits for the members of a round that has ended.
    pub(super) fn regather(&mut self, now: Instant, mut group: Group, end: RoundEnd) {
        let held: Vec<NodeId> = group
            .members()
            .map(|(id, _)| id.clone())
            .filter(|id| group.held(id).is_some())
            .collect();
        for id in &held {
            if let Some(state) =
                self.job.roster.get(id).and_then(|node| state_by_report(&group, node))
            {
                group.set_state(id, state);
            }
        }
        let RoundEnd { reason, verdict, memory_step } = end;
        let (since, last_loss) = (now, now);
        let regathering = Regathering { group, reason, since, last_loss, verdict, memory_step };
        self.enter(Phase::Regathering(regathering));
        for id in &held {
            self.index_readiness(id);
        }
    }
}
