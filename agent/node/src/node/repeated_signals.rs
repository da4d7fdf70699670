//! Counts a signal once that arrives twice.
//!
//! A worker that signals its parent often signals all processes of its group, too. So the agent receives the same signal twice, in either
//! order: from the kernel, and from the keeper, which passes on the signals of workers.

use std::time::Instant;

use super::limits::REPEATED_SIGNAL;
use nix::sys::signal::Signal;

/// The last signals of this process.
#[derive(Debug, Default)]
pub(super) struct RepeatedSignals {
    /// The last signal that this process has handled.
    last: Option<(Signal, Instant)>,
    /// The last signal of a worker that this process has sent itself.
    passed_on: Option<(Signal, Instant)>,
}

impl RepeatedSignals {
    /// Returns true if this process should handle a signal that it has received. It should not if it has already handled the same signal
    /// since it sent it to itself.
    pub(super) fn handle_received(&mut self, now: Instant, signal: Signal) -> bool {
        if let Some((passed_on, at)) = self.passed_on
            && self.last.is_some_and(|(last, handled)| last == passed_on && handled >= at)
        {
            self.passed_on = None;
            if passed_on == signal && is_recent(now, at) {
                return false;
            }
        }
        self.last = Some((signal, now));
        true
    }

    /// Returns true if this process should send itself the signal that a worker has sent to its parent. It should not if it has just
    /// received the same signal.
    pub(super) fn handle_of_worker(&mut self, now: Instant, signal: Signal) -> bool {
        if self.last.is_some_and(|(last, at)| last == signal && is_recent(now, at)) {
            return false;
        }
        self.passed_on = Some((signal, now));
        true
    }
}

fn is_recent(now: Instant, at: Instant) -> bool {
    now.saturating_duration_since(at) < REPEATED_SIGNAL
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ragent_base::sys::clock;

    use super::*;

    const INT: Signal = Signal::SIGINT;

    /// A signal from a worker and the same one from the kernel count once, in either order.
    #[test]
    fn both_count_once() {
        let now = clock::now_blocking();
        let mut signals = RepeatedSignals::default();
        assert!(signals.handle_received(now, INT));
        assert!(!signals.handle_of_worker(now, INT));

        let mut signals = RepeatedSignals::default();
        assert!(signals.handle_of_worker(now, INT));
        // First its own signal, then the worker's.
        assert!(signals.handle_received(now, INT));
        assert!(!signals.handle_received(now, INT));
        assert!(signals.handle_received(now, INT), "a further one is of the user");
    }

    /// Another signal counts, and so does the same one later.
    #[test]
    fn other_signals_count() {
        let now = clock::now_blocking();
        let later = now + REPEATED_SIGNAL;
        for (signal, at) in [(Signal::SIGTERM, now), (INT, later)] {
            let mut signals = RepeatedSignals::default();
            assert!(signals.handle_received(now, INT));
            assert!(signals.handle_of_worker(at, signal));
            assert!(signals.handle_received(at, signal));
            assert!(signals.handle_received(at + REPEATED_SIGNAL, signal));
        }
        assert!(REPEATED_SIGNAL <= Duration::from_secs(1));
    }
}
