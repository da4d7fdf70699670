//! Counts what restarts cost: the time of their stages, and the steps that are done again.

use std::{
    mem,
    time::{Duration, Instant},
};

use crate::{
    account::TimeTotals,
    effects::Effects,
    event::{EventId, EventKind, RestartCause, RestartCost, RestartStages, RestartSum},
    ids::RoundId,
    job::Job,
    message::{RestartReason, StepSource, WorkerEnd},
    progress::Progress,
    snapshot::{JobProgress, RestartsByCause},
};

/// The restarts of the job.
#[derive(Debug)]
pub(super) struct Restarts {
    /// By cause, in the order of [`RestartCause::ALL`].
    pub(super) sums: [RestartSum; RestartCause::ALL.len()],
    newest: Option<Restart>,
    last_cost: Option<RestartCost>,
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

impl Restarts {
    pub(super) fn new(sums: [RestartSum; RestartCause::ALL.len()]) -> Self {
        Self { sums, newest: None, last_cost: None, saving: Duration::ZERO }
    }

    /// Returns the number of involuntary restarts.
    pub(super) fn failures(&self) -> u32 {
        let is_failure = |cause: &RestartCause| match cause {
            RestartCause::WorkerFailed
            | RestartCause::NodeLost
            | RestartCause::BadMachine
            | RestartCause::CoordinatorLost
            | RestartCause::CoordinatorRestarted => true,
            RestartCause::FirstStart
            | RestartCause::NodeLeft
            | RestartCause::NodesWaiting
            | RestartCause::HostLeft
            | RestartCause::Notice
            | RestartCause::MemoryUnusable => false,
        };
        let sums = RestartCause::ALL.into_iter().zip(self.sums);
        let failures = sums.filter(|(cause, _)| is_failure(cause)).map(|(_, sum)| sum.count);
        failures.fold(0, u32::saturating_add)
    }
}

impl Progress {
    /// Begins a restart, which `event` has caused.
    pub(crate) fn begin_restart(
        &mut self,
        now: Instant,
        why: RestartCause,
        event: Option<EventId>,
    ) {
        let before = self.account.seen(now);
        let saving = mem::take(&mut self.restarts.saving);
        self.restarts.newest = Some(Restart { why, event, before, saving, counted: None });
    }

    /// Notes that the job had a round, which this coordinator has learned only now.
    pub(crate) fn note_recovery(&mut self) {
        if let Some(restart) = &mut self.restarts.newest
            && restart.why == RestartCause::FirstStart
        {
            restart.why = RestartCause::CoordinatorRestarted;
        }
    }

    /// Records the end of a round. If its workers have made no progress, the restart that began it is counted now.
    pub(crate) fn end_round(
        &mut self,
        now: Instant,
        job: &Job,
        round: RoundId,
        reason: &RestartReason,
        out: &mut Effects,
    ) {
        let step = self.reached_step(round);
        self.training.end_round(step);
        let hung_for =
            if let RestartReason::WorkerFailed { end: WorkerEnd::Hung(time), .. } = reason {
                Some(*time)
            } else {
                None
            };
        self.account.round_ended(now, hung_for);
        if let Some(restart) = &self.restarts.newest
            && restart.counted.is_none()
        {
            self.count_restart(now, job, None, false, out);
        }
        let event =
            out.event(job, out.trigger, None, EventKind::RoundEnded { reason: reason.clone() });
        out.began = Some(event);
        self.begin_restart(now, reason.into(), Some(event));
    }

    /// Records that all nodes of the round have started their workers.
    #[must_use]
    pub(crate) fn workers_started(&mut self, now: Instant, job: &Job, out: &mut Effects) -> bool {
        out.event(job, out.admitted, None, EventKind::WorkersStarted);
        self.account.started(now);
        // The workers of a job without steps may do work that no step shows.
        let is_new_work = !self.training.has_steps && self.forget_complete_step();
        let is_counted = self.account.is_unknown() && self.count_restart(now, job, None, true, out);
        is_new_work || is_counted
    }

    /// Records a sign of progress.
    #[must_use]
    pub(crate) fn record_progress(
        &mut self,
        now: Instant,
        job: &Job,
        progress: &JobProgress,
        out: &mut Effects,
    ) -> bool {
        let JobProgress { step, step_time, source, .. } = *progress;
        let is_read = source == StepSource::Read;
        let first = self.account.progress(now, step, step_time, is_read);
        let Some(redone) = first else { return false };
        out.event(job, out.admitted, None, EventKind::FirstProgress { step });
        let has_changed = self.count_restart(now, job, Some(redone), true, out);
        self.restarts.newest = None;
        has_changed
    }

    /// Counts the restart that has brought the job to its current state. Replaces a cost that was counted before.
    fn count_restart(
        &mut self,
        now: Instant,
        job: &Job,
        redone_steps: Option<u64>,
        is_complete: bool,
        out: &mut Effects,
    ) -> bool {
        let times = self.account.seen(now);
        let Some(restart) = &mut self.restarts.newest else { return false };
        let stages = RestartStages::of(&times.since(&restart.before), restart.saving);
        let cost = RestartCost { why: restart.why, stages, redone_steps, is_complete };
        let sum = &mut self.restarts.sums[restart.why as usize];
        let before = *sum;
        if let Some(counted) = restart.counted.replace(cost.clone()) {
            sum.remove(&counted);
        }
        sum.add(&cost);
        let has_changed = *sum != before;
        self.restarts.last_cost = Some(cost.clone());
        out.event(job, restart.event, None, EventKind::RestartCost(cost));
        // Otherwise, changes that are stored follow the end of the round.
        is_complete && has_changed
    }

    /// Returns the cost of the last restart.
    pub(crate) fn last_restart(&self) -> Option<RestartCost> {
        self.restarts.last_cost.clone()
    }

    /// Returns the restarts so far, by cause.
    pub(crate) fn restarts_by_cause(&self) -> Vec<RestartsByCause> {
        let sums = RestartCause::ALL.into_iter().zip(self.restarts.sums);
        let used = sums.filter(|(_, sum)| *sum != RestartSum::default());
        used.map(|(cause, sum)| RestartsByCause { cause, sum }).collect()
    }
}
