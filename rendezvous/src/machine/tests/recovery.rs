//! The coordinator's process is killed and started again.

use std::time::Duration;

use super::fixture::{Did, Fixture, SECOND, heard, ready};
use crate::{
    ids::{AttendNumber, JobUid, NodeId, Round, RoundId, Term},
    message::{FromNode, Heard, JobResult, NodeState, RefuseReason, WaitReason},
};

/// Creates a coordinator that was restarted while `names` ran a round.
fn restarted(names: &[&'static str]) -> Fixture {
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
    assert_eq!(t.attend("a", NodeState::Running), [Did::Welcome("a"), Did::Restart("a", 1)]);
    assert_eq!(t.back("a"), [Did::Wait("a", WaitReason::Recovering)]);
    let wait = Did::Wait("a", WaitReason::Gathering);
    let did = t.attend("b", NodeState::Running);
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
    assert_eq!(t.why(), "waiting for 1 more node (1 of at least 2 are ready), 590 s left");
    assert_eq!(t.live(&["a"], 590 * SECOND), [Did::Remember(1, 0), Did::Close("a")]);
    let result = t.outcome().expect("closed").result;
    assert_eq!(result, JobResult::JoinTimeout { present: 1, min: 2, waited: 600 * SECOND });
}

/// Creates a coordinator without the state of a round of three, which learns of it from `a`.
fn adopted() -> Fixture {
    let mut t = Fixture::new(1, 3);
    let mut attend = t.attend_of("a", ready());
    let round = RoundId { term: Term(1), round: Round(1) };
    attend.heard = heard(round, 3, 0);
    attend.standing.round = round;
    t.rounds.insert("a".to_owned(), round);
    t.attend_with(attend);
    t
}

/// A coordinator that learned of the round from a node needs a majority: a second one may learn of
/// it too. The failure has a text of its own, and survives a restart of that coordinator.
#[test]
fn recovery_of_an_adopted_round_needs_a_majority() {
    let mut t = adopted();
    assert!(t.memory.is_adopted);
    t.live(&["a"], 10 * SECOND);
    let why = "recovering a round of which this coordinator has no state: 1 of at least 2 nodes have \
         registered, 590 s left";
    assert_eq!(t.why(), why);
    t.restart_coordinator();
    let mut attend = t.attend_of("a", ready());
    attend.heard = heard(t.rounds["a"], 3, 0);
    t.attend_with(attend);
    t.live(&["a"], 600 * SECOND);
    let result = t.outcome().expect("closed").result;
    assert_eq!(result, JobResult::RecoveryTimeout { present: 1, needed: 2, waited: 600 * SECOND });
}

/// Nodes that replace others count towards the majority; the round that follows is this
/// coordinator's own.
#[test]
fn newcomers_make_up_the_majority_of_an_adopted_round() {
    let mut t = adopted();
    t.live(&["a"], 10 * SECOND);
    let did = t.join("x");
    assert!(
        did.contains(&Did::Admit("a", 2, 0)) && did.contains(&Did::Admit("x", 2, 1)),
        "{did:?}"
    );
    assert!(!t.memory.is_adopted);
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

/// The host's new agent takes the seat named in its state file, once the old agent's workers have
/// certainly ended.
#[test]
fn new_agent_of_the_host_claims_its_rank() {
    let mut t = restarted(&["a", "b"]);
    t.attend("b", NodeState::Running);
    let mut attend = t.attend_of("a2", ready());
    attend.heard = heard(t.rounds["a"], 2, 0);
    let wait = Did::Wait("a2", WaitReason::Recovering);
    assert_eq!(t.attend_with(attend), [Did::Welcome("a2"), wait]);
    t.back("b");
    assert_eq!(t.live(&["a2", "b"], 2 * SECOND), []);
    let complete = [Did::Remember(2, 0), Did::Admit("a2", 2, 0), Did::Admit("b", 2, 1)];
    assert_eq!(t.live(&["a2", "b"], SECOND), complete);
}

/// A host's new agent keeps its seat when members register after it, and nothing is waited for if
/// no process of its predecessor is left.
#[test]
fn buried_host_may_be_the_first_to_come() {
    let mut t = Fixture::new(1, 2).host("a");
    t.run(&["a", "b"]);
    t.memory.host.as_mut().expect("it was a member").is_buried = true;
    t.settings.host = Some(NodeId::new("a2"));
    t.restart_coordinator();
    let mut attend = t.attend_of("a2", ready());
    attend.heard = heard(t.rounds["a"], 2, 0);
    t.attend_with(attend);
    t.attend("b", NodeState::Running);
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
        let mut attend = t.attend_of("a2", ready());
        attend.heard = heard(round, 3, 0);
        if is_first {
            t.attend_with(attend.clone());
        }
        t.attend("b", NodeState::Running);
        t.attend("c", NodeState::Running);
        if !is_first {
            t.attend_with(attend);
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
fn buried_host_is_not_waited_for() {
    for (is_heard, is_first) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut t = Fixture::new(1, 2).host("a");
        t.run(&["a", "b"]);
        if !is_heard {
            t.memory.host.as_mut().expect("it was a member").is_buried = true;
        }
        t.settings.host = Some(NodeId::new("a2"));
        t.restart_coordinator();
        let mut attend = t.attend_of("a2", ready());
        attend.heard = heard(t.rounds["a"], 2, 0);
        let mut did = Vec::new();
        if is_first {
            did.extend(t.attend_with(attend.clone()));
        }
        did.extend(t.attend("b", NodeState::Running));
        did.extend(t.back("b"));
        if !is_first {
            did.extend(t.attend_with(attend));
        }
        if is_heard {
            assert!(did.contains(&Did::Wait("a2", WaitReason::Recovering)), "{did:?}");
            assert!(!did.iter().any(|did| matches!(did, Did::Admit(..))), "{did:?}");
            did.extend(t.die("a"));
        }
        let complete = [Did::Remember(2, 0), Did::Admit("a2", 2, 0), Did::Admit("b", 2, 1)];
        assert_eq!(did[did.len() - 3..], complete, "{is_heard} {is_first}");
    }
}

/// An obituary of an agent that ran a later round than the known one proves nothing: others may run
/// that round.
#[test]
fn word_about_a_later_round_is_no_proof() {
    let mut t = Fixture::new(1, 1).host("a");
    t.run(&["a"]);
    t.settings.host = Some(NodeId::new("a2"));
    t.restart_coordinator();
    let mut attend = t.attend_of("a2", ready());
    attend.heard = heard(t.rounds["a"], 1, 0);
    t.attend_with(attend);
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
    let mut attend = t.attend_of("x", ready());
    attend.heard = heard(t.rounds["a"], 2, 0);
    t.attend_with(attend);
    t.attend("a", NodeState::Running);
    t.attend("b", NodeState::Running);
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

/// A higher round that a node knows counts, and so do its charges and a higher term.
#[test]
fn higher_round_is_learned() {
    let mut t = restarted(&["a"]);
    let mut attend = t.attend_of("a", NodeState::Running);
    let round = RoundId { term: Term(7), round: Round(9) };
    attend.heard = heard(round, 1, 0);
    attend.standing.round = round;
    attend.charged_through = Round(8);
    attend.restarts_used = 2;
    let did = t.attend_with(attend);
    assert_eq!(did, [Did::Remember(9, 2), Did::Welcome("a"), Did::Restart("a", 9)]);
    assert_eq!(t.memory.term, Term(8));
    t.rounds.insert("a".to_owned(), round);
    assert_eq!(t.back("a"), [Did::Remember(10, 2), Did::Admit("a", 10, 0)]);
}

/// A round that is missing in the state file is recovered like any other.
#[test]
fn round_that_is_only_heard_of_is_recovered() {
    let mut t = Fixture::new(1, 2);
    let mut attend = t.attend_of("a", NodeState::Running);
    let round = RoundId { term: Term(1), round: Round(1) };
    attend.heard = heard(round, 2, 0);
    attend.standing.round = round;
    t.rounds.insert("a".to_owned(), round);
    assert_eq!(
        t.attend_with(attend),
        [Did::Remember(1, 0), Did::Welcome("a"), Did::Restart("a", 1)]
    );
    assert_eq!(t.back("a"), [Did::Wait("a", WaitReason::Recovering)]);
}

/// A round that had succeeded on all members is not repeated.
#[test]
fn success_survives_a_restart() {
    let mut t = restarted(&["a", "b"]);
    assert_eq!(t.attend("a", NodeState::Succeeded), [Did::Welcome("a")]);
    let did = t.attend("b", NodeState::Succeeded);
    let closed = [Did::Remember(1, 0), Did::Close("a"), Did::Close("b")];
    assert_eq!(did, [&[Did::Welcome("b")][..], &closed].concat());
    assert_eq!(t.outcome().expect("closed").result, JobResult::Succeeded);
}

/// A success that other members did not reach is repeated with them.
#[test]
fn partial_success_is_repeated_after_a_restart() {
    let mut t = restarted(&["a", "b"]);
    t.attend("a", NodeState::Succeeded);
    let did = t.attend("b", NodeState::Running);
    assert_eq!(did, [Did::Welcome("b"), Did::Restart("a", 1), Did::Restart("b", 1)]);
}

/// A failure of a round that the restart has ended is free.
#[test]
fn failure_before_a_restart_is_free() {
    let mut t = restarted(&["a"]);
    let mut attend = t.attend_of("a", ready());
    attend.standing.failure = Some(super::fixture::failure("a", SECOND));
    let did = t.attend_with(attend);
    assert_eq!(did, [Did::Welcome("a"), Did::Remember(2, 0), Did::Admit("a", 2, 0)]);
}

/// Numbers that leave no room for a next one are ignored.
#[test]
fn absurd_numbers_are_not_believed() {
    let mut t = Fixture::new(1, 1);
    let mut attend = t.attend_of("a", ready());
    let round = RoundId { term: Term(u64::MAX), round: Round(u64::MAX) };
    attend.heard = heard(round, u32::MAX, u32::MAX);
    attend.attend = AttendNumber(1);
    let did = t.attend_with(attend);
    assert_eq!(did, [Did::Welcome("a"), Did::Remember(1, 0), Did::Admit("a", 1, 0)]);
}

/// The claims of an agent count only if it belongs to this run.
#[test]
fn claims_of_strangers_do_not_count() {
    let mut t = Fixture::new(1, 2);
    t.run(&["a"]);
    t.restart_coordinator();
    let mut attend = t.attend_of("x", ready());
    attend.heard = heard(RoundId { term: Term(9), round: Round(99) }, 1, 0);
    attend.restarts_used = 3;
    attend.charged_through = Round(99);
    t.machine.handle_attend(t.now, attend);
    assert_eq!(t.drain(), [Did::Welcome("x"), Did::Wait("x", WaitReason::Recovering)]);
    assert_eq!((t.memory.round, t.memory.term), (Round(1), Term(2)));
    assert_eq!((t.memory.restarts_used, t.memory.charged_through), (0, Round(0)));
    assert_eq!(t.why(), "recovering: 0 of 1 members of the last round have registered, 5 s left");
}

/// Once the coordinator has completed a round, no claim counts, not even of an agent that names the
/// run: a stranger that was welcomed before knows its uid.
#[test]
fn claims_do_not_count_in_a_running_round() {
    let mut t = Fixture::new(1, 2);
    t.run(&["a"]);
    let mut attend = t.attend_of("x", ready());
    attend.job_uid = Some(t.memory.job_uid.clone());
    attend.heard = heard(RoundId { term: Term(1), round: Round(99) }, 1, 0);
    attend.restarts_used = 3;
    attend.charged_through = Round(99);
    t.machine.handle_attend(t.now, attend);
    t.drain();
    assert_eq!((t.memory.round, t.memory.is_adopted), (Round(1), false));
    assert_eq!((t.memory.restarts_used, t.memory.charged_through), (0, Round(0)));
}

/// Claims of rounds that are implausibly far ahead are ignored.
#[test]
fn far_rounds_are_not_believed() {
    for (ahead, is_believed) in [(1 << 20, true), ((1 << 20) + 1, false)] {
        let mut t = restarted(&["a"]);
        let mut attend = t.attend_of("x", ready());
        attend.heard = heard(RoundId { term: Term(1), round: Round(1 + ahead) }, 1, 0);
        t.attend_with(attend);
        assert_eq!(t.memory.round != Round(1), is_believed);
    }
}

/// The size of the last round is taken from its members, not from a node that only knows of the
/// round.
#[test]
fn spare_does_not_know_the_size() {
    let mut t = restarted(&["a", "b", "c"]);
    let mut attend = t.attend_of("x", ready());
    attend.heard = Heard { round: t.rounds["a"], size: 0, group_rank: None };
    t.attend_with(attend);
    t.join("a");
    assert_eq!(t.why(), "recovering: 1 of 3 members of the last round have registered, 5 s left");
    t.join("b");
    t.live(&["a", "b"], 4 * SECOND);
    assert_eq!(t.live(&["a", "b"], SECOND).len(), 3);
}

/// If only a node that was not a member knows a round, the most nodes are assumed.
#[test]
fn unknown_size_is_the_largest() {
    let mut t = Fixture::new(1, 3);
    let mut attend = t.attend_of("x", ready());
    let round = RoundId { term: Term(1), round: Round(4) };
    attend.heard = Heard { round, size: 0, group_rank: None };
    t.attend_with(attend);
    assert_eq!(t.memory.round_size, 3);
    assert_eq!(t.why(), "recovering: 0 of 3 members of the last round have registered, 5 s left");
}

/// A member that is dismissed during the recovery is not waited for afterwards, and counts towards
/// the majority: it is in no other group.
#[test]
fn leaver_in_a_recovery_is_not_waited_for() {
    let mut t = restarted(&["a", "b"]);
    let left = NodeState::Leaving { reaped: true };
    assert_eq!(t.attend("a", left), [Did::Welcome("a"), Did::Dismiss("a")]);
    t.message("a", FromNode::Goodbye);
    t.attend("b", NodeState::Running);
    assert_eq!(t.back("b"), [Did::Remember(2, 0), Did::Admit("b", 2, 0)]);
}

/// The job closes if all members leave during the recovery.
#[test]
fn job_closes_when_all_leave_a_recovery() {
    let mut t = restarted(&["a"]);
    t.attend("a", NodeState::Leaving { reaped: true });
    assert_eq!(t.message("a", FromNode::Goodbye), [Did::Finish]);
    assert_eq!(t.outcome().expect("closed").result, JobResult::AllLeft);
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

/// The seat that the host's new agent claimed is kept for a recovery with late members.
#[test]
fn claim_outlives_a_forgotten_round() {
    let mut t = restarted(&["a", "b"]);
    let mut attend = t.attend_of("a2", ready());
    attend.heard = heard(t.rounds["a"], 2, 0);
    t.attend_with(attend);
    t.rounds.remove("a2");
    let forgotten = t.live(&["a2"], 6 * SECOND);
    assert_eq!(forgotten, [Did::Wait("a2", WaitReason::Gathering)]);
    t.join("b");
    t.live(&["a2", "b"], 2 * SECOND);
    let complete = [Did::Remember(2, 0), Did::Admit("a2", 2, 0), Did::Admit("b", 2, 1)];
    assert_eq!(t.live(&["a2", "b"], SECOND), complete);
}

/// Registers an agent of the run, which is in `state`.
fn attend_again(t: &mut Fixture, name: &'static str, state: NodeState) -> Vec<Did> {
    let mut attend = t.attend_of(name, state);
    attend.job_uid = Some(JobUid::new("uid"));
    t.attend_with(attend)
}

/// The outcome of a job survives its coordinator until every node of its run has received it: nodes
/// that come later, and new agents that came before it was clear whether any of them would.
#[test]
fn outcome_survives_a_restart() {
    let mut t = Fixture::new(1, 3);
    t.run(&["a", "b", "c"]);
    for name in ["a", "b", "c"] {
        t.say(name, NodeState::Succeeded);
    }
    t.message("a", FromNode::Goodbye);
    t.restart_coordinator();
    t.rounds.remove("x");
    assert_eq!(t.join("x"), [Did::Welcome("x"), Did::Wait("x", WaitReason::Recovering)]);
    let did = attend_again(&mut t, "b", NodeState::Succeeded);
    assert_eq!(did, [Did::Welcome("b"), Did::Close("b"), Did::Close("x")]);
    t.message("b", FromNode::Goodbye);
    assert_eq!(t.message("x", FromNode::Goodbye), []);
    let outcome = t.outcome().expect("closed");
    assert_eq!(outcome.result, JobResult::Succeeded);
    let refused = Did::Refuse("c", RefuseReason::Closed(outcome));
    assert_eq!(attend_again(&mut t, "c", NodeState::Succeeded), [refused]);
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
    let did = attend_again(&mut t, "a", NodeState::Stopping);
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
    assert!(t.memory.closed.is_some());
    t.restart_coordinator();
    t.join("x");
    assert_eq!(t.live(&["x"], 4 * SECOND), []);
    let begins = [Did::Remember(2, 0), Did::Wait("x", WaitReason::Gathering)];
    assert_eq!(t.live(&["x"], SECOND), begins);
    assert_eq!(t.memory.closed, None);
    assert_eq!(t.live(&["x"], 30 * SECOND), [Did::Remember(3, 0), Did::Admit("x", 3, 0)]);
}

/// Registers an agent of an earlier run with this uid, ready again, a member of a round of two.
fn attend_from(t: &mut Fixture, name: &'static str, uid: &str, rank: u32) -> Vec<Did> {
    let mut attend = t.attend_of(name, ready());
    let round = RoundId { term: Term(3), round: Round(8) };
    attend.job_uid = Some(JobUid::new(uid));
    attend.heard = heard(round, 2, rank);
    attend.standing.round = round;
    attend.restarts_used = 2;
    attend.charged_through = Round(7);
    t.rounds.insert(name.to_owned(), round);
    t.attend_with(attend)
}

/// A host that lost its state adopts the run of the first member that registers: its uid, its round
/// and its charges. Nodes that came before register again and learn the uid.
#[test]
fn coordinator_without_state_adopts_the_run_of_a_member() {
    let mut t = Fixture::new(2, 2).host("x");
    t.join("x");
    let did = attend_from(&mut t, "b", "earlier", 1);
    assert_eq!(
        did,
        [
            Did::HangUp("x"),
            Did::Remember(8, 2),
            Did::Welcome("b"),
            Did::Wait("b", WaitReason::Recovering),
            Did::Wait("x", WaitReason::Recovering),
        ]
    );
    assert_eq!(t.memory.job_uid, JobUid::new("earlier"));
    assert!(t.memory.is_adopted && t.memory.term > Term(3));
    // The waiting node registers again, with the uid that it received before.
    let mut attend = t.attend_of("x", ready());
    attend.job_uid = Some(JobUid::new("uid"));
    let wait = Did::Wait("x", WaitReason::Recovering);
    assert_eq!(t.attend_with(attend), [Did::Welcome("x"), wait]);
    assert_eq!(t.live(&["b", "x"], 4 * SECOND), []);
    let did = t.live(&["b", "x"], SECOND);
    assert_eq!(did, [Did::Remember(9, 2), Did::Admit("b", 9, 0), Did::Admit("x", 9, 1)]);
    assert_eq!(t.admissions["b"].restart_count, 2);
}

/// The claimed size of an adopted round is at most MAX: a larger one would never have a majority.
#[test]
fn claimed_size_is_bounded() {
    let mut t = Fixture::new(1, 2);
    let mut attend = t.attend_of("a", ready());
    let round = RoundId { term: Term(3), round: Round(8) };
    attend.job_uid = Some(JobUid::new("earlier"));
    attend.heard = heard(round, 1000, 0);
    attend.standing.round = round;
    t.rounds.insert("a".to_owned(), round);
    t.attend_with(attend);
    assert_eq!((t.memory.round, t.memory.round_size), (Round(8), 2));
    assert!(t.why().starts_with("recovering: 1 of 2 members"), "{}", t.why());
}

/// Only one run is adopted, and none by a coordinator that has a round of its own.
#[test]
fn second_run_is_refused() {
    let refused = |name| [Did::Refuse(name, RefuseReason::EarlierRun)];
    let mut t = Fixture::new(2, 2);
    attend_from(&mut t, "a", "earlier", 0);
    assert_eq!(attend_from(&mut t, "b", "another", 1), refused("b"));
    let mut t = Fixture::new(1, 1);
    t.run(&["a"]);
    assert_eq!(attend_from(&mut t, "b", "earlier", 0), refused("b"));
}

/// A run is not adopted from an agent that does not name a round: its state is unknown.
#[test]
fn run_without_a_round_is_refused() {
    let mut t = Fixture::new(2, 2);
    let mut attend = t.attend_of("a", ready());
    attend.job_uid = Some(JobUid::new("earlier"));
    assert_eq!(t.attend_with(attend), [Did::Refuse("a", RefuseReason::EarlierRun)]);
}

/// Kills a job as a whole after two restarts were used, and starts it again.
fn killed_as_a_whole(keeps_charges: bool) -> Fixture {
    let mut t = Fixture::new(1, 2);
    t.settings.keeps_charges = keeps_charges;
    t.run(&["a"]);
    t.fail("a", Duration::ZERO);
    t.back("a");
    t.restart_coordinator();
    let mut attend = t.attend_of("x", ready());
    attend.heard = heard(t.rounds["a"], 1, 0);
    t.attend_with(attend);
    t.live(&["x"], 6 * SECOND);
    t
}

/// Charges of a run of which no member registers are not charged to the next one, unless a service
/// manager starts both. The next run has a last call of its own.
#[test]
fn forgotten_run_leaves_its_charges() {
    let t = killed_as_a_whole(false);
    assert_eq!((t.memory.restarts_used, t.memory.charged_through), (0, Round(0)));
    assert!(t.why().starts_with("last call"), "{}", t.why());
    let t = killed_as_a_whole(true);
    assert_eq!((t.memory.restarts_used, t.memory.charged_through), (1, Round(1)));
}

/// A member that registers later restores the charges.
#[test]
fn late_member_brings_back_its_charges() {
    let mut t = killed_as_a_whole(false);
    let mut attend = t.attend_of("a", ready());
    attend.charged_through = Round(1);
    t.attend_with(attend);
    assert_eq!((t.memory.restarts_used, t.memory.charged_through), (1, Round(1)));
}
