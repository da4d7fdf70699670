use std::time::Duration;

use super::*;

/// A node that reads its hardware, and may run a program.
struct Fixture {
    health: Health,
    now: Instant,
}

const ALL: HealthSettings = HealthSettings { reads: true, runs: true, seed: 7 };

fn found(class: HealthClass) -> Option<Unhealthy> {
    let (kind, reason) = (class.name().to_owned(), format!("it needs {}", class.name()));
    Some(Unhealthy { class, kind, reason })
}

impl Fixture {
    fn new(settings: HealthSettings) -> Self {
        let now = crate::some_instant();
        Self { health: Health::new(now, settings), now }
    }

    /// The check at the start has found nothing.
    fn healthy(settings: HealthSettings) -> Self {
        let mut t = Self::new(settings);
        t.effects();
        if settings.reads {
            t.health.handle_read(None);
        }
        if settings.runs {
            t.health.handle_verdict(t.now, Verdict::Healthy);
        }
        assert_eq!(t.health.node(), NodeHealth::default());
        t
    }

    fn effects(&mut self) -> Vec<Effect> {
        std::iter::from_fn(|| self.health.poll_effect()).collect()
    }

    /// Lets time pass until the next deadline. Returns that time.
    fn pass(&mut self) -> Duration {
        let deadline = self.health.poll_timeout().expect("there is a deadline");
        let time = deadline.saturating_duration_since(self.now);
        self.now = deadline;
        self.health.handle_timeout(self.now);
        time
    }

    fn verdict(&mut self, verdict: Verdict) {
        self.health.handle_verdict(self.now, verdict);
    }

    fn fail(&mut self, hardware: Option<Unhealthy>) {
        self.health.handle_failure(self.now, &WorkerEnd::Exited(1), hardware);
    }

    fn is_checking(&self) -> bool {
        self.health.node().is_checking
    }

    fn class(&self) -> Option<HealthClass> {
        self.health.node().unhealthy.map(|found| found.class)
    }
}

/// At the start, the first round waits for a reading only 200 ms, and for the program until it ends. What is read later counts.
#[test]
fn first_round_waits() {
    let mut t = Fixture::new(HealthSettings { runs: false, ..ALL });
    assert_eq!(t.effects(), [Effect::Read(Occasion::Start)]);
    assert!(t.is_checking());
    assert_eq!(t.pass(), limits::HEALTH_READING);
    assert!(!t.is_checking());
    t.health.handle_read(found(HealthClass::Reset));
    assert_eq!(t.class(), Some(HealthClass::Reset));
    let mut t = Fixture::new(ALL);
    assert_eq!(t.effects(), [Effect::Read(Occasion::Start), Effect::Run(Occasion::Start)]);
    t.health.handle_read(None);
    assert!(t.is_checking());
    t.verdict(Verdict::Gone("no network".to_owned()));
    let kind = "health_check".to_owned();
    let reason = "no network".to_owned();
    let unhealthy = Some(Unhealthy { class: HealthClass::Gone, kind, reason });
    assert_eq!(t.health.node(), NodeHealth { unhealthy, is_checking: false });
}

/// A node that reads nothing and has no program checks nothing.
#[test]
fn nothing_to_check() {
    let mut t = Fixture::new(HealthSettings::default());
    t.health.handle_round();
    t.fail(None);
    t.health.handle_round_over(t.now, None);
    assert_eq!((t.effects(), t.health.poll_timeout()), (vec![], None));
    assert_eq!(t.health.node(), NodeHealth::default());
}

/// Without workers a node checks again and again, and does not leave a gathering round for that. With workers it does not check.
#[test]
fn idle_nodes_check_again() {
    let mut t = Fixture::healthy(ALL);
    for _ in 0..3 {
        let time = t.pass();
        assert!((limits::HEALTH_INTERVAL / 2..=limits::HEALTH_INTERVAL).contains(&time));
        assert_eq!(t.effects(), [Effect::Read(Occasion::Idle), Effect::Run(Occasion::Idle)]);
        assert!(!t.is_checking());
        t.health.handle_read(found(HealthClass::Replace));
        t.verdict(Verdict::Healthy);
        assert_eq!(t.class(), Some(HealthClass::Replace));
    }
    // Only a later check ends it.
    t.pass();
    t.health.handle_read(None);
    assert_eq!(t.class(), None);
    t.health.handle_round();
    assert_eq!(t.health.poll_timeout(), None);
    t.health.handle_round_over(t.now, None);
    assert!(t.health.poll_timeout().is_some());
}

/// Two nodes do not check at the same times.
#[test]
fn times_of_nodes_differ() {
    let mut others = [7, 8].map(|seed| Fixture::healthy(HealthSettings { seed, ..ALL }));
    let [one, other] = others.each_mut().map(Fixture::pass);
    assert_ne!(one, other);
}

/// After a failure of an own worker the node checks, and the next round waits for that. What an error has said counts at once.
#[test]
fn failures_are_followed_by_a_check() {
    let mut t = Fixture::healthy(ALL);
    t.health.handle_round();
    t.fail(found(HealthClass::Reset));
    assert_eq!(t.class(), Some(HealthClass::Reset));
    assert_eq!(t.effects(), [Effect::Read(Occasion::Failure)]);
    t.health.handle_read(found(HealthClass::Replace));
    assert_eq!(t.class(), Some(HealthClass::Replace));
    // The other workers still end, and hold what the program may need.
    assert!(t.is_checking());
    t.health.handle_round_over(t.now, found(HealthClass::Replace));
    assert_eq!(t.effects(), [Effect::Run(Occasion::Failure)]);
    assert!(t.is_checking());
    t.verdict(Verdict::Healthy);
    assert!(!t.is_checking());
    // A round that another node has ended needs no check.
    t.health.handle_round();
    t.health.handle_round_over(t.now, found(HealthClass::Reset));
    assert_eq!((t.effects(), t.is_checking()), (vec![], false));
    assert_eq!(t.class(), Some(HealthClass::Reset));
}

/// A standby that does not fit the script is started again without a check.
#[test]
fn unfit_standby_needs_no_check() {
    let mut t = Fixture::healthy(ALL);
    t.health.handle_round();
    let end = WorkerEnd::StandbyUnfit("line 1 sets X".into());
    t.health.handle_failure(t.now, &end, None);
    assert_eq!((t.effects(), t.is_checking()), (vec![], false));
}

/// While workers run, only a reading from before the round that finds the machine broken changes the level.
#[test]
fn late_results_end_a_round_only_if_workers_cannot_run() {
    let mut t = Fixture::healthy(ALL);
    t.pass();
    t.health.handle_round();
    t.health.handle_read(found(HealthClass::Reset));
    assert_eq!(t.class(), None);
    t.health.handle_read(found(HealthClass::Gone));
    assert_eq!(t.class(), Some(HealthClass::Gone));
    t.health.handle_round_over(t.now, None);
    assert_eq!(t.class(), None);
    let mut t = Fixture::healthy(ALL);
    t.pass();
    t.health.handle_round();
    t.health.handle_read(found(HealthClass::Reset));
    t.verdict(Verdict::Healthy);
    t.health.handle_round_over(t.now, found(HealthClass::Reset));
    assert_eq!(t.class(), Some(HealthClass::Reset));
}

/// A program that fails beside workers says nothing, even if it ends after them: they may have held what it needs.
#[test]
fn failures_beside_workers_do_not_count() {
    for is_late in [false, true] {
        let mut t = Fixture::healthy(ALL);
        t.pass();
        t.health.handle_round();
        if is_late {
            t.health.handle_round_over(t.now, None);
        }
        t.verdict(Verdict::Gone("no memory".to_owned()));
        assert_eq!(t.class(), None);
        t.health.handle_round_over(t.now, None);
        t.pass();
        t.verdict(Verdict::Gone("no network".to_owned()));
        assert_eq!(t.class(), Some(HealthClass::Gone));
        t.pass();
        t.health.handle_round();
        t.verdict(Verdict::Healthy);
        t.health.handle_round_over(t.now, None);
        assert_eq!(t.class(), None);
    }
}

/// A program that has no result now is asked again after a minute, and its last verdict stays.
#[test]
fn program_is_asked_again() {
    let mut t = Fixture::healthy(HealthSettings { reads: false, ..ALL });
    t.pass();
    t.verdict(Verdict::Gone("no network".to_owned()));
    t.pass();
    t.effects();
    t.verdict(Verdict::NotNow);
    assert_eq!(t.class(), Some(HealthClass::Gone));
    assert_eq!(t.pass(), limits::HEALTH_AGAIN);
    assert_eq!(t.effects(), [Effect::Run(Occasion::Idle)]);
    t.verdict(Verdict::Healthy);
    assert_eq!(t.class(), None);
    // Not while workers run.
    t.pass();
    t.health.handle_round();
    t.verdict(Verdict::NotNow);
    assert_eq!(t.health.poll_timeout(), None);
}

/// A program that still runs when a worker fails is followed by a run about the failure. There are never two at once.
#[test]
fn programs_run_one_by_one() {
    let mut t = Fixture::healthy(ALL);
    t.pass();
    t.health.handle_round();
    t.effects();
    t.fail(None);
    assert_eq!(t.effects(), [Effect::Read(Occasion::Failure)]);
    // The reading from before has ended, and that of the failure has not.
    t.health.handle_read(None);
    assert!(t.is_checking());
    t.verdict(Verdict::Gone("old".to_owned()));
    assert_eq!((t.effects(), t.is_checking()), (vec![], true));
    t.health.handle_read(None);
    assert!(t.is_checking());
    t.health.handle_round_over(t.now, None);
    assert_eq!(t.effects(), [Effect::Run(Occasion::Failure)]);
    t.verdict(Verdict::Healthy);
    assert_eq!(t.health.node(), NodeHealth::default());
    // The workers may end before the run from before the round.
    t.pass();
    t.health.handle_round();
    t.effects();
    t.fail(None);
    t.health.handle_round_over(t.now, None);
    assert_eq!(t.effects(), [Effect::Read(Occasion::Failure)]);
    t.verdict(Verdict::Healthy);
    assert_eq!(t.effects(), [Effect::Run(Occasion::Failure)]);
    t.verdict(Verdict::Healthy);
    // A check without workers does not wait for the one before.
    t.pass();
    t.pass();
    let runs = t.effects().into_iter().filter(|effect| matches!(effect, Effect::Run(_)));
    assert_eq!(runs.count(), 1);
}

/// A reason fits into a report.
#[test]
fn reasons_are_bounded() {
    let mut t = Fixture::new(ALL);
    t.verdict(Verdict::Gone("ä".repeat(10_000)));
    assert!(t.health.node().unhealthy.is_some_and(|found| found.reason.len() <= LINE_MAX));
}

/// After a failure, the node waits for a new reading. An earlier reading that ends does not end this wait.
#[test]
fn readings_before_a_failure_do_not_count() {
    let mut t = Fixture::new(HealthSettings { runs: false, ..ALL });
    t.health.handle_round();
    t.fail(None);
    t.health.handle_read(None);
    assert!(t.is_checking());
    t.health.handle_read(None);
    assert!(!t.is_checking());
}
