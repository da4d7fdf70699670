//! Measures how often a job saves and what a checkpoint costs, and computes the interval that loses the least
//! time.
//!
//! With an interval Δ, a cost w of each checkpoint and a mean time M between failures, a job loses the part
//! w/Δ to checkpoints, and Δ/2M to work that is done again. The sum is least at about √(2wM) − w (Young 1974,
//! Daly 2006).

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use crate::{
    ids::{NodeId, RoundId},
    limits::millis,
    snapshot::CheckpointTimes,
};

/// The number of recent checkpoints whose medians count. If the user changes the interval, the median follows after
/// half as many.
const RECENT_MAX: usize = 16;

/// The failure rate that is assumed until a job has failed twice: one failure in 250 node-days. It is between the
/// rates that Meta has published for its clusters: one in 428 on RSC-2, and one in 153 on RSC-1 (arXiv 2410.21680).
const NODE_DAYS_PER_FAILURE: u32 = 250;

/// The fewest failures from which their rate is computed.
const FAILURES_MIN: u32 = 2;

/// A better interval is shown if it loses at least this part of the time less: 1 %.
const GAIN_MIN: f64 = 0.01;

/// The recent checkpoints of a job.
#[derive(Debug, Default)]
pub(crate) struct Checkpoints {
    last: Option<(Instant, RoundId, u64)>,
    intervals: VecDeque<Duration>,
    steps: VecDeque<u64>,
    costs: VecDeque<Duration>,
    /// The node whose last checkpoint could not be written, and the reason.
    pub(crate) failed: Option<(NodeId, String)>,
}

/// How often a job has failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FailureRate {
    /// The number of rounds that ended involuntarily.
    pub(crate) failures: u32,
    /// The time for which workers have run.
    pub(crate) running: Duration,
    /// The number of nodes of the newest round.
    pub(crate) nodes: u32,
}

impl FailureRate {
    /// Returns the mean time between failures.
    fn mean(&self) -> Duration {
        if self.failures >= FAILURES_MIN {
            return self.running / self.failures;
        }
        Duration::from_secs(24 * 3600) * NODE_DAYS_PER_FAILURE / self.nodes.max(1)
    }
}

impl Checkpoints {
    /// Notes that all ranks have saved a step.
    pub(crate) fn handle_saved(
        &mut self,
        now: Instant,
        round: RoundId,
        step: u64,
        cost: Option<Duration>,
    ) {
        if let Some((at, in_round, before)) = self.last.replace((now, round, step))
            && in_round == round
            && before < step
        {
            push(&mut self.intervals, now.saturating_duration_since(at));
            push(&mut self.steps, step - before);
        }
        cost.into_iter().for_each(|cost| push(&mut self.costs, cost));
    }

    /// Returns the usual interval and cost, and the best interval; `None` before two checkpoints of a round.
    pub(crate) fn times(&self, rate: FailureRate) -> Option<CheckpointTimes> {
        let (every, steps) = (median(&self.intervals)?, median(&self.steps)?);
        let (cost, mean) = (median(&self.costs), rate.mean());
        let best = cost.and_then(|cost| best_interval(cost, mean));
        let lost = |interval| Some(lost(cost?, interval, mean));
        let now = lost(every);
        let gain = best.and_then(|best| Some((best, now? - lost(best)?)));
        let best = gain.filter(|(_, gain)| *gain >= GAIN_MIN).map(|(best, _)| best);
        let per_step = every.as_secs_f64() / steps.max(1) as f64;
        Some(CheckpointTimes {
            every_steps: steps,
            every_ms: millis(every),
            cost_ms: cost.map(millis),
            failure_every_ms: millis(mean),
            is_rate_measured: rate.failures >= FAILURES_MIN,
            lost: now,
            best_ms: best.map(millis),
            best_steps: best
                .filter(|_| per_step > 0.0)
                .map(|best| ((best.as_secs_f64() / per_step).round() as u64).max(1)),
            best_lost: best.and_then(lost),
        })
    }
}

/// Returns the interval that loses the least time; `None` if a checkpoint costs nothing measurable.
fn best_interval(cost: Duration, mean: Duration) -> Option<Duration> {
    let (w, m) = (cost.as_secs_f64(), mean.as_secs_f64());
    (w > 0.0 && m > 0.0).then(|| Duration::from_secs_f64(((2.0 * w * m).sqrt() - w).max(w)))
}

/// Returns the part of the time that is lost to checkpoints and to work that is done again, from 0 to 1.
fn lost(cost: Duration, interval: Duration, mean: Duration) -> f64 {
    let (w, i, m) = (cost.as_secs_f64(), interval.as_secs_f64(), mean.as_secs_f64());
    // If `i` or `m` is 0, the sum is infinite or NaN, and `min` returns 1.
    (w / i + i / (2.0 * m)).min(1.0)
}

fn push<T>(recent: &mut VecDeque<T>, value: T) {
    recent.push_back(value);
    if recent.len() > RECENT_MAX {
        recent.pop_front();
    }
}

/// Returns the median, which an unusual value does not change.
fn median<T: Copy + Ord>(values: &VecDeque<T>) -> Option<T> {
    let mut values: Vec<T> = values.iter().copied().collect();
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::some_instant;

    /// A job with a checkpoint of 9.8 s every 5,000 steps, which fails every 2.8 h.
    fn times(failures: u32, every_s: u64) -> CheckpointTimes {
        let (mut checkpoints, start) = (Checkpoints::default(), some_instant());
        for n in 1..=4 {
            let at = start + Duration::from_secs(every_s * n);
            let cost = Duration::from_millis(9_800);
            checkpoints.handle_saved(at, RoundId::default(), 5_000 * n, Some(cost));
        }
        let running = Duration::from_secs(10_080) * failures;
        checkpoints.times(FailureRate { failures, running, nodes: 4 }).unwrap()
    }

    /// The best interval is that of Young and Daly.
    #[test]
    fn best_interval_is_youngs() {
        let times = times(10, 2_050);
        assert_eq!(
            (times.every_steps, times.every_ms, times.cost_ms),
            (5_000, 2_050_000, Some(9_800))
        );
        let best = Duration::from_millis(times.best_ms.unwrap()).as_secs_f64();
        assert!((best - 434.7).abs() < 0.1, "{best}");
        assert_eq!(times.best_steps, Some(1_060));
        assert!((times.lost.unwrap() - 0.1064).abs() < 1e-3, "{:?}", times.lost);
        assert!((times.best_lost.unwrap() - 0.0441).abs() < 1e-3, "{:?}", times.best_lost);
        // No other interval loses less.
        let (cost, mean) = (Duration::from_millis(9_800), Duration::from_secs(10_080));
        let least =
            (1..10_000).map(|s| lost(cost, Duration::from_secs(s), mean)).fold(1.0, f64::min);
        assert!(times.best_lost.unwrap() < least + 1e-4);
        assert_eq!(self::times(10, 500).best_ms, None, "it would gain less than 1 %");
    }

    /// Before two failures, the rate is a published one. A small job then needs no advice.
    #[test]
    fn rate_is_assumed_at_first() {
        let times = times(1, 2_050);
        assert!(!times.is_rate_measured);
        assert_eq!(times.failure_every_ms, 250 * 24 * 3_600_000 / 4);
        assert_eq!(times.best_ms, None, "{times:?}");
    }

    /// Without a known cost there is no advice. Checkpoints of different rounds are no interval.
    #[test]
    fn unknown_values_are_left_out() {
        let (mut checkpoints, now) = (Checkpoints::default(), some_instant());
        let rate = FailureRate { failures: 2, running: Duration::from_secs(9_000), nodes: 1 };
        checkpoints.handle_saved(now, RoundId::default(), 10, None);
        assert!(checkpoints.times(rate).is_none());
        let other = RoundId { round: crate::ids::Round(2), ..RoundId::default() };
        let later = now + Duration::from_secs(100);
        checkpoints.handle_saved(later, other, 20, None);
        assert!(checkpoints.times(rate).is_none());
        checkpoints.handle_saved(later + Duration::from_secs(9), other, 50, None);
        let times = checkpoints.times(rate).unwrap();
        assert_eq!((times.every_steps, times.every_ms), (30, 9_000));
        assert_eq!((times.cost_ms, times.best_ms, times.lost), (None, None, None));
        // A step that is saved again does not count.
        checkpoints.handle_saved(later + Duration::from_secs(10), other, 50, None);
        assert_eq!(checkpoints.intervals.len(), 1);
    }

    /// A checkpoint that costs nothing has no best interval. Without an interval, or with constant failures, all time is lost.
    #[test]
    fn limits_of_the_formula() {
        let second = Duration::from_secs(1);
        assert_eq!(best_interval(Duration::ZERO, second), None);
        assert_eq!(best_interval(second, Duration::ZERO), None);
        for (interval, mean) in [(Duration::ZERO, second), (second, Duration::ZERO)] {
            assert!((lost(second / 2, interval, mean) - 1.0).abs() < f64::EPSILON);
        }
        // 1 s each 10 s, and half of 10 s each 100 s.
        assert!((lost(second, 10 * second, 100 * second) - 0.15).abs() < 1e-9);
    }

    /// The medians are those of the last 16 intervals and costs.
    #[test]
    fn only_recent_checkpoints_count() {
        let (mut checkpoints, mut now) = (Checkpoints::default(), some_instant());
        for (step, seconds) in (0..40).map(|step| (step, 1)).chain((40..57).map(|step| (step, 9))) {
            now += Duration::from_secs(seconds);
            let cost = Duration::from_millis(seconds);
            checkpoints.handle_saved(now, RoundId::default(), step, Some(cost));
        }
        assert_eq!(
            (checkpoints.intervals.len(), checkpoints.costs.len()),
            (RECENT_MAX, RECENT_MAX)
        );
        let rate = FailureRate { failures: 2, running: Duration::from_secs(9_000), nodes: 1 };
        let times = checkpoints.times(rate).unwrap();
        assert_eq!((times.every_ms, times.cost_ms), (9_000, Some(9)));
    }
}
