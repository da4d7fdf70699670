//! Follows the training step of the running round, which members report with their keep-alives.

use std::time::Instant;

use crate::{
    ids::NodeId, limits::millis, machine::Rendezvous, message::StepProgress, phase::Phase,
    snapshot::JobProgress,
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
        let (Some(progress), Phase::Running(running)) = (progress, &self.job.phase) else { return };
        let round = running.group.round;
        let runs_it = self.job.roster.get(id).is_some_and(|node| node.report.round == round);
        if !runs_it || running.group.held(id).is_none() {
            return;
        }
        if self.steps.record(now, round, id, &progress) {
            self.note_step(progress.source, progress.highest);
            self.on_progress(now, id);
        }
    }

    /// Handles that the workers of a node have reached another step in the current round, which is a sign of
    /// progress.
    fn on_progress(&mut self, now: Instant, id: &NodeId) {
        self.steps.advance(now, id);
        if let Some(progress) = self.progress(now) {
            self.record_progress(now, &progress);
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
}
