//! Names a worker that hangs, in jobs with `--hang-timeout auto`. Its node kills it.
//!
//! 1. A worker that was stopped in both parts of a look while others wait is named at once. Its node kills it if it
//!    stays stopped for 30 seconds.
//! 2. After a long time without a step, the worker is named that the others wait for, else that with the lowest
//!    rank. If the last charged round has ended in this way at the same step, the time is twice as long as then: a first
//!    long evaluation is passed at last.

use std::time::{Duration, Instant};

use tracing::debug;

use crate::{
    ids::{GlobalRank, RoundId},
    limits::after,
    machine::Rendezvous,
    message::{Hung, WorkerEnd},
    phase::Running,
    stalled_round::StalledRound,
    training::HANG_MIN,
};

/// A worker hangs after this many times the limit of a stall, if that is longer than [`HANG_MIN`].
const HANG_FACTOR: u32 = 3;

impl Rendezvous {
    /// Names a worker if one is due.
    pub(super) fn follow_hang(&mut self, now: Instant) {
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
        let Some(running) = self.job.phase.running() else { return None };
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
        let is_same = |step: Option<u64>| match (step, self.reached_step(round)) {
            (Some(step), Some(reached)) => step.abs_diff(reached) <= 1,
            (step, reached) => step == reached,
        };
        let last = self.job.state.training.charged_rounds.last();
        let last = last.filter(|last| last.has_hung_for_long() && is_same(last.step));
        let Some(WorkerEnd::Hung(time)) = last.map(|last| &last.end) else { return usual };
        time.saturating_mul(2).max(usual)
    }
}
