//! The pauses between attempts to reach a host or etcd.

use std::time::{Duration, Instant};

use ragent_rendezvous::jitter::Jitter;

/// Pauses that double up to a limit. A random part of up to a half is subtracted from each.
#[derive(Debug)]
pub(super) struct Pauses {
    next: Duration,
    longest: Duration,
    jitter: Jitter,
}

impl Pauses {
    /// Returns the pauses from `first` to `longest`; `seed` decides the random parts.
    pub(super) fn new(first: Duration, longest: Duration, seed: u64) -> Self {
        Self { next: first, longest, jitter: Jitter::new(seed) }
    }

    /// Returns the time of the next attempt after one that has failed at `now`.
    pub(super) fn next(&mut self, now: Instant) -> Instant {
        let pause = self.next.mul_f64(0.5 + self.jitter.fraction() / 2.0);
        self.next = self.next.saturating_mul(2).min(self.longest);
        now + pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pauses double up to the longest one, and differ between seeds.
    #[test]
    fn pauses_double() {
        let now = crate::sys::clock::now_blocking();
        let ms = Duration::from_millis;
        let pauses = |seed| {
            let mut pauses = Pauses::new(ms(10), ms(50), seed);
            [10, 20, 40, 50, 50].map(|longest| {
                let pause = pauses.next(now) - now;
                assert!(pause >= ms(longest) / 2 && pause < ms(longest), "{pause:?}");
                pause
            })
        };
        assert_ne!(pauses(1), pauses(2));
    }
}
