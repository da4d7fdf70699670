//! Decides when a worker that a signal has stopped is killed, because all others wait for it.
//!
//! The worker is examined once a second. It is killed after it was stopped for 30 seconds in a row. If it goes on, or
//! the examinations pause, the time begins again. The machine has no process and no clock.

use std::time::{Duration, Instant};

use ragent_rendezvous::ids::LocalRank;

use crate::{hang::Hang, limits};

/// Watches one worker.
#[derive(Debug)]
pub(crate) struct StoppedWatch {
    local_rank: LocalRank,
    /// The time at which the job has made its last progress.
    progress: Instant,
    /// The time since which the worker is stopped.
    since: Option<Instant>,
    looked: Instant,
    is_over: bool,
}

impl StoppedWatch {
    /// Watches a worker. The job has made no progress for `time`.
    pub(crate) fn new(now: Instant, local_rank: LocalRank, time: Duration) -> Self {
        let progress = now.checked_sub(time).unwrap_or(now);
        Self { local_rank, progress, since: None, looked: now, is_over: false }
    }

    /// Watches the worker again after it has gone on.
    pub(crate) fn begin_again(&mut self, now: Instant) {
        (self.since, self.looked, self.is_over) = (None, now, false);
    }

    /// Returns the watched worker.
    pub(crate) fn local_rank(&self) -> LocalRank {
        self.local_rank
    }

    /// Returns the time of the next examination; `None` if there is none.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        (!self.is_over).then(|| self.looked + limits::STOPPED_LOOK_INTERVAL)
    }

    /// Notes whether the worker is stopped at `now`. Returns a hang once, when it is to be killed.
    pub(crate) fn handle_look(&mut self, now: Instant, is_stopped: bool) -> Option<Hang> {
        let passed = now.saturating_duration_since(self.looked);
        self.looked = now;
        // If this examination is late, the worker may have run meanwhile.
        if !is_stopped || passed > limits::STOPPED_LOOK_INTERVAL * 3 {
            self.since = None;
        }
        if self.is_over || !is_stopped {
            return None;
        }
        let since = *self.since.get_or_insert(now);
        if now.saturating_duration_since(since) < limits::STOPPED_TIME {
            return None;
        }
        self.is_over = true;
        let time = now.saturating_duration_since(self.progress);
        Some(Hang { local_rank: self.local_rank, time })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A watched worker, and its clock.
    struct Fixture {
        watch: StoppedWatch,
        now: Instant,
    }

    impl Fixture {
        fn new() -> Self {
            let now = crate::some_instant() + 1_000 * SECOND;
            Self { watch: StoppedWatch::new(now, LocalRank(1), 100 * SECOND), now }
        }

        /// Examines the worker once a second, so many times.
        fn look(&mut self, times: u32, is_stopped: bool) -> Option<Hang> {
            (0..times).find_map(|_| {
                self.now += SECOND;
                assert_eq!(self.watch.poll_timeout(), Some(self.now));
                self.watch.handle_look(self.now, is_stopped)
            })
        }
    }

    /// A worker is killed once, after it was stopped for 30 seconds, not before.
    #[test]
    fn stopped_worker_is_killed() {
        let mut t = Fixture::new();
        assert_eq!(t.look(30, true), None);
        assert_eq!(t.look(1, true), Some(Hang { local_rank: LocalRank(1), time: 131 * SECOND }));
        assert_eq!(t.watch.poll_timeout(), None);
        assert_eq!(t.watch.handle_look(t.now + SECOND, true), None);
    }

    /// A worker that goes on lives, however often it is stopped.
    #[test]
    fn worker_that_goes_on_lives() {
        let mut t = Fixture::new();
        for _ in 0..10 {
            assert_eq!(t.look(20, true), None);
            assert_eq!(t.look(1, false), None);
        }
        assert_eq!(t.look(30, true), None);
        assert!(t.look(1, true).is_some());
    }

    /// A pause of the whole machine does not count.
    #[test]
    fn pause_does_not_count() {
        let mut t = Fixture::new();
        assert_eq!(t.look(20, true), None);
        t.now += 100 * SECOND;
        assert_eq!(t.watch.handle_look(t.now, true), None);
        assert_eq!(t.look(29, true), None);
        assert!(t.look(1, true).is_some());
    }

    /// An examination that is only a little late does not interrupt the watch.
    #[test]
    fn short_delays_count() {
        let mut t = Fixture::new();
        assert_eq!(t.look(20, true), None);
        t.now += limits::STOPPED_LOOK_INTERVAL * 3;
        assert_eq!(t.watch.handle_look(t.now, true), None);
        assert_eq!(t.look(7, true), None);
        assert!(t.look(1, true).is_some());
    }
}
