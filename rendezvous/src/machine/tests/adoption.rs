//! The claims of nodes about earlier rounds and runs: a coordinator adopts some and ignores others.

use super::{
    fixture::{Did, Fixture, SECOND, known_round, ready},
    recovery::restarted,
};
use crate::{
    ids::{JobUid, Round, RoundId, StreamNumber, Term},
    message::{EvictReason, JobResult, NodeState, RefuseReason, WaitReason},
};

/// Creates a coordinator without the state of a round of three, which learns of it from `a`.
fn adopted() -> Fixture {
    let mut t = Fixture::new(1, 3);
    let mut registration = t.registration_of("a", ready());
    let round = RoundId { term: Term(1), round: Round(1) };
    registration.known_round = known_round(round, 3, 0);
    registration.report.round = round;
    t.rounds.insert("a".to_owned(), round);
    t.register_with(registration);
    t
}

/// A coordinator that learned of the round from a node needs a majority: a second one may learn of
/// it too. The failure has a text of its own, and survives a restart of that coordinator.
#[test]
fn recovery_of_an_adopted_round_needs_a_majority() {
    let mut t = adopted();
    assert!(t.job_state.is_adopted);
    t.live(&["a"], 10 * SECOND);
    let why = "recovering a round that this coordinator has no state of: 1 of at least 2 nodes have \
         registered, 590 s left";
    assert_eq!(t.why(), why);
    t.restart_coordinator();
    let mut registration = t.registration_of("a", ready());
    registration.known_round = known_round(t.rounds["a"], 3, 0);
    t.register_with(registration);
    t.live(&["a"], 600 * SECOND);
    let result = t.outcome().expect("closed").result;
    assert_eq!(result, JobResult::RecoveryTimeout { present: 1, needed: 2, waited: 600 * SECOND });
}

/// Nodes that replace others count towards the majority. The round that follows is this coordinator's
/// own.
#[test]
fn newcomers_make_up_the_majority_of_an_adopted_round() {
    let mut t = adopted();
    t.live(&["a"], 10 * SECOND);
    let did = t.join("x");
    assert!(
        did.contains(&Did::Admit("a", 2, 0)) && did.contains(&Did::Admit("x", 2, 1)),
        "{did:?}"
    );
    assert!(!t.job_state.is_adopted);
}

/// A higher round that a node knows counts, and so do its charges and a higher term.
#[test]
fn higher_round_is_learned() {
    let mut t = restarted(&["a"]);
    let mut registration = t.registration_of("a", NodeState::Running);
    let round = RoundId { term: Term(7), round: Round(9) };
    registration.known_round = known_round(round, 1, 0);
    registration.report.round = round;
    registration.charged_through = Round(8);
    registration.restarts_used = 2;
    let did = t.register_with(registration);
    assert_eq!(did, [Did::Remember(9, 2), Did::Welcome("a"), Did::Restart("a", 9)]);
    assert_eq!(t.job_state.term, Term(8));
    t.rounds.insert("a".to_owned(), round);
    assert_eq!(t.back("a"), [Did::Remember(10, 2), Did::Admit("a", 10, 0)]);
}

/// A round that is missing in the state file is recovered like any other.
#[test]
fn round_that_is_only_reported_is_recovered() {
    let mut t = Fixture::new(1, 2);
    let mut registration = t.registration_of("a", NodeState::Running);
    let round = RoundId { term: Term(1), round: Round(1) };
    registration.known_round = known_round(round, 2, 0);
    registration.report.round = round;
    t.rounds.insert("a".to_owned(), round);
    assert_eq!(
        t.register_with(registration),
        [Did::Remember(1, 0), Did::Welcome("a"), Did::Restart("a", 1)]
    );
    assert_eq!(t.back("a"), [Did::Wait("a", WaitReason::Recovering)]);
}

/// Numbers that leave no room for a next one are ignored.
#[test]
fn absurd_numbers_are_not_believed() {
    let mut t = Fixture::new(1, 1);
    let mut registration = t.registration_of("a", ready());
    let round = RoundId { term: Term(u64::MAX), round: Round(u64::MAX) };
    registration.known_round = known_round(round, u32::MAX, u32::MAX);
    registration.stream = StreamNumber(1);
    let did = t.register_with(registration);
    assert_eq!(did, [Did::Welcome("a"), Did::Remember(1, 0), Did::Admit("a", 1, 0)]);
}

/// The claims of an agent count only if it belongs to this run.
#[test]
fn claims_of_another_run_do_not_count() {
    let mut t = Fixture::new(1, 2);
    t.run(&["a"]);
    t.restart_coordinator();
    let mut registration = t.registration_of("x", ready());
    registration.known_round = known_round(RoundId { term: Term(9), round: Round(99) }, 1, 0);
    registration.restarts_used = 3;
    registration.charged_through = Round(99);
    t.machine.handle_registration(t.now, registration);
    assert_eq!(t.drain(), [Did::Welcome("x"), Did::Wait("x", WaitReason::Recovering)]);
    assert_eq!((t.job_state.round, t.job_state.term), (Round(1), Term(2)));
    assert_eq!((t.job_state.restarts_used, t.job_state.charged_through), (0, Round(0)));
    assert_eq!(t.why(), "recovering: 0 of 1 members of the last round have registered, 5 s left");
}

/// Once the coordinator has completed a round, no claim counts, not even of an agent that names the
/// run: a foreign agent that was welcomed before knows its uid.
#[test]
fn claims_do_not_count_in_a_running_round() {
    let mut t = Fixture::new(1, 2);
    t.run(&["a"]);
    let mut registration = t.registration_of("x", ready());
    registration.job_uid = Some(t.job_state.job_uid.clone());
    registration.known_round = known_round(RoundId { term: Term(1), round: Round(99) }, 1, 0);
    registration.restarts_used = 3;
    registration.charged_through = Round(99);
    t.machine.handle_registration(t.now, registration);
    t.drain();
    assert_eq!((t.job_state.round, t.job_state.is_adopted), (Round(1), false));
    assert_eq!((t.job_state.restarts_used, t.job_state.charged_through), (0, Round(0)));
}

/// Claims of rounds that are implausibly far ahead are ignored.
#[test]
fn far_rounds_are_not_believed() {
    for (ahead, is_believed) in [(1 << 20, true), ((1 << 20) + 1, false)] {
        let mut t = restarted(&["a"]);
        let mut registration = t.registration_of("x", ready());
        registration.known_round =
            known_round(RoundId { term: Term(1), round: Round(1 + ahead) }, 1, 0);
        t.register_with(registration);
        assert_eq!(t.job_state.round != Round(1), is_believed);
    }
}

/// Registers an agent of an earlier run with this uid, ready again, a member of a round of two.
fn register_from(t: &mut Fixture, name: &'static str, uid: &str, rank: u32) -> Vec<Did> {
    let mut registration = t.registration_of(name, ready());
    let round = RoundId { term: Term(3), round: Round(8) };
    registration.job_uid = Some(JobUid::new(uid));
    registration.known_round = known_round(round, 2, rank);
    registration.report.round = round;
    registration.restarts_used = 2;
    registration.charged_through = Round(7);
    t.rounds.insert(name.to_owned(), round);
    t.register_with(registration)
}

/// A host that lost its state adopts the run of the first member that registers: its uid, its round
/// and its charges. Nodes that came before register again and learn the uid.
#[test]
fn coordinator_without_state_adopts_the_run_of_a_member() {
    let mut t = Fixture::new(2, 2).host("x");
    t.join("x");
    let did = register_from(&mut t, "b", "earlier", 1);
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
    assert_eq!(t.job_state.job_uid, JobUid::new("earlier"));
    assert!(t.job_state.is_adopted && t.job_state.term > Term(3));
    // The waiting node registers again, with the uid that it received before.
    let mut registration = t.registration_of("x", ready());
    registration.job_uid = Some(JobUid::new("uid"));
    let wait = Did::Wait("x", WaitReason::Recovering);
    assert_eq!(t.register_with(registration), [Did::Welcome("x"), wait]);
    // For all that the coordinator knows, the node was in round 8.
    assert_eq!(t.back("x"), [Did::Evict("x", EvictReason::Silent)]);
    t.reopen("x");
    assert_eq!(t.live(&["b", "x"], 4 * SECOND), []);
    let did = t.live(&["b", "x"], SECOND);
    assert_eq!(did, [Did::Remember(9, 2), Did::Admit("b", 9, 0), Did::Admit("x", 9, 1)]);
    assert_eq!(t.admissions["b"].restart_count, 2);
}

/// The coordinator learns of a later round while it recovers an earlier one. A node that has been ready since then may have been in the
/// later round without its knowledge. It opens another store, and then counts.
#[test]
fn store_of_a_round_that_is_learned_late_is_replaced() {
    let mut t = Fixture::new(2, 2);
    let round = |number| RoundId { term: Term(3), round: Round(number) };
    let mut registration = t.registration_of("x", ready());
    registration.job_uid = Some(JobUid::new("earlier"));
    registration.known_round = known_round(round(7), 2, 0);
    registration.report.round = round(7);
    t.rounds.insert("x".to_owned(), round(7));
    t.register_with(registration);
    t.back("x");
    let did = register_from(&mut t, "b", "earlier", 1);
    assert!(did.contains(&Did::Evict("x", EvictReason::Silent)), "{did:?}");
    t.reopen("x");
    t.live(&["b", "x"], 5 * SECOND);
    assert_eq!(t.job_state.round, Round(9), "a round of both");
}

/// The claimed size of an adopted round is at most MAX: a larger one would never have a majority.
#[test]
fn claimed_size_is_bounded() {
    let mut t = Fixture::new(1, 2);
    let mut registration = t.registration_of("a", ready());
    let round = RoundId { term: Term(3), round: Round(8) };
    registration.job_uid = Some(JobUid::new("earlier"));
    registration.known_round = known_round(round, 1000, 0);
    registration.report.round = round;
    t.rounds.insert("a".to_owned(), round);
    t.register_with(registration);
    assert_eq!((t.job_state.round, t.job_state.round_size), (Round(8), 2));
    assert!(t.why().starts_with("recovering: 1 of 2 members"), "{}", t.why());
}

/// Only one run is adopted, and none by a coordinator that has a round of its own.
#[test]
fn second_run_is_refused() {
    let refused = |name| [Did::Refuse(name, RefuseReason::EarlierRun)];
    let mut t = Fixture::new(2, 2);
    register_from(&mut t, "a", "earlier", 0);
    assert_eq!(register_from(&mut t, "b", "another", 1), refused("b"));
    let mut t = Fixture::new(1, 1);
    t.run(&["a"]);
    assert_eq!(register_from(&mut t, "b", "earlier", 0), refused("b"));
}

/// A run is not adopted from an agent that does not name a round: its state is unknown.
#[test]
fn run_without_a_round_is_refused() {
    let mut t = Fixture::new(2, 2);
    let mut registration = t.registration_of("a", ready());
    registration.job_uid = Some(JobUid::new("earlier"));
    assert_eq!(t.register_with(registration), [Did::Refuse("a", RefuseReason::EarlierRun)]);
}
