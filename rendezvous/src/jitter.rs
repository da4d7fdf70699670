//! Computes pauses between attempts, with random parts. Without them, processes that failed
//! together would try again together.

use std::time::Duration;

/// The largest number of times that a pause is doubled.
const DOUBLINGS_MAX: u32 = 16;

/// Returns `first`, doubled `times` times, and at most `longest`.
pub fn doubled(first: Duration, times: u32, longest: Duration) -> Duration {
    first.saturating_mul(1 << times.min(DOUBLINGS_MAX)).min(longest)
}

/// Pauses that double after each failure, up to a limit. A random part, up to half, is subtracted
/// from each.
#[derive(Clone, Debug)]
pub struct Pauses {
    first: Duration,
    longest: Duration,
    failures: u32,
    jitter: Jitter,
}

impl Pauses {
    /// Returns the pauses from `first` to `longest`; `seed` determines the random parts.
    pub fn new(first: Duration, longest: Duration, seed: u64) -> Self {
        Self { first, longest, failures: 0, jitter: Jitter::new(seed) }
    }

    /// Returns the pause after another failure.
    pub fn after_failure(&mut self) -> Duration {
        let pause = doubled(self.first, self.failures, self.longest);
        self.failures = self.failures.saturating_add(1);
        self.jitter.spread(pause)
    }

    /// Starts with the shortest pause again, because an attempt has succeeded.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

/// A sequence of random numbers determined by its seed (SplitMix64).
#[derive(Clone, Copy, Debug)]
pub struct Jitter(u64);

impl Jitter {
    /// Starts the sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a number from 0 to 1, 1 excluded.
    pub fn fraction(&mut self) -> f64 {
        // The upper 53 bits, the precision of a float.
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns at least half of `pause`, and at most all of it.
    pub fn spread(&mut self, pause: Duration) -> Duration {
        pause.mul_f64(0.5 + self.fraction() / 2.0)
    }

    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pauses double up to the longest one, differ between seeds, and begin again after a success.
    #[test]
    fn pauses_double() {
        let ms = Duration::from_millis;
        let pauses = |seed| {
            let mut pauses = Pauses::new(ms(10), ms(50), seed);
            let mut check = |longest| {
                let pause = pauses.after_failure();
                assert!(pause >= ms(longest) / 2 && pause < ms(longest), "{pause:?}");
                pause
            };
            let found = [10, 20, 40, 50, 50].map(&mut check);
            pauses.reset();
            assert!(pauses.after_failure() < ms(10));
            found
        };
        assert_ne!(pauses(1), pauses(2));
        assert_eq!(doubled(Duration::MAX, u32::MAX, ms(7)), ms(7));
    }

    /// The numbers are those of SplitMix64: its reference implementation begins with these for the seed 0.
    #[test]
    fn numbers_are_those_of_the_reference() {
        let mut jitter = Jitter::new(0);
        let numbers = [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f];
        assert_eq!(numbers.map(|_| jitter.bits()), numbers);
    }
}
