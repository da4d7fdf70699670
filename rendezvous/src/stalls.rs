//! Notices that the workers of the running round make no progress for much longer than usual.
//!
//! 1. A stall begins at the limit of [`stall_limit`](crate::stall_limit), unless the pause has a known
//!    reason: for example, the ranks save because of a notice.
//! 2. It ends with the next sign of progress, or with the round.
//!
//! The workers are looked at when it begins (`looks.rs`). It is shown, and people decide. If the round fails, it also says who is
//! suspected (`failing.rs`).
//!
//! In jobs with `--hang-timeout auto`, a stall also names a worker that hangs. Its node kills it.
//!
//! 1. A worker that was stopped in both parts of a look while others wait is named at once. Its node kills it if it
//!    stays stopped for 30 seconds.
//! 2. After a long time without a step, the worker is named that the others wait for, else that with the lowest
//!    rank. If the last charged round has ended in this way at the same step, the time is twice as long as then: a first
//!    long evaluation is passed at last.

pub mod explain;
mod looking;
mod looks;
mod stalled_round;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use explain::OwnWait;
use looking::Looking;
use stalled_round::StalledRound;
use tracing::debug;

use crate::{
    effects::Effects,
    event::EventKind,
    ids::{GlobalRank, NodeId, RoundId},
    job::Job,
    limits::{after, millis},
    message::{Hung, Look, WorkerEnd},
    progress::{TrainingProgress, training::HANG_MIN},
    snapshot::{JobLook, Stall},
};

/// A worker hangs after this many times the limit of a stall, if that is longer than [`HANG_MIN`].
const HANG_FACTOR: u32 = 3;

/// The stall of the running round, and the looks at its workers.
#[derive(Debug, Default)]
pub(crate) struct JobStalls {
    stall: Option<StalledRound>,
    /// The look at the workers, until it is over.
    look: Option<Looking>,
    /// The places of the workers at the newest look, and the time of its beginning.
    places: Option<(Instant, JobLook)>,
    /// True if a person has asked for a further look, which begins when the present one is over.
    is_look_due: bool,
    /// The reason for which ragent itself makes the workers wait.
    wait: Option<OwnWait>,
    /// The number of looks at workers so far.
    looks: u64,
}

impl JobStalls {
    /// Begins a stall if one is due, and names a hung worker if one is due. `wait` is the reason for which ragent itself makes the
    /// workers wait. `is_excused` is true for this reason and for any other known one.
    pub(crate) fn follow(
        &mut self,
        job: &Job,
        progress: &TrainingProgress,
        wait: Option<OwnWait>,
        is_excused: bool,
        out: &mut Effects,
    ) {
        let now = job.clock;
        self.wait = wait;
        if let Some(stall) = &mut self.stall {
            stall.excuse(now, is_excused);
        }
        if self.stall_deadline(progress).is_some_and(|due| due <= now) {
            self.begin_stall(job, progress, out);
        }
        self.step_of_look(job, out);
        if self.hang_deadline(job, progress).is_some_and(|due| due <= now) {
            let blamed = self.stall.as_ref().and_then(StalledRound::blamed);
            self.name_hung(now, blamed.unwrap_or(GlobalRank(0)), false, out);
        }
    }

    /// Returns the time at which the state of the stall or of the look changes if there is no further sign of progress.
    pub(crate) fn deadline(&self, job: &Job, progress: &TrainingProgress) -> Option<Instant> {
        let look = self.look.as_ref().map(Looking::deadline);
        let (stall, hang) = (self.stall_deadline(progress), self.hang_deadline(job, progress));
        [stall, look, hang].into_iter().flatten().min()
    }

    /// Returns the time at which the next stall begins.
    fn stall_deadline(&self, progress: &TrainingProgress) -> Option<Instant> {
        if self.stall.is_some() { None } else { progress.account.stalls_at() }
    }

    fn begin_stall(&mut self, job: &Job, progress: &TrainingProgress, out: &mut Effects) {
        let (now, account) = (job.clock, &progress.account);
        let (step, limit) = (account.last_step(), account.stall_limit());
        let time = account.quiet_for(now);
        debug!(?step, ?time, "the workers are stalled");
        let kind = EventKind::StallBegan { step, after_ms: millis(time) };
        let event = out.event_of_round(job, kind);
        let since = now.checked_sub(time).unwrap_or(now);
        self.stall = Some(StalledRound::new(since, step, limit, event));
        self.begin_look(job, out);
    }

    /// Ends the stall of the round. `step` is the new step, if there is one.
    pub(crate) fn end_stall(&mut self, job: &Job, step: Option<u64>, out: &mut Effects) {
        self.record_explanation(job, out);
        // A look stops each worker for a moment.
        self.look.take_if(|look| !look.is_wanted());
        let Some(stall) = self.stall.take() else { return };
        // The worker may live after all.
        out.has_guidance |= stall.hung.is_some();
        let after_ms = millis(job.clock.saturating_duration_since(stall.since));
        let kind = EventKind::StallEnded { step, after_ms };
        out.event(job, Some(stall.event), None, kind);
    }

    /// Ends the stall and the look with their round.
    pub(crate) fn end_round(&mut self, job: &Job, out: &mut Effects) {
        self.end_stall(job, None, out);
        *self = Self { looks: self.looks, ..Self::default() };
    }

    /// Returns the stall of the running round, for people.
    pub(crate) fn stall(&self, now: Instant) -> Option<Stall> {
        Some(self.stall.as_ref()?.shown(now))
    }

    /// Returns the newest part of the look, as it is sent to members.
    pub(crate) fn look(&self) -> Option<Look> {
        self.look.as_ref().map(Looking::look)
    }

    /// Returns the worker that counts as hung.
    pub(crate) fn hung(&self) -> Option<Hung> {
        self.stall.as_ref()?.hung
    }

    /// Returns the member whose worker the others wait for, by the look at the workers.
    pub(crate) fn blamed(&self, job: &Job) -> Option<NodeId> {
        let rank = self.stall.as_ref()?.blamed()?;
        let members = job.phase.running()?.group.table.as_ref()?.member_ranks();
        let member = members.iter().rev().find(|member| member.first_global_rank <= rank)?;
        Some(member.node.node_id.clone())
    }

    /// Names the worker that was stopped in both parts of the look, if there is one.
    fn name_stopped(&mut self, job: &Job, out: &mut Effects) {
        let stall = self.stall.as_ref().filter(|stall| stall.hung.is_none() && kills_hung(job));
        if let Some(rank) = stall.and_then(StalledRound::stopped) {
            self.name_hung(job.clock, rank, true, out);
        }
    }

    fn name_hung(&mut self, now: Instant, rank: GlobalRank, if_stopped: bool, out: &mut Effects) {
        let Some(stall) = &mut self.stall else { return };
        let time = now.saturating_duration_since(stall.hang_since.unwrap_or(stall.since));
        debug!(%rank, ?time, if_stopped, "a worker hangs");
        stall.hung = Some(Hung { rank, time, if_stopped });
        (out.has_guidance, out.has_given_guidance) = (true, true);
    }

    /// Returns the time at which a worker is named. `None` while the workers have a known reason to wait. Afterwards, the time begins
    /// again.
    fn hang_deadline(&self, job: &Job, progress: &TrainingProgress) -> Option<Instant> {
        let stall = self.stall.as_ref()?;
        let is_named = stall.hung.is_some_and(|hung| !hung.if_stopped);
        let since = stall.hang_since.filter(|_| kills_hung(job) && !is_named)?;
        Some(after(since, hang_time(job.phase.running()?.group.round, stall, progress)))
    }
}

/// Returns true if the coordinator decides which worker hangs.
fn kills_hung(job: &Job) -> bool {
    job.settings.shared.is_some_and(|shared| shared.hang_auto)
}

/// Returns the time without a step after which a worker is named.
fn hang_time(round: RoundId, stall: &StalledRound, progress: &TrainingProgress) -> Duration {
    let usual = stall.limit.saturating_mul(HANG_FACTOR).max(HANG_MIN);
    let is_same = |step: Option<u64>| match (step, progress.reached_step(round)) {
        (Some(step), Some(reached)) => step.abs_diff(reached) <= 1,
        (step, reached) => step == reached,
    };
    let last = progress.training().charged_rounds.last();
    let last = last.filter(|last| last.has_hung_for_long() && is_same(last.step));
    let Some(WorkerEnd::Hung(time)) = last.map(|last| &last.end) else { return usual };
    time.saturating_mul(2).max(usual)
}
