//! Records the rounds of the job as events, accounts for its time, and counts what its restarts cost.

use std::time::{Duration, Instant};

use crate::{
    account::{Pauses, TimeAccount, TimeState, TimeTotals},
    event::{EventId, EventKind, RestartCause, RestartCost, RestartStages, RestartSum},
    machine::Rendezvous,
    message::{RestartReason, StepSource, WorkerEnd},
    phase::Phase,
    settings::JobState,
    snapshot::{JobProgress, PhaseName, RestartsByCause},
};

/// The state of the recording.
#[derive(Debug)]
pub(super) struct Journal {
    /// The number of workers of the newest round.
    workers: u32,
    /// The phase according to the events so far.
    phase: PhaseName,
    pub(super) phase_since: Instant,
    pub(super) account: TimeAccount,
    /// The time at which the account was last stored.
    pub(super) stored: Instant,
    restart: Option<Restart>,
    pub(super) last_cost: Option<RestartCost>,
    /// The phase of the newest notice.
    pub(super) notice: Option<EventId>,
    /// The time of the last checkpoint for a notice, until the next restart begins.
    pub(super) saving: Duration,
}

/// A restart, until the workers of its round have given a sign of progress.
#[derive(Debug)]
struct Restart {
    why: RestartCause,
    event: Option<EventId>,
    /// The times at its beginning.
    before: TimeTotals,
    /// The time of the checkpoint before the end of the round, for a notice.
    saving: Duration,
    /// Its cost when the workers ran, if it was counted then.
    counted: Option<RestartCost>,
}

impl Journal {
    pub(super) fn new(now: Instant, job_state: &JobState) -> Self {
        let training = &job_state.training;
        let pauses = Pauses { longest: training.longest_pause, first: training.first_step };
        let account = TimeAccount::new(now, job_state.time.clone(), pauses);
        Self {
            workers: 0,
            phase: PhaseName::Gathering,
            phase_since: now,
            account,
            stored: now,
            restart: None,
            last_cost: None,
            notice: None,
            saving: Duration::ZERO,
        }
    }
}

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
        self.journal.phase = self.phase_name();
        let kind = if is_recovery { EventKind::Recovering } else { EventKind::Gathering };
        self.out.event(&self.job, Some(id), None, kind);
        let why = reason.as_ref().map_or(RestartCause::FirstStart, RestartCause::from);
        self.begin_restart(now, why, Some(id));
    }

    fn begin_restart(&mut self, now: Instant, why: RestartCause, event: Option<EventId>) {
        let before = self.journal.account.seen(now);
        let saving = std::mem::take(&mut self.journal.saving);
        self.journal.restart = Some(Restart { why, event, before, saving, counted: None });
    }

    /// Records the end of the round.
    pub(super) fn record_end_of_round(&mut self, now: Instant, reason: &RestartReason) {
        let hung_for =
            if let RestartReason::WorkerFailed { end: WorkerEnd::Hung(time), .. } = reason {
                Some(*time)
            } else {
                None
            };
        self.journal.account.round_ended(now, hung_for);
        self.journal.phase = PhaseName::Stopping;
        self.journal.phase_since = now;
        self.end_restart(now);
        let kind = EventKind::RoundEnded { reason: reason.clone() };
        let event = self.out.event(&self.job, self.out.trigger, None, kind);
        self.out.began = Some(event);
        self.begin_restart(now, reason.into(), Some(event));
    }

    /// Records a restart whose round ended before its workers made progress.
    fn end_restart(&mut self, now: Instant) {
        if let Some(restart) = &self.journal.restart
            && restart.counted.is_none()
        {
            self.count_restart(now, None, false);
        }
        self.journal.restart = None;
    }

    /// Records that members of the last round are back after a restart of the coordinator.
    pub(super) fn record_recovery(&mut self, back: usize, nodes: u32) {
        let back = u32::try_from(back).unwrap_or(u32::MAX);
        self.out.event(&self.job, self.out.began, None, EventKind::Recovered { back, nodes });
        self.journal.phase = PhaseName::Stopping;
        self.journal.phase_since = self.job.clock;
    }

    /// Records the completion of a round.
    pub(super) fn record_admission(&mut self, now: Instant, workers: u32, newcomers: usize) {
        self.journal.account.enter(now, TimeState::Starting);
        if self.journal.workers != workers {
            // The number of steps of an epoch depends on the number of workers.
            self.journal.account.forget_steps();
        }
        self.journal.workers = workers;
        self.out.failures.clear();
        let nodes = self.job.state.round_size;
        let newcomers = u32::try_from(newcomers).unwrap_or(u32::MAX);
        let kind = EventKind::RoundAdmitted { nodes, workers, newcomers };
        let event = self.out.event(&self.job, self.out.began, None, kind);
        self.out.admitted = Some(event);
        self.journal.phase = PhaseName::Running;
        self.journal.phase_since = now;
    }

    /// Records that all nodes of the round have started their workers.
    pub(super) fn record_workers_started(&mut self, now: Instant) {
        self.out.event(&self.job, self.out.admitted, None, EventKind::WorkersStarted);
        self.journal.account.started(now);
        // The workers of a job without steps may do work that no step shows.
        let mut has_changed = !self.job.state.training.has_steps && self.forget_complete_step();
        if self.journal.account.is_unknown() {
            has_changed |= self.count_restart(now, None, true);
        }
        if has_changed {
            self.remember();
        }
    }

    /// Records a sign of progress. Returns true if the state of the job must be stored.
    pub(super) fn record_progress(&mut self, now: Instant, progress: &JobProgress) -> bool {
        let JobProgress { step, step_time, source, .. } = *progress;
        let is_read = source == StepSource::Read;
        let first = self.journal.account.progress(now, step, step_time, is_read);
        let Some(redone) = first else { return false };
        self.out.event(&self.job, self.out.admitted, None, EventKind::FirstProgress { step });
        let has_changed = self.count_restart(now, Some(redone), true);
        self.journal.restart = None;
        has_changed
    }

    /// Counts the restart that has brought the job to its current state. Replaces a cost that was counted
    /// before. Returns true if the state of the job must be stored.
    fn count_restart(
        &mut self,
        now: Instant,
        redone_steps: Option<u64>,
        is_complete: bool,
    ) -> bool {
        let times = self.journal.account.seen(now);
        let Some(restart) = &mut self.journal.restart else { return false };
        let stages = RestartStages::of(&times.since(&restart.before), restart.saving);
        let cost = RestartCost { why: restart.why, stages, redone_steps, is_complete };
        let sum = &mut self.job.state.restarts[restart.why as usize];
        let before = *sum;
        if let Some(counted) = restart.counted.replace(cost.clone()) {
            sum.remove(&counted);
        }
        sum.add(&cost);
        let has_changed = *sum != before;
        let cause = restart.event;
        self.journal.last_cost = Some(cost.clone());
        self.out.event(&self.job, cause, None, EventKind::RestartCost(cost));
        // Otherwise, changes that are stored follow the end of the round.
        is_complete && has_changed
    }

    /// Records the end of the job.
    pub(super) fn record_closed(&mut self, now: Instant) {
        let Some(outcome) = &self.job.state.closed else { return };
        let kind = EventKind::JobClosed { result: outcome.result.clone() };
        self.journal.account.close(now);
        self.out.event(&self.job, self.out.trigger.or(self.out.began), None, kind);
        self.journal.phase = PhaseName::Closed;
        self.journal.phase_since = now;
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
            self.journal.account.enter(now, state);
        }
        let (before, phase) = (self.journal.phase, self.phase_name());
        if before == phase {
            return;
        }
        self.journal.phase = phase;
        self.journal.phase_since = now;
        if let (Phase::Recovering(_), Some(restart)) = (&self.job.phase, &mut self.journal.restart)
            && restart.why == RestartCause::FirstStart
        {
            // A coordinator without state has learned that there was a round.
            restart.why = RestartCause::CoordinatorRestarted;
        }
        let kind = match &self.job.phase {
            Phase::Recovering(_) => EventKind::Recovering,
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

    /// Begins the account of a new run.
    pub(super) fn record_new_run(&mut self) {
        let now = self.job.clock;
        self.journal.account = TimeAccount::new(now, TimeTotals::default(), Pauses::default());
        self.journal.last_cost = None;
        self.job.state.restarts = Default::default();
        let event = self.out.event(&self.job, None, None, EventKind::RunBegan { restarts_used: 0 });
        self.out.began = Some(event);
        self.begin_restart(now, RestartCause::FirstStart, Some(event));
    }

    /// Returns the restarts so far, by cause.
    pub(super) fn restarts_by_cause(&self) -> Vec<RestartsByCause> {
        let sums = RestartCause::ALL.into_iter().zip(self.job.state.restarts);
        let used = sums.filter(|(_, sum)| *sum != RestartSum::default());
        used.map(|(cause, sum)| RestartsByCause { cause, sum }).collect()
    }
}
