//! Keeps what is known about a running round whose workers make no progress.

use std::time::{Duration, Instant};

use crate::{event::EventId, limits::millis, snapshot::Stall};

/// A round whose workers make no progress.
#[derive(Clone, Debug)]
pub(crate) struct StalledRound {
    /// The time of the last sign of progress, or of the admission if there was none.
    pub(crate) since: Instant,
    /// The last step; `None` if the round has none yet.
    pub(crate) step: Option<u64>,
    /// The time without progress from which on it counts as a stall.
    pub(crate) limit: Duration,
    /// The event of its beginning.
    pub(crate) event: EventId,
}

impl StalledRound {
    /// Returns the stall, as people see it at `now`.
    pub(crate) fn shown(&self, now: Instant) -> Stall {
        Stall {
            step: self.step,
            for_ms: millis(now.saturating_duration_since(self.since)),
            limit_ms: millis(self.limit),
            text: None,
            facts: Vec::new(),
            rank: None,
        }
    }
}
