//! Notices that the workers of the running round make no progress for much longer than usual.
//!
//! 1. A stall begins at the limit of [`stall_limit`](crate::stall_limit::stall_limit), unless the pause has a known
//!    reason: for example, the ranks save because of a notice.
//! 2. It ends with the next sign of progress, or with the round.
//!
//! The workers are looked at when it begins (`looking.rs`). It is shown, and people decide. A stall changes two
//! more things: `--hang-timeout auto` (`hanging.rs`), and who is suspected if the round fails (`failing.rs`).

use std::time::Instant;

use tracing::debug;

use crate::{
    event::EventKind, limits::millis, machine::Rendezvous, notice_phase::NoticePhase,
    phase::Running, progress::JobSteps, snapshot::Stall, stalled_round::StalledRound,
};

impl Rendezvous {
    /// Begins a stall if one is due.
    pub(super) fn follow_stall(&mut self, now: Instant) {
        let Some(running) = self.job.phase.running() else { return };
        let is_excused = self.may_pause(running);
        self.journal.account.excuse(now, is_excused);
        if let Some(Running { stall: Some(stall), .. }) = self.job.phase.running_mut() {
            stall.excuse(now, is_excused);
        }
        if self.stall_deadline().is_some_and(|due| due <= now) {
            self.begin_stall(now);
        }
        self.step_of_look(now);
        self.follow_hang(now);
    }

    /// Returns true if the workers have a known reason to make no progress.
    fn may_pause(&self, running: &Running) -> bool {
        let saves_for_notice = running.notice.as_ref().is_some_and(NoticePhase::ends_round);
        let steps = self.steps.of_round(running.group.round);
        let is_at_last_step = || steps.and_then(JobSteps::steps_left) == Some(0);
        saves_for_notice
            || self.memory.waits_for_buffer().is_some()
            || running.group.any_succeeded()
            || is_at_last_step()
    }

    /// Returns the time at which the next stall begins if there is no further sign of progress.
    pub(super) fn stall_deadline(&self) -> Option<Instant> {
        let Some(running) = self.job.phase.running() else { return None };
        if running.stall.is_some() { None } else { self.journal.account.stalls_at() }
    }

    fn begin_stall(&mut self, now: Instant) {
        let account = &self.journal.account;
        let (step, limit) = (account.last_step(), account.stall_limit());
        let time = account.quiet_for(now);
        debug!(?step, ?time, "the workers are stalled");
        let event = self
            .out
            .event_of_round(&self.job, EventKind::StallBegan { step, after_ms: millis(time) });
        let Some(running) = self.job.phase.running_mut() else { return };
        let since = now.checked_sub(time).unwrap_or(now);
        running.stall = Some(Box::new(StalledRound::new(since, step, limit, event)));
        self.begin_look(now);
    }

    /// Ends the stall of the round. `step` is the new step, if there is one.
    pub(super) fn end_stall(&mut self, now: Instant, step: Option<u64>) {
        self.record_explanation();
        let Some(running) = self.job.phase.running_mut() else { return };
        // A look stops each worker for a moment.
        running.look.take_if(|look| !look.is_wanted());
        let Some(stall) = running.stall.take() else { return };
        // The worker may live after all.
        self.out.has_guidance |= stall.hung.is_some();
        let after_ms = millis(now.saturating_duration_since(stall.since));
        self.out.event(
            &self.job,
            Some(stall.event),
            None,
            EventKind::StallEnded { step, after_ms },
        );
    }

    /// Returns the stall of the running round, for people.
    pub(super) fn stall(&self, now: Instant) -> Option<Stall> {
        let Some(running) = self.job.phase.running() else { return None };
        Some(running.stall.as_ref()?.shown(now))
    }
}
