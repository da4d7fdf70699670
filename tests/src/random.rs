//! Makes random numbers: seeded, and the same on every machine and in every version.

use std::time::Duration;

/// A sequence of numbers that is determined by its seed (SplitMix64).
#[derive(Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    /// Returns true in `percent` of all cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.between(1, 100) <= percent
    }

    /// Returns a time from `low` to `high` milliseconds, in steps of a microsecond.
    pub fn millis(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_micros(self.between(low * 1_000, high * 1_000))
    }

    /// Returns one of `choices`, if there are any.
    pub fn pick<T: Clone>(&mut self, choices: &[T]) -> Option<T> {
        let last = choices.len().checked_sub(1)?;
        let index = usize::try_from(self.between(0, last as u64)).ok()?;
        choices.get(index).cloned()
    }
}
