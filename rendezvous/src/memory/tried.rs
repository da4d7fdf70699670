//! Remembers which checkpoints in memory are not used again, because rounds have failed with them.

use crate::{
    ids::RoundId,
    message::{CheckpointId, STEP_MAX},
    training::{MEMORY_TRIES_MAX, TriedCheckpoint},
};

/// The newest checkpoint in memory with which a round has failed, if there is one. Older ones are not used again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tried(pub(crate) Option<TriedCheckpoint>);

/// The number of tries after which a checkpoint is not used again.
const MEMORY_TRIES: u32 = 2;

impl TriedCheckpoint {
    /// Returns true if a round may not begin with this checkpoint.
    fn rules_out(&self, checkpoint: CheckpointId) -> bool {
        let is_used_up = self.tries >= MEMORY_TRIES;
        self.tries >= MEMORY_TRIES_MAX
            || checkpoint < self.checkpoint
            || is_used_up && checkpoint == self.checkpoint
    }
}

impl Tried {
    /// Returns true if a round may not begin with a checkpoint in memory: rounds have failed with it or with a
    /// newer one, or memory is off.
    pub(crate) fn is_void(&self, checkpoint: CheckpointId) -> bool {
        self.0.is_some_and(|tried| tried.rules_out(checkpoint))
    }

    /// Returns true if memory is off for the rest of the job.
    pub(crate) fn is_off(&self) -> bool {
        self.0.is_some_and(|tried| tried.tries >= MEMORY_TRIES_MAX)
    }

    /// Returns the checkpoint that is not used again because rounds have failed with it; `None` if none is, or if
    /// memory was only off.
    pub(crate) fn struck(&self) -> Option<CheckpointId> {
        let tried = self.0.filter(|tried| tried.tries == MEMORY_TRIES)?;
        Some(tried.checkpoint).filter(|checkpoint| checkpoint.step < STEP_MAX)
    }

    /// Notes that a charged round has begun with this checkpoint, without a newer one. Returns true if it is not
    /// used again.
    pub(crate) fn strike(&mut self, checkpoint: CheckpointId) -> bool {
        let before = self.0.filter(|tried| tried.checkpoint == checkpoint);
        self.try_again(checkpoint, before.map_or(1, |tried| tried.tries.saturating_add(1)))
    }

    /// Notes that this checkpoint, and all older ones, are not used again. Returns false if this was known.
    pub(crate) fn void(&mut self, checkpoint: CheckpointId) -> bool {
        self.try_again(checkpoint, MEMORY_TRIES)
    }

    /// Notes that no checkpoint of this round or of an earlier one is used again. Returns false if this was known.
    pub(crate) fn void_round(&mut self, round: RoundId) -> bool {
        self.void(CheckpointId { round, step: STEP_MAX })
    }

    /// Turns memory off for the rest of the job. Returns false if it was off.
    pub(crate) fn turn_off(&mut self, round: RoundId) -> bool {
        let was_off = self.is_off();
        let checkpoint = CheckpointId { round, step: STEP_MAX };
        self.0 = Some(TriedCheckpoint { checkpoint, tries: MEMORY_TRIES_MAX });
        !was_off
    }

    /// Returns true if the checkpoint is ruled out now, and was not before.
    fn try_again(&mut self, checkpoint: CheckpointId, tries: u32) -> bool {
        if self.is_void(checkpoint) {
            return false;
        }
        let tried = TriedCheckpoint { checkpoint, tries: tries.min(MEMORY_TRIES) };
        self.0 = Some(tried);
        tried.rules_out(checkpoint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Round, Term};

    fn checkpoint(round: u64, step: u64) -> CheckpointId {
        CheckpointId { round: RoundId { term: Term(1), round: Round(round) }, step }
    }

    /// After two tries, a checkpoint and all older ones are not used again. A newer one begins with no tries, and an
    /// older one never replaces it.
    #[test]
    fn checkpoints_in_memory_are_tried_twice() {
        let mut tried = Tried::default();
        let [old, bad, newer] =
            [(1, 90), (2, 10), (3, 5)].map(|(round, step)| checkpoint(round, step));
        assert!(!tried.strike(bad));
        assert!(!tried.is_void(bad) && tried.is_void(old));
        assert!(!tried.strike(old), "an older one changes nothing");
        assert!(tried.strike(bad));
        assert!(tried.is_void(bad) && !tried.is_void(newer));
        assert_eq!(tried.struck(), Some(bad));
        assert!(!tried.strike(newer) && !tried.is_void(newer));
        assert!(tried.void(newer) && !tried.void(newer));
    }

    /// If memory was off in a round, its checkpoints and older ones are void. It may be off for the whole job.
    #[test]
    fn memory_may_be_off() {
        let mut tried = Tried::default();
        let round = checkpoint(2, 0).round;
        assert!(tried.void_round(round) && !tried.void_round(round));
        assert!(tried.is_void(checkpoint(2, 1_000)) && !tried.is_void(checkpoint(3, 0)));
        assert_eq!((tried.struck(), tried.is_off()), (None, false));
        assert!(tried.turn_off(round) && !tried.turn_off(round));
        assert!(tried.is_void(checkpoint(9, 9)) && tried.is_off());
    }
}
