//! Follows the progress of the training, and the time that it takes: the steps and checkpoints that members report with their keep-alives,
//! and the time account.

use std::time::{Duration, Instant};

use crate::{
    account::{Pauses, TimeState, whole_millis},
    event::EventKind,
    ids::{NodeId, RoundId},
    limits::{ACCOUNT_INTERVAL, after, millis},
    machine::Rendezvous,
    message::{Checkpoint, StepProgress, StepSource},
    snapshot::{JobProgress, JobTime, StateTime},
};

impl Rendezvous {
    /// Records the training step that a node has sent. A step of an older round does not count: a node
    /// reports that it runs the newest round before it sends a step of it.
    pub(super) fn record_steps(
        &mut self,
        now: Instant,
        id: &NodeId,
        progress: Option<StepProgress>,
    ) {
        let (Some(progress), Some(running)) = (progress, self.job.phase.running()) else { return };
        let round = running.group.round;
        let runs_it = self.job.roster.get(id).is_some_and(|node| node.report.round == round);
        if !runs_it || running.group.held(id).is_none() {
            return;
        }
        if self.steps.record(now, round, id, &progress) {
            let is_new_work = self.note_step(progress.source, progress.highest);
            self.on_progress(now, id, is_new_work);
        }
    }

    /// Handles that the workers of a node have reached another step in the current round, which is a sign of
    /// progress.
    fn on_progress(&mut self, now: Instant, id: &NodeId, mut must_remember: bool) {
        self.steps.advance(now, id);
        let progress = self.progress(now);
        if let Some(progress) = &progress {
            must_remember |= self.record_progress(now, progress);
        }
        if must_remember {
            self.remember();
        }
        if let Some(progress) = progress
            && self.journal.account.quiet_for(now).is_zero()
        {
            self.end_stall(now, Some(progress.step));
        }
        self.follow_stall(now);
        // A worker that was named as hung may have made a step.
        self.send_new_guidance(now);
    }

    /// Returns the training step of the newest round, if any is known.
    pub(super) fn progress(&self, now: Instant) -> Option<JobProgress> {
        self.steps.of_round(self.newest_round())?.merged(now)
    }

    /// Returns the nodes that have reported steps of the newest round, by id. The number is the time since
    /// their workers have reached another step, in milliseconds.
    pub(super) fn progress_ages(&self, now: Instant) -> impl Iterator<Item = (&NodeId, u64)> {
        let steps = self.steps.of_round(self.newest_round());
        let ages = steps.into_iter().flat_map(move |steps| steps.ages(now));
        ages.map(|(id, age)| (id, millis(age)))
    }

    /// Records the newest checkpoint of a member.
    pub(super) fn record_checkpoint(&mut self, now: Instant, id: &NodeId, checkpoint: &Checkpoint) {
        let Some(running) = self.job.phase.running_mut() else { return };
        let round = running.group.round;
        let runs_it = self.job.roster.get(id).is_some_and(|node| node.report.round == round);
        if !runs_it || running.group.held(id).is_none() {
            return;
        }
        let Checkpoint { step, is_whole, cost } = *checkpoint;
        running.saved.record(id.clone(), step, is_whole);
        let by_all = running.saved.newest(running.group.size as usize);
        self.job.state.training.reach(step);
        self.steps.record_saved(round, step);
        if let Some(step) = by_all.filter(|_| by_all != self.job.state.training.saved_step) {
            self.job.state.training.saved_step = Some(step);
            self.checkpoints.handle_saved(now, round, step, cost);
        }
        // The checkpoint of the phase itself is reported here too. Only a newer one is a sign of new work.
        let is_newer = self.job.state.training.complete_step.is_some_and(|saved| saved < step);
        if is_newer && self.forget_complete_step() {
            self.remember();
        }
    }

    /// Records that the last checkpoint of a node could not be written, or that another one was.
    pub(super) fn record_failed_save(&mut self, id: &NodeId, reason: Option<String>) {
        let failed = reason.map(|reason| (id.clone(), reason));
        let known = &mut self.checkpoints.failed;
        let is_own = known.as_ref().is_some_and(|(of, _)| of == id);
        if *known != failed && (is_own || failed.is_some()) {
            known.clone_from(&failed);
            if let Some((_, reason)) = failed {
                self.out.event_of(&self.job, None, id, EventKind::SaveFailed { reason });
            }
        }
    }

    /// Notes that the job has done work since the last complete phase. Returns true if this must be stored.
    pub(super) fn forget_complete_step(&mut self) -> bool {
        self.job.state.training.complete_step.take().is_some()
    }

    /// Applies the end of a round to what is known about the training.
    pub(super) fn end_training_round(&mut self, round: RoundId) {
        let step = self.reached_step(round);
        self.job.state.training.end_round(step);
    }

    /// Returns the highest step that was reported or saved in a round.
    pub(super) fn reached_step(&self, round: RoundId) -> Option<u64> {
        self.steps.of_round(round)?.highest_reported()
    }

    /// Applies a step of the job to what is known about its training. Returns true if this must be stored.
    pub(super) fn note_step(&mut self, source: StepSource, highest: u64) -> bool {
        match source {
            StepSource::Reported => {
                self.job.state.training.has_steps = true;
                self.job.state.training.reach(highest);
            }
            StepSource::Read => self.job.state.training.has_steps = true,
            StepSource::Saved => return false,
        }
        self.forget_complete_step()
    }

    /// Returns the time at which the account of a running round must be stored.
    pub(super) fn account_due(&self) -> Option<Instant> {
        let is_running = self.job.phase.running().is_some();
        is_running.then(|| after(self.journal.stored, ACCOUNT_INTERVAL))
    }

    /// Stores the account, if it is due, and what progress has forgiven until then.
    pub(super) fn store_account(&mut self, now: Instant) {
        if self.account_due().is_some_and(|due| due <= now) {
            self.forgive_charges(now);
            self.remember();
        }
    }

    /// Writes the time account and the longest pauses to the state of the job.
    pub(super) fn remember_time(&mut self) {
        self.journal.stored = self.job.clock;
        self.job.state.time = self.journal.account.seen(self.job.clock).in_millis();
        let Pauses { longest, first } = self.journal.account.pauses();
        self.job.state.training.longest_pause = whole_millis(longest);
        self.job.state.training.first_step = whole_millis(first);
    }

    /// Returns the age of the job.
    pub(super) fn job_age(&self, now: Instant) -> Duration {
        self.journal.account.seen(now).age()
    }

    /// Returns the time for which workers have run.
    pub(super) fn time_with_workers(&self) -> Duration {
        let times = self.journal.account.seen(self.job.clock);
        let states = [
            TimeState::Productive,
            TimeState::Stalled,
            TimeState::Hung,
            TimeState::Starting,
            TimeState::Unknown,
        ];
        states.into_iter().fold(Duration::ZERO, |sum, state| sum.saturating_add(times.of(state)))
    }

    /// Returns the time account.
    pub(super) fn job_time(&self, now: Instant) -> JobTime {
        let account = &self.journal.account;
        let (seen, settled) = (account.seen(now), account.settled(now));
        let states = TimeState::ALL.into_iter().map(|state| StateTime {
            state: state.name().to_owned(),
            ms: millis(seen.of(state)),
            settled_ms: millis(settled.of(state)),
        });
        JobTime {
            states: states.collect(),
            redone_ms: millis(seen.redone),
            now: account.state(now).map(|state| state.name().to_owned()),
        }
    }
}
