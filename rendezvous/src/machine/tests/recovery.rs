//! The coordinator's process is killed and started again.

use std::time::Duration;

use super::fixture::{Did, Fixture, SECOND, known_round, ready};
use crate::{
    ids::{NodeId, Round, RoundId, Term},
    message::{EvictReason, FromNode, JobResult, KnownRound, NodeState, WaitReason},
};

/// Creates a coordinator that was restarted while `names` ran a round.
pub(super) fn restarted(names: &[&'static str]) -> Fixture {
    let size = u32::try_from(names.len()).expect("few");
    let mut t = Fixture::new(1, size);
    t.run(names);
    assert_eq!(t.restart_coordinator(), [Did::Remember(1, 0)]);
    t
}

/// Members of the last round are restarted at once, and one new round follows when all are back.
#[test]
fn one_round_follows_a_restart() {
    let mut t = restarted(&["a", "b"]);
    assert_eq!(t.register("a", NodeState::Running), [Did::Welcome("a"), Did::Restart("a", 1)]);
    assert_eq!(t.back("a"), [Did::Wait("a", WaitReason::Recovering)]);
    let wait = Did::Wait("a", WaitReason::Gathering);
    let did = t.register("b", NodeState::Running);
    assert_eq!(did, [Did::Welcome("b"), wait, Did::Restart("b", 1)]);
    let complete = [Did::Remember(2, 0), Did::Admit("a", 2, 0), Did::Admit("b", 2, 1)];
    assert_eq!(t.back("b"), complete);
    assert_eq!(t.rounds["a"], RoundId { term: Term(2), round: Round(2) });
}

/// No round is completed while workers may run that the coordinator does not know of.
#[test]
fn recovery_waits_for_leases() {
    let mut t = restarted(&["a", "b", "c"]);
    t.join("a");
    t.join("b");
    assert_eq!(t.live(&["a", "b"], 4 * SECOND), []);
    assert_eq!(t.why(), "recovering: 2 of 3 members of the last round have registered, 1 s left");
    let did = t.live(&["a", "b"], SECOND);
    assert_eq!(did, [Did::Remember(2, 0), Did::Admit("a", 2, 0), Did::Admit("b", 2, 1)]);
}

/// A coordinator with the round in its own state file continues with `min` nodes, even if few of
/// the last round are left: no other coordinator can continue it.
#[test]
fn recovery_needs_min_nodes() {
    let mut t = restarted(&["a", "b", "c"]);
    t.join("a");
    assert_eq!(t.live(&["a"], 4 * SECOND), []);
    assert_eq!(t.live(&["a"], SECOND), [Did::Remember(2, 0), Did::Admit("a", 2, 0)]);
}

/// Below `min` the members wait for the join timeout, as for any other loss.
#[test]
fn recovery_below_min_waits_and_fails() {
    let mut t = Fixture::new(2, 3);
    t.run(&["a", "b", "c"]);
    t.restart_coordinator();
    t.join("a");
    t.live(&["a"], 10 * SECOND);
    assert_eq!(
        t.why(),
        "waiting for 1 more node (1 of at least 2 are ready), join timeout in 590 s"
    );
    assert_eq!(t.live(&["a"], 590 * SECOND), [Did::Remember(1, 0), Did::Close("a")]);
    let result = t.outcome().expect("closed").result;
    let JobResult::JoinTimeout { present: 1, min: 2, waited, after: Round(1), .. } = result else {
        panic!("{result:?}");
    };
    assert_eq!(waited, 600 * SECOND);
}

/// Agents that replace members count once these members cannot be running any more: nothing reports
/// the death of agents that died with the coordinator.
#[test]
fn newcomers_make_up_for_members_that_died() {
    let mut t = restarted(&["a", "b", "c"]);
    t.join("a");
    t.join("x");
    t.join("y");
    assert_eq!(t.live(&["a", "x", "y"], 4 * SECOND), []);
    let complete =
        [Did::Remember(2, 0), Did::Admit("a", 2, 0), Did::Admit("x", 2, 1), Did::Admit("y", 2, 2)];
    assert_eq!(t.live(&["a", "x", "y"], SECOND), complete);
}

/// The host's new agent takes the rank named in its state file, once the old agent's workers have
/// certainly ended.
#[test]
fn new_agent_of_the_host_claims_its_rank() {
    let mut t = restarted(&["a", "b"]);
    t.register("b", NodeState::Running);
    let mut registration = t.registration_of("a2", ready());
    registration.known_round = known_round(t.rounds["a"], 2, 0);
    let wait = Did::Wait("a2", WaitReason::Recovering);
    assert_eq!(t.register_with(registration), [Did::Welcome("a2"), wait]);
    t.back("b");
    assert_eq!(t.live(&["a2", "b"], 2 * SECOND), []);
    let complete = [Did::Remember(2, 0), Did::Admit("a2", 2, 0), Did::Admit("b", 2, 1)];
    assert_eq!(t.live(&["a2", "b"], SECOND), complete);
}

/// A host's new agent keeps its rank when members register after it, and nothing is waited for if
/// no process of its predecessor is left.
#[test]
fn dead_host_may_be_the_first_to_return() {
    let mut t = Fixture::new(1, 2).host("a");
    t.run(&["a", "b"]);
    t.job_state.host.as_mut().expect("it was a member").is_confirmed_dead = true;
    t.settings.host = Some(NodeId::new("a2"));
    t.restart_coordinator();
    let mut registration = t.registration_of("a2", ready());
    registration.known_round = known_round(t.rounds["a"], 2, 0);
    t.register_with(registration);
    t.register("b", NodeState::Running);
    let did = t.back("b");
    assert_eq!(did, [Did::Remember(2, 0), Did::Admit("a2", 2, 0), Did::Admit("b", 2, 1)]);
}

/// A coordinator that is restarted before it has completed a round stores its own term with a round
/// of an earlier one. The term that members report takes precedence, in any order of registration.
#[test]
fn claim_under_a_later_term_is_of_the_same_round() {
    for is_first in [false, true] {
        let mut t = restarted(&["a", "b", "c"]);
        t.restart_coordinator();
        let round = RoundId { term: Term(2), round: Round(1) };
        assert!(t.rounds["a"] < round);
        let mut registration = t.registration_of("a2", ready());
        registration.known_round = known_round(round, 3, 0);
        if is_first {
            t.register_with(registration.clone());
        }
        t.register("b", NodeState::Running);
        t.register("c", NodeState::Running);
        if !is_first {
            t.register_with(registration);
        }
        t.back("b");
        t.back("c");
        let did = t.live(&["a2", "b", "c"], 3 * SECOND);
        let admit = |name, rank| Did::Admit(name, 2, rank);
        assert_eq!(did, [Did::Remember(2, 0), admit("a2", 0), admit("b", 1), admit("c", 2)]);
    }
}

/// If no process of the old agent is known to be left, the claim of the new one shortens the wait:
/// whether that was reported before or while the coordinator recovers, and in any order of
/// registration.
#[test]
fn dead_host_is_not_waited_for() {
    for (is_reported, is_first) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut t = Fixture::new(1, 2).host("a");
        t.run(&["a", "b"]);
        if !is_reported {
            t.job_state.host.as_mut().expect("it was a member").is_confirmed_dead = true;
        }
        t.settings.host = Some(NodeId::new("a2"));
        t.restart_coordinator();
        let mut registration = t.registration_of("a2", ready());
        registration.known_round = known_round(t.rounds["a"], 2, 0);
        let mut did = Vec::new();
        if is_first {
            did.extend(t.register_with(registration.clone()));
        }
        did.extend(t.register("b", NodeState::Running));
        did.extend(t.back("b"));
        if !is_first {
            did.extend(t.register_with(registration));
        }
        if is_reported {
            assert!(did.contains(&Did::Wait("a2", WaitReason::Recovering)), "{did:?}");
            assert!(!did.iter().any(|did| matches!(did, Did::Admit(..))), "{did:?}");
            did.extend(t.die("a"));
        }
        let complete = [Did::Remember(2, 0), Did::Admit("a2", 2, 0), Did::Admit("b", 2, 1)];
        assert_eq!(did[did.len() - 3..], complete, "{is_reported} {is_first}");
    }
}

/// A death notice of an agent that ran a later round than the known one proves nothing: others may run
/// that round.
#[test]
fn word_about_a_later_round_is_no_proof() {
    let mut t = Fixture::new(1, 1).host("a");
    t.run(&["a"]);
    t.settings.host = Some(NodeId::new("a2"));
    t.restart_coordinator();
    let mut registration = t.registration_of("a2", ready());
    registration.known_round = known_round(t.rounds["a"], 1, 0);
    t.register_with(registration);
    let round = t.rounds["a"];
    t.rounds.insert("a".to_owned(), RoundId { round: Round(2), ..round });
    assert_eq!(t.die("a"), []);
    t.rounds.insert("a".to_owned(), round);
    let did = t.die("a");
    assert_eq!(did[did.len() - 2..], [Did::Remember(2, 0), Did::Admit("a2", 2, 0)]);
}

/// A member takes precedence over an agent that only knows the rank.
#[test]
fn member_comes_before_a_claimant() {
    let mut t = restarted(&["a", "b"]);
    let mut registration = t.registration_of("x", ready());
    registration.known_round = known_round(t.rounds["a"], 2, 0);
    t.register_with(registration);
    t.register("a", NodeState::Running);
    t.register("b", NodeState::Running);
    t.back("a");
    let complete = [Did::Remember(2, 0), Did::Admit("a", 2, 0), Did::Admit("b", 2, 1)];
    assert_eq!(t.back("b")[..3], complete);
}

/// If no node was in the last round, all its workers have ended: a first gathering with a higher
/// round follows.
#[test]
fn forgotten_round_is_a_first_gathering() {
    let mut t = restarted(&["a", "b"]);
    t.rounds.clear();
    t.admissions.clear();
    t.join("x");
    assert_eq!(t.live(&["x"], 4 * SECOND), []);
    assert_eq!(t.live(&["x"], SECOND), [Did::Wait("x", WaitReason::Gathering)]);
    let complete = [Did::Remember(2, 0), Did::Admit("x", 2, 0), Did::Admit("y", 2, 1)];
    assert_eq!(t.join("y"), [&[Did::Welcome("y")][..], &complete].concat());
}

/// If no node was admitted to the last round, members of the round before continue the run with its charges, and without
/// another last call.
#[test]
fn round_without_admissions_is_skipped() {
    let mut t = Fixture::new(1, 3);
    t.settings.keeps_charges = false;
    t.run(&["a", "b"]);
    t.fail("a", Duration::ZERO);
    t.back("a");
    t.back("b");
    assert_eq!((t.job_state.round, t.job_state.restarts_used), (Round(2), 1));
    t.job_state.round = Round(3);
    t.restart_coordinator();
    for name in ["a", "b"] {
        t.join(name);
        assert_eq!(t.back(name), [Did::Evict(name, EvictReason::Silent)]);
        t.reopen(name);
    }
    assert_eq!(t.live(&["a", "b"], 4 * SECOND), []);
    let complete = [Did::Remember(4, 1), Did::Admit("a", 4, 0), Did::Admit("b", 4, 1)];
    assert_eq!(t.live(&["a", "b"], SECOND), complete);
}

/// A round that had succeeded on all members is not repeated.
#[test]
fn success_survives_a_restart() {
    let mut t = restarted(&["a", "b"]);
    assert_eq!(t.register("a", NodeState::Succeeded), [Did::Welcome("a")]);
    let did = t.register("b", NodeState::Succeeded);
    let closed = [Did::Remember(1, 0), Did::Close("a"), Did::Close("b")];
    assert_eq!(did, [&[Did::Welcome("b")][..], &closed].concat());
    assert_eq!(t.outcome().expect("closed").result, JobResult::Succeeded);
}

/// A success that other members did not reach is repeated with them.
#[test]
fn partial_success_is_repeated_after_a_restart() {
    let mut t = restarted(&["a", "b"]);
    t.register("a", NodeState::Succeeded);
    let did = t.register("b", NodeState::Running);
    assert_eq!(did, [Did::Welcome("b"), Did::Restart("a", 1), Did::Restart("b", 1)]);
}

/// A failure of a round that the restart has ended is free.
#[test]
fn failure_before_a_restart_is_free() {
    let mut t = restarted(&["a"]);
    let mut registration = t.registration_of("a", ready());
    registration.report.failure = Some(Box::new(super::fixture::failure("a", SECOND)));
    let did = t.register_with(registration);
    assert_eq!(did, [Did::Welcome("a"), Did::Remember(2, 0), Did::Admit("a", 2, 0)]);
}

/// The size of the last round is taken from its members, not from a node that only knows of the
/// round.
#[test]
fn spare_does_not_know_the_size() {
    let mut t = restarted(&["a", "b", "c"]);
    let mut registration = t.registration_of("x", ready());
    registration.known_round = KnownRound { round: t.rounds["a"], size: 0, group_rank: None };
    t.register_with(registration);
    t.join("a");
    assert_eq!(t.why(), "recovering: 1 of 3 members of the last round have registered, 5 s left");
    t.join("b");
    t.live(&["a", "b"], 4 * SECOND);
    assert_eq!(t.live(&["a", "b"], SECOND).len(), 3);
}

/// A rank that the last round did not have counts for no member.
#[test]
fn rank_beyond_the_size_is_no_claim() {
    for (rank, present) in [(1, 1), (2, 0)] {
        let mut t = restarted(&["a", "b"]);
        let mut registration = t.registration_of("x", ready());
        registration.known_round = known_round(t.rounds["a"], 2, rank);
        t.register_with(registration);
        let why = format!(
            "recovering: {present} of 2 members of the last round have registered, 5 s left"
        );
        assert_eq!(t.why(), why);
    }
}

/// If only a node that was not a member knows a round, the most nodes are assumed.
#[test]
fn unknown_size_is_the_largest() {
    let mut t = Fixture::new(1, 3);
    let mut registration = t.registration_of("x", ready());
    let round = RoundId { term: Term(1), round: Round(4) };
    registration.known_round = KnownRound { round, size: 0, group_rank: None };
    t.register_with(registration);
    assert_eq!(t.job_state.round_size, 3);
    assert_eq!(t.why(), "recovering: 0 of 3 members of the last round have registered, 5 s left");
}

/// A member that is dismissed during the recovery is not waited for afterwards, and counts towards
/// the majority: it is in no other group.
#[test]
fn leaver_in_a_recovery_is_not_waited_for() {
    let mut t = restarted(&["a", "b"]);
    let left = NodeState::Leaving { reaped: true };
    assert_eq!(t.register("a", left), [Did::Welcome("a"), Did::Dismiss("a")]);
    t.message("a", FromNode::Goodbye);
    t.register("b", NodeState::Running);
    assert_eq!(t.back("b"), [Did::Remember(2, 0), Did::Admit("b", 2, 0)]);
}

/// The job closes if all members leave during the recovery.
#[test]
fn job_closes_when_all_leave_a_recovery() {
    let mut t = restarted(&["a"]);
    t.register("a", NodeState::Leaving { reaped: true });
    assert_eq!(t.message("a", FromNode::Goodbye), [Did::Finish]);
    assert_eq!(t.outcome().expect("closed").result, JobResult::AllLeft);
    let mut t = restarted(&["a", "b"]);
    for name in ["a", "b"] {
        t.register(name, NodeState::Leaving { reaped: true });
    }
    assert_eq!(t.outcome().expect("closed").result, JobResult::AllLeft, "both are still here");
}

/// Members of the last round that register after the recovery was given up are recovered with their
/// ranks.
#[test]
fn late_member_is_recovered() {
    let mut t = Fixture::new(1, 2);
    t.run(&["b"]);
    t.join("a");
    t.live(&["a", "b"], 3 * SECOND);
    t.back("b");
    t.restart_coordinator();
    t.advance(6 * SECOND);
    t.join("x");
    assert_eq!(t.why(), "last call, 30 s left for up to 1 more nodes".replace("nodes", "node"));
    let waits = [Did::Wait("b", WaitReason::Recovering), Did::Wait("x", WaitReason::Recovering)];
    assert_eq!(t.join("b"), [&[Did::Welcome("b")][..], &waits].concat());
    let did = t.join("a");
    let complete = [Did::Remember(3, 0), Did::Admit("b", 3, 0), Did::Admit("a", 3, 1)];
    assert!(complete.iter().all(|one| did.contains(one)), "{did:?}");
}

/// After a late member the recovery waits for the leases as usual, and then `min` decides.
#[test]
fn late_member_waits_for_the_others() {
    let mut t = restarted(&["a", "b", "c"]);
    t.advance(6 * SECOND);
    t.join("b");
    assert_eq!(t.live(&["b"], 4 * SECOND), []);
    assert!(t.why().starts_with("recovering: 1 of 3 members"), "{}", t.why());
    assert_eq!(t.live(&["b"], SECOND), [Did::Remember(2, 0), Did::Admit("b", 2, 0)]);
}

/// The rank that the host's new agent claimed is kept for a recovery with late members.
#[test]
fn claim_outlives_a_forgotten_round() {
    let mut t = restarted(&["a", "b"]);
    let mut registration = t.registration_of("a2", ready());
    registration.known_round = known_round(t.rounds["a"], 2, 0);
    t.register_with(registration);
    t.rounds.remove("a2");
    let forgotten = t.live(&["a2"], 6 * SECOND);
    assert_eq!(forgotten, [Did::Wait("a2", WaitReason::Gathering)]);
    t.join("b");
    t.live(&["a2", "b"], 2 * SECOND);
    let complete = [Did::Remember(2, 0), Did::Admit("a2", 2, 0), Did::Admit("b", 2, 1)];
    assert_eq!(t.live(&["a2", "b"], SECOND), complete);
}
