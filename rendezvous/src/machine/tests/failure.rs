//! Failures of workers: members stop at once, the round is judged later and charged once.

use std::{iter, time::Duration};

use super::fixture::{Did, Fixture, SECOND, failure, ready};
use crate::{
    effect::Effect,
    ids::GlobalRank,
    message::{
        Assignment, EvictReason, FromNode, HardwareFact, JobResult, NodeReport, NodeState,
        RestartReason, ToNode, WaitReason, WorkerEnd, WorkerFailure,
    },
};

/// A failure stops all other members at once and probes them. The failing node needs no message.
#[test]
fn failure_stops_the_others_at_once() {
    let mut t = Fixture::new(3, 3);
    t.run(&["a", "b", "c"]);
    let stop = [Did::Probe("a"), Did::Probe("c"), Did::Restart("a", 1), Did::Restart("c", 1)];
    assert_eq!(t.fail("b", Duration::ZERO), stop);
}

/// The charge waits for a sign of life of every member and for all to have stopped, and the next
/// round waits for the charge.
#[test]
fn charge_waits_for_every_sign_of_life() {
    let mut t = Fixture::new(2, 2);
    t.run(&["a", "b"]);
    t.fail("b", Duration::ZERO);
    assert_eq!(t.back("b"), [Did::Wait("b", WaitReason::Gathering)]);
    assert_eq!(t.why(), "a worker failed: waiting for a response from a");
    assert_eq!(t.alive("a"), []);
    assert_eq!(t.why(), "waiting for a to stop and be ready for the next round, 35 s left");
    assert_eq!(t.report("a", NodeState::Preparing), [Did::Remember(1, 1)]);
    let complete = [Did::Remember(2, 1), Did::Admit("a", 2, 0), Did::Admit("b", 2, 1)];
    assert_eq!(t.back("a"), complete);
    let counts: Vec<u32> = t.admissions.values().map(|admission| admission.restart_count).collect();
    assert_eq!(counts, [1, 1]);
}

/// If a member turns out to be lost, that may have caused the failure: nothing is charged.
#[test]
fn failure_with_a_lost_member_is_free() {
    let mut t = Fixture::new(2, 3);
    t.run(&["a", "b", "c"]);
    t.fail("b", Duration::ZERO);
    t.back("b");
    assert_eq!(t.live(&["b", "c"], 2 * SECOND), []);
    t.back("c");
    assert_eq!(t.live(&["b", "c"], SECOND), [Did::Evict("a", EvictReason::Silent)]);
    let did = t.live(&["b", "c"], 6 * SECOND);
    assert_eq!(did, [Did::Remember(2, 0), Did::Admit("b", 2, 0), Did::Admit("c", 2, 1)]);
}

/// A failure while a member is leaving is free, regardless of its cause.
#[test]
fn failure_while_a_member_leaves_is_free() {
    let mut t = Fixture::new(1, 2);
    t.run(&["a", "b"]);
    assert_eq!(t.report("a", NodeState::Leaving { reaped: false }), []);
    assert_eq!(t.fail("b", Duration::ZERO), []);
    t.back("b");
    let did = t.report("a", NodeState::Leaving { reaped: true });
    assert_eq!(did, [Did::Dismiss("a"), Did::Remember(2, 0), Did::Admit("b", 2, 0)]);
}

/// A failure whose stream broke is reported again by the node's next registration, and counts once.
#[test]
fn failure_is_repeated_when_ready() {
    let mut t = Fixture::new(1, 1);
    t.run(&["a"]);
    let mut registration = t.registration_of("a", ready());
    registration.report.failure = Some(Box::new(failure("a", SECOND)));
    let did = t.register_with(registration.clone());
    assert_eq!(did, [Did::Welcome("a"), Did::Remember(2, 1), Did::Admit("a", 2, 0)]);
    registration.stream.0 += 1;
    t.registrations.insert("a".to_owned(), registration.stream);
    assert_eq!(t.register_with(registration), [Did::Welcome("a"), Did::Admit("a", 2, 0)]);
}

/// If the budget is spent, the job closes with the failure that happened first, by its age.
#[test]
fn spent_budget_closes_with_the_first_failure() {
    let mut t = Fixture::with(2, 2, |shared| shared.max_restarts = 0);
    t.run(&["a", "b"]);
    t.live(&["a", "b"], 9 * SECOND);
    t.fail("a", Duration::ZERO);
    assert_eq!(t.fail("b", 5 * SECOND), []);
    assert_eq!(t.report("a", NodeState::Preparing), []);
    let did = t.report("b", NodeState::Preparing);
    assert_eq!(did, [Did::Remember(1, 0), Did::Close("a"), Did::Close("b")]);
    let outcome = t.outcome().expect("closed");
    assert_eq!(outcome.result, JobResult::BudgetSpent);
    assert_eq!(outcome.first_failure, Some(failure("b", 5 * SECOND)));
    assert_eq!((outcome.other_failures, outcome.restarts_used), (1, 0));
}

/// A failure is free if a member comes back whose workers were killed by the end of its lease,
/// which may have caused the failure.
#[test]
fn failure_with_a_member_whose_lease_expired_is_free() {
    let mut t = Fixture::with(2, 2, |shared| shared.max_restarts = 0);
    t.run(&["a", "b"]);
    t.fail("a", Duration::ZERO);
    let mut registration = t.registration_of("b", NodeState::Preparing);
    registration.report.lease_expired = true;
    assert_eq!(t.register_with(registration), [Did::Welcome("b"), Did::Restart("b", 1)]);
    t.back("a");
    let complete = [Did::Remember(2, 0), Did::Admit("a", 2, 0), Did::Admit("b", 2, 1)];
    assert_eq!(t.back("b"), complete);
}

/// A failure that rules out a restart closes the job, even if some of the budget is left; not if an
/// earlier failure may have caused it.
#[test]
fn final_failure_closes_the_job() {
    for (age_of_final, is_closed) in [(SECOND, true), (Duration::ZERO, false)] {
        let mut t = Fixture::with(2, 2, |shared| shared.max_restarts = 9);
        t.run(&["a", "b"]);
        t.live(&["a", "b"], 9 * SECOND);
        t.fail("a", SECOND / 2);
        let last = WorkerFailure { is_final: true, ..failure("b", age_of_final) };
        let report = t.node_report("b", NodeState::Stopping, Some(last.clone()));
        t.message("b", report);
        t.report("a", NodeState::Preparing);
        t.report("b", NodeState::Preparing);
        let outcome = t.outcome();
        assert_eq!(outcome.is_some(), is_closed);
        if let Some(outcome) = outcome {
            assert_eq!(outcome.result, JobResult::FinalFailure);
            assert_eq!(outcome.first_failure, Some(last));
            assert_eq!((outcome.other_failures, outcome.restarts_used), (1, 0));
        }
    }
}

/// A failure that rules out a restart closes nothing if a lost node may have caused it.
#[test]
fn final_failure_with_a_lost_node_closes_nothing() {
    let mut t = Fixture::with(1, 2, |shared| shared.max_restarts = 0);
    t.run(&["a", "b"]);
    let last = WorkerFailure { is_final: true, ..failure("a", Duration::ZERO) };
    let report = t.node_report("a", NodeState::Stopping, Some(last));
    t.message("a", report);
    t.die("b");
    t.back("a");
    assert_eq!(t.outcome(), None);
}

/// The age of a failure is bounded by the start of the round.
#[test]
fn age_is_bounded_by_the_round() {
    let mut t = Fixture::with(1, 1, |shared| shared.max_restarts = 0);
    t.run(&["a"]);
    t.fail("a", Duration::MAX);
    assert_eq!(t.back("a"), [Did::Remember(1, 0), Did::Close("a")]);
}

/// A node that fails three times within 60 s of a start is quarantined, with or without spares.
#[test]
fn flapping_node_is_quarantined() {
    let mut t = Fixture::with(1, 2, |shared| shared.max_restarts = 9);
    t.run(&["a", "b"]);
    for _ in 0..2 {
        t.fail("b", Duration::ZERO);
        t.back("a");
        t.back("b");
        t.report("a", NodeState::Running);
        t.report("b", NodeState::Running);
    }
    t.fail("b", Duration::ZERO);
    t.back("a");
    assert_eq!(t.back("b"), [Did::Remember(3, 3), Did::Wait("b", WaitReason::Quarantined)]);
    assert_eq!(t.why(), "the group would shrink from 2 to 1: waiting 5 s for a replacement");
    let shrunk =
        [Did::Remember(4, 3), Did::Admit("a", 4, 0), Did::Wait("b", WaitReason::Quarantined)];
    assert_eq!(t.live(&["a", "b"], 5 * SECOND), shrunk);
    let did = t.live(&["a", "b"], 600 * SECOND);
    let forgiven = Did::Wait("b", WaitReason::NextRound);
    let wait = Did::Wait("b", WaitReason::Gathering);
    assert_eq!(did, [Did::Remember(4, 3), forgiven, Did::Restart("a", 4), wait]);
}

/// A node that the job needs is not quarantined, so that the budget decides, as in torchrun.
#[test]
fn needed_node_is_not_quarantined() {
    let mut t = Fixture::with(1, 1, |shared| shared.max_restarts = 5);
    t.run(&["a"]);
    for _ in 0..5 {
        t.fail("a", Duration::ZERO);
        t.back("a");
    }
    t.fail("a", Duration::ZERO);
    assert_eq!(t.back("a"), [Did::Remember(6, 5), Did::Close("a")]);
    assert_eq!(t.outcome().expect("closed").result, JobResult::BudgetSpent);
}

/// A newcomer that fails in its first 60 s is quarantined and not charged.
#[test]
fn failing_newcomer_is_quarantined_and_free() {
    let mut t = Fixture::new(1, 2);
    t.run(&["a"]);
    t.join("b");
    t.live(&["a", "b"], 3 * SECOND);
    t.back("a");
    t.fail("b", Duration::ZERO);
    assert_eq!(t.back("a"), [Did::Wait("a", WaitReason::Gathering)]);
    assert_eq!(t.back("b"), [Did::Wait("b", WaitReason::Quarantined)]);
    let shrunk =
        [Did::Remember(3, 0), Did::Admit("a", 3, 0), Did::Wait("b", WaitReason::Quarantined)];
    assert_eq!(t.live(&["a", "b"], 5 * SECOND), shrunk);
}

/// A report about a round that has ended is dropped.
#[test]
fn report_in_an_older_round_is_dropped() {
    let mut t = Fixture::new(1, 1);
    t.run(&["a"]);
    let old = t.rounds["a"];
    t.fail("a", Duration::ZERO);
    t.back("a");
    let failure = Some(Box::new(failure("a", SECOND)));
    let late = NodeReport { failure, ..NodeReport::new(old, NodeState::Stopping) };
    assert_eq!(t.message("a", FromNode::NodeReport(late)), []);
}

/// A member whose keeper stopped its workers over a lease restarts the round, and keeps its rank.
#[test]
fn member_that_stopped_by_itself_restarts_the_round() {
    let mut t = Fixture::new(2, 2);
    t.run(&["a", "b"]);
    assert_eq!(t.back("b"), [Did::Restart("a", 1), Did::Wait("b", WaitReason::Gathering)]);
    let complete = [Did::Remember(2, 0), Did::Admit("a", 2, 0), Did::Admit("b", 2, 1)];
    assert_eq!(t.back("a"), complete);
}

/// A restart names the worker that failed, the way in which it ended, and what the hardware of its node has reported.
#[test]
fn restart_has_a_reason() {
    let mut t = Fixture::new(2, 2);
    t.run(&["a", "b"]);
    let text = "GPU 3 reported XID 79 (fell off the bus)".to_owned();
    let hardware = vec![HardwareFact { text, age: Some(Duration::from_millis(500)) }];
    let failure = WorkerFailure { hardware, ..failure("b", Duration::from_millis(100)) };
    let report = NodeReport {
        failure: Some(Box::new(failure)),
        ..NodeReport::new(t.rounds["b"], NodeState::Stopping)
    };
    t.machine.handle_message(t.now, t.peer("b"), FromNode::NodeReport(report));
    let effects = iter::from_fn(|| t.machine.poll_effect());
    let effects: Vec<Effect> =
        effects.filter(|effect| !matches!(effect, Effect::Record(_))).collect();
    let reason = RestartReason::WorkerFailed {
        host_name: "b".to_owned(),
        global_rank: GlobalRank(0),
        end: WorkerEnd::Exited(1),
        oom: None,
        hardware: vec!["GPU 3 reported XID 79 (fell off the bus) 0.4 s before".to_owned()],
    };
    let round = t.rounds["a"];
    let restart = ToNode::Assignment(Assignment::Restart {
        round,
        reason,
        complete_step: None,
        memory_step: None,
    });
    let probe = ToNode::Probe { round };
    let to_a = |message| Effect::Send { to: t.peer("a"), message };
    assert_eq!(effects, [to_a(probe), to_a(restart)]);
}

/// A registration is a sign of life, even if it does not mention the round: the failure is charged.
#[test]
fn registration_is_a_sign_of_life() {
    let mut t = Fixture::new(2, 2);
    t.join("a");
    t.join("b");
    t.rounds.remove("b");
    t.report("a", NodeState::Running);
    t.fail("a", Duration::ZERO);
    t.back("a");
    assert_eq!(t.join("b"), [Did::Welcome("b"), Did::Restart("b", 1)]);
    let complete = [Did::Remember(2, 1), Did::Admit("a", 2, 0), Did::Admit("b", 2, 1)];
    let evict = Did::Evict("b", EvictReason::Silent);
    assert_eq!(t.back("b"), [Did::Remember(1, 1), evict], "its store may have been used");
    assert_eq!(t.reopen("b"), [&[Did::Restart("b", 1)][..], &complete].concat());
}

/// A failure is charged although a node that had succeeded was lost before it; not if that node
/// served the round's store.
#[test]
fn failure_after_a_lost_success_is_charged() {
    for (succeeded, fails, is_charged) in [("b", "a", true), ("a", "b", false)] {
        let mut t = Fixture::with(1, 2, |shared| shared.max_restarts = 0);
        t.run(&["a", "b"]);
        t.report(succeeded, NodeState::Succeeded);
        t.die(succeeded);
        t.live(&[fails], 9 * SECOND);
        t.fail(fails, Duration::ZERO);
        t.back(fails);
        let result = t.outcome().map(|outcome| outcome.result);
        assert_eq!(result, is_charged.then_some(JobResult::BudgetSpent), "{succeeded}");
    }
}

/// A standby that does not fit its script costs no restart, and the next round starts at once. A failure that happened
/// before it is charged.
#[test]
fn unfit_standby_is_free() {
    let unfit = |age| WorkerFailure {
        end: WorkerEnd::StandbyUnfit("line 1 of train.py sets TORCH_LOGS".into()),
        ..failure("b", age)
    };
    let mut t = Fixture::with(2, 2, |shared| shared.max_restarts = 0);
    t.run(&["a", "b"]);
    t.report_failure("b", unfit(Duration::ZERO));
    t.alive("a");
    t.back("b");
    let complete = [Did::Remember(2, 0), Did::Admit("a", 2, 0), Did::Admit("b", 2, 1)];
    assert_eq!(t.back("a"), complete);
    t.live(&["a", "b"], 9 * SECOND);
    t.report_failure("b", unfit(Duration::ZERO));
    t.fail("a", 5 * SECOND);
    t.report("b", NodeState::Preparing);
    t.report("a", NodeState::Preparing);
    let outcome = t.outcome().expect("closed");
    assert_eq!(outcome.first_failure, Some(failure("a", 5 * SECOND)));
}
