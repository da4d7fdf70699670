//! The first round of a job: it waits until an earlier job of the same name would have been reported. Two jobs of one
//! name, of which the younger one closes.

use std::time::Duration;

use super::{
    fixture::{Did, Fixture, SECOND, describe, known_round, ready},
    grant::take_over,
    recovery::restarted,
};
use crate::{
    heir::{Member, MembersReport},
    ids::{JobUid, Round, RoundId, Term, VoterAddress, VoterId},
    message::{FromNode, JobResult, NodeState, RefuseReason, WaitReason},
    settings::Leases,
    voter_count::VoterCount,
};

/// The age at which a node takes part in a first round.
fn age() -> Duration {
    Leases::default().coordinator
}

/// Opens a stream of `name`, which is ready, and whose agent could have learned of an earlier job for `waited`.
fn join_after(t: &mut Fixture, name: &'static str, waited: Duration) -> Vec<Did> {
    let mut registration = t.registration_of(name, ready());
    registration.waited = waited;
    t.register_with(registration)
}

fn admits(did: &[Did]) -> bool {
    did.iter().any(|did| matches!(did, Did::Admit(..)))
}

/// A job whose last call lasts a second.
fn gathering(min: u32, max: u32) -> Fixture {
    Fixture::with(min, max, |shared| shared.timeouts.last_call = SECOND)
}

/// A young node takes part in no first round, although MAX nodes are there, until it is old enough: it could not have
/// learned of an earlier job yet.
#[test]
fn young_node_waits_until_it_is_old_enough() {
    let mut t = Fixture::new(2, 2);
    t.join("a");
    let wait = Did::Wait("b", WaitReason::Gathering);
    assert_eq!(join_after(&mut t, "b", age() - 2 * SECOND), [Did::Welcome("b"), wait]);
    assert_eq!(t.live(&["a", "b"], 2 * SECOND - MS), []);
    let complete = [Did::Remember(1, 0), Did::Admit("a", 1, 0), Did::Admit("b", 1, 1)];
    assert_eq!(t.live(&["a", "b"], MS), complete);
}

/// A node that is exactly old enough does not wait.
#[test]
fn node_that_is_old_enough_takes_part_at_once() {
    let mut t = Fixture::new(1, 1);
    assert!(!admits(&join_after(&mut t, "a", age() - MS)));
    assert_eq!(t.advance(MS), [Did::Remember(1, 0), Did::Admit("a", 1, 0)]);
    let mut t = Fixture::new(1, 1);
    assert!(admits(&join_after(&mut t, "a", age())));
}

/// While enough nodes are there, the job waits for the later of two times: all are old enough, or the last call is over. `why` names
/// that one.
#[test]
fn wait_for_the_first_round_is_explained() {
    let mut t = Fixture::with(2, 4, |shared| shared.timeouts.last_call = 30 * SECOND);
    join_after(&mut t, "a", Duration::ZERO);
    assert!(t.why().starts_with("waiting for 1 more node"), "{}", t.why());
    join_after(&mut t, "b", Duration::ZERO);
    assert!(t.why().starts_with("last call"), "{}", t.why());
    let mut t = Fixture::with(2, 4, |shared| shared.timeouts.last_call = SECOND);
    join_after(&mut t, "a", Duration::ZERO);
    join_after(&mut t, "b", Duration::ZERO);
    let left = age().as_secs();
    let listens = format!("making sure that no earlier job of this name still runs, {left} s left");
    assert_eq!(t.why(), listens);
}

/// A node that is too young counts as present when the job gives up.
#[test]
fn young_node_counts_when_the_job_gives_up() {
    let mut t = Fixture::new(3, 3);
    t.join("a");
    t.live(&["a"], 599 * SECOND);
    join_after(&mut t, "b", Duration::ZERO);
    t.live(&["a", "b"], SECOND);
    let result = t.outcome().expect("closed").result;
    assert!(matches!(result, JobResult::JoinTimeout { present: 2, .. }), "{result:?}");
}

/// A first round does not wait for a young node, and that node takes part in the next one.
#[test]
fn round_does_not_wait_for_a_young_node() {
    let mut t = Fixture::with(2, 3, |shared| {
        shared.timeouts.last_call = SECOND;
        shared.timeouts.join_settle = SECOND;
    });
    t.join("a");
    t.join("b");
    join_after(&mut t, "c", Duration::ZERO);
    let did = t.live(&["a", "b", "c"], SECOND);
    assert!(did.contains(&Did::Admit("b", 1, 1)) && !t.admissions.contains_key("c"), "{did:?}");
    for name in ["a", "b"] {
        t.report(name, NodeState::Running);
    }
    let did = t.live(&["a", "b", "c"], SECOND);
    assert!(did.contains(&Did::Restart("a", 1)), "a newcomer waits: {did:?}");
    t.back("a");
    assert!(t.back("b").contains(&Did::Admit("c", 2, 2)));
}

/// Nodes that are old enough, and as many as a round may have, do not wait for anything.
#[test]
fn enough_old_nodes_begin_at_once() {
    let mut t = Fixture::new(1, 2);
    join_after(&mut t, "c", Duration::ZERO);
    t.join("a");
    let complete = [Did::Remember(1, 0), Did::Admit("a", 1, 0), Did::Admit("b", 1, 1)];
    let others = [Did::Wait("c", WaitReason::Spare)];
    assert_eq!(t.join("b"), [&[Did::Welcome("b")][..], &complete, &others].concat());
}

/// The last call begins with young nodes: they are old enough before it is over, or soon after.
#[test]
fn young_nodes_count_for_the_last_call() {
    for last_call in [SECOND, 10 * SECOND] {
        let mut t = Fixture::with(2, 4, |shared| shared.timeouts.last_call = last_call);
        join_after(&mut t, "a", Duration::ZERO);
        join_after(&mut t, "b", Duration::ZERO);
        let begins = last_call.max(age());
        assert_eq!(t.live(&["a", "b"], begins - MS), []);
        assert!(admits(&t.live(&["a", "b"], MS)), "{last_call:?}");
    }
}

/// A node that opens another stream is as old as it then reports.
#[test]
fn later_stream_reports_a_greater_age() {
    let mut t = Fixture::new(1, 1);
    join_after(&mut t, "a", Duration::ZERO);
    t.live(&["a"], SECOND);
    assert!(!admits(&join_after(&mut t, "a", SECOND)));
    assert!(!admits(&t.live(&["a"], age() - SECOND - MS)));
    assert!(admits(&t.live(&["a"], MS)));
    let mut t = Fixture::new(1, 1);
    join_after(&mut t, "a", Duration::ZERO);
    assert!(admits(&join_after(&mut t, "a", age())));
}

/// A young node that is lost is waited for no longer.
#[test]
fn lost_young_node_is_forgotten() {
    let mut t = gathering(2, 2);
    t.join("a");
    join_after(&mut t, "b", Duration::ZERO);
    t.die("b");
    assert!(!admits(&t.live(&["a"], 10 * SECOND)));
    assert!(admits(&t.join("b")));
}

/// Young nodes take part in every later round: the job exists.
#[test]
fn young_nodes_take_part_in_later_rounds() {
    let mut t = restarted(&["a", "b"]);
    join_after(&mut t, "a", Duration::ZERO);
    assert!(admits(&join_after(&mut t, "b", Duration::ZERO)));

    let mut t = Fixture::with(1, 2, |shared| shared.timeouts.join_settle = SECOND);
    t.run(&["a"]);
    join_after(&mut t, "b", Duration::ZERO);
    assert!(t.live(&["a", "b"], SECOND).contains(&Did::Restart("a", 1)));
    assert!(t.back("a").contains(&Did::Admit("b", 2, 1)));
}

/// No first round is completed before the time at which the job may begin, although MAX nodes are there, and then at
/// once.
#[test]
fn first_round_waits_until_the_job_may_begin() {
    for (min, names) in [(1, &["a"][..]), (2, &["a", "b"])] {
        let mut t = gathering(min, 2);
        t.settings.begins_at = Some(t.now + 5 * SECOND);
        t.restart_coordinator();
        for name in names {
            t.join(name);
        }
        assert_eq!(t.live(names, 5 * SECOND - MS), []);
        assert!(admits(&t.live(names, MS)), "{names:?}");
    }
}

/// A later round is completed whether the job may begin or not: it has begun.
#[test]
fn later_round_does_not_wait_until_the_job_may_begin() {
    let mut t = Fixture::new(1, 2);
    t.run(&["a", "b"]);
    t.settings.begins_at = Some(t.now + 3_600 * SECOND);
    t.restart_coordinator();
    t.join("a");
    assert!(admits(&t.join("b")));
}

/// No first round is completed while another job of this name may run, although MAX nodes are there. It is completed as
/// soon as none is left.
#[test]
fn other_jobs_hold_the_first_round() {
    for (min, names) in [(1, &["a"][..]), (2, &["a", "b"])] {
        let mut t = gathering(min, 2);
        let others = ["job x at n1:1", "job y at n2:1"].map(str::to_owned);
        t.machine.handle_other_jobs(t.now, others.to_vec());
        for name in names {
            t.join(name);
        }
        assert_eq!(t.live(names, 20 * SECOND), []);
        t.machine.handle_other_jobs(t.now, others[..1].to_vec());
        assert_eq!(t.live(names, 20 * SECOND), []);
        t.machine.handle_other_jobs(t.now, Vec::new());
        assert!(admits(&t.drain()), "{names:?}");
    }
}

/// While another job may run, the job is closed after the join timeout, and the outcome names that job. A last call that has begun before
/// is waited for.
#[test]
fn join_timeout_waits_for_the_last_call() {
    let mut t = Fixture::with(2, 3, |shared| {
        shared.timeouts.last_call = SECOND;
        shared.timeouts.join = 10 * SECOND;
    });
    t.machine.handle_other_jobs(t.now, vec!["job x at n1:1".to_owned()]);
    t.join("a");
    assert_eq!(t.live(&["a"], 10 * SECOND - MS), []);
    t.join("b");
    t.drain();
    t.now += MS;
    t.machine.handle_timeout(t.now);
    assert_eq!(t.drain(), []);
    assert!(t.machine.poll_timeout() > Some(t.now), "nothing is due");
    let closed = t.live(&["a", "b"], SECOND);
    assert!(closed.iter().any(|did| matches!(did, Did::Remember(..))), "{closed:?}");
    let result = t.outcome().expect("closed").result;
    let endpoint = "job x at n1:1".to_owned();
    assert_eq!(result, JobResult::OtherJob { endpoint, born_ms: None }, "no node was quarantined");
}

/// Other jobs do not hold a later round, whether the coordinator was restarted or a worker has failed.
#[test]
fn other_jobs_hold_no_later_round() {
    let others = || vec!["job x at n1:1".to_owned()];
    let mut t = restarted(&["a", "b"]);
    t.machine.handle_other_jobs(t.now, others());
    t.join("a");
    assert!(admits(&t.join("b")));

    let mut t = Fixture::new(2, 2);
    t.run(&["a", "b"]);
    t.machine.handle_other_jobs(t.now, others());
    assert_eq!(t.drain(), []);
    t.fail("a", Duration::ZERO);
    for name in ["a", "b"] {
        t.alive(name);
    }
    let mut did = t.back("a");
    did.extend(t.back("b"));
    assert!(did.contains(&Did::Admit("a", 2, 0)), "{did:?}");
}

/// In every phase, an elder job of the same name closes this one, and every node receives the outcome, which names the
/// elder one.
#[test]
fn elder_job_closes_this_one() {
    let gathering = || {
        let mut t = Fixture::new(2, 3);
        t.join("a");
        t
    };
    let running = || {
        let mut t = Fixture::new(1, 1);
        t.run(&["a"]);
        t
    };
    let recovering = || {
        let mut t = restarted(&["a", "b"]);
        t.join("a");
        t
    };
    let regathering = || {
        let mut t = Fixture::new(2, 2);
        t.run(&["a", "b"]);
        t.fail("a", Duration::ZERO);
        t
    };
    let phases: [(&str, &dyn Fn() -> Fixture); 4] = [
        ("gathering", &gathering),
        ("running", &running),
        ("recovering", &recovering),
        ("regathering", &regathering),
    ];
    for (phase, begin) in phases {
        let mut t = begin();
        t.machine.handle_elder_job(t.now, "n7:29400".to_owned(), 1_700_000_000_000);
        let did = t.drain();
        assert!(did.contains(&Did::Close("a")), "{phase}: {did:?}");
        let endpoint = "n7:29400".to_owned();
        let other = JobResult::OtherJob { endpoint, born_ms: Some(1_700_000_000_000) };
        assert_eq!(t.outcome().expect("closed").result, other, "{phase}");
        assert_eq!(t.job_state.closed.as_ref().map(|outcome| &outcome.result), Some(&other));
        let refused = t.join("x");
        assert!(matches!(refused[..], [Did::Refuse("x", RefuseReason::Closed(_))]), "{refused:?}");
    }
}

/// A coordinator with which no node has registered yet is closed by an elder job, too, and ends.
#[test]
fn elder_job_closes_a_job_without_nodes() {
    let mut t = Fixture::new(1, 1);
    t.settings.shared = None;
    t.restart_coordinator();
    t.machine.handle_elder_job(t.now, "n7:29400".to_owned(), 1);
    assert!(t.drain().contains(&Did::Finish));
}

/// A job that has ended keeps its outcome.
#[test]
fn elder_job_does_not_change_an_outcome() {
    let mut t = Fixture::new(1, 1);
    t.run(&["a"]);
    t.report("a", NodeState::Succeeded);
    let outcome = t.outcome();
    assert!(outcome.is_some());
    t.machine.handle_elder_job(t.now, "n7:29400".to_owned(), 1);
    assert_eq!(t.drain(), []);
    assert_eq!(t.outcome(), outcome);
    assert_eq!(t.message("a", FromNode::Goodbye), [Did::Finish]);
}

/// Through an external store, a coordinator without a round adopts the job of a node that has one: all processes of the
/// job use that store, so its state was lost. Elected by voters, the coordinator does not: these may be those of
/// another job.
#[test]
fn external_store_adopts_the_job_of_a_member() {
    for has_voters in [false, true] {
        let mut t = Fixture::new(1, 3);
        t.settings.voters.extend(has_voters.then(|| VoterAddress::new("n0:1")));
        take_over(&mut t, Duration::ZERO, None);
        let mut registration = t.registration_of("a", ready());
        let round = RoundId { term: Term(1), round: Round(4) };
        registration.known_round = known_round(round, 1, 0);
        registration.report.round = round;
        registration.job_uid = Some(JobUid::new("earlier"));
        t.rounds.insert("a".to_owned(), round);
        let did = t.register_with(registration);
        if has_voters {
            assert_eq!(did, [Did::HangUp("a")]);
            assert_eq!(t.job_state.job_uid, JobUid::new("uid"));
            continue;
        }
        assert_eq!(did, [Did::Remember(4, 0), Did::Welcome("a")]);
        assert_eq!(t.job_state.job_uid, JobUid::new("earlier"));
        let mut did = t.back("a");
        did.extend(t.live(&["a"], 2 * SECOND));
        assert!(did.contains(&Did::Admit("a", 5, 0)), "{did:?}");
    }
}

/// A coordinator reports that it has nodes while a round runs, and while as many nodes as a round needs are registered:
/// another job yields only if this one can go on.
#[test]
fn members_report_names_a_job_that_can_go_on() {
    let mut t = Fixture::new(2, 3);
    assert!(!t.machine.members().has_nodes);
    t.join("a");
    assert!(!t.machine.members().has_nodes);
    t.join("b");
    assert!(t.machine.members().has_nodes);
    t.die("b");
    assert!(!t.machine.members().has_nodes);

    let mut t = Fixture::new(1, 1);
    t.settings.voter_count = VoterCount::Three;
    t.restart_coordinator();
    let voter = Member { voter: VoterId(7), address: VoterAddress::new("a:1") };
    let mut registration = t.registration_of("a", ready());
    registration.node = describe("a");
    registration.node.voter = Some(voter.clone());
    t.register_with(registration);
    let report = MembersReport { members: vec![voter], wanted: 1, has_nodes: true };
    assert_eq!(t.machine.members(), report);
}

/// A node at the host of a voter is reported before those with lower ranks: it may have returned without its state. If
/// another node is at that host, neither is.
#[test]
fn returned_voters_are_reported_first() {
    for (address, first) in [("b:1", "c:2"), ("c:3", "a:1")] {
        let mut t = Fixture::new(1, 3);
        t.settings.voters = vec![VoterAddress::new("c:1")];
        t.restart_coordinator();
        for (name, address) in [("a", "a:1"), ("b", address), ("c", "c:2")] {
            let mut registration = t.registration_of(name, ready());
            let voter = Member { voter: VoterId(7), address: VoterAddress::new(address) };
            registration.node.voter = Some(voter);
            t.register_with(registration);
        }
        assert_eq!(t.machine.members().members[0].address, VoterAddress::new(first));
    }
}

const MS: Duration = Duration::from_millis(1);
