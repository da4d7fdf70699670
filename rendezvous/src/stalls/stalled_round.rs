//! Keeps what is known about a running round whose workers make no progress.

use std::time::{Duration, Instant};

use crate::{
    event::EventId, ids::GlobalRank, limits::millis, message::Hung, snapshot::Stall,
    stalls::explain::Explanation,
};

/// A round whose workers make no progress.
#[derive(Clone, Debug)]
pub(crate) struct StalledRound {
    /// The time of the last sign of progress, or of the admission if there was none.
    pub(crate) since: Instant,
    /// The time from which on it may hang: the same, or the end of the last pause with a known reason; `None` in such a pause.
    pub(crate) hang_since: Option<Instant>,
    /// The last step; `None` if the round has none yet.
    pub(crate) step: Option<u64>,
    /// The time without progress from which on it counts as a stall.
    pub(crate) limit: Duration,
    /// The event of its beginning.
    pub(crate) event: EventId,
    /// The worker that counts as hung, if one was named.
    pub(crate) hung: Option<Hung>,
    /// The explanation; `None` if the nodes have not answered yet.
    explanation: Option<Explanation>,
    /// The explanation, if no event in the journal has it yet.
    pub(crate) unrecorded: Option<Explanation>,
}

impl StalledRound {
    /// Returns a stall that has not been explained.
    pub(crate) fn new(since: Instant, step: Option<u64>, limit: Duration, event: EventId) -> Self {
        let (hung, explanation, unrecorded) = (None, None, None);
        let hang_since = Some(since);
        Self { since, hang_since, step, limit, event, hung, explanation, unrecorded }
    }

    /// Notes whether the workers have a known reason to make no progress.
    pub(crate) fn excuse(&mut self, now: Instant, is_excused: bool) {
        if is_excused {
            self.hang_since = None;
        } else {
            self.hang_since.get_or_insert(now);
        }
    }

    /// Returns the rank that the others wait for, if one is known.
    pub(crate) fn blamed(&self) -> Option<GlobalRank> {
        self.explanation.as_ref()?.rank
    }

    /// Returns the lowest rank that stays stopped while others wait, if there is one.
    pub(crate) fn stopped(&self) -> Option<GlobalRank> {
        self.explanation.as_ref()?.stopped
    }

    /// Sets the explanation.
    pub(crate) fn explain(&mut self, explanation: Explanation) {
        self.unrecorded = Some(explanation.clone());
        self.explanation = Some(explanation);
    }

    /// Returns the stall, as people see it at `now`.
    pub(crate) fn shown(&self, now: Instant) -> Stall {
        let known = self.explanation.as_ref();
        Stall {
            step: self.step,
            for_ms: millis(now.saturating_duration_since(self.since)),
            limit_ms: millis(self.limit),
            text: known.map(|known| known.text.clone()),
            facts: known.map_or_else(Vec::new, |known| known.facts.clone()),
            rank: known.and_then(|known| known.rank),
        }
    }
}
