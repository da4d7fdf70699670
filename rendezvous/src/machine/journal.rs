//! Records as events how the job goes from one phase to the next.

use std::time::Instant;

use crate::{
    account::TimeState,
    event::{EventKind, RestartCause},
    machine::Rendezvous,
    message::RestartReason,
    phase::Phase,
    snapshot::PhaseName,
};

impl Rendezvous {
    /// Records the start of this coordinator.
    pub(super) fn record_start(&mut self, now: Instant) {
        let (nodes, restarts_used) = (self.job.state.round_size, self.job.state.restarts_used);
        let is_recovery = matches!(self.job.phase, Phase::Recovering(_));
        let reason = is_recovery.then(|| self.why_last_round_ended());
        let kind = if let Some(RestartReason::CoordinatorLost { host_name }) = &reason {
            let lost_host = host_name.clone();
            EventKind::CoordinatorTookOver { nodes, restarts_used, lost_host }
        } else {
            EventKind::CoordinatorStarted { nodes, restarts_used }
        };
        let id = self.out.event(&self.job, None, None, kind);
        self.out.began = Some(id);
        self.job.shown = (self.phase_name(), now);
        let kind = if is_recovery { EventKind::Recovering } else { EventKind::Gathering };
        self.out.event(&self.job, Some(id), None, kind);
        let why = reason.as_ref().map_or(RestartCause::FirstStart, RestartCause::from);
        self.progress.begin_restart(now, why, Some(id));
    }

    /// Records the completion of a round.
    pub(super) fn record_admission(&mut self, now: Instant, workers: u32, newcomers: usize) {
        self.out.failures.clear();
        let nodes = self.job.state.round_size;
        let newcomers = u32::try_from(newcomers).unwrap_or(u32::MAX);
        let kind = EventKind::RoundAdmitted { nodes, workers, newcomers };
        let event = self.out.event(&self.job, self.out.began, None, kind);
        self.out.admitted = Some(event);
        self.job.shown = (PhaseName::Running, now);
    }

    /// Updates the account and the events after an input, by the phase of the job.
    pub(super) fn follow_phase(&mut self, now: Instant) {
        let state = match &self.job.phase {
            Phase::Recovering(_) => Some(TimeState::Waiting),
            Phase::Gathering(gathering) if gathering.last_call_until.is_none() => {
                Some(TimeState::Waiting)
            }
            Phase::Gathering(_) => Some(TimeState::Rendezvous),
            Phase::Running(_) | Phase::Closed(_) => None,
            Phase::Regathering(regathering) => Some(if !regathering.group.unstopped().is_empty() {
                TimeState::Stopping
            } else if regathering.group.pending().is_empty() && regathering.verdict.is_none() {
                TimeState::Waiting
            } else {
                TimeState::Rendezvous
            }),
        };
        if let Some(state) = state {
            self.progress.account.enter(now, state);
        }
        let ((before, _), phase) = (self.job.shown, self.phase_name());
        if before == phase {
            return;
        }
        self.job.shown = (phase, now);
        let kind = match &self.job.phase {
            Phase::Recovering(_) => {
                self.progress.note_recovery();
                EventKind::Recovering
            }
            Phase::Gathering(_) => EventKind::Gathering,
            Phase::Regathering(_) if phase == PhaseName::Gathering => EventKind::RoundStopped,
            Phase::Regathering(_) if before == PhaseName::Gathering => {
                EventKind::RoundStillStopping
            }
            // These have events of their own.
            Phase::Regathering(_) | Phase::Running(_) | Phase::Closed(_) => return,
        };
        self.out.event(&self.job, self.out.began, None, kind);
    }
}
