//! Handles what happens in the local worker group: its first failure, its end, and the end of its lease.

use std::time::Instant;

use ragent_rendezvous::{
    ids::RoundId,
    message::{HardwareFact, Outcome, WorkerFailure},
};

use super::{Action, Agent, AgentState, News, grow_older, reports::TrainingReports};
use crate::supervisor::GroupEnd;

impl Agent {
    /// Notes that a worker of this node failed. The supervisor is stopping the others.
    pub fn handle_failed(&mut self, now: Instant, mut failure: WorkerFailure) {
        self.send_last_steps(now);
        if failure.round != self.round.id {
            return;
        }
        // A worker that ends after the round was stopped is a victim, not a failure.
        if self.state == AgentState::Running {
            failure.before_load = !self.memory.has_given();
            self.announce(News::WorkerFailed(Box::new(failure.clone())));
            self.round.failure = Some((failure, now));
            self.state = AgentState::Stopping;
            self.send_report(now);
        }
    }

    /// Notes the failure of the oldest event among this node's workers. It is known once all have ended.
    ///
    /// It replaces the failure that was seen first. A worker may write its error file, close its connections
    /// and exit slowly. The others then fail because of it, and exit first.
    pub fn handle_cause(&mut self, now: Instant, mut cause: WorkerFailure) {
        if cause.round != self.round.id {
            return;
        }
        let known = self.round.failure.as_ref().map(|(failure, at)| {
            failure.event_age().saturating_add(now.saturating_duration_since(*at))
        });
        if known.is_none_or(|known| known <= cause.event_age()) {
            let first = self.round.failure.as_ref().map(|(failure, _)| failure.before_load);
            cause.before_load = first.unwrap_or_else(|| !self.memory.has_given());
            let is_other =
                |(known, _): &(WorkerFailure, Instant)| known.local_rank != cause.local_rank;
            if self.round.failure.as_ref().is_none_or(is_other) {
                self.announce(News::Cause(Box::new(cause.clone())));
            }
            self.round.failure = Some((cause, now));
        }
    }

    /// Notes what the hardware of this node has reported by now, since the round of its failure began.
    pub fn handle_hardware(&mut self, now: Instant, round: RoundId, hardware: Vec<HardwareFact>) {
        if let Some((failure, at)) = &mut self.round.failure
            && failure.round == round
        {
            grow_older(failure, now.saturating_duration_since(*at));
            (*at, failure.hardware) = (now, hardware);
        }
    }

    /// Notes that the worker group has ended, and nothing is left of it.
    pub fn handle_finished(&mut self, now: Instant, end: GroupEnd) {
        // The steps of the next round are others.
        self.round.training = TrainingReports::default();
        match (&self.state, end) {
            (AgentState::Running, GroupEnd::Succeeded) => {
                self.state = AgentState::Succeeded;
                self.announce(News::Succeeded(self.round.id));
                self.send_report(now);
            }
            (AgentState::Running | AgentState::Stopping, _) => self.prepare(now),
            (&AgentState::Leaving { signal, .. }, _) => self.reaped_to_leave(now, signal),
            (AgentState::Closing(outcome), _) => {
                let outcome = Outcome::clone(outcome);
                self.finish_closed(outcome);
            }
            (
                AgentState::Preparing
                | AgentState::Ready { .. }
                | AgentState::Succeeded
                | AgentState::Finished,
                _,
            ) => {}
        }
    }

    /// Notes that the lease is over: no worker may run on this node.
    pub(crate) fn handle_lease_lost(&mut self) {
        self.coordinator.is_leased = false;
        if self.settings.runs_unleased {
            return;
        }
        self.handle_lease_expired();
        match self.state {
            AgentState::Running | AgentState::Stopping => {
                self.state = AgentState::Stopping;
                self.act(Action::Kill);
            }
            AgentState::Leaving { reaped: false, .. } => self.act(Action::Kill),
            AgentState::Leaving { signal, reaped: true } => self.finish_left(signal),
            AgentState::Preparing
            | AgentState::Ready { .. }
            | AgentState::Succeeded
            | AgentState::Closing(_)
            | AgentState::Finished => {}
        }
    }

    /// Notes that the keeper kills the workers because their lease is over. Other workers may fail
    /// as a consequence, and no failure on this node is a cause.
    pub fn handle_lease_expired(&mut self) {
        self.round.lease_expired |= self.state == AgentState::Running;
    }
}
