//! The report of a failed round: which failure came first, and when the report is complete.

use std::time::Duration;

use super::fixture::{Did, Fixture, SECOND, failure};
use crate::{
    fixture::some_instant,
    ids::GlobalRank,
    machine::closing::Failures,
    message::{HardwareFact, JobResult, NodeState, WaitReason, WorkerEnd, WorkerFailure},
};

/// Stops `name`. One of its workers had written an error file `age` ago.
fn stop_with_error_file(t: &mut Fixture, name: &str, age: Duration) -> Vec<Did> {
    let failure = WorkerFailure {
        error_file_age: Some(age),
        message: Some("CUDA out of memory".to_owned()),
        ..failure(name, Duration::ZERO)
    };
    let report = t.node_report(name, NodeState::Preparing, Some(failure));
    t.message(name, report)
}

/// The report names the worker that wrote its error file first, although another one ended before
/// it, and although its node had reported another failure until then.
#[test]
fn report_names_the_oldest_event() {
    for has_failed_before in [false, true] {
        let mut t = Fixture::with(2, 2, |shared| shared.max_restarts = 0);
        t.run(&["a", "b"]);
        t.live(&["a", "b"], 9 * SECOND);
        t.fail("a", Duration::ZERO);
        if has_failed_before {
            t.fail("b", Duration::ZERO);
        }
        t.alive("b");
        t.report("a", NodeState::Preparing);
        assert_eq!(t.outcome(), None);
        stop_with_error_file(&mut t, "b", 3 * SECOND);
        let outcome = t.outcome().expect("closed");
        let first = outcome.first_failure.expect("a worker failed");
        assert_eq!((first.host_name.as_str(), first.event_age()), ("b", 3 * SECOND));
        assert_eq!((outcome.other_failures, outcome.further_failures), (1, Vec::new()));
    }
}

/// An error file that is younger than the failure changes nothing.
#[test]
fn younger_error_file_is_an_echo() {
    let mut t = Fixture::with(2, 2, |shared| shared.max_restarts = 0);
    t.run(&["a", "b"]);
    t.live(&["a", "b"], 9 * SECOND);
    t.fail("a", 4 * SECOND);
    stop_with_error_file(&mut t, "b", SECOND);
    t.report("a", NodeState::Preparing);
    assert_eq!(
        t.outcome().and_then(|outcome| outcome.first_failure).map(|f| f.host_name),
        Some("a".into())
    );
}

/// What the hardware of the node has reported after the failure is in the report. The hardware of another worker's failure is not.
#[test]
fn later_reports_of_the_hardware_are_added() {
    for (rank, lines) in [(0, vec!["GPU 3 was found down 0.3 s after".to_owned()]), (1, vec![])] {
        let mut t = Fixture::with(2, 2, |shared| shared.max_restarts = 0);
        t.run(&["a", "b"]);
        t.live(&["a", "b"], 9 * SECOND);
        t.fail("a", Duration::ZERO);
        t.alive("b");
        t.report("b", NodeState::Preparing);
        t.live(&["a", "b"], SECOND);
        let text = "GPU 3 was found down".to_owned();
        let failure = WorkerFailure {
            global_rank: GlobalRank(rank),
            hardware: vec![HardwareFact { text, age: Some(Duration::from_millis(200)) }],
            ..failure("a", Duration::from_millis(500))
        };
        let report = t.node_report("a", NodeState::Preparing, Some(failure));
        t.message("a", report);
        let first = t.outcome().and_then(|outcome| outcome.first_failure).expect("a failed");
        assert_eq!(first.hardware_lines(), lines);
    }
}

/// The error files of a node also decide which node is quarantined.
#[test]
fn late_evidence_decides_who_is_quarantined() {
    let mut t = Fixture::with(1, 2, |shared| shared.max_restarts = 9);
    t.run(&["a"]);
    t.join("b");
    t.live(&["a", "b"], 3 * SECOND);
    t.back("a");
    t.live(&["a", "b"], 5 * SECOND);
    t.fail("a", Duration::ZERO);
    stop_with_error_file(&mut t, "b", 2 * SECOND);
    assert_eq!(t.back("a"), [Did::Wait("a", WaitReason::Gathering)]);
    assert_eq!(t.back("b"), [Did::Wait("b", WaitReason::Quarantined)]);
    assert_eq!(t.job_state.restarts_used, 0);
}

/// Failures of the same second are listed, oldest first and shortened. Later ones are counted only.
#[test]
fn failures_of_the_same_second_are_listed() {
    let long = |name| WorkerFailure {
        end: WorkerEnd::NotStarted("\u{e9}".repeat(400)),
        message: Some("\u{e9}".repeat(400)),
        error_file: Some("x".repeat(513)),
        stderr_tail: "line".to_owned(),
        ..failure(name, Duration::ZERO)
    };
    let now = some_instant();
    let at = [("b", 0), ("d", 500), ("c", 900), ("a", 3_000)];
    let failures = at.map(|(name, ms)| (now + Duration::from_millis(ms), long(name)));
    let Failures { first, others, further } = Failures::new(failures);
    let names: Vec<&str> = further.iter().map(|failure| &*failure.host_name).collect();
    assert_eq!((first.expect("failed"), names, others), (long("b"), vec!["d", "c"], 3));
    let cut = "\u{e9}".repeat(256);
    for failure in further {
        assert_eq!(failure.message.as_ref(), Some(&cut));
        assert_eq!(failure.end, WorkerEnd::NotStarted(cut.clone()));
        assert_eq!((failure.error_file, failure.stderr_tail.as_str()), (None, ""));
    }
}

/// A member that is lost while it stops, after its sign of life, did not cause the failure: the
/// failure is charged, and the report does not wait for the member.
#[test]
fn loss_after_the_sign_of_life_does_not_make_the_round_free() {
    let mut t = Fixture::with(1, 2, |shared| shared.max_restarts = 0);
    t.run(&["a", "b"]);
    t.fail("a", Duration::ZERO);
    t.alive("b");
    t.report("a", NodeState::Preparing);
    let did = t.die("b");
    assert_eq!(did, [Did::Remember(1, 0), Did::Close("a")]);
    assert_eq!(t.outcome().expect("closed").result, JobResult::BudgetSpent);
}

/// The report does not wait for a member that does not stop in time either.
#[test]
fn overdue_member_does_not_hold_the_report() {
    let mut t = Fixture::with(1, 2, |shared| shared.max_restarts = 0);
    t.run(&["a", "b"]);
    t.fail("a", Duration::ZERO);
    t.alive("b");
    t.report("a", NodeState::Preparing);
    assert_eq!(t.live(&["a", "b"], 34 * SECOND), []);
    t.live(&["a", "b"], SECOND);
    assert_eq!(t.outcome().expect("closed").result, JobResult::BudgetSpent);
}
