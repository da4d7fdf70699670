//! Accounts for the time of a job: each moment since its beginning has exactly one state.
//!
//! The time of running workers is known to be productive only afterwards: an interval between two
//! signs of progress is productive unless it is far longer than usual. Until the second sign, the
//! interval is *open*:
//!
//! - `TimeAccount::seen` assigns it to the state that it appears to have.
//! - `TimeAccount::settled` leaves it out, so that its times never fall.
//!
//! If a job never gives a sign of progress, the time of its workers is *unknown*.

use std::time::{Duration, Instant};

/// A state of the time account.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TimeState {
    /// The job waits for nodes, or for its coordinator.
    Waiting,
    /// The next round is being formed from nodes that are present.
    Rendezvous,
    /// The workers of a round start, until their first sign of progress.
    Starting,
    /// The workers make progress.
    Productive,
    /// The workers run, and made no progress for much longer than usual.
    Stalled,
    /// The workers hung, from their last sign of progress until the round ended.
    Hung,
    /// The workers of a round are being stopped.
    Stopping,
    /// The workers run, and have never given a sign of progress.
    Unknown,
}

/// The number of states.
const STATES: usize = TimeState::ALL.len();

impl TimeState {
    /// All states.
    pub const ALL: [Self; 8] = [
        Self::Waiting,
        Self::Rendezvous,
        Self::Starting,
        Self::Productive,
        Self::Stalled,
        Self::Hung,
        Self::Stopping,
        Self::Unknown,
    ];

    /// Returns the name of the state, for programs and for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Rendezvous => "rendezvous",
            Self::Starting => "starting",
            Self::Productive => "productive",
            Self::Stalled => "stalled",
            Self::Hung => "hung",
            Self::Stopping => "stopping",
            Self::Unknown => "unknown",
        }
    }
}

/// The times of all states.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TimeTotals {
    /// The time in each state, in the order of [`TimeState::ALL`].
    pub by_state: [Duration; STATES],
    /// The part of the productive time that was spent on steps that were done again after a failure.
    pub redone: Duration,
}

impl TimeTotals {
    /// Returns the time in `state`.
    pub fn of(&self, state: TimeState) -> Duration {
        self.by_state[state as usize]
    }

    /// Returns the sum of all states: the age of the job.
    pub fn age(&self) -> Duration {
        self.by_state.iter().fold(Duration::ZERO, |sum, time| sum.saturating_add(*time))
    }

    /// Returns the times in whole milliseconds, in which they are stored.
    pub(crate) fn in_millis(&self) -> Self {
        let whole = |time: Duration| {
            time.saturating_sub(Duration::from_nanos(u64::from(time.subsec_nanos()) % 1_000_000))
        };
        Self { by_state: self.by_state.map(whole), redone: whole(self.redone) }
    }

    /// Adds `time` to `state`.
    pub fn add(&mut self, state: TimeState, time: Duration) {
        let total = &mut self.by_state[state as usize];
        *total = total.saturating_add(time);
    }

    /// Returns the time in each state since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let mut times = self.clone();
        for (time, before) in times.by_state.iter_mut().zip(&earlier.by_state) {
            *time = time.saturating_sub(*before);
        }
        times.redone = self.redone.saturating_sub(earlier.redone);
        times
    }
}

/// An interval between signs of progress is never a stall up to this length: agents report with
/// their keep-alives, and short pauses are not worth a state.
const STALL_MIN: Duration = Duration::from_secs(10);

/// An interval between signs of progress is a stall if it is longer than this many usual ones.
const STALL_FACTOR: u32 = 10;

/// The limit of an interval while no usual one is known.
const FIRST_STALL: Duration = Duration::from_secs(600);

/// Steps that are read from output count only after this many over [`READ_FOR`] in a round. The
/// output may contain other numbers that look like steps, such as a progress bar for loading a
/// checkpoint.
const READ_SIGNS: u32 = 10;

/// See [`READ_SIGNS`].
const READ_FOR: Duration = Duration::from_secs(60);

/// The weight of a new interval in the usual one is one part in this many.
const USUAL_WEIGHT: u32 = 8;

/// The time account of a job.
#[derive(Debug)]
pub(crate) struct TimeAccount {
    settled: TimeTotals,
    open: Open,
    /// The time up to which `settled` counts.
    since: Instant,
    /// True if the workers have given a sign of progress in this term.
    has_progress: bool,
    /// The usual interval between two signs.
    usual: Option<Duration>,
    /// Signs of the round that were read from output and do not count yet: the time of the first,
    /// and their number.
    read: Option<(Instant, u32)>,
    /// The usual time of a step, perhaps from an earlier round.
    step_time: Option<Duration>,
    /// The step of the last sign.
    last: u64,
    /// The highest step of the round.
    step: u64,
    /// The highest step of the last round with progress, until the first sign of the next one.
    step_before: Option<u64>,
}

/// The interval that is not settled.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Open {
    /// It belongs to this state.
    In(TimeState),
    /// The workers run, and the job has never had a sign of progress.
    Unknown,
    /// The workers have given a sign of progress in this round. The interval starts at the last
    /// one.
    Measured,
    /// The job is closed.
    Closed,
}

impl TimeAccount {
    /// Continues an account in the state `Waiting`.
    pub(crate) fn new(now: Instant, settled: TimeTotals) -> Self {
        Self {
            settled,
            open: Open::In(TimeState::Waiting),
            since: now,
            has_progress: false,
            usual: None,
            read: None,
            step_time: None,
            last: 0,
            step: 0,
            step_before: None,
        }
    }

    /// Enters a state in which no workers of a complete round run.
    pub(crate) fn enter(&mut self, now: Instant, state: TimeState) {
        if self.open != Open::In(state) {
            self.read = None;
            self.settle(now, None);
            self.open = Open::In(state);
        }
    }

    /// Notes that all workers of the round run.
    pub(crate) fn started(&mut self, now: Instant) {
        if self.open == Open::In(TimeState::Starting) && !self.has_progress {
            self.settle(now, None);
            self.open = Open::Unknown;
        }
    }

    /// Notes a sign of progress. `step` is the lowest of all workers, so a report of one of many
    /// nodes does not count by itself. `step_time` is the usual time of a step, if it is known in
    /// this round. Returns the number of steps that are done again, if this is the first sign of
    /// the round.
    pub(crate) fn progress(
        &mut self,
        now: Instant,
        step: u64,
        step_time: Option<Duration>,
        is_read: bool,
    ) -> Option<u64> {
        if is_read && self.open != Open::Measured && !self.is_credible(now, step) {
            return None;
        }
        let mut redone = None;
        self.step_time = step_time.or(self.step_time);
        if self.open == Open::Measured && step == self.last {
            return None;
        }
        match self.open {
            // Until the first sign, the workers were starting.
            Open::In(TimeState::Starting) | Open::Unknown => {
                let first = self.read.map_or(now, |(first, _)| first.min(now));
                self.settle_as(first, TimeState::Starting);
                self.settle_as(now, TimeState::Productive);
            }
            Open::Measured => self.settle(now, None),
            Open::In(_) | Open::Closed => return None,
        }
        if self.open != Open::Measured {
            let before = self.step_before.take().unwrap_or(step);
            let steps = before.saturating_sub(step);
            let factor = u32::try_from(steps).unwrap_or(u32::MAX);
            let time = self.step_time.unwrap_or_default().saturating_mul(factor);
            // No more can be redone than was productive.
            let left = self.settled.of(TimeState::Productive).saturating_sub(self.settled.redone);
            self.settled.redone += time.min(left);
            self.step = step;
            redone = Some(steps);
        }
        self.has_progress = true;
        self.last = step;
        self.step = self.step.max(step);
        self.open = Open::Measured;
        redone
    }

    /// Returns true if steps that are read from output count from now on.
    fn is_credible(&mut self, now: Instant, step: u64) -> bool {
        let (first, signs) = self.read.unwrap_or((now, 0));
        let is_other = signs == 0 || step != self.last;
        let signs = signs.saturating_add(u32::from(is_other));
        self.last = step;
        self.read = Some((first, signs));
        signs >= READ_SIGNS && now.saturating_duration_since(first) >= READ_FOR
    }

    /// Notes the end of the round, after which its workers are stopped. If a worker hung,
    /// `hung_for` is the time that it made no progress.
    pub(crate) fn round_ended(&mut self, now: Instant, hung_for: Option<Duration>) {
        if self.open == Open::Measured {
            self.step_before = Some(self.step);
        }
        self.settle(now, hung_for);
        self.open = Open::In(TimeState::Stopping);
    }

    /// Notes that the workers have stood still for a checkpoint since their last sign of progress, and that the
    /// round ends with it. Returns this time.
    pub(crate) fn saving_over(&mut self, now: Instant) -> Duration {
        if self.open != Open::Measured {
            return Duration::ZERO;
        }
        self.step_before = Some(self.step);
        let time = now.saturating_duration_since(self.since);
        self.settle_as(now, TimeState::Stopping);
        self.open = Open::In(TimeState::Stopping);
        time
    }

    /// Notes the end of the job. No time is counted after it.
    pub(crate) fn close(&mut self, now: Instant) {
        self.settle(now, None);
        self.open = Open::Closed;
    }

    /// Forgets the steps of the last round, because those of the next one cannot be compared with
    /// them.
    pub(crate) fn forget_steps(&mut self) {
        self.step_before = None;
    }

    /// Returns true if the workers run in a job without a sign of progress.
    pub(crate) fn is_unknown(&self) -> bool {
        self.open == Open::Unknown
    }

    /// Returns the state that the job appears to be in; `None` if it is closed.
    pub(crate) fn state(&self, now: Instant) -> Option<TimeState> {
        self.appearance(now.saturating_duration_since(self.since))
    }

    /// Returns the times at `now`, with the open interval in the state that it appears to have.
    pub(crate) fn seen(&self, now: Instant) -> TimeTotals {
        let mut times = self.settled.clone();
        if let Some(state) = self.state(now) {
            times.add(state, now.saturating_duration_since(self.since));
        }
        times
    }

    /// Returns the times at `now`, without what a later event may move to another state.
    pub(crate) fn settled(&self, now: Instant) -> TimeTotals {
        match (self.open, self.read) {
            // These steps may count later, and would show that the workers made progress.
            (Open::In(state), Some((first, _))) => {
                let mut times = self.settled.clone();
                times.add(state, first.saturating_duration_since(self.since));
                times
            }
            (Open::In(_), None) => self.seen(now),
            (Open::Unknown | Open::Measured | Open::Closed, _) => self.settled.clone(),
        }
    }

    /// Settles the open interval.
    fn settle(&mut self, now: Instant, hung_for: Option<Duration>) {
        let time = now.saturating_duration_since(self.since);
        let Some(state) = self.appearance(time) else { return };
        match (self.open, hung_for) {
            (Open::Measured, Some(_)) => self.settle_as(now, TimeState::Hung),
            (Open::Unknown, Some(hung_for)) => {
                let begin = now.checked_sub(hung_for).unwrap_or(self.since);
                self.settle_as(begin, TimeState::Unknown);
                self.settle_as(now, TimeState::Hung);
            }
            (Open::Measured, None) => {
                self.learn(time);
                self.settle_as(now, state);
            }
            (Open::In(_) | Open::Closed, _) | (Open::Unknown, None) => self.settle_as(now, state),
        }
    }

    /// Adjusts the usual interval. A single long one changes it little, and many make it longer.
    fn learn(&mut self, time: Duration) {
        let usual = self.usual.unwrap_or(time);
        let time = time.min(usual.max(STALL_MIN).saturating_mul(STALL_FACTOR));
        let kept = usual.saturating_mul(USUAL_WEIGHT - 1).saturating_add(time);
        self.usual = Some(kept / USUAL_WEIGHT);
    }

    /// Adds the time until `until` to `state`.
    fn settle_as(&mut self, until: Instant, state: TimeState) {
        self.settled.add(state, until.saturating_duration_since(self.since));
        self.since = self.since.max(until);
    }

    /// Returns the state of the open interval if it ends after `time`.
    fn appearance(&self, time: Duration) -> Option<TimeState> {
        match self.open {
            Open::In(state) => Some(state),
            Open::Unknown => Some(TimeState::Unknown),
            Open::Measured => {
                Some(if time > self.stall() { TimeState::Stalled } else { TimeState::Productive })
            }
            Open::Closed => None,
        }
    }

    /// Returns the longest interval that is not a stall.
    fn stall(&self) -> Duration {
        match self.usual.max(self.step_time) {
            Some(usual) => usual.saturating_mul(STALL_FACTOR).max(STALL_MIN),
            None => FIRST_STALL,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[expect(clippy::disallowed_methods, reason = "a test needs some instant to begin with")]
    fn some_instant() -> Instant {
        Instant::now()
    }

    fn seconds(times: &TimeTotals) -> Vec<(&'static str, u64)> {
        TimeState::ALL
            .into_iter()
            .map(|state| (state.name(), times.of(state).as_secs()))
            .filter(|(_, seconds)| *seconds > 0)
            .collect()
    }

    /// A round that fails is counted by its stages. Steps that are done again are counted
    /// separately.
    #[test]
    fn stages_of_a_restart_are_counted() {
        let mut now = some_instant();
        let mut account = TimeAccount::new(now, TimeTotals::default());
        now += SECOND;
        account.enter(now, TimeState::Rendezvous);
        now += 2 * SECOND;
        account.enter(now, TimeState::Starting);
        account.started(now);
        now += 3 * SECOND;
        assert_eq!(account.state(now), Some(TimeState::Unknown));
        assert_eq!(account.progress(now, 1, None, false), Some(0));
        for step in 2..=20 {
            now += SECOND;
            assert_eq!(account.progress(now, step, Some(SECOND), false), None);
        }
        account.round_ended(now, None);
        now += 4 * SECOND;
        account.enter(now, TimeState::Rendezvous);
        account.enter(now, TimeState::Starting);
        account.started(now);
        now += 5 * SECOND;
        assert_eq!(account.state(now), Some(TimeState::Starting), "progress is known");
        assert_eq!(account.progress(now, 15, Some(SECOND), false), Some(5));
        let times = account.seen(now);
        let expected = [
            ("waiting", 1),
            ("rendezvous", 2),
            ("starting", 8),
            ("productive", 19),
            ("stopping", 4),
        ];
        assert_eq!(seconds(&times), expected);
        assert_eq!(times.redone, 5 * SECOND);
        account.close(now);
        assert_eq!(account.seen(now + SECOND), times, "a closed job grows no older");
    }

    /// A long time without a step is a stall, even if the round ends in it. A hang is counted as a
    /// hang.
    #[test]
    fn long_times_without_a_step_are_stalls() {
        let mut now = some_instant();
        let mut account = TimeAccount::new(now, TimeTotals::default());
        let run = |account: &mut TimeAccount, now: &mut Instant| {
            account.enter(*now, TimeState::Starting);
            account.started(*now);
            for step in 0..5 {
                account.progress(*now, step, None, false);
                *now += 2 * SECOND;
            }
            account.progress(*now, 5, None, false);
        };
        run(&mut account, &mut now);
        assert_eq!(account.state(now + 20 * SECOND), Some(TimeState::Productive));
        assert_eq!(account.state(now + 21 * SECOND), Some(TimeState::Stalled));
        assert_eq!(seconds(&account.settled(now + 21 * SECOND)), [("productive", 10)]);
        now += 30 * SECOND;
        account.progress(now, 6, None, false);
        assert_eq!(seconds(&account.seen(now)), [("productive", 10), ("stalled", 30)]);
        now += 60 * SECOND;
        account.round_ended(now, None);
        assert_eq!(seconds(&account.seen(now)), [("productive", 10), ("stalled", 90)]);
        run(&mut account, &mut now);
        now += 60 * SECOND;
        account.round_ended(now, Some(60 * SECOND));
        assert_eq!(account.seen(now).of(TimeState::Hung), 60 * SECOND);
    }

    /// Reports of many nodes within a step do not make the next step look late.
    #[test]
    fn long_steps_of_many_nodes_are_productive() {
        let mut now = some_instant();
        let mut account = TimeAccount::new(now, TimeTotals::default());
        account.enter(now, TimeState::Starting);
        account.started(now);
        for step in 0..10 {
            for _ in 0..1_000 {
                now += Duration::from_millis(1);
                account.progress(now, step, None, false);
            }
            now += 29 * SECOND;
        }
        assert_eq!(account.seen(now).of(TimeState::Stalled), Duration::ZERO);
        assert_eq!(account.state(now + 60 * SECOND), Some(TimeState::Productive));
        assert_eq!(account.state(now + 600 * SECOND), Some(TimeState::Stalled));
    }

    /// The time of workers without signs of progress is unknown until they hang.
    #[test]
    fn hang_without_signs_is_counted_from_its_begin() {
        let mut now = some_instant();
        let mut account = TimeAccount::new(now, TimeTotals::default());
        account.enter(now, TimeState::Starting);
        account.started(now);
        now += 36_000 * SECOND;
        account.round_ended(now, Some(60 * SECOND));
        assert_eq!(seconds(&account.seen(now)), [("hung", 60), ("unknown", 35_940)]);
    }

    /// A few numbers in the output that look like steps are ignored. Steps that go on count from
    /// the first one.
    #[test]
    fn read_steps_count_after_a_while() {
        let mut now = some_instant();
        let mut account = TimeAccount::new(now, TimeTotals::default());
        account.enter(now, TimeState::Starting);
        account.started(now);
        for shard in 1..=4 {
            now += 5 * SECOND;
            assert_eq!(account.progress(now, shard, None, true), None);
        }
        assert!(account.is_unknown());
        account.round_ended(now, None);
        account.enter(now, TimeState::Starting);
        account.started(now);
        now += 30 * SECOND;
        let counted = (0..100).find(|step| {
            now += SECOND;
            account.progress(now, *step, None, true).is_some()
        });
        assert_eq!(counted, Some(60));
        assert_eq!(
            seconds(&account.seen(now)),
            [("starting", 31), ("productive", 60), ("unknown", 20)]
        );
    }

    /// For any order of inputs: the states sum to the age of the job, settled times never fall, and
    /// redone time is at most the productive time.
    #[test]
    fn every_moment_has_one_state() {
        for seed in 0..2_000_u64 {
            let mut random = seed;
            let mut draw = |limit: u64| {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                (random >> 33) % limit
            };
            let begin = some_instant();
            let mut now = begin;
            let mut account = TimeAccount::new(now, TimeTotals::default());
            let mut settled = TimeTotals::default();
            for _ in 0..60 {
                now += Duration::from_millis(draw(20_000));
                match draw(6) {
                    0 => account.enter(now, TimeState::ALL[draw(3) as usize]),
                    1 => account.enter(now, TimeState::Starting),
                    2 => account.started(now),
                    3 => account.round_ended(
                        now,
                        (draw(2) == 0).then(|| Duration::from_millis(draw(99_000))),
                    ),
                    _ => {
                        account.progress(now, draw(1_000), Some(SECOND), draw(3) == 0);
                    }
                }
                let seen = account.seen(now);
                assert_eq!(seen.age(), now - begin, "seed {seed}");
                assert!(seen.redone <= seen.of(TimeState::Productive), "seed {seed}");
                let newest = account.settled(now);
                let falls =
                    newest.by_state.iter().zip(&settled.by_state).any(|(new, old)| new < old);
                assert!(!falls && newest.redone >= settled.redone, "seed {seed}");
                settled = newest;
            }
        }
    }
}
