//! Merges the training steps of a node's workers, and decides when they are passed on.
//!
//! - A reported step of a worker takes precedence over steps that were read from its output.
//! - The node has the lowest and the highest step of its workers. Only workers with the most reliable source
//!   count.
//! - A step may go back, because a script may return to a checkpoint.
//!
//! Steps come as often as the workers write. So they are passed on at intervals, and captured output is
//! examined at intervals. The machine has no process and no clock.

use std::{collections::BTreeMap, time::Instant};

use ragent_rendezvous::{
    ids::LocalRank,
    message::{STEP_MAX, StepProgress, StepSource},
};

use crate::limits::STEP_INTERVAL;

/// A training step that one worker has reached.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Step {
    step: u64,
    total: Option<u64>,
}

impl Step {
    /// Creates a step; `None` if it is out of range. A number of all steps that is out of range counts as unknown.
    pub fn new(step: u64, total: Option<u64>) -> Option<Self> {
        let total = total.filter(|total| *total <= STEP_MAX);
        (step <= STEP_MAX).then_some(Self { step, total })
    }

    /// Returns the number of the step.
    pub fn number(self) -> u64 {
        self.step
    }
}

/// The steps of a node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NodeSteps {
    /// The origin of the steps.
    pub source: StepSource,
    /// The lowest step of all workers.
    pub lowest: u64,
    /// The highest step of all workers.
    pub highest: u64,
    /// The number of steps of the whole training, if known.
    pub total: Option<u64>,
    /// The time at which a worker has reached another step.
    pub at: Instant,
}

impl NodeSteps {
    /// Returns the steps for the coordinator.
    pub fn progress(&self, now: Instant) -> StepProgress {
        let Self { source, lowest, highest, total, at } = *self;
        let age = now.saturating_duration_since(at);
        StepProgress { source, lowest, highest, total, age }
    }
}

/// The steps of the workers of one group.
#[derive(Debug, Default)]
pub struct StepWatch {
    workers: BTreeMap<LocalRank, (StepSource, ReachedStep)>,
    /// True if captured output has not been examined yet.
    has_output: bool,
    /// The steps that were last passed on.
    sent: Option<NodeSteps>,
    /// The time at which steps must be passed on; `None` if there is nothing new.
    due: Option<Instant>,
    quiet_until: Option<Instant>,
}

/// The last step of a worker.
#[derive(Clone, Copy, Debug)]
struct ReachedStep {
    step: Step,
    /// The time at which it differed from the one before.
    at: Instant,
}

impl StepWatch {
    /// Notes a step that a worker has reached. A step that was read counts only if the worker has reported
    /// none.
    pub fn handle_step(
        &mut self,
        now: Instant,
        local_rank: LocalRank,
        source: StepSource,
        step: Step,
    ) {
        let before = self.workers.get(&local_rank);
        if before.is_some_and(|(known, _)| *known < source) {
            return;
        }
        let is_same = |(known, reached): &&(StepSource, ReachedStep)| {
            *known == source && reached.step.step == step.step
        };
        let at = before.filter(is_same).map_or(now, |(_, reached)| reached.at);
        self.workers.insert(local_rank, (source, ReachedStep { step, at }));
        self.wake(now);
    }

    /// Notes that output of a worker was captured, which may contain a step.
    pub fn handle_output(&mut self, now: Instant) {
        self.has_output = true;
        self.wake(now);
    }

    /// Returns the time at which output must be examined, or steps must be passed on.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.due
    }

    /// Applies that deadline, if it has passed. Returns true if output must be examined before steps are
    /// taken.
    pub fn handle_timeout(&mut self, now: Instant) -> bool {
        if self.due.is_none_or(|due| now < due) {
            return false;
        }
        self.due = None;
        self.quiet_until = Some(now + STEP_INTERVAL);
        std::mem::take(&mut self.has_output)
    }

    /// Returns the steps of the node if they have changed since the last call; `None` before the first.
    pub fn take_changed(&mut self) -> Option<NodeSteps> {
        if !self.has_output {
            self.due = None;
        }
        let merged = self.merged().filter(|merged| self.sent.as_ref() != Some(merged))?;
        self.sent = Some(merged);
        Some(merged)
    }

    fn wake(&mut self, now: Instant) {
        let earliest = self.quiet_until.map_or(now, |until| until.max(now));
        self.due.get_or_insert(earliest);
    }

    fn merged(&self) -> Option<NodeSteps> {
        let source = self.workers.values().map(|(source, _)| *source).min()?;
        // A counter that has reached its end may have shown something else than training. Such a worker may never print again.
        let has_ended = |reached: &ReachedStep| {
            source == StepSource::Read && reached.step.total == Some(reached.step.step)
        };
        let all = || {
            let all = self.workers.values().filter(|(known, _)| *known == source);
            all.map(|(_, reached)| reached)
        };
        // If all counters have reached their ends, the last one has shown the training.
        let last = all().max_by_key(|reached| reached.at).filter(|_| all().all(has_ended));
        let of_source = || {
            all().filter(move |reached| match last {
                Some(last) => reached.step.total == last.step.total,
                None => !has_ended(reached),
            })
        };
        Some(NodeSteps {
            source,
            lowest: of_source().map(|reached| reached.step.step).min()?,
            highest: of_source().map(|reached| reached.step.step).max()?,
            total: of_source().filter_map(|reached| reached.step.total).max(),
            at: of_source().map(|reached| reached.at).max()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::some_instant;

    const SECOND: Duration = Duration::from_secs(1);
    const A: LocalRank = LocalRank(0);
    const B: LocalRank = LocalRank(1);

    fn step(step: u64) -> Step {
        Step::new(step, None).expect("a small step")
    }

    fn taken(watch: &mut StepWatch) -> Option<(StepSource, u64, u64)> {
        watch.take_changed().map(|steps| (steps.source, steps.lowest, steps.highest))
    }

    /// The node has the extremes of its workers' steps, and the age of the latest one.
    #[test]
    fn steps_of_workers_are_merged() {
        let (mut watch, now) = (StepWatch::default(), some_instant());
        assert_eq!(watch.take_changed(), None);
        watch.handle_step(now, A, StepSource::Reported, step(7));
        watch.handle_step(now + SECOND, B, StepSource::Reported, Step::new(5, Some(9)).unwrap());
        let steps = watch.take_changed().unwrap();
        assert_eq!((steps.lowest, steps.highest, steps.total), (5, 7, Some(9)));
        let progress = steps.progress(now + 3 * SECOND);
        assert_eq!((progress.lowest, progress.highest, progress.age), (5, 7, 2 * SECOND));
        assert_eq!(step(7).number(), 7);
        assert_eq!(watch.take_changed(), None, "nothing has changed");
    }

    /// A counter that was read and has ended does not hold the node back: only one worker may print its steps.
    #[test]
    fn counters_that_have_ended_do_not_count() {
        let (mut watch, now) = (StepWatch::default(), some_instant());
        let counter = |step, all| Step::new(step, Some(all)).unwrap();
        for worker in [A, B] {
            watch.handle_step(now, worker, StepSource::Read, counter(28, 28));
        }
        assert_eq!(taken(&mut watch), Some((StepSource::Read, 28, 28)));
        watch.handle_step(now, A, StepSource::Read, counter(40, 800));
        assert_eq!(taken(&mut watch), Some((StepSource::Read, 40, 40)));
        assert_eq!(watch.merged().unwrap().total, Some(800));
    }

    /// If the counters of all workers have ended, the last one has shown the training.
    #[test]
    fn last_counter_counts_after_the_end() {
        let (mut watch, now) = (StepWatch::default(), some_instant());
        let counter = |step, all| Step::new(step, Some(all)).unwrap();
        watch.handle_step(now, B, StepSource::Read, counter(28, 28));
        watch.handle_step(now + SECOND, A, StepSource::Read, counter(16, 16));
        let steps = watch.merged().unwrap();
        assert_eq!((steps.lowest, steps.highest, steps.total), (16, 16, Some(16)));
    }

    /// A worker that repeats its step makes no progress.
    #[test]
    fn repeated_step_is_no_progress() {
        let (mut watch, now) = (StepWatch::default(), some_instant());
        for seconds in 0..3 {
            watch.handle_step(now + seconds * SECOND, A, StepSource::Read, step(7));
        }
        assert_eq!(watch.take_changed().unwrap().at, now);
        watch.handle_step(now + 3 * SECOND, A, StepSource::Read, step(8));
        assert_eq!(watch.take_changed().unwrap().at, now + 3 * SECOND);
    }

    /// A reported step takes precedence over steps that were read from the worker's output. Workers without a
    /// reported step do not count while another worker reports.
    #[test]
    fn reported_steps_are_preferred() {
        let (mut watch, now) = (StepWatch::default(), some_instant());
        watch.handle_step(now, A, StepSource::Read, step(3));
        watch.handle_step(now, B, StepSource::Read, step(900));
        assert_eq!(taken(&mut watch), Some((StepSource::Read, 3, 900)));
        watch.handle_step(now, A, StepSource::Reported, step(40));
        assert_eq!(taken(&mut watch), Some((StepSource::Reported, 40, 40)));
        watch.handle_step(now, A, StepSource::Read, step(4));
        watch.handle_step(now, B, StepSource::Read, step(901));
        assert_eq!(taken(&mut watch), None);
    }

    /// A step that goes back is accepted.
    #[test]
    fn step_may_go_back() {
        let (mut watch, now) = (StepWatch::default(), some_instant());
        watch.handle_step(now, A, StepSource::Reported, step(100));
        watch.handle_step(now + SECOND, A, StepSource::Reported, step(40));
        let steps = watch.take_changed().unwrap();
        assert_eq!((steps.lowest, steps.highest, steps.at), (40, 40, now + SECOND));
    }

    /// Steps out of range are refused. A number of all steps out of range is unknown.
    #[test]
    fn steps_have_a_range() {
        assert_eq!(Step::new(STEP_MAX + 1, None), None);
        assert_eq!(Step::new(1, Some(u64::MAX)), Step::new(1, None));
    }

    /// The first step is passed on at once, and further ones at intervals. New output is examined at the same
    /// intervals. Without either, there is no deadline.
    #[test]
    fn steps_are_passed_on_at_intervals() {
        let (mut watch, now) = (StepWatch::default(), some_instant());
        assert_eq!(watch.poll_timeout(), None);
        watch.handle_step(now, A, StepSource::Reported, step(1));
        assert_eq!(watch.poll_timeout(), Some(now));
        assert!(!watch.handle_timeout(now), "there is no output");
        assert_eq!(watch.poll_timeout(), None);
        let later = now + STEP_INTERVAL / 2;
        watch.handle_output(later);
        watch.handle_output(later);
        assert_eq!(watch.poll_timeout(), Some(now + STEP_INTERVAL));
        assert!(!watch.handle_timeout(later), "it is too early");
        assert!(watch.handle_timeout(now + STEP_INTERVAL));
        assert_eq!(watch.poll_timeout(), None);
        watch.handle_output(now + 10 * STEP_INTERVAL);
        assert_eq!(watch.poll_timeout(), Some(now + 10 * STEP_INTERVAL));
    }

    proptest! {
        /// However often workers write and report, output is examined and steps are passed on at most once an interval.
        #[test]
        fn rate_is_bounded(inputs in prop::collection::vec((any::<bool>(), 0u64..30), 1..300)) {
            let (mut watch, start) = (StepWatch::default(), some_instant());
            let (mut now, mut number) = (start, 0);
            for (number_of_step, (is_step, millis)) in inputs.into_iter().enumerate() {
                now += Duration::from_millis(millis);
                if is_step {
                    watch.handle_step(now, A, StepSource::Reported, step(number_of_step as u64));
                } else {
                    watch.handle_output(now);
                }
                if watch.poll_timeout().is_some_and(|due| due <= now) {
                    watch.handle_timeout(now);
                    number += 1;
                }
            }
            let passed = now.saturating_duration_since(start);
            let most = passed.as_nanos() / STEP_INTERVAL.as_nanos() + 1;
            prop_assert!(number <= most, "{} examinations in {:?}", number, passed);
        }
    }

    /// Steps that are taken early end their deadline, unless output remains to be examined.
    #[test]
    fn output_is_examined_after_steps_were_taken() {
        let (mut watch, now) = (StepWatch::default(), some_instant());
        watch.handle_step(now, A, StepSource::Reported, step(7));
        watch.take_changed();
        assert_eq!(watch.poll_timeout(), None);
        watch.handle_output(now);
        watch.take_changed();
        assert_eq!(watch.poll_timeout(), Some(now));
        assert!(watch.handle_timeout(now));
    }
}
