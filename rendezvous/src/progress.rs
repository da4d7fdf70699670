//! Follows the training: the steps and checkpoints that members report with their keep-alives, the time that it takes, and what
//! restarts cost.
//!
//! Some of it is kept from one coordinator to the next: [`TrainingProgress::keep`] writes it to the state of the job. A method that changes
//! such a part has it stored.

pub mod account;
mod checkpoints;
mod restarts;
pub mod saved_steps;
mod stall_limit;
mod steps;
#[cfg(test)]
mod tests;
pub mod training;

use std::{
    mem,
    time::{Duration, Instant},
};

use account::{Pauses, TimeAccount, TimeState, whole_millis};
use checkpoints::{Checkpoints, FailureRate};
use restarts::Restarts;
use saved_steps::SavedSteps;
pub use stall_limit::stall_limit;
use steps::JobSteps;
use training::{ChargedRound, Training};

use crate::{
    effects::Effects,
    event::EventKind,
    ids::{NodeId, RoundId},
    job::Job,
    limits::{ACCOUNT_INTERVAL, after, millis},
    message::{Checkpoint, CheckpointId, StepProgress, StepSource},
    settings::JobState,
    snapshot::{CheckpointTimes, JobProgress, JobTime, StateTime},
};

/// The progress of the training.
#[derive(Debug)]
pub(crate) struct TrainingProgress {
    training: Training,
    steps: JobSteps,
    /// The steps that members have saved in the newest round.
    saved: SavedSteps<NodeId>,
    checkpoints: Checkpoints,
    pub(crate) account: TimeAccount,
    /// The time at which the account was last stored.
    stored: Instant,
    restarts: Restarts,
    /// The number of workers of the newest round.
    workers: u32,
}

impl TrainingProgress {
    /// Takes over what an earlier coordinator has kept. Of a new run, that is nothing.
    pub(crate) fn new(now: Instant, kept: &mut JobState) -> Self {
        let training = mem::take(&mut kept.training);
        let pauses = Pauses { longest: training.longest_pause, first: training.first_step };
        Self {
            account: TimeAccount::new(now, mem::take(&mut kept.time), pauses),
            restarts: Restarts::new(mem::take(&mut kept.restarts)),
            training,
            steps: JobSteps::default(),
            saved: SavedSteps::default(),
            checkpoints: Checkpoints::default(),
            stored: now,
            workers: 0,
        }
    }

    /// Writes to the state of the job what the next coordinator goes on from.
    pub(crate) fn keep(&mut self, now: Instant, state: &mut JobState) {
        self.stored = now;
        state.time = self.account.seen(now).in_millis();
        state.restarts = self.restarts.sums;
        let Pauses { longest, first } = self.account.pauses();
        self.training.longest_pause = whole_millis(longest);
        self.training.first_step = whole_millis(first);
        state.training = self.training.clone();
    }

    /// Returns what is known about the training across all rounds. `notices` and `memory` in it are not current: `JobNotices` and
    /// `JobMemory` have them.
    pub(crate) fn training(&self) -> &Training {
        &self.training
    }

    /// Begins a round with this number of workers.
    pub(crate) fn begin_round(&mut self, now: Instant, workers: u32) {
        self.training.begin_round();
        self.saved = SavedSteps::default();
        self.checkpoints.failed = None;
        self.account.enter(now, TimeState::Starting);
        if self.workers != workers {
            // The number of steps of an epoch depends on the number of workers.
            self.account.forget_steps();
        }
        self.workers = workers;
    }

    /// Records the training step that a node has sent, if it runs the newest round. Returns true if its workers have reached another step.
    pub(crate) fn record_steps(
        &mut self,
        job: &Job,
        id: &NodeId,
        progress: &StepProgress,
        out: &mut Effects,
    ) -> bool {
        let Some(group) = job.run_by(id) else { return false };
        if !self.steps.record(job.clock, group.round, id, progress) {
            return false;
        }
        self.steps.advance(job.clock, id);
        if progress.source != StepSource::Saved {
            self.training.has_steps = true;
            self.forget_complete_step(out);
        }
        if progress.source == StepSource::Reported {
            self.training.reach(progress.highest);
        }
        true
    }

    /// Records the newest checkpoint of a node, if it runs the newest round.
    pub(crate) fn record_checkpoint(
        &mut self,
        job: &Job,
        id: &NodeId,
        checkpoint: &Checkpoint,
        out: &mut Effects,
    ) {
        let Some(group) = job.run_by(id) else { return };
        let Checkpoint { step, is_whole, cost } = *checkpoint;
        self.saved.record(id.clone(), step, is_whole);
        let by_all = self.saved.newest(group.size as usize);
        self.training.reach(step);
        self.steps.record_saved(group.round, step);
        if let Some(step) = by_all.filter(|_| by_all != self.training.saved_step) {
            self.training.saved_step = Some(step);
            self.checkpoints.handle_saved(job.clock, group.round, step, cost);
        }
        self.note_newer(step, out);
    }

    /// Records that the last checkpoint of a node could not be written, or that another one was.
    pub(crate) fn record_failed_save(
        &mut self,
        job: &Job,
        id: &NodeId,
        reason: Option<String>,
        out: &mut Effects,
    ) {
        let failed = reason.map(|reason| (id.clone(), reason));
        let known = &mut self.checkpoints.failed;
        let is_own = known.as_ref().is_some_and(|(of, _)| of == id);
        if *known != failed && (is_own || failed.is_some()) {
            known.clone_from(&failed);
            if let Some((_, reason)) = failed {
                out.event_of(job, None, id, EventKind::SaveFailed { reason });
            }
        }
    }

    /// Notes that all ranks have saved a step in memory. Like a checkpoint on disk, it raises the highest step.
    pub(crate) fn reach_in_memory(&mut self, checkpoint: CheckpointId, out: &mut Effects) {
        self.training.reach(checkpoint.step);
        self.steps.record_saved(checkpoint.round, checkpoint.step);
        self.note_newer(checkpoint.step, out);
    }

    /// Applies a saved step. The checkpoint for a notice is reported like any other one, so only a newer one is a sign of new work.
    fn note_newer(&mut self, step: u64, out: &mut Effects) {
        if self.training.complete_step.is_some_and(|saved| saved < step) {
            self.forget_complete_step(out);
        }
    }

    /// Notes that the job has done work since all ranks saved for a notice. Returns true if they had.
    pub(crate) fn forget_complete_step(&mut self, out: &mut Effects) -> bool {
        let had_saved = self.training.complete_step.take().is_some();
        if had_saved {
            out.remember();
        }
        had_saved
    }

    /// Notes that the time for a notice is over. `step` is what all ranks have saved for it on disk.
    pub(crate) fn end_saving(&mut self, now: Instant, step: Option<u64>) {
        // The time since the last step is that of a checkpoint before the end of the round.
        self.restarts.saving = self.account.saving_over(now);
        if step.is_some() {
            self.training.saved_step = step;
            self.training.complete_step = step;
        }
    }

    /// Notes that at least as many charged failures are forgiven.
    pub(crate) fn learn_forgiven(&mut self, forgiven: u32) {
        self.training.restarts_forgiven = self.training.restarts_forgiven.max(forgiven);
    }

    /// Forgives all charged failures, if the job has saved a later step since the last of them.
    pub(crate) fn forgive(&mut self, restarts_used: u32, newest_saved: Option<u64>) {
        if newest_saved > self.training.step_at_charge {
            self.training.restarts_forgiven = restarts_used;
        }
    }

    /// Remembers a charged round, and how far the job had saved at that time.
    pub(crate) fn charge(&mut self, charged: ChargedRound, newest_saved: Option<u64>) {
        self.training.step_at_charge = newest_saved.max(self.training.step_at_charge);
        self.training.charge(charged);
    }

    /// Returns the highest step that was reported or saved in a round.
    pub(crate) fn reached_step(&self, round: RoundId) -> Option<u64> {
        self.steps.of_round(round)?.highest_reported()
    }

    /// Returns true if a round is at its last step.
    pub(crate) fn is_at_last_step(&self, round: RoundId) -> bool {
        self.steps.of_round(round).and_then(JobSteps::steps_left) == Some(0)
    }

    /// Returns the training step of the newest round, if any is known.
    pub(crate) fn newest(&self, now: Instant, job: &Job) -> Option<JobProgress> {
        self.steps.of_round(job.newest_round())?.merged(now)
    }

    /// Returns the nodes that have reported steps of the newest round, by id. The number is the time since their workers have reached
    /// another step, in milliseconds.
    pub(crate) fn ages(&self, now: Instant, job: &Job) -> impl Iterator<Item = (&NodeId, u64)> {
        let steps = self.steps.of_round(job.newest_round());
        let ages = steps.into_iter().flat_map(move |steps| steps.ages(now));
        ages.map(|(id, age)| (id, millis(age)))
    }

    /// Returns the time at which the account of a running round must be stored.
    pub(crate) fn due(&self, job: &Job) -> Option<Instant> {
        job.phase.running().map(|_| after(self.stored, ACCOUNT_INTERVAL))
    }

    /// Returns true if the account is due. It is due again after the same time.
    pub(crate) fn must_store(&mut self, job: &Job) -> bool {
        let is_due = self.due(job).is_some_and(|due| due <= job.clock);
        if is_due {
            self.stored = job.clock;
        }
        is_due
    }

    /// Returns the time for which workers have run.
    fn time_with_workers(&self, now: Instant) -> Duration {
        let times = self.account.seen(now);
        let states = [
            TimeState::Productive,
            TimeState::Stalled,
            TimeState::Hung,
            TimeState::Starting,
            TimeState::Unknown,
        ];
        states.into_iter().fold(Duration::ZERO, |sum, state| sum.saturating_add(times.of(state)))
    }

    /// Returns how often the job saves, and how often it should.
    pub(crate) fn checkpoint_times(&self, job: &Job) -> Option<CheckpointTimes> {
        self.checkpoints.times(FailureRate {
            failures: self.restarts.failures(),
            running: self.time_with_workers(job.clock),
            nodes: job.state.round_size,
        })
    }

    /// Returns the reason why the last checkpoint could not be written, if it could not.
    pub(crate) fn failed_save(&self) -> Option<String> {
        self.checkpoints.failed.as_ref().map(|(_, reason)| reason.clone())
    }

    /// Returns the time account, for people.
    pub(crate) fn job_time(&self, now: Instant) -> JobTime {
        let (seen, settled) = (self.account.seen(now), self.account.settled(now));
        let states = TimeState::ALL.into_iter().map(|state| StateTime {
            state: state.name().to_owned(),
            ms: millis(seen.of(state)),
            settled_ms: millis(settled.of(state)),
        });
        JobTime {
            states: states.collect(),
            redone_ms: millis(seen.redone),
            now: self.account.state(now).map(|state| state.name().to_owned()),
        }
    }
}
