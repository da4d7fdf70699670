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
    progress::TrainingProgress,
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

impl TrainingProgress {
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
        self.account.round_ended(job.clock, hung_for);
        if let Some(restart) = &self.restarts.newest
            && restart.counted.is_none()
        {
            self.count_restart(job, None, false, out);
        }
        let event =
            out.event(job, out.trigger, None, EventKind::RoundEnded { reason: reason.clone() });
        out.began = Some(event);
        self.begin_restart(job.clock, reason.into(), Some(event));
    }

    /// Records that all nodes of the round have started their workers.
    pub(crate) fn workers_started(&mut self, job: &Job, out: &mut Effects) {
        out.event(job, out.admitted, None, EventKind::WorkersStarted);
        self.account.started(job.clock);
        if !self.training.has_steps {
            // Its workers may do work that no step shows.
            self.forget_complete_step(out);
        }
        if self.account.is_unknown() {
            self.count_restart(job, None, true, out);
        }
    }

    /// Applies the steps of the running round to the account: they are a sign of progress. Returns the step of the job, if a stall is over.
    pub(crate) fn follow_steps(&mut self, job: &Job, out: &mut Effects) -> Option<u64> {
        let JobProgress { step, step_time, source, .. } = self.newest(job.clock, job)?;
        let is_read = source == StepSource::Read;
        if let Some(redone) = self.account.progress(job.clock, step, step_time, is_read) {
            out.event(job, out.admitted, None, EventKind::FirstProgress { step });
            self.count_restart(job, Some(redone), true, out);
            self.restarts.newest = None;
        }
        self.account.quiet_for(job.clock).is_zero().then_some(step)
    }

    /// Counts the restart that has brought the job to its current state. Replaces a cost that was counted before.
    fn count_restart(
        &mut self,
        job: &Job,
        redone_steps: Option<u64>,
        is_complete: bool,
        out: &mut Effects,
    ) {
        let times = self.account.seen(job.clock);
        let Some(restart) = &mut self.restarts.newest else { return };
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
        if is_complete && has_changed {
            // Otherwise, changes that are stored follow the end of the round.
            out.remember();
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::TestJob;

    /// A coordinator that learns of a round only now did not start the job: its restart is another one.
    #[test]
    fn recovery_is_no_first_start() {
        let mut t = TestJob::new(1, 2, &["a"]);
        let now = t.job.clock;
        let mut progress = TrainingProgress::new(now, &mut t.job.state);
        for (why, noted) in [
            (RestartCause::FirstStart, RestartCause::CoordinatorRestarted),
            (RestartCause::NodeLost, RestartCause::NodeLost),
        ] {
            progress.begin_restart(now, why, None);
            progress.note_recovery();
            assert_eq!(progress.restarts.newest.as_ref().map(|restart| restart.why), Some(noted));
        }
    }
}
