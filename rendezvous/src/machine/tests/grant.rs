//! A coordinator that was elected: its lease, registrations with it, and what it waits for.

use std::time::Duration;

use super::fixture::{Did, Fixture, SECOND, keep_alive, known_round, ready};
use crate::{
    Rendezvous,
    effect::Effect,
    grant::Grant,
    ids::{JobUid, NodeId, Round, RoundId, Term, VoterAddress},
    limits::TERMS_AHEAD_MAX,
    message::{Assignment, FromNode, NodeState, RestartReason, ToNode, WaitReason},
};

/// The term of the elected coordinator, far above that of the first one.
const TERM: Term = Term(9 << 16);

/// Ends the coordinator, and elects another one. `former` is the leader before, and workers under it may run for
/// `others`.
pub(super) fn take_over(t: &mut Fixture, others: Duration, former: Option<&str>) {
    let elected = Grant {
        term: TERM,
        until: t.now + 3_600 * SECOND,
        workers_until: t.now + others,
        former: former.map(NodeId::new),
    };
    t.machine = Rendezvous::new(t.now, t.settings.clone(), t.job_state.clone(), Some(elected));
    t.drain();
}

/// Starts a job whose groups shrink at once.
fn job(size: u32) -> Fixture {
    Fixture::with(1, size, |shared| shared.timeouts.shrink = Duration::ZERO)
}

/// Creates an elected coordinator that takes over a round of `names`.
fn taken_over(names: &[&'static str], others: Duration) -> Fixture {
    let size = u32::try_from(names.len()).expect("few");
    let mut t = job(size);
    t.run(names);
    take_over(&mut t, others, None);
    t
}

/// Registers `name`, which runs workers of the last round, and stops them.
fn come_back(t: &mut Fixture, name: &'static str) -> Vec<Did> {
    let mut did = t.register(name, NodeState::Running);
    did.extend(t.report(name, NodeState::Running));
    did.extend(t.back(name));
    did
}

/// A node claims a term that is too far ahead of the elected coordinator's. The coordinator does not believe it, and leads on.
#[test]
fn claim_of_a_far_term_is_not_believed() {
    let mut t = taken_over(&["a"], Duration::ZERO);
    let mut registration = t.registration_of("b", ready());
    let far = Term(TERM.0 + TERMS_AHEAD_MAX + 1);
    registration.known_round = known_round(RoundId { term: far, round: Round(1) }, 1, 0);
    let mut did = t.register_with(registration);
    did.extend(t.back("b"));
    assert!(!did.iter().any(|did| matches!(did, Did::Resign(_))), "{did:?}");
}

/// A node that has not reported since its welcome is not registered: its registration may be old.
#[test]
fn report_after_the_welcome_counts() {
    let mut t = taken_over(&["a", "b"], Duration::ZERO);
    assert_eq!(t.join("a"), [Did::Welcome("a")]);
    assert_eq!(t.join("b"), [Did::Welcome("b")]);
    assert_eq!(t.machine.snapshot(t.now).nodes.len(), 0);
    assert_eq!(t.back("a"), [Did::Wait("a", WaitReason::Recovering)]);
    let did = t.back("b");
    assert!(
        did.contains(&Did::Admit("a", 2, 0)) && did.contains(&Did::Admit("b", 2, 1)),
        "{did:?}"
    );
    assert_eq!(t.rounds["a"].term, TERM);
}

/// Until then its keep-alives are not echoed, which would extend the lease of workers that are not waited for. A node
/// that reports nothing for a lease is dropped.
#[test]
fn silent_node_is_dropped() {
    let mut t = taken_over(&["a", "b"], Duration::ZERO);
    t.join("a");
    assert_eq!(t.message("a", keep_alive(true, None, None)), []);
    assert_eq!(t.advance(3 * SECOND), [Did::HangUp("a")]);
    assert_eq!(t.back("a"), [], "the stream has ended");
}

/// Workers of a node that was welcomed may run for a lease, and are waited for, also if its stream ends.
#[test]
fn recovery_waits_for_welcomed_nodes() {
    let mut t = taken_over(&["a", "b", "c"], Duration::ZERO);
    come_back(&mut t, "a");
    come_back(&mut t, "b");
    t.live(&["a", "b"], SECOND / 2);
    t.register("c", NodeState::Running);
    let peer = t.peer("c");
    t.machine.handle_detached(t.now, peer);
    assert!(!t.live(&["a", "b"], 2 * SECOND).contains(&Did::Admit("a", 2, 0)));
    assert!(t.live(&["a", "b"], SECOND).contains(&Did::Admit("a", 2, 0)));
}

/// A newcomer that was welcomed, and has reported nothing since, has no workers: the recovery does not wait for it.
#[test]
fn newcomers_do_not_delay_the_recovery() {
    let mut t = taken_over(&["a", "b", "c"], Duration::ZERO);
    come_back(&mut t, "a");
    come_back(&mut t, "b");
    t.live(&["a", "b"], SECOND / 2);
    assert_eq!(t.join("d"), [Did::Welcome("d")]);
    assert!(t.live(&["a", "b"], SECOND).contains(&Did::Admit("a", 2, 0)));
}

/// A member that opens another stream is welcomed there, which extends the lease of its workers: it is not lost before
/// that lease is over, even if nothing more arrives on either stream.
#[test]
fn welcome_on_another_stream_extends_the_lease_of_a_member() {
    let mut t = taken_over(&["a", "b"], Duration::ZERO);
    come_back(&mut t, "a");
    come_back(&mut t, "b");
    for name in ["a", "b"] {
        t.report(name, NodeState::Running);
    }
    t.live(&["a"], 2 * SECOND);
    assert_eq!(t.register("b", NodeState::Running), [Did::Welcome("b")]);
    let did = t.live(&["a"], 2 * SECOND);
    assert!(did.iter().all(|did| *did == Did::Echo("a")), "the workers of `b` may run: {did:?}");
}

/// A node that has been in a later round since it registered registers again.
#[test]
fn registration_older_than_the_round_is_repeated() {
    let mut t = taken_over(&["a", "b"], Duration::ZERO);
    t.register("a", NodeState::Running);
    t.rounds.insert("a".to_owned(), RoundId { term: Term(5), round: Round(7) });
    assert_eq!(t.report("a", NodeState::Running), [Did::HangUp("a")]);
}

/// A node counts once, in both orders of its death notice and its report.
#[test]
fn dead_member_counts_once() {
    let mut t = taken_over(&["a", "b", "c"], 2 * SECOND);
    come_back(&mut t, "b");
    t.register("c", NodeState::Running);
    t.death_notice("c");
    assert_eq!(t.report("c", NodeState::Running), [], "it is not registered");
    assert!(!t.live(&["b"], SECOND).contains(&Did::Admit("b", 2, 0)), "`a` may run");
}

/// The reasons for a refusal are checked again when the node is registered.
#[test]
fn fixed_rank_is_taken_once() {
    let mut t = Fixture::with(2, 2, |shared| shared.fixed_ranks = true);
    take_over(&mut t, Duration::ZERO, None);
    for name in ["a", "b"] {
        let mut registration = t.registration_of(name, ready());
        registration.node.node_rank = Some(1);
        t.register_with(registration);
    }
    t.back("a");
    let did = t.back("b");
    assert!(matches!(did[..], [Did::Refuse("b", _)]), "{did:?}");
}

/// Only the newest stream of a node can register it.
#[test]
fn earlier_stream_does_not_register() {
    let mut t = taken_over(&["a", "b"], Duration::ZERO);
    let first = t.registration_of("a", ready());
    t.register_with(first.clone());
    t.join("a");
    let report = t.node_report("a", ready(), None);
    t.machine.handle_message(t.now, first.peer(), report);
    assert_eq!(t.drain(), []);
    assert_eq!(t.back("a"), [Did::Wait("a", WaitReason::Recovering)]);
}

/// Members that do not come back are waited for until workers of earlier leaders have ended, and for a second at least.
#[test]
fn recovery_waits_for_workers_of_earlier_leaders() {
    for (others, wait) in [(Duration::ZERO, SECOND), (2 * SECOND, 2 * SECOND)] {
        let mut t = taken_over(&["a", "b", "c"], others);
        come_back(&mut t, "a");
        come_back(&mut t, "b");
        let ms = Duration::from_millis(1);
        assert_eq!(t.advance(wait - ms), [], "others run for {others:?}");
        let did = t.advance(ms);
        assert!(did.contains(&Did::Admit("a", 2, 0)), "{did:?}");
    }
}

/// The coordinator does not wait if each other member is known to have no process.
#[test]
fn death_notices_end_the_recovery() {
    let mut t = taken_over(&["a", "b", "c"], 3 * SECOND);
    come_back(&mut t, "a");
    t.death_notice("b");
    let did = t.death_notice("c");
    assert!(did.contains(&Did::Admit("a", 2, 0)), "{did:?}");
}

/// A member that has left counts once, even if its death notice follows.
#[test]
fn member_that_left_counts_once() {
    let mut t = taken_over(&["a", "b", "c"], 3 * SECOND);
    t.register("b", NodeState::Running);
    t.report("b", NodeState::Leaving { reaped: true });
    t.message("b", FromNode::Goodbye);
    t.death_notice("b");
    let did = come_back(&mut t, "a");
    assert!(!did.contains(&Did::Admit("a", 2, 0)), "`c` may run: {did:?}");
    let did = t.death_notice("c");
    assert!(did.contains(&Did::Admit("a", 2, 0)), "{did:?}");
}

/// A death notice of an earlier round proves nothing about this one.
#[test]
fn death_notice_of_an_earlier_round_is_not_counted() {
    let mut t = taken_over(&["a", "b"], 3 * SECOND);
    come_back(&mut t, "a");
    t.machine.handle_death_notice(t.now, &NodeId::new("b"), Round(0));
    assert_eq!(t.drain(), []);
}

/// A member that has died does not count as succeeded.
#[test]
fn dead_member_has_not_succeeded() {
    let mut t = taken_over(&["a", "b"], 3 * SECOND);
    t.register("a", NodeState::Succeeded);
    t.report("a", NodeState::Succeeded);
    let did = t.death_notice("b");
    assert_eq!(did, [Did::Restart("a", 1)]);
}

/// The agent of the former leader is not waited for if its leadership has ended by itself.
#[test]
fn former_leader_is_gone_with_its_lease() {
    for (others, is_gone) in [(Duration::ZERO, true), (SECOND, false)] {
        let mut t = job(2).host("a");
        t.run(&["a", "b"]);
        take_over(&mut t, others, Some("a"));
        t.settings.host = None;
        let did = come_back(&mut t, "b");
        assert_eq!(did.contains(&Did::Admit("b", 2, 0)), is_gone, "{did:?}");
    }
}

/// Members are informed that the coordinator was lost, and on which host, if another process has led before.
#[test]
fn takeover_names_the_lost_host() {
    let lost = |host_name: Option<&str>| RestartReason::CoordinatorLost {
        host_name: host_name.map(str::to_owned),
    };
    for (former, reason) in [
        (Some("a"), lost(Some("a"))),
        (Some("x"), lost(None)),
        (Some("b"), RestartReason::CoordinatorRestarted),
        (None, RestartReason::CoordinatorRestarted),
    ] {
        let mut t = job(3).host("a");
        t.run(&["a", "b", "c"]);
        t.settings.host = Some(NodeId::new("b"));
        take_over(&mut t, Duration::ZERO, former);
        t.register("c", NodeState::Running);
        let (peer, report) = (t.peer("c"), t.node_report("c", NodeState::Running, None));
        t.machine.handle_message(t.now, peer, report);
        let reasons =
            std::iter::from_fn(|| t.machine.poll_effect()).find_map(|effect| match effect {
                Effect::Send {
                    message: ToNode::Assignment(Assignment::Restart { reason, .. }),
                    ..
                } => Some(reason),
                _ => None,
            });
        assert_eq!(reasons, Some(reason), "{former:?}");
    }
}

/// A takeover is not charged.
#[test]
fn takeover_is_free() {
    let mut t = job(2).host("a");
    t.run(&["a", "b"]);
    t.settings.host = None;
    take_over(&mut t, Duration::ZERO, Some("a"));
    let did = come_back(&mut t, "b");
    assert!(did.contains(&Did::Remember(2, 0)), "{did:?}");
    assert_eq!(t.job_state.free_rounds, 1);
}

/// The loss of a leader is not counted against its successor, which is on another host.
#[test]
fn successor_is_not_quarantined() {
    let mut t = job(3).host("a");
    t.run(&["a", "b", "c"]);
    t.settings.host = Some(NodeId::new("b"));
    for takeover in 1..=4 {
        take_over(&mut t, Duration::ZERO, Some("a"));
        come_back(&mut t, "b");
        let did = come_back(&mut t, "c");
        assert!(did.contains(&Did::Admit("b", 1 + takeover, 0)), "{did:?}");
    }
}

/// A round that was learned from a node needs no majority: an elected coordinator is the only one.
#[test]
fn adopted_round_needs_no_majority() {
    let mut t = job(3);
    take_over(&mut t, Duration::ZERO, None);
    let mut registration = t.registration_of("a", ready());
    let round = RoundId { term: Term(1), round: Round(1) };
    registration.known_round = known_round(round, 3, 0);
    registration.report.round = round;
    t.rounds.insert("a".to_owned(), round);
    t.register_with(registration);
    t.back("a");
    let did = t.live(&["a"], 2 * SECOND);
    assert!(did.contains(&Did::Admit("a", 2, 0)), "{did:?}");
}

/// A coordinator below a term that a node knows ends, and names the term.
#[test]
fn higher_term_ends_the_coordinator() {
    let mut t = taken_over(&["a"], Duration::ZERO);
    let mut registration = t.registration_of("a", ready());
    let term = Term(TERM.0 + 1);
    registration.known_round = known_round(RoundId { term, round: Round(1) }, 1, 0);
    assert_eq!(t.register_with(registration), [Did::Resign(term.0)]);
    assert_eq!(t.join("a"), [], "it handles nothing any more");
}

/// Nothing is sent after the end of the lease, and an extension moves the end.
#[test]
fn coordinator_ends_with_its_lease() {
    let mut t = taken_over(&["a"], Duration::ZERO);
    let elected = Grant { term: TERM, until: t.now + SECOND, workers_until: t.now, former: None };
    let (settings, job_state) = (t.settings.clone(), t.job_state.clone());
    t.machine = Rendezvous::new(t.now, settings, job_state, Some(elected));
    t.drain();
    t.machine.handle_extended(t.now, t.now + 2 * SECOND);
    assert_eq!(t.advance(SECOND), []);
    assert_eq!(t.join("a"), [Did::Welcome("a")]);
    t.now += SECOND;
    assert_eq!(t.back("a"), [Did::Finish], "the lease has ended first");
    assert_eq!(t.join("a"), []);
}

/// Welcome and echo contain what is left of the lease, which bounds that of the workers.
#[test]
fn lease_left_is_sent() {
    let mut t = taken_over(&["a"], Duration::ZERO);
    let registration = t.registration_of("a", ready());
    let peer = registration.peer();
    t.machine.handle_registration(t.now, registration);
    let left = |effect| match effect {
        Some(Effect::Send { message: ToNode::Welcome(welcome), .. }) => welcome.lease_left,
        Some(Effect::Send { message: ToNode::Echo { lease_left, .. }, .. }) => lease_left,
        other => panic!("{other:?}"),
    };
    assert_eq!(left(t.machine.poll_effect()), Some(3_600 * SECOND));
    t.now += SECOND;
    t.back("a");
    t.machine.handle_message(t.now, peer, keep_alive(false, None, None));
    assert_eq!(left(t.machine.poll_effect()), Some(3_599 * SECOND));
}

/// At the end of a job, an elected coordinator waits for a member that is not registered at that moment: a successor
/// would not know that the member does not have the outcome yet.
#[test]
fn unregistered_members_are_informed() {
    let mut t = taken_over(&["a", "b"], Duration::ZERO);
    come_back(&mut t, "a");
    let mut did = t.report("a", NodeState::Leaving { reaped: true });
    did.extend(t.live(&["a"], 2 * SECOND));
    assert!(did.contains(&Did::Close("a")), "all registered nodes leave: {did:?}");
    assert!(!t.message("a", FromNode::Goodbye).contains(&Did::Finish));
    assert!(is_informed(&t.register("b", NodeState::Stopping)));
    assert_eq!(t.advance(5 * SECOND), [Did::Finish]);
}

/// Returns true if a node was refused with the outcome of the job.
fn is_informed(did: &[Did]) -> bool {
    matches!(did, [Did::Refuse(_, crate::message::RefuseReason::Closed(_))])
}

/// A job that an earlier leader has closed is not begun again by its successor, even if no node is registered yet.
#[test]
fn closed_job_stays_closed_after_a_takeover() {
    let mut t = job(2);
    t.run(&["a", "b"]);
    for name in ["a", "b"] {
        t.report(name, NodeState::Succeeded);
    }
    assert!(t.job_state.closed.is_some());
    take_over(&mut t, Duration::ZERO, Some("x"));
    assert!(!t.advance(2 * SECOND).contains(&Did::Finish));
    assert!(t.machine.poll_timeout().is_none_or(|at| at > t.now), "it waits for a node");
    assert!(is_informed(&t.register("b", NodeState::Succeeded)));
}

/// New voters begin a new run, although one of them has a copy of an earlier run that was closed.
#[test]
fn new_voters_begin_a_new_run() {
    let mut t = job(2);
    t.run(&["a", "b"]);
    for name in ["a", "b"] {
        t.report(name, NodeState::Succeeded);
    }
    take_over(&mut t, Duration::ZERO, None);
    t.advance(2 * SECOND);
    assert!(t.job_state.closed.is_none());
}

/// Voters of a closed job forget it when nodes of a new run register, none of the old one is left, and a lease is over.
#[test]
fn newcomer_begins_no_run_with_the_voters_of_a_closed_job() {
    let mut t = job(1);
    t.run(&["a"]);
    t.report("a", NodeState::Succeeded);
    assert!(t.job_state.closed.is_some());
    t.settings.voters = vec![VoterAddress::new("n1:1")];
    take_over(&mut t, Duration::ZERO, Some("x"));
    t.join("b");
    let mut did = t.back("b");
    did.extend(t.live(&["b"], 2 * SECOND));
    assert!(did.contains(&Did::Forget), "{did:?}");
}

/// A coordinator without an agent that is elected after the job was closed ends, although no node registers.
#[test]
fn closed_job_ends_without_nodes() {
    let mut t = job(1);
    t.run(&["a"]);
    t.report("a", NodeState::Succeeded);
    t.settings.shared = None;
    take_over(&mut t, Duration::ZERO, Some("x"));
    assert!(t.advance(10 * SECOND).contains(&Did::Finish));
}

/// A node whose registration is older than its round may have workers, which the welcome lets run.
#[test]
fn workers_of_an_old_registration_are_waited_for() {
    let mut t = taken_over(&["a", "b", "c"], Duration::ZERO);
    come_back(&mut t, "a");
    come_back(&mut t, "b");
    t.live(&["a", "b"], SECOND / 2);
    t.register("c", NodeState::Running);
    let (peer, mut report) = (t.peer("c"), t.node_report("c", NodeState::Running, None));
    report = match report {
        FromNode::NodeReport(mut report) => {
            report.round.round.0 += 1;
            FromNode::NodeReport(report)
        }
        other => other,
    };
    t.machine.handle_message(t.now, peer, report);
    assert_eq!(t.drain(), [Did::HangUp("c")]);
    assert!(!t.live(&["a", "b"], 2 * SECOND).contains(&Did::Admit("a", 2, 0)));
    assert!(t.live(&["a", "b"], SECOND).contains(&Did::Admit("a", 2, 0)));
}

/// An elected coordinator without a round neither adopts the job of a node that has one nor refuses the node: its voters
/// lead that job.
#[test]
fn node_of_a_job_with_a_round_looks_elsewhere() {
    let mut t = job(3);
    t.settings.voters = vec![VoterAddress::new("n0:1")];
    take_over(&mut t, Duration::ZERO, None);
    let mut registration = t.registration_of("a", ready());
    let round = RoundId { term: Term(1), round: Round(4) };
    registration.known_round = known_round(round, 3, 0);
    registration.job_uid = Some(JobUid::new("another"));
    assert_eq!(t.register_with(registration), [Did::HangUp("a")]);
}
