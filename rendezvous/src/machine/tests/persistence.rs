//! The outcome and the charges of a job survive its coordinator.

use std::time::Duration;

use super::fixture::{Did, Fixture, SECOND, known_round, ready};
use crate::{
    ids::{JobUid, Round},
    message::{FromNode, JobResult, NodeState, RefuseReason, WaitReason},
};

/// Registers an agent of the run, which is in `state`.
fn register_again(t: &mut Fixture, name: &'static str, state: NodeState) -> Vec<Did> {
    let mut registration = t.registration_of(name, state);
    registration.job_uid = Some(JobUid::new("uid"));
    t.register_with(registration)
}

/// The outcome of a job survives its coordinator until every node of its run has received it: nodes
/// that come later, and new agents that came before it was clear whether any of them would.
#[test]
fn outcome_survives_a_restart() {
    let mut t = Fixture::new(1, 3);
    t.run(&["a", "b", "c"]);
    for name in ["a", "b", "c"] {
        t.report(name, NodeState::Succeeded);
    }
    t.message("a", FromNode::Goodbye);
    t.restart_coordinator();
    t.rounds.remove("x");
    assert_eq!(t.join("x"), [Did::Welcome("x"), Did::Wait("x", WaitReason::Recovering)]);
    let did = register_again(&mut t, "b", NodeState::Succeeded);
    assert_eq!(did, [Did::Welcome("b"), Did::Close("b"), Did::Close("x")]);
    t.message("b", FromNode::Goodbye);
    assert_eq!(t.message("x", FromNode::Goodbye), []);
    let outcome = t.outcome().expect("closed");
    assert_eq!(outcome.result, JobResult::Succeeded);
    let refused = Did::Refuse("c", RefuseReason::Closed(outcome));
    assert_eq!(register_again(&mut t, "c", NodeState::Succeeded), [refused]);
    assert_eq!(t.advance(5 * SECOND), [Did::Finish]);
}

/// A spent budget is not restored by a restart of the coordinator.
#[test]
fn spent_budget_survives_a_restart() {
    let mut t = Fixture::with(1, 2, |shared| shared.max_restarts = 0);
    t.run(&["a", "b"]);
    t.fail("a", Duration::ZERO);
    t.back("a");
    t.back("b");
    t.restart_coordinator();
    let did = register_again(&mut t, "a", NodeState::Stopping);
    assert_eq!(did, [Did::Welcome("a"), Did::Close("a")]);
    assert_eq!(t.outcome().expect("closed").result, JobResult::BudgetSpent);
}

/// An outcome that no node is left to receive does not concern new agents: their run begins.
#[test]
fn stale_outcome_is_forgotten() {
    let mut t = Fixture::with(1, 2, |shared| shared.max_restarts = 1);
    t.run(&["a"]);
    for _ in 0..2 {
        t.fail("a", Duration::ZERO);
        t.back("a");
    }
    assert!(t.job_state.closed.is_some());
    t.restart_coordinator();
    t.join("x");
    assert_eq!(t.live(&["x"], 4 * SECOND), []);
    let begins = [Did::Remember(2, 0), Did::Wait("x", WaitReason::Gathering)];
    assert_eq!(t.live(&["x"], SECOND), begins);
    assert_eq!(t.job_state.closed, None);
    assert_eq!(t.live(&["x"], 30 * SECOND), [Did::Remember(3, 0), Did::Admit("x", 3, 0)]);
}

/// Kills a job as a whole after two restarts were used, and starts it again.
fn killed_as_a_whole(keeps_charges: bool) -> Fixture {
    let mut t = Fixture::new(1, 2);
    t.settings.keeps_charges = keeps_charges;
    t.run(&["a"]);
    t.fail("a", Duration::ZERO);
    t.back("a");
    t.restart_coordinator();
    let mut registration = t.registration_of("x", ready());
    registration.known_round = known_round(t.rounds["a"], 1, 0);
    t.register_with(registration);
    t.live(&["x"], 6 * SECOND);
    t
}

/// Charges of a run of which no member registers are not charged to the next one, unless a service
/// manager starts both. The next run has a last call of its own.
#[test]
fn forgotten_run_leaves_its_charges() {
    let t = killed_as_a_whole(false);
    assert_eq!((t.job_state.restarts_used, t.job_state.charged_through), (0, Round(0)));
    assert!(t.why().starts_with("last call"), "{}", t.why());
    let t = killed_as_a_whole(true);
    assert_eq!((t.job_state.restarts_used, t.job_state.charged_through), (1, Round(1)));
}

/// A coordinator that has formed a round does not end in favor of another one, even if it knows no member any more.
#[test]
fn coordinator_with_a_round_does_not_give_way() {
    let mut t = killed_as_a_whole(false);
    assert_eq!(t.machine.handle_rival(t.now), None);
    let mut t = Fixture::new(1, 2);
    assert!(t.machine.handle_rival(t.now).is_some(), "it has none");
}

/// A member that registers later restores the charges.
#[test]
fn late_member_brings_back_its_charges() {
    let mut t = killed_as_a_whole(false);
    let mut registration = t.registration_of("a", ready());
    registration.charged_through = Round(1);
    t.register_with(registration);
    assert_eq!((t.job_state.restarts_used, t.job_state.charged_through), (1, Round(1)));
}
