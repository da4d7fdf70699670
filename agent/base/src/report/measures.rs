//! What the pages of one node show: its counters, hardware and output. One task writes each of them, and the pages read them, so that neither
//! waits for the other.

use std::{
    array,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use ragent_core::{hardware::Hardware, process_end::ProcessEnd};
use ragent_store::Counters;

use crate::{output::sources::Outputs, report::limits};

/// A number that other threads read.
#[derive(Debug, Default)]
pub struct Number(AtomicU64);

impl Number {
    /// Adds `count`.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// Replaces the number.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Returns the number.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The upper bounds of the intervals of [`Histogram`], in microseconds. A further interval has all longer times.
const BOUNDS: [u64; 13] = [
    10, 100, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000,
];

/// The number of intervals.
const INTERVALS: usize = BOUNDS.len() + 1;

/// Numbers of times, by interval, and their sum.
#[derive(Debug, Default)]
pub struct Histogram {
    counts: [Number; INTERVALS],
    nanos: Number,
}

impl Histogram {
    /// Counts a time.
    pub fn observe(&self, time: Duration) {
        let interval = BOUNDS.partition_point(|bound| Duration::from_micros(*bound) < time);
        if let Some(count) = self.counts.get(interval) {
            count.add(1);
        }
        self.nanos.add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Returns the upper bound of each interval in seconds, with the number of times in it.
    pub fn intervals(&self) -> [(f64, u64); INTERVALS] {
        array::from_fn(|at| {
            let bound = BOUNDS.get(at).map_or(f64::INFINITY, |micros| *micros as f64 / 1e6);
            (bound, self.counts.get(at).map_or(0, Number::get))
        })
    }

    /// Returns the sum in seconds.
    pub fn sum(&self) -> f64 {
        Duration::from_nanos(self.nanos.get()).as_secs_f64()
    }
}

/// The counters of one node.
#[derive(Debug)]
pub struct NodeMeasures {
    /// Running workers.
    pub workers: Number,
    /// Workers that were started as new processes.
    pub executed: Number,
    /// Workers that were standbys.
    pub from_standby: Number,
    /// Workers that could not be started.
    pub not_started: Number,
    /// Workers that have ended with exit code 0.
    pub succeeded: Number,
    /// Workers that have ended with another exit code.
    pub exited: Number,
    /// Workers that have ended by a signal.
    pub signaled: Number,
    /// Workers that have ended with their keeper.
    pub lost_with_keeper: Number,
    /// Round trips of keep-alives.
    pub round_trips: Histogram,
    /// The smallest recent time that was left of the lease when it was renewed, in nanoseconds; [`u64::MAX`] if there is none.
    margin_nanos: Number,
    /// Addresses that the stores of rounds have refused.
    pub refused_clients: Number,
    /// The counters of the stores that this node serves.
    pub stores: OnceLock<Arc<Counters>>,
    /// The reports of its hardware.
    hardware: Mutex<Hardware>,
    /// The output of its workers.
    pub outputs: Arc<Outputs>,
}

impl Default for NodeMeasures {
    fn default() -> Self {
        Self {
            workers: Number::default(),
            executed: Number::default(),
            from_standby: Number::default(),
            not_started: Number::default(),
            succeeded: Number::default(),
            exited: Number::default(),
            signaled: Number::default(),
            lost_with_keeper: Number::default(),
            round_trips: Histogram::default(),
            margin_nanos: Number(AtomicU64::new(u64::MAX)),
            refused_clients: Number::default(),
            stores: OnceLock::new(),
            hardware: Mutex::default(),
            outputs: Arc::default(),
        }
    }
}

impl NodeMeasures {
    /// Returns what the hardware of the node has reported. It is held for a moment only.
    pub fn hardware(&self) -> MutexGuard<'_, Hardware> {
        self.hardware.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a worker that was started.
    pub fn count_start(&self, is_standby: bool) {
        if is_standby { &self.from_standby } else { &self.executed }.add(1);
    }

    /// Counts a worker that has ended.
    pub fn count_end(&self, end: ProcessEnd) {
        match end {
            ProcessEnd::Exited(0) => &self.succeeded,
            ProcessEnd::Exited(_) => &self.exited,
            ProcessEnd::Signaled(_) => &self.signaled,
        }
        .add(1);
    }

    /// Publishes the smallest recent time that was left of the lease when it was renewed; `None` if there is none.
    pub fn set_margin(&self, margin: Option<Duration>) {
        let nanos =
            margin.map_or(u64::MAX, |left| u64::try_from(left.as_nanos()).unwrap_or(u64::MAX));
        self.margin_nanos.set(nanos);
    }

    /// Returns that time.
    pub fn margin(&self) -> Option<Duration> {
        Some(self.margin_nanos.get()).filter(|nanos| *nanos != u64::MAX).map(Duration::from_nanos)
    }
}

/// The smallest of recent values: of those within `limits::MARGIN_WINDOW`, and of some that are up to twice as old.
#[derive(Debug, Default)]
pub struct RecentMinimum {
    /// The begin of the present window, its smallest value, and that of the window before.
    windows: Option<(Instant, Duration, Option<Duration>)>,
}

impl RecentMinimum {
    /// Adds a value, and returns the smallest one.
    pub fn add(&mut self, now: Instant, value: Duration) -> Duration {
        let age = |begin: Instant| now.saturating_duration_since(begin);
        let (begin, smallest, before) = match self.windows {
            Some((begin, smallest, before)) if age(begin) < limits::MARGIN_WINDOW => {
                (begin, smallest.min(value), before)
            }
            Some((begin, smallest, _)) if age(begin) < 2 * limits::MARGIN_WINDOW => {
                (now, value, Some(smallest))
            }
            Some(_) | None => (now, value, None),
        };
        self.windows = Some((begin, smallest, before));
        before.map_or(smallest, |before| before.min(smallest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::clock;

    /// A time counts in the interval whose bound it does not exceed; the last interval has no bound.
    #[test]
    fn times_are_counted_by_interval() {
        let times = Histogram::default();
        for micros in [0, 10, 11, 2_500_000, 2_500_001] {
            times.observe(Duration::from_micros(micros));
        }
        let counts = times.intervals().map(|(_, count)| count);
        assert_eq!(counts, [2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
        assert!((times.sum() - 5.000_022).abs() < 1e-9, "{}", times.sum());
        let bounds = times.intervals().map(|(bound, _)| bound);
        assert!(bounds.is_sorted() && bounds.last() == Some(&f64::INFINITY), "{bounds:?}");
    }

    /// A small value counts for one to two windows.
    #[test]
    fn recent_minimum_forgets() {
        let (start, window) = (clock::now_blocking(), limits::MARGIN_WINDOW);
        let ms = Duration::from_millis;
        let mut minimum = RecentMinimum::default();
        let mut add = |time: Duration, value| minimum.add(start + time, ms(value));
        assert_eq!(add(ms(0), 900), ms(900));
        assert_eq!(add(ms(1), 300), ms(300));
        assert_eq!(add(window - ms(1), 700), ms(300));
        assert_eq!(add(window, 800), ms(300), "the next window");
        assert_eq!(add(2 * window - ms(1), 600), ms(300));
        assert_eq!(add(2 * window, 750), ms(600));
        assert_eq!(add(5 * window, 900), ms(900), "nothing was added for a while");
    }

    /// A margin is published until it is withdrawn.
    #[test]
    fn margin_is_published() {
        let measures = NodeMeasures::default();
        assert_eq!(measures.margin(), None);
        measures.set_margin(Some(Duration::from_millis(300)));
        assert_eq!(measures.margin(), Some(Duration::from_millis(300)));
        measures.set_margin(None);
        assert_eq!(measures.margin(), None);
    }
}
