//! Keeps what is known about the training of a job, across all of its rounds and coordinators: how far it
//! has come, what was saved, and how the last rounds failed.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    ids::{GlobalRank, Round},
    message::{CheckpointId, WorkerEnd},
};

/// The most charged rounds that are remembered, and the highest `--no-progress-limit`.
pub const CHARGED_ROUNDS_MAX: usize = 8;

/// What is known about the training of a job.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Training {
    /// The highest step that any worker has reported or saved.
    pub highest_step: Option<u64>,
    /// The last rounds that were charged, the oldest first; at most [`CHARGED_ROUNDS_MAX`].
    pub charged_rounds: Vec<ChargedRound>,
    /// The number of rounds since the last one that reached a new step.
    pub rounds_without_progress: u32,
    /// The newest step that all ranks have saved.
    pub saved_step: Option<u64>,
    /// The step that all ranks had saved when a notice's phase was complete. `None` if a step or a
    /// checkpoint was reported since, so that work would be lost.
    pub complete_step: Option<u64>,
    /// The number of notices that were given so far. The next coordinator goes on from it, because workers ignore a
    /// notice whose number is not higher than that of one they have answered.
    pub notices: u64,
    /// True if steps were reported or read, apart from those of checkpoints.
    pub has_steps: bool,
    /// The longest time between two signs of progress in one round; zero if unknown.
    pub longest_pause: Duration,
    /// The longest time from the admission of a round to its first step; zero if unknown.
    pub first_step: Duration,
    /// The newest checkpoint in memory with which a round has failed. Older ones are not used again.
    pub memory: Option<TriedCheckpoint>,
    /// The number of charged failures that progress has forgiven.
    #[serde(default)]
    pub restarts_forgiven: u32,
    /// The newest step that all ranks had saved, or that was whole in memory, at the last charge.
    pub step_at_charge: Option<u64>,
}

/// A checkpoint in memory with which rounds have failed.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct TriedCheckpoint {
    /// The checkpoint.
    pub checkpoint: CheckpointId,
    /// The number of charged rounds that have begun with it, and in which no newer one became whole. After two,
    /// it is not used again. [`MEMORY_TRIES_MAX`] if memory is off for the rest of the job.
    pub tries: u32,
}

/// The highest number of tries.
pub const MEMORY_TRIES_MAX: u32 = 3;

impl Training {
    /// Notes that a round begins.
    pub(crate) fn begin_round(&mut self) {
        self.rounds_without_progress = self.rounds_without_progress.saturating_add(1);
    }

    /// Notes that a worker has reported or saved a step in the running round.
    pub(crate) fn reach(&mut self, step: u64) {
        if self.highest_step.is_none_or(|highest| highest < step) {
            self.highest_step = Some(step);
            // The running round is the last one with progress, and the next one the first after it.
            self.rounds_without_progress = 1;
        }
    }

    /// Notes that a round has ended, and the highest step that was reported in it. A failure before that step
    /// no longer counts, and neither do those before it: the job got further.
    pub(crate) fn end_round(&mut self, step: Option<u64>) {
        let Some(reached) = step else { return };
        let is_passed = |charged: &ChargedRound| {
            charged.step.is_none_or(|step| step.saturating_add(1) < reached)
        };
        let passed = self.charged_rounds.iter().rposition(is_passed);
        self.charged_rounds.drain(..passed.map_or(0, |last| last + 1));
    }

    /// Notes that the last round was charged.
    pub(crate) fn charge(&mut self, charged: ChargedRound) {
        self.charged_rounds.push(charged);
        if self.charged_rounds.len() > CHARGED_ROUNDS_MAX {
            self.charged_rounds.remove(0);
        }
    }

    /// Returns the last `limit` charged rounds if another start would probably fail in the same way. There are
    /// two cases:
    ///
    /// - They ended within one step of each other.
    /// - They ended before a first step, although the job has reported one before. Then the same worker must
    ///   have failed in the same way, for at least [`OUTAGE`]: a file server that is down causes such failures
    ///   as well, and comes back.
    ///
    /// A job that reports no steps is never closed. Neither is one whose last round began with a checkpoint in
    /// memory: this checkpoint may be the cause, and the next round may begin from disk.
    ///
    /// With `hang_auto`, rounds in which a worker has hung for long do not count: the next one has twice the time.
    pub(crate) fn without_progress(
        &self,
        limit: u32,
        hang_auto: bool,
    ) -> Option<Vec<&ChargedRound>> {
        let limit = usize::try_from(limit).ok()?;
        self.highest_step?;
        let counts = |charged: &&ChargedRound| !(hang_auto && charged.has_hung_for_long());
        self.charged_rounds.last().filter(counts)?;
        let counted: Vec<&ChargedRound> = self.charged_rounds.iter().filter(counts).collect();
        let last = counted.get(counted.len().checked_sub(limit)?..)?;
        // With a limit of 0, which turns this off, the list is empty.
        let (oldest, newest) = (last.first()?, last.last()?);
        if newest.began_from_memory {
            return None;
        }
        let steps: Option<Vec<u64>> = last.iter().map(|charged| charged.step).collect();
        let is_stuck = match steps {
            Some(steps) => {
                let (lowest, highest) = (steps.iter().min()?, steps.iter().max()?);
                highest - lowest <= 1
            }
            None => {
                let is_alike = |charged: &&ChargedRound| {
                    charged.step.is_none()
                        && charged.rank == newest.rank
                        && charged.end == newest.end
                };
                last.iter().all(is_alike) && newest.at.saturating_sub(oldest.at) >= OUTAGE
            }
        };
        is_stuck.then(|| last.to_vec())
    }
}

/// The time over which a job must fail before its first step until it is closed. An outage of a file server is
/// usually shorter.
const OUTAGE: Duration = Duration::from_secs(600);

/// No worker hangs before this time without a step, if the coordinator decides it.
pub(crate) const HANG_MIN: Duration = Duration::from_secs(900);

/// The end of a round that was charged to the job.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct ChargedRound {
    /// The round.
    pub round: Round,
    /// The highest step that was reported in it; `None` if it ended before a first step.
    pub step: Option<u64>,
    /// The worker that failed first.
    pub rank: GlobalRank,
    /// The way in which it ended, without a text.
    pub end: WorkerEnd,
    /// The age of the job at that time.
    pub at: Duration,
    /// True if it began with a checkpoint in memory that the failed worker may have loaded.
    pub began_from_memory: bool,
}

impl ChargedRound {
    /// Returns true if a worker has hung for so long that no other reason was needed to kill it.
    pub(crate) fn has_hung_for_long(&self) -> bool {
        matches!(self.end, WorkerEnd::Hung(time) if time >= HANG_MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn charged(round: u64, step: Option<u64>, minutes: u64) -> ChargedRound {
        ChargedRound {
            round: Round(round),
            step,
            rank: GlobalRank(3),
            end: WorkerEnd::Exited(1),
            at: Duration::from_secs(60 * minutes),
            began_from_memory: false,
        }
    }

    /// Plays rounds that end at these steps, each charged. Returns the rounds for which the job is closed.
    fn closed_at(steps: &[Option<u64>], minutes: u64) -> Option<Vec<u64>> {
        let mut training = Training::default();
        for (round, step) in (1..).zip(steps) {
            training.begin_round();
            step.iter().for_each(|step| training.reach(*step));
            training.end_round(*step);
            training.charge(charged(round, *step, round * minutes));
            if let Some(rounds) = training.without_progress(3, false) {
                return Some(rounds.iter().map(|charged| charged.round.0).collect());
            }
        }
        None
    }

    /// A job that fails at the same step three times in a row is closed, also if the steps differ by one. A job
    /// that gets further each time is not.
    #[test]
    fn failures_at_the_same_step_close_the_job() {
        let at =
            |steps: &[u64]| closed_at(&steps.iter().map(|step| Some(*step)).collect::<Vec<_>>(), 1);
        assert_eq!(at(&[7, 7, 7]), Some(vec![1, 2, 3]));
        assert_eq!(at(&[7, 8, 7]), Some(vec![1, 2, 3]));
        assert_eq!(at(&[7, 8, 9, 10, 11]), None);
        assert_eq!(at(&[7, 7, 20, 7, 20, 20]), None);
        assert_eq!(at(&[90, 7, 7, 7]), Some(vec![2, 3, 4]));
        assert_eq!(at(&[7, 9, 9]), None, "the first one was passed by two steps");
        assert_eq!(at(&[9, 7, 7]), None, "two steps lie between them");
        assert_eq!(at(&[7, 20, 21, 20]), Some(vec![2, 3, 4]));
    }

    /// A round that was not charged and got further forgives the failures before.
    #[test]
    fn progress_in_a_free_round_counts() {
        let mut training = Training::default();
        for round in 1..=2 {
            training.reach(7);
            training.end_round(Some(7));
            training.charge(charged(round, Some(7), round));
        }
        training.reach(50);
        training.end_round(Some(50));
        training.end_round(Some(7));
        training.charge(charged(4, Some(7), 4));
        assert_eq!(training.without_progress(3, false), None);
    }

    /// A job that fails before its first step is closed only if the same worker fails in the same way for ten
    /// minutes, and if the job has come to a step before.
    #[test]
    fn failures_before_the_first_step_need_time() {
        let steps = [Some(7), None, None, None];
        assert_eq!(closed_at(&steps, 5), Some(vec![2, 3, 4]));
        assert_eq!(closed_at(&steps, 4), None, "within 8 minutes");
        assert_eq!(closed_at(&[None; 5], 5), None, "it never reported a step");
        let mut training = Training { highest_step: Some(7), ..Training::default() };
        for round in 1..=3 {
            let rank = GlobalRank(u32::try_from(round).unwrap());
            training.charge(ChargedRound { rank, ..charged(round, None, 10 * round) });
        }
        assert_eq!(training.without_progress(3, false), None, "another rank each time");
    }

    /// Rounds in which a worker has hung for long do not close a job in which the coordinator finds hangs. Shorter hangs
    /// do, such as that of a stopped worker.
    #[test]
    fn long_hangs_do_not_close_the_job() {
        let mut training = Training { highest_step: Some(7), ..Training::default() };
        let mut charge = |round, end| {
            training.charge(ChargedRound { end, ..charged(round, Some(7), round) });
            [false, true].map(|auto| training.without_progress(3, auto).is_some())
        };
        let hung = |minutes: u64| WorkerEnd::Hung(Duration::from_secs(60 * minutes));
        assert_eq!(charge(1, WorkerEnd::Exited(1)), [false, false]);
        assert_eq!(charge(2, hung(15)), [false, false]);
        assert_eq!(charge(3, hung(30)), [true, false]);
        assert_eq!(charge(4, hung(2)), [true, false]);
        assert_eq!(charge(5, WorkerEnd::Exited(1)), [true, true]);
    }

    /// Without a limit, no job is closed. The memory is bounded.
    #[test]
    fn limit_may_be_zero() {
        let mut training = Training { highest_step: Some(7), ..Training::default() };
        (1..100).for_each(|round| training.charge(charged(round, Some(7), round)));
        assert_eq!(training.without_progress(0, false), None);
        assert_eq!(training.charged_rounds.len(), CHARGED_ROUNDS_MAX);
        assert!(training.without_progress(8, false).is_some());
    }

    /// Rounds are counted since the last one that reached a new step.
    #[test]
    fn rounds_without_progress_are_counted() {
        let mut training = Training::default();
        let mut begin = |reached: Option<u64>| {
            let sent = training.rounds_without_progress;
            training.begin_round();
            reached.iter().for_each(|step| training.reach(*step));
            sent
        };
        let sent = [Some(5), None, Some(5), Some(6), None].map(&mut begin);
        assert_eq!(sent, [0, 1, 2, 3, 1]);
    }

    /// A job is not closed after a round that began with a checkpoint in memory, but after the next one from disk.
    /// Example: round 1 makes the checkpoint, 2 and 3 begin with it, and 4 begins from disk.
    #[test]
    fn failures_after_a_bad_checkpoint_do_not_close_the_job() {
        let mut training = Training::default();
        for round in 1..=4 {
            training.begin_round();
            training.reach(120);
            training.end_round(Some(120));
            let began_from_memory = (2..=3).contains(&round);
            training.charge(ChargedRound { began_from_memory, ..charged(round, Some(120), 1) });
            assert_eq!(training.without_progress(3, false).is_some(), round == 4, "round {round}");
        }
    }
}
