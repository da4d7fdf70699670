//! A spare takes the place of a node whose worker has failed, and progress forgives failures.

use std::time::Duration;

use super::{
    fixture::{Did, Fixture, SECOND, failure, ready},
    looking::answer,
    memory::{OWN, id, planned, running, running_with},
    stalling::train,
};
use crate::{
    fixture::some_instant,
    ids::NodeId,
    machine::failing::suspect,
    memory::fixture::{checkpoint, part},
    message::{
        FromNode, HardwareFact, JobResult, LookPart, MemoryReport, NodeState, Registration,
        WorkerEnd, WorkerFailure,
    },
};

impl Fixture {
    /// Lets a node fail, and forms the next round.
    fn fail_one(&mut self, name: &'static str, others: &[&str]) {
        self.fail(name, Duration::ZERO);
        let all = [others, &[name]].concat();
        all.iter().for_each(|name| drop(self.back(name)));
        all.iter().for_each(|name| drop(self.report(name, NodeState::Running)));
    }

    /// Starts the coordinator of `a` and `b` again, and forms the next round.
    fn take_over(&mut self) {
        self.restart_coordinator();
        for name in ["a", "b"] {
            self.register(name, NodeState::Running);
        }
        for name in ["a", "b"] {
            self.back(name);
        }
        for name in ["a", "b"] {
            self.report(name, NodeState::Running);
        }
    }

    fn is_in_round(&self, name: &str, round: u64) -> bool {
        self.admissions.get(name).is_some_and(|admission| admission.round.round.0 == round)
    }

    fn suspicions(&self) -> Vec<(&str, u32)> {
        let tallies = self.job_state.host_tallies.iter();
        let mut found: Vec<_> =
            tallies.map(|tally| (tally.host_name.as_str(), tally.suspicions)).collect();
        found.retain(|(_, count)| *count > 0);
        found.sort_unstable();
        found
    }
}

/// A spare on the host of a suspected member takes a place after the other spares, although it came first.
#[test]
fn spare_on_the_same_host_comes_last() {
    let mut t = Fixture::new(2, 2);
    t.run(&["a", "b"]);
    t.join("a2");
    t.join("x");
    t.fail_one("a", &["b"]);
    assert!(t.is_in_round("x", 2) && t.is_in_round("b", 2));
    assert!(!t.is_in_round("a2", 2));
}

fn ended(name: &str, end: WorkerEnd) -> WorkerFailure {
    WorkerFailure { end, ..failure(name, Duration::ZERO) }
}

/// A spare takes the place of the node that failed, which then is the last spare. The failure of the spare is charged like any other,
/// and among equals nobody moves.
#[test]
fn spare_takes_the_place() {
    let mut t = Fixture::new(2, 2);
    t.run(&["a", "b"]);
    t.join("x");
    t.fail("b", Duration::ZERO);
    t.back("a");
    assert!(t.back("b").contains(&Did::Admit("x", 2, 1)));
    assert_eq!((t.is_in_round("b", 2), t.suspicions()), (false, vec![("b", 1)]));
    let nodes = t.machine.snapshot(t.now).nodes;
    assert!(nodes.iter().any(|node| node.reason.is_some()), "its reason is in the status");
    t.join("y");
    t.report("a", NodeState::Running);
    t.report("x", NodeState::Running);
    t.fail_one("x", &["a"]);
    assert_eq!((t.job_state.restarts_used, t.suspicions()), (2, vec![("b", 1), ("x", 1)]));
    assert!(t.is_in_round("y", 3) && !t.is_in_round("b", 3));
    // All spares are suspect as well.
    t.report("y", NodeState::Running);
    t.fail_one("y", &["a"]);
    assert!(t.is_in_round("y", 4));
}

/// If no spare is ready, the node stays. It loses its place in the next round that has one, also after a takeover.
#[test]
fn suspicion_outlives_the_coordinator() {
    let mut t = Fixture::new(2, 2);
    t.run(&["a", "b"]);
    t.fail_one("b", &["a"]);
    assert!(t.is_in_round("b", 2));
    t.take_over();
    t.join("x");
    t.fail_one("a", &["b"]);
    assert!(t.is_in_round("x", 4) && t.is_in_round("b", 4), "the last to fail");
    assert_eq!(t.suspicions(), [("a", 1), ("b", 1)]);
}

/// Neither fixed ranks nor the name `torchrun` let a spare take a place.
#[test]
fn torchrun_moves_nobody() {
    for fixed in [true, false] {
        let mut t = Fixture::with(2, 2, |shared| {
            (shared.fixed_ranks, shared.as_torchrun) = (fixed, !fixed);
        });
        let rank = |t: &mut Fixture, name, rank| {
            let mut registration: Registration = t.registration_of(name, ready());
            registration.node.node_rank = Some(rank);
            t.register_with(registration);
        };
        rank(&mut t, "a", 0);
        rank(&mut t, "b", 1);
        rank(&mut t, "x", 1);
        t.live(&["a", "b", "x"], 40 * SECOND);
        t.report("a", NodeState::Running);
        t.report("b", NodeState::Running);
        t.fail_one("b", &["a"]);
        assert!(t.is_in_round("b", 2) && t.suspicions().is_empty(), "fixed: {fixed}");
    }
}

/// If the look at a stall names a rank, its node is suspected, although the time-out ends a worker of another node.
#[test]
fn look_at_a_stall_finds_the_suspect() {
    let mut t = Fixture::new(2, 2);
    t.run(&["a", "b"]);
    train(&mut t, &["a", "b"], 1..=10);
    t.live(&["a", "b"], 60 * SECOND);
    for part in [LookPart::First, LookPart::Second] {
        answer(&mut t, "a", part, 7);
        answer(&mut t, "b", part, 6);
        t.live(&["a", "b"], 10 * SECOND);
    }
    t.fail_one("a", &["b"]);
    assert_eq!(t.suspicions(), [("b", 1)]);
}

/// Of failures within a second, a report of the hardware counts most, and then a signal that no library sends. If several nodes abort,
/// or ragent has killed a worker that hung, the cause may be on another one.
#[test]
fn suspect_is_the_probable_cause() {
    let [exit, abort, crash] =
        [WorkerEnd::Exited(1), WorkerEnd::Signaled(6), WorkerEnd::Signaled(11)];
    let fact = HardwareFact { text: "XID 79".to_owned(), age: None };
    let broken = WorkerFailure { hardware: vec![fact], ..ended("c", exit.clone()) };
    let earlier = WorkerFailure { age: 2 * SECOND, ..ended("a", exit.clone()) };
    let now = some_instant();
    for (failures, expected) in [
        (vec![ended("a", exit.clone()), ended("b", exit.clone())], Some("a")),
        (vec![ended("a", exit.clone()), ended("b", crash.clone())], Some("b")),
        (vec![ended("a", abort.clone()), ended("b", crash.clone()), broken], Some("c")),
        (vec![ended("a", abort.clone()), ended("b", abort.clone())], None),
        (vec![ended("a", abort.clone()), ended("b", exit.clone())], Some("a")),
        (vec![ended("a", WorkerEnd::Hung(SECOND)), ended("b", exit)], None),
        (vec![earlier, ended("b", crash)], Some("a")),
    ] {
        let at = |it: &WorkerFailure| now + 9 * SECOND - it.age;
        let failures = failures.into_iter().map(|it| (NodeId::new(&it.host_name), (at(&it), it)));
        let failures: Vec<_> = failures.collect();
        assert_eq!(suspect(&failures).map(NodeId::as_str), expected);
    }
}

/// A spare takes the place only if the round begins with the same checkpoint, has as many workers, and has room for its copies.
#[test]
fn spare_must_fit() {
    type Change = fn(&mut Registration);
    let cases: [(Change, bool); 4] = [
        (|_| {}, true),
        (|registration| registration.node.local_world_size = 2.try_into().unwrap(), false),
        (|registration| registration.memory.as_mut().unwrap().limit = 9, false),
        (|registration| registration.memory.as_mut().unwrap().address = None, false),
    ];
    for (number, (change, fits)) in cases.into_iter().enumerate() {
        let mut t = running(2, 2, &["a", "b"]);
        t.hold_both(id(10));
        let parts = [part(id(10), 1, 2, OWN)];
        let report = MemoryReport { needed: 10, ..t.memory_of("b", &parts) };
        t.message("b", FromNode::MemoryReport(report));
        let mut registration = t.registration_of("x", ready());
        registration.memory = Some(MemoryReport { limit: 10, ..t.memory_of("x", &[]) });
        change(&mut registration);
        t.register_with(registration);
        t.fail("b", Duration::ZERO);
        t.back("a");
        t.back("b");
        assert_eq!(t.is_in_round("x", 2), fits, "case {number}");
        assert_eq!(t.plan("a"), planned(id(10), &[]), "case {number}");
    }
}

/// A checkpoint is not struck off for failures of workers that have not received it.
#[test]
fn unread_checkpoint_is_not_struck_off() {
    let mut t = running(2, 2, &["a", "b"]);
    t.hold_both(id(10));
    let unread = WorkerFailure { before_load: true, ..failure("b", Duration::ZERO) };
    for _ in 0..4 {
        t.fail_both_with(unread.clone());
        assert!(!t.is_struck(id(10)) && t.plan("a").is_some());
        t.hold_both(id(10));
    }
    for _ in 0..2 {
        t.fail_both();
    }
    assert!(t.is_struck(id(10)));
}

/// Ten minutes with a new checkpoint forgive the failures before, while the round runs. Without one of them, nothing is forgiven.
#[test]
fn progress_forgives_failures() {
    for (minutes, newer, forgiven) in [(11, true, 1), (9, true, 0), (11, false, 0)] {
        let mut t = running(2, 2, &["a", "b"]);
        t.hold_both(id(10));
        t.fail_both();
        if newer {
            t.hold_both(checkpoint(2, 20));
        }
        t.live(&["a", "b"], 60 * minutes * SECOND);
        let status = t.machine.snapshot(t.now);
        assert_eq!((status.restarts_used, status.restarts_forgiven), (1, forgiven), "at once");
        t.fail_both();
        let training = &t.job_state.training;
        assert_eq!((t.job_state.restarts_used, training.restarts_forgiven), (2, forgiven));
    }
}

/// The budget counts the failures that are not forgiven.
#[test]
fn budget_counts_from_the_last_progress() {
    let mut t = running(2, 2, &["a", "b"]);
    for round in 1..=3 {
        (1..=10).for_each(|_| t.fail_both());
        t.hold_both(checkpoint(t.job_state.round.0, 100 * round));
        t.live(&["a", "b"], 600 * SECOND);
        assert_eq!(t.machine.snapshot(t.now).restarts_used, 10 * u32::try_from(round).unwrap());
    }
    (1..=10).for_each(|_| t.fail_both());
    t.fail("b", Duration::ZERO);
    t.back("a");
    t.back("b");
    assert_eq!(t.outcome().expect("closed").result, JobResult::BudgetSpent);
}

/// Before a job would end because workers fail before they receive its checkpoint, it begins once from disk.
#[test]
fn unread_checkpoint_is_given_up_once() {
    let t = Fixture::with(2, 2, |shared| {
        shared.timeouts.shrink = Duration::ZERO;
        shared.max_restarts = 10;
        shared.no_progress_limit = 3;
    });
    let mut t = running_with(t, &["a", "b"]);
    train(&mut t, &["a", "b"], 1..=10);
    let unread = WorkerFailure { before_load: true, ..failure("b", Duration::ZERO) };
    let mut plans = Vec::new();
    while t.outcome().is_none() && plans.len() < 9 {
        t.hold_both(id(10));
        t.live(&["a", "b"], 310 * SECOND);
        t.report_failure("b", unread.clone());
        t.back("a");
        t.back("b");
        plans.push(t.plan("a").is_some());
        t.report("a", NodeState::Running);
        t.report("b", NodeState::Running);
    }
    // The first round has made steps, so three further failures are needed. The fifth one closes the job, so there is no new plan.
    assert_eq!(plans, [true, true, true, false, false]);
    assert!(t.is_struck(id(10)));
    assert!(matches!(t.outcome().expect("closed").result, JobResult::NoProgress { .. }));
}
