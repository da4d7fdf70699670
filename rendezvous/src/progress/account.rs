//! Accounts for the time of a job: each moment since its beginning has exactly one state.
//!
//! The time of running workers is known to be productive only afterwards: an interval between two
//! signs of progress is productive unless it reaches the limit of a stall ([`stall_limit()`]). Until
//! the second sign, the interval is *open*:
//!
//! - `TimeAccount::seen` assigns it to the state that it appears to have.
//! - `TimeAccount::settled` leaves it out, so that its times never fall.
//!
//! If a job never gives a sign of progress, the time of its workers is *unknown*.
//!
//! The account also decides when a stall begins (`TimeAccount::stalls_at`). Its clock runs from
//! the last sign of progress, or from the admission of the round before the first one. It does not
//! run while the pause has a known reason (`TimeAccount::excuse`).

use std::time::{Duration, Instant};

use strum::{IntoStaticStr, VariantArray};

use crate::{limits::after, progress::stall_limit};

/// A state of the time account.
#[derive(Clone, Copy, Debug, Eq, PartialEq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
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
    pub const ALL: [Self; 8] = *Self::VARIANTS.as_array().expect("all variants");
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
        Self { by_state: self.by_state.map(whole_millis), redone: whole_millis(self.redone) }
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

/// An interval that is longer than this many usual ones changes the usual one no more than that.
const LEARNED_FACTOR: u32 = 10;

/// A usual interval below this counts as this long there: agents report with their keep-alives.
const LEARNED_MIN: Duration = Duration::from_secs(10);

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
    pauses: Pauses,
    /// The time from which on the workers of the round have made no progress.
    quiet_since: Instant,
    /// True while a pause has a known reason.
    is_excused: bool,
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

/// Returns a time in whole milliseconds.
pub(crate) fn whole_millis(time: Duration) -> Duration {
    time.saturating_sub(Duration::from_nanos(u64::from(time.subsec_nanos()) % 1_000_000))
}

/// The longest pauses of a job, also in earlier rounds and terms.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Pauses {
    /// The longest time between two signs of progress in one round; zero if unknown.
    pub(crate) longest: Duration,
    /// The longest time from the admission of a round to its first sign; zero if unknown.
    pub(crate) first: Duration,
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
    pub(crate) fn new(now: Instant, settled: TimeTotals, pauses: Pauses) -> Self {
        Self {
            settled,
            open: Open::In(TimeState::Waiting),
            since: now,
            has_progress: false,
            usual: None,
            pauses,
            quiet_since: now,
            is_excused: false,
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
            (self.quiet_since, self.is_excused) = (now, false);
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
        let pause = if self.is_excused { Duration::ZERO } else { self.quiet_for(now) };
        match self.open {
            // Until the first sign, the workers were starting.
            Open::In(TimeState::Starting) | Open::Unknown => {
                let first = self.read.map_or(now, |(first, _)| first.min(now));
                self.settle_as(first, TimeState::Starting);
                self.settle_as(now, TimeState::Productive);
                self.pauses.first = self.pauses.first.max(pause);
            }
            Open::Measured => {
                self.settle(now, None);
                self.pauses.longest = self.pauses.longest.max(pause);
            }
            Open::In(_) | Open::Closed => return None,
        }
        if self.open != Open::Measured {
            // The first sign is that of a step that was done again itself, if the last round had come so far.
            let end = self.step_before.take().map(|before| before.saturating_add(1));
            let steps = end.unwrap_or(step).saturating_sub(step);
            let factor = u32::try_from(steps).unwrap_or(u32::MAX);
            let time = self.step_time.unwrap_or_default().saturating_mul(factor);
            // No more can be redone than was productive.
            let left = self.settled.of(TimeState::Productive).saturating_sub(self.settled.redone);
            self.settled.redone += time.min(left);
            self.step = step;
            redone = Some(steps);
        }
        self.has_progress = true;
        self.quiet_since = now;
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

    /// Notes that the workers have paused for a checkpoint since their last sign of progress, and that the
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

    /// Notes if the workers have a known reason to make no progress. Until it is gone, no stall
    /// begins, and then the clock of a stall starts again. A stall that has begun goes on.
    pub(crate) fn excuse(&mut self, now: Instant, is_excused: bool) {
        let has_begun = self.stalls_at().is_some_and(|at| at <= now);
        if is_excused == self.is_excused || has_begun {
            return;
        }
        if !is_excused {
            if self.open == Open::Measured {
                self.settle_as(now, TimeState::Productive);
            }
            self.quiet_since = now;
        }
        self.is_excused = is_excused;
    }

    /// Returns the time at which a stall begins, or has begun, if there is no further sign of
    /// progress. `None` if no workers run, if the job has never given such a sign, or while the
    /// pause has a known reason.
    pub(crate) fn stalls_at(&self) -> Option<Instant> {
        let gives_signs = self.has_progress || self.pauses != Pauses::default();
        let is_running = match self.open {
            Open::In(state) => state == TimeState::Starting,
            Open::Unknown | Open::Measured => true,
            Open::Closed => false,
        };
        let may_stall = is_running && gives_signs && !self.is_excused;
        may_stall.then(|| after(self.quiet_since, self.stall_limit()))
    }

    /// Returns the time for which the workers of the round have made no progress.
    pub(crate) fn quiet_for(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.quiet_since)
    }

    /// Returns the time without progress from which on the workers are stalled.
    pub(crate) fn stall_limit(&self) -> Duration {
        let usual = self.usual.max(self.step_time).filter(|_| self.open == Open::Measured);
        stall_limit(usual, self.pauses.longest, self.pauses.first)
    }

    /// Returns the step of the last sign of progress of the round, if there was one.
    pub(crate) fn last_step(&self) -> Option<u64> {
        (self.open == Open::Measured).then_some(self.last)
    }

    /// Returns the longest pauses.
    pub(crate) fn pauses(&self) -> Pauses {
        self.pauses
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
        let time = time.min(usual.max(LEARNED_MIN).saturating_mul(LEARNED_FACTOR));
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
                let is_stalled = !self.is_excused && time >= self.stall_limit();
                Some(if is_stalled { TimeState::Stalled } else { TimeState::Productive })
            }
            Open::Closed => None,
        }
    }
}

#[cfg(test)]
mod tests;
