//! Decides when a local worker group no longer makes progress.
//!
//! - A worker makes progress when it writes, uses a processor, or sends a heartbeat.
//! - The group makes progress as long as one worker does. The others may wait for it in a collective, where
//!   they look idle.
//! - After the first heartbeat of any worker, only heartbeats count, because a worker that spins in a
//!   collective uses a processor forever.
//!
//! The activity of the workers is examined at intervals. The machine has no process and no clock.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use ragent_rendezvous::ids::LocalRank;

use crate::limits;

/// The activity of a worker and its descendants so far.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Activity {
    /// Processor time.
    pub cpu: Duration,
    /// Bytes written, to any file.
    pub written: u64,
    /// Number of processes.
    pub processes: u32,
}

/// A hang of a group.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Hang {
    /// The worker that has made no progress for the longest time. If there are several, the lowest rank.
    pub local_rank: LocalRank,
    /// The time for which no worker has made progress.
    pub time: Duration,
}

/// Watches one worker group.
#[derive(Debug)]
pub struct HangWatch {
    timeout: Duration,
    workers: BTreeMap<LocalRank, RankProgress>,
    has_heartbeats: bool,
    looked: Instant,
    is_over: bool,
}

#[derive(Clone, Copy, Debug)]
struct RankProgress {
    at: Instant,
    activity: Activity,
}

impl HangWatch {
    /// Watches a group of `local_world_size` workers that start at `now`.
    pub fn new(now: Instant, local_world_size: u32, timeout: Duration) -> Self {
        let start = RankProgress { at: now, activity: Activity::default() };
        let workers = (0..local_world_size).map(|rank| (LocalRank(rank), start)).collect();
        Self { timeout, workers, has_heartbeats: false, looked: now, is_over: false }
    }

    /// Notes a worker's heartbeat.
    pub fn handle_heartbeat(&mut self, now: Instant, local_rank: LocalRank) {
        if !self.has_heartbeats {
            self.has_heartbeats = true;
            // Until now, progress was measured without heartbeats.
            for progress in self.workers.values_mut() {
                progress.at = now;
            }
        }
        if let Some(progress) = self.workers.get_mut(&local_rank) {
            progress.at = now;
        }
    }

    /// Notes that a worker has ended.
    pub fn handle_ended(&mut self, local_rank: LocalRank) {
        self.workers.remove(&local_rank);
    }

    /// Returns the time of the next examination; `None` if there is none.
    pub fn poll_timeout(&self) -> Option<Instant> {
        (!self.is_over && !self.workers.is_empty()).then(|| self.looked + self.interval())
    }

    /// Notes the activity of the workers until `now`. Returns a hang once, when they hang.
    pub fn handle_look(
        &mut self,
        now: Instant,
        activities: &BTreeMap<LocalRank, Activity>,
    ) -> Option<Hang> {
        let passed = now.saturating_duration_since(self.looked);
        // If this examination is late, the whole machine may have been paused, workers included.
        let stood_still = passed.saturating_sub(self.interval() * 2);
        self.looked = now;
        for (local_rank, progress) in &mut self.workers {
            progress.at = (progress.at + stood_still).min(now);
            let Some(&activity) = activities.get(local_rank) else { continue };
            if !self.has_heartbeats && is_progress(progress.activity, activity, passed) {
                progress.at = now;
            }
            progress.activity = activity;
        }
        let latest = self.workers.values().map(|progress| progress.at).max()?;
        let time = now.saturating_duration_since(latest);
        if self.is_over || time < self.timeout {
            return None;
        }
        self.is_over = true;
        let (&local_rank, _) = self.workers.iter().min_by_key(|(_, progress)| progress.at)?;
        Some(Hang { local_rank, time })
    }

    /// Notes that a worker asks to be treated as hung.
    pub fn handle_trigger(&mut self, local_rank: LocalRank) -> Option<Hang> {
        let is_running = self.workers.contains_key(&local_rank);
        (is_running && !std::mem::replace(&mut self.is_over, true))
            .then_some(Hang { local_rank, time: Duration::ZERO })
    }

    fn interval(&self) -> Duration {
        (self.timeout / LOOKS).clamp(limits::HANG_LOOK_MIN, limits::HANG_LOOK_MAX)
    }
}

/// The number of examinations of a group within its time-out.
const LOOKS: u32 = 8;

fn is_progress(before: Activity, after: Activity, passed: Duration) -> bool {
    let used = after.cpu.saturating_sub(before.cpu);
    after.written != before.written
        || after.processes != before.processes
        || used > passed / limits::BUSY_SHARE
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Two workers with a time-out of eight seconds, examined each second.
    struct Fixture {
        watch: HangWatch,
        now: Instant,
        activities: BTreeMap<LocalRank, Activity>,
    }

    impl Fixture {
        fn new() -> Self {
            let now = crate::some_instant();
            let activities = [0, 1].map(|rank| (LocalRank(rank), Activity::default()));
            Self { watch: HangWatch::new(now, 2, 8 * SECOND), now, activities: activities.into() }
        }

        /// Examines `times` times. `act` is the activity of worker 1 before each.
        fn look(&mut self, times: u32, act: impl Fn(&mut Activity)) -> Option<Hang> {
            (0..times).find_map(|_| {
                self.now += SECOND;
                assert_eq!(self.watch.poll_timeout(), Some(self.now));
                act(self.activities.entry(LocalRank(1)).or_default());
                self.watch.handle_look(self.now, &self.activities)
            })
        }
    }

    fn idle(_: &mut Activity) {}

    /// A group in which no worker does anything hangs after its time-out, not before, and once.
    #[test]
    fn silence_is_a_hang() {
        let mut t = Fixture::new();
        assert_eq!(t.look(7, idle), None);
        assert_eq!(t.look(1, idle), Some(Hang { local_rank: LocalRank(0), time: 8 * SECOND }));
        assert_eq!(t.watch.poll_timeout(), None);
        assert_eq!(t.watch.handle_look(t.now + SECOND, &t.activities), None);
    }

    /// One worker that writes, computes or starts a process is enough. A small share of a processor is not,
    /// because waiting threads use it. The hang names the worker that has been idle for the longest time.
    #[test]
    fn progress_of_one_is_enough() {
        let mut t = Fixture::new();
        assert_eq!(t.look(100, |worker| worker.written += 1), None);
        assert_eq!(t.look(100, |worker| worker.cpu += SECOND / 20), None);
        assert_eq!(t.look(100, |worker| worker.processes += 1), None);
        let hang = t.look(100, |worker| worker.cpu += SECOND / limits::BUSY_SHARE);
        assert_eq!(hang, Some(Hang { local_rank: LocalRank(0), time: 8 * SECOND }));
    }

    /// After the first heartbeat, all workers are judged by heartbeats. A worker that spins makes no
    /// progress.
    #[test]
    fn heartbeats_count_alone() {
        let mut t = Fixture::new();
        t.look(5, idle);
        t.watch.handle_heartbeat(t.now, LocalRank(0));
        assert_eq!(t.look(7, |worker| worker.cpu += SECOND), None);
        t.watch.handle_heartbeat(t.now, LocalRank(0));
        assert_eq!(t.look(7, |worker| worker.cpu += SECOND), None);
        let hang = t.look(1, |worker| worker.cpu += SECOND);
        assert_eq!(hang, Some(Hang { local_rank: LocalRank(1), time: 8 * SECOND }));
    }

    /// A pause of the whole machine does not count.
    #[test]
    fn pause_is_no_hang() {
        let mut t = Fixture::new();
        t.now += 100 * SECOND;
        assert_eq!(t.watch.handle_look(t.now, &t.activities), None);
        assert_eq!(t.look(5, idle), None);
        assert!(t.look(1, idle).is_some());
    }

    /// Workers that have ended are not waited for, and a group that has ended is not examined.
    #[test]
    fn ended_workers_do_not_hang() {
        let mut t = Fixture::new();
        t.look(4, |worker| worker.written += 1);
        t.watch.handle_ended(LocalRank(0));
        let hang = t.look(8, idle);
        assert_eq!(hang, Some(Hang { local_rank: LocalRank(1), time: 8 * SECOND }));
        let mut t = Fixture::new();
        t.watch.handle_ended(LocalRank(0));
        t.watch.handle_ended(LocalRank(1));
        assert_eq!(t.watch.poll_timeout(), None);
    }

    /// A worker may report that it hangs.
    #[test]
    fn worker_may_report_its_hang() {
        let mut t = Fixture::new();
        let hang = Hang { local_rank: LocalRank(1), time: Duration::ZERO };
        assert_eq!(t.watch.handle_trigger(LocalRank(1)), Some(hang));
        assert_eq!(t.watch.handle_trigger(LocalRank(0)), None);
    }
}
