use proptest::prelude::*;

use super::*;
use crate::ids::{Round, Term};

const SECOND: Duration = Duration::from_secs(1);

/// The steps of a job, with a clock.
struct Fixture {
    steps: JobSteps,
    round: RoundId,
    now: Instant,
}

impl Fixture {
    #[expect(
        clippy::disallowed_methods,
        reason = "a made-up clock needs some instant to start from"
    )]
    fn new() -> Self {
        let round = RoundId { term: Term(1), round: Round(1) };
        Self { steps: JobSteps::default(), round, now: Instant::now() + 3600 * SECOND }
    }

    fn record(&mut self, id: &str, progress: StepProgress) -> bool {
        let id = NodeId::new(id);
        let has_advanced = self.steps.record(self.now, self.round, &id, &progress);
        if has_advanced {
            self.steps.advance(self.now, &id);
        }
        has_advanced
    }

    fn reported(&mut self, id: &str, lowest: u64, highest: u64) -> bool {
        self.record(id, progress(StepSource::Reported, lowest, highest))
    }

    fn merged(&self) -> JobProgress {
        self.steps.of_round(self.round).and_then(|steps| steps.merged(self.now)).expect("steps")
    }
}

fn progress(source: StepSource, lowest: u64, highest: u64) -> StepProgress {
    StepProgress { source, lowest, highest, total: None, age: Duration::ZERO }
}

/// The job is at the lowest step of its nodes, and the latest step of any node is the age.
#[test]
fn job_is_at_the_lowest_step() {
    let mut t = Fixture::new();
    assert!(t.reported("a", 10, 12));
    t.now += SECOND;
    assert!(t.reported("b", 9, 9));
    let merged = t.merged();
    assert_eq!((merged.step, merged.highest, merged.age), (9, 12, Duration::ZERO));
    t.now += SECOND;
    assert!(!t.reported("a", 10, 12), "a repeated step does not count as progress");
    assert_eq!(t.merged().age, SECOND);
    let ages: Vec<_> = t.steps.ages(t.now).map(|(id, age)| (id.as_str(), age)).collect();
    assert_eq!(ages, [("a", 2 * SECOND), ("b", SECOND)]);
}

/// The age that a node sends with its steps counts.
#[test]
fn age_of_a_report_counts() {
    let mut t = Fixture::new();
    let old = StepProgress { age: 5 * SECOND, ..progress(StepSource::Read, 1, 1) };
    t.record("a", old);
    t.now += SECOND;
    assert_eq!(t.merged().age, 6 * SECOND);
}

/// Steps that scripts report count alone, even if others were read.
#[test]
fn reported_steps_are_preferred() {
    let mut t = Fixture::new();
    t.record("a", progress(StepSource::Read, 5, 900));
    assert_eq!(t.merged().source, StepSource::Read);
    t.reported("b", 70, 71);
    let merged = t.merged();
    assert_eq!((merged.source, merged.step, merged.highest), (StepSource::Reported, 70, 71));
    t.reported("a", 69, 70);
    assert_eq!((t.merged().step, t.merged().highest), (69, 71));
}

/// The remaining steps follow from the number of all steps.
#[test]
fn remaining_steps_are_known_with_a_total() {
    let mut t = Fixture::new();
    t.reported("a", 30, 30);
    assert_eq!(t.merged().steps_left, None);
    let with_total = StepProgress { total: Some(100), ..progress(StepSource::Reported, 31, 31) };
    t.record("a", with_total);
    assert_eq!(t.merged().steps_left, Some(69));
    t.reported("a", 130, 130);
    assert_eq!(t.merged().steps_left, Some(0));
}

/// A step that was read without the number of all steps removes an old one, which was that of another bar. A script need
/// not report the number with every step.
#[test]
fn total_that_was_read_may_become_void() {
    let mut t = Fixture::new();
    for (source, left) in [(StepSource::Read, None), (StepSource::Reported, Some(23))] {
        t.record("a", StepProgress { total: Some(28), ..progress(source, 28, 28) });
        assert_eq!(t.merged().steps_left, Some(0));
        t.record("a", progress(source, 5, 5));
        assert_eq!(t.merged().steps_left, left);
    }
    let mut t = Fixture::new();
    for id in ["a", "b"] {
        t.record(id, StepProgress { total: Some(28), ..progress(StepSource::Read, 4, 4) });
    }
    t.record("a", progress(StepSource::Read, 5, 5));
    assert_eq!(t.merged().steps_left, Some(24), "another node has it");
}

/// A bar that has reached its end on one node holds the job back only as long as no other node goes on. Of bars that have all
/// reached their ends, the last one counts. A reported step always counts.
#[test]
fn ended_bars_do_not_hold_the_job_back() {
    let mut t = Fixture::new();
    let mut record = |id, source, step, total| {
        t.record(id, StepProgress { total: Some(total), ..progress(source, step, step) });
        (t.merged().step, t.merged().highest, t.merged().steps_left)
    };
    assert_eq!(record("a", StepSource::Read, 8, 8), (8, 8, Some(0)));
    assert_eq!(record("b", StepSource::Read, 10, 10), (10, 10, Some(0)));
    assert_eq!(record("c", StepSource::Read, 20, 1000), (20, 20, Some(980)));
    assert_eq!(record("a", StepSource::Read, 8, 1000), (8, 20, Some(992)), "another bar");
    assert_eq!(record("a", StepSource::Read, 1000, 1000), (20, 20, Some(980)));
    assert_eq!(record("c", StepSource::Read, 1000, 1000), (1000, 1000, Some(0)));
    assert_eq!(record("a", StepSource::Reported, 8, 8), (8, 8, Some(0)));
    assert_eq!(record("b", StepSource::Reported, 9, 1000), (8, 9, Some(992)));
}

/// The usual time of a step is not changed by a pause, and a report may cover several steps.
#[test]
fn usual_time_of_a_step_is_the_median() {
    let mut t = Fixture::new();
    t.reported("a", 0, 0);
    assert_eq!(t.merged().step_time, None);
    for step in 1..=5 {
        t.now += 2 * SECOND;
        t.reported("a", 4 * step, 4 * step);
    }
    assert_eq!(t.merged().step_time, Some(SECOND / 2));
    t.now += 600 * SECOND;
    t.reported("a", 21, 21);
    assert_eq!(t.merged().step_time, Some(SECOND / 2));
    let mut t = Fixture::new();
    t.reported("a", 0, 0);
    for (step, millis) in [(1, 1), (2, 1), (3, 500), (4, 500), (5, 500)] {
        t.now += Duration::from_millis(millis);
        t.reported("a", step, step);
    }
    assert_eq!(t.merged().step_time, Some(SECOND / 2));
}

/// A step that goes back, as after a return to a checkpoint within the process, is accepted, and the time of a step is measured
/// from there.
#[test]
fn step_may_go_back() {
    let mut t = Fixture::new();
    for step in [100, 101, 102, 40, 41, 42] {
        assert!(t.reported("a", step, step), "{step}");
        t.now += SECOND;
    }
    assert_eq!((t.merged().step, t.merged().highest), (42, 42));
    assert_eq!(t.merged().step_time, Some(SECOND));
}

/// A new round begins without steps, and its first step replaces those of the last round.
#[test]
fn new_round_begins_without_steps() {
    let mut t = Fixture::new();
    t.reported("a", 100, 100);
    let last = t.round;
    t.round = RoundId { term: Term(1), round: Round(2) };
    assert!(t.steps.of_round(t.round).is_none() && t.steps.of_round(last).is_some());
    assert!(t.reported("b", 90, 90));
    assert_eq!((t.merged().step, t.merged().highest), (90, 90));
}

/// A report of more steps than nanoseconds is ignored: each step would take no time.
#[test]
fn steps_take_some_time() {
    let mut t = Fixture::new();
    t.reported("a", 0, 0);
    t.now += Duration::from_nanos(9);
    t.reported("a", 10, 10);
    assert_eq!(t.merged().step_time, None);
}

/// A total that was read from a progress bar is forgotten when the node prints steps without it. The total of another node stays.
#[test]
fn only_the_total_of_that_bar_is_forgotten() {
    let mut t = Fixture::new();
    t.record("a", StepProgress { total: Some(28), ..progress(StepSource::Read, 4, 4) });
    t.record("b", StepProgress { total: Some(90), ..progress(StepSource::Read, 4, 4) });
    t.record("a", progress(StepSource::Read, 5, 5));
    assert_eq!(t.merged().steps_left, Some(86), "the total of the other node");
}

/// A node that saves has reached that step, although its other steps were read from its output.
#[test]
fn saved_step_counts() {
    let mut t = Fixture::new();
    t.record("a", progress(StepSource::Read, 4, 4));
    t.steps.record_saved(t.round, 9);
    assert_eq!(t.steps.highest_reported(), Some(9));
    t.round.round.0 += 1;
    t.steps.record_saved(t.round, 3);
    assert_eq!(t.steps.highest_reported(), Some(3), "of another round");
}

/// The number of recent times is bounded.
#[test]
fn recent_times_are_bounded() {
    let mut t = Fixture::new();
    for step in 0..1000 {
        t.now += SECOND;
        t.reported("a", step, step);
    }
    assert_eq!(t.steps.pace.recent.len(), STEP_TIMES_MAX);
}

proptest! {
    /// For any order of reports, the merged steps are the extremes of the newest report of each node with the best source,
    /// and the time of a step is positive.
    #[test]
    fn merged_steps_are_the_extremes(
        reports in prop::collection::vec((0u8..4, any::<bool>(), 0u64..50, 0u64..5, 0u64..2000), 1..60)
    ) {
        let mut t = Fixture::new();
        let mut newest = BTreeMap::new();
        for (node, is_reported, lowest, spread, millis) in reports {
            t.now += Duration::from_millis(millis);
            let source = if is_reported { StepSource::Reported } else { StepSource::Read };
            let sent = progress(source, lowest, lowest + spread);
            t.record(&node.to_string(), sent);
            newest.insert(node, sent);
            let best = newest.values().map(|sent| sent.source).min().expect("one was sent");
            let of_best = || newest.values().filter(|sent| sent.source == best);
            let merged = t.merged();
            prop_assert_eq!(merged.source, best);
            prop_assert_eq!(Some(merged.step), of_best().map(|sent| sent.lowest).min());
            prop_assert_eq!(Some(merged.highest), of_best().map(|sent| sent.highest).max());
            prop_assert!(merged.step_time.is_none_or(|time| !time.is_zero()));
        }
    }
}
