//! The time for which the machine was suspended, from the difference between two clocks.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// The suspensions since the first reading. Only `CLOCK_BOOTTIME` advances during a suspension.
#[derive(Debug)]
pub(super) struct Suspension {
    /// The difference between the clocks at the first reading.
    first: OnceLock<Duration>,
    /// The sum of all suspensions, in nanoseconds.
    total: AtomicU64,
}

/// A reading of `CLOCK_BOOTTIME` between two of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    pub(super) before: Duration,
    pub(super) boot: Duration,
    pub(super) after: Duration,
}

/// The longest time that a reading may take, and the error of the difference.
const PRECISION: Duration = Duration::from_millis(1);

/// The shortest suspension that counts, well above the inexactness of two readings. No machine is suspended
/// and resumed within it.
const SHORTEST: Duration = Duration::from_millis(10);

impl Suspension {
    pub(super) const fn new() -> Self {
        Self { first: OnceLock::new(), total: AtomicU64::new(0) }
    }

    /// Returns the sum of all suspensions that are known.
    pub(super) fn total(&self) -> Duration {
        Duration::from_nanos(self.total.load(Ordering::Relaxed))
    }

    /// Adds the suspensions in `reading`, and returns the sum. It never becomes smaller, so that time
    /// does not go back.
    pub(super) fn update(&self, reading: Reading) -> Duration {
        let Reading { before, boot, after } = reading;
        let total = self.total();
        // The thread was stopped in between: the difference is unknown.
        if after.saturating_sub(before) > PRECISION {
            return total;
        }
        let ahead = boot.saturating_sub(before);
        let sum = ahead.saturating_sub(*self.first.get_or_init(|| ahead));
        if sum < total + SHORTEST {
            return total;
        }
        let sum = u64::try_from(sum.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(self.total.fetch_max(sum, Ordering::Relaxed).max(sum))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// A reading at `monotonic`, on a machine that was suspended for `ahead`, and that takes `took`.
    fn reading(monotonic: Duration, ahead: Duration, took: Duration) -> Reading {
        let boot = monotonic + ahead + took / 2;
        Reading { before: monotonic, boot, after: monotonic + took }
    }

    /// The time before the first reading does not count, nor does the inexactness of readings.
    #[test]
    fn clocks_in_step_are_no_suspension() {
        let suspension = Suspension::new();
        for (n, took) in [1, 900, 2, 500, 1_000].into_iter().enumerate() {
            let now = seconds(100 * n as u64);
            assert_eq!(suspension.update(reading(now, seconds(77), micros(took))), Duration::ZERO);
        }
    }

    /// Each suspension is added once.
    #[test]
    fn suspensions_are_added() {
        let suspension = Suspension::new();
        suspension.update(reading(seconds(1), seconds(77), micros(1)));
        for (now, ahead) in [(2, 87), (3, 87), (4, 90), (500, 90)] {
            let total = suspension.update(reading(seconds(now), seconds(ahead), micros(1)));
            assert_eq!(total, seconds(ahead - 77));
            assert_eq!(suspension.total(), total);
        }
    }

    /// A reading during which the thread was stopped, or the machine suspended, changes nothing.
    #[test]
    fn long_reading_is_ignored() {
        let suspension = Suspension::new();
        suspension.update(reading(seconds(1), seconds(77), micros(1)));
        let long = reading(seconds(2), seconds(77), seconds(5));
        assert_eq!(suspension.update(long), Duration::ZERO);
    }

    /// The sum does not become smaller.
    #[test]
    fn time_does_not_go_back() {
        let suspension = Suspension::new();
        suspension.update(reading(seconds(1), seconds(77), micros(1)));
        suspension.update(reading(seconds(2), seconds(97), micros(1)));
        assert_eq!(suspension.update(reading(seconds(3), seconds(80), micros(1))), seconds(20));
    }
}
