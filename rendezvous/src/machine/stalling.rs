//! Notices that the workers of the running round make no progress for much longer than usual.
//!
//! 1. A stall begins at the limit of [`stall_limit`](crate::stall_limit::stall_limit), unless the pause has a known
//!    reason: for example, the ranks save because of a notice.
//! 2. It ends with the next sign of progress, or with the round.
//!
//! The workers are looked at when it begins (`looking.rs`). It is shown, and people decide. If the round fails, it also says who is
//! suspected (`failing.rs`).
//!
//! In jobs with `--hang-timeout auto`, a stall also names a worker that hangs. Its node kills it.
//!
//! 1. A worker that was stopped in both parts of a look while others wait is named at once. Its node kills it if it
//!    stays stopped for 30 seconds.
//! 2. After a long time without a step, the worker is named that the others wait for, else that with the lowest
//!    rank. If the last charged round has ended in this way at the same step, the time is twice as long as then: a first
//!    long evaluation is passed at last.

use std::time::{Duration, Instant};

use tracing::debug;

use crate::{
    event::EventKind,
    ids::{GlobalRank, RoundId},
    limits::{after, millis},
    machine::Rendezvous,
    message::{Hung, WorkerEnd},
    notice_phase::NoticePhase,
    phase::Running,
    snapshot::Stall,
    stalled_round::StalledRound,
    training::HANG_MIN,
};

/// A worker hangs after this many times the limit of a stall, if that is longer than [`HANG_MIN`].
const HANG_FACTOR: u32 = 3;

impl Rendezvous {
    /// Begins a stall if one is due.
    pub(super) fn follow_stall(&mut self, now: Instant) {
        let Some(running) = self.job.phase.running() else { return };
        let is_excused = self.may_pause(running);
        self.progress.excuse(now, is_excused);
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
        saves_for_notice
            || self.memory.waits_for_buffer().is_some()
            || running.group.any_succeeded()
            || self.progress.is_at_last_step(running.group.round)
    }

    /// Returns the time at which the next stall begins if there is no further sign of progress.
    pub(super) fn stall_deadline(&self) -> Option<Instant> {
        let running = self.job.phase.running()?;
        if running.stall.is_some() { None } else { self.progress.account().stalls_at() }
    }

    fn begin_stall(&mut self, now: Instant) {
        let account = self.progress.account();
        let (step, limit) = (account.last_step(), account.stall_limit());
        let time = account.quiet_for(now);
        debug!(?step, ?time, "the workers are stalled");
        let kind = EventKind::StallBegan { step, after_ms: millis(time) };
        let event = self.out.event_of_round(&self.job, kind);
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
        let kind = EventKind::StallEnded { step, after_ms };
        self.out.event(&self.job, Some(stall.event), None, kind);
    }

    /// Returns the stall of the running round, for people.
    pub(super) fn stall(&self, now: Instant) -> Option<Stall> {
        Some(self.job.phase.running()?.stall.as_ref()?.shown(now))
    }

    /// Names a worker if one is due.
    fn follow_hang(&mut self, now: Instant) {
        if self.hang_deadline().is_some_and(|due| due <= now) {
            let Some(Running { stall: Some(stall), .. }) = self.job.phase.running() else { return };
            let rank = stall.blamed().unwrap_or(GlobalRank(0));
            self.name_hung(now, rank, false);
        }
    }

    /// Names the worker that was stopped in both parts of the look, if there is one.
    pub(super) fn name_stopped(&mut self, now: Instant) {
        let Some(Running { stall: Some(stall), .. }) = self.job.phase.running() else { return };
        let stopped = stall.stopped().filter(|_| stall.hung.is_none() && self.kills_hung());
        if let Some(rank) = stopped {
            self.name_hung(now, rank, true);
        }
    }

    fn name_hung(&mut self, now: Instant, rank: GlobalRank, if_stopped: bool) {
        let Some(Running { stall: Some(stall), .. }) = self.job.phase.running_mut() else { return };
        let time = now.saturating_duration_since(stall.hang_since.unwrap_or(stall.since));
        debug!(%rank, ?time, if_stopped, "a worker hangs");
        stall.hung = Some(Hung { rank, time, if_stopped });
        (self.out.has_guidance, self.has_given_guidance) = (true, true);
    }

    /// Returns the time at which a worker is named if there is no further step. `None` while the workers have a known
    /// reason to wait. Afterwards, the time begins again.
    pub(super) fn hang_deadline(&self) -> Option<Instant> {
        let running = self.job.phase.running()?;
        let stall = running.stall.as_ref()?;
        let is_named = stall.hung.is_some_and(|hung| !hung.if_stopped);
        let since = stall.hang_since.filter(|_| self.kills_hung() && !is_named)?;
        Some(after(since, self.hang_time(running.group.round, stall)))
    }

    /// Returns true if the coordinator decides which worker hangs.
    fn kills_hung(&self) -> bool {
        self.job.settings.shared.is_some_and(|shared| shared.hang_auto)
    }

    /// Returns the time without a step after which a worker is named.
    fn hang_time(&self, round: RoundId, stall: &StalledRound) -> Duration {
        let usual = stall.limit.saturating_mul(HANG_FACTOR).max(HANG_MIN);
        let is_same = |step: Option<u64>| match (step, self.progress.reached_step(round)) {
            (Some(step), Some(reached)) => step.abs_diff(reached) <= 1,
            (step, reached) => step == reached,
        };
        let last = self.progress.training().charged_rounds.last();
        let last = last.filter(|last| last.has_hung_for_long() && is_same(last.step));
        let Some(WorkerEnd::Hung(time)) = last.map(|last| &last.end) else { return usual };
        time.saturating_mul(2).max(usual)
    }
}
