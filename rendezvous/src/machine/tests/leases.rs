//! Leases of large jobs: constant for the life of a job, and the limits that depend on them.

use std::{iter, time::Duration};

use super::fixture::{Did, Fixture, SECOND, describe, ready};
use crate::{
    effect::Effect,
    ids::{JobUid, NodeId},
    message::{EvictReason, NodeState, RefuseReason, ToNode, Welcome},
    settings::{JobState, Leases},
};

/// The agent and coordinator leases of a job of 10,000 nodes.
const AGENT_LEASE: Duration = Duration::from_secs(22);
const COORDINATOR_LEASE: Duration = Duration::from_millis(27_500);

/// Creates a job of up to ten thousand nodes, two or three of which register.
fn large_job(names: &[&'static str]) -> Fixture {
    let mut t = Fixture::with(1, 10_000, |shared| {
        shared.timeouts.stop_grace = 5 * SECOND;
        shared.timeouts.last_call = SECOND;
        shared.timeouts.shrink = Duration::ZERO;
    });
    t.run(names);
    t
}

/// Registers `name` and returns the welcome that it receives.
fn welcome(t: &mut Fixture, name: &'static str) -> Welcome {
    let registration = t.registration_of(name, ready());
    t.machine.handle_registration(t.now, registration);
    let welcome = iter::from_fn(|| t.machine.poll_effect()).find_map(|effect| match effect {
        Effect::Send { message: ToNode::Welcome(welcome), .. } => Some(welcome),
        Effect::Send { .. }
        | Effect::HangUp { .. }
        | Effect::Remember(_)
        | Effect::Resign { .. }
        | Effect::HandOver
        | Effect::Forget
        | Effect::Record(_)
        | Effect::Finish { .. } => None,
    });
    welcome.expect("it is welcomed")
}

/// The first agent of a large job is granted the same lease as the last one.
#[test]
fn lease_does_not_depend_on_who_has_come() {
    let mut t = Fixture::new(1, 10_000);
    let leases = welcome(&mut t, "a").leases;
    assert_eq!((leases.agent, leases.coordinator), (AGENT_LEASE, COORDINATOR_LEASE));
    assert_eq!(welcome(&mut t, "b").leases, leases);
}

/// A standalone coordinator learns the largest size of the job from the first registration.
#[test]
fn coordinator_alone_learns_its_leases() {
    let mut t = Fixture::new(1, 10_000);
    t.settings.shared = None;
    let job_state = JobState::new(JobUid::new("uid"));
    t = Fixture::start(t.settings.clone(), t.shared, job_state);
    t.drain();
    assert_eq!(welcome(&mut t, "a").leases.agent, AGENT_LEASE);
}

/// A member that was unreachable when the round ended is not evicted as overdue while its workers may
/// run, even if the grace is short.
#[test]
fn overdue_member_has_lost_its_lease() {
    let mut t = large_job(&["a", "b", "c"]);
    t.keep_alive(&["a", "b", "c"]);
    t.die("c");
    t.back("a");
    // The grace and its margin have passed after 10 s.
    assert_eq!(t.live(&["a"], AGENT_LEASE), []);
    let did = t.live(&["a"], COORDINATOR_LEASE - AGENT_LEASE);
    let next = [Did::Remember(2, 0), Did::Admit("a", 2, 0)];
    assert_eq!(did, [&[Did::Evict("b", EvictReason::Silent)][..], &next].concat());
}

/// A recovery waits for the lease that members were granted, even if there were few of them.
#[test]
fn recovery_waits_for_the_lease_of_a_large_job() {
    let mut t = large_job(&["a", "b", "c"]);
    t.restart_coordinator();
    t.join("a");
    t.join("b");
    assert_eq!(t.live(&["a", "b"], COORDINATOR_LEASE), []);
    assert_eq!(t.live(&["a", "b"], 2 * SECOND).len(), 3);
}

/// Spares beyond the number that the leases are sized for are refused.
#[test]
fn spares_beyond_what_is_served_are_refused() {
    let mut t = Fixture::new(2, 2);
    let registration = t.registration_of("a", ready());
    for n in 0..1_200 {
        let mut registration = registration.clone();
        registration.node = describe("a");
        registration.node.node_id = NodeId::new(format!("a{n}"));
        t.machine.handle_registration(t.now, registration);
        while t.machine.poll_effect().is_some() {}
    }
    let refused = Did::Refuse("x", RefuseReason::TooManyNodes { limit: 1_200 });
    assert_eq!(t.join("x"), [refused]);
    assert_eq!(welcome(&mut Fixture::new(2, 2), "x").leases, Leases::default());
}

/// The node of a job of one node is not lost by the coordinator in its own process, however late its messages are. It
/// still receives the outcome. Any other node is lost.
#[test]
fn only_node_is_not_lost_by_its_own_process() {
    for (max, has_host) in [(1, true), (1, false), (2, true)] {
        let mut t = Fixture::new(1, max);
        t.settings.host = has_host.then(|| NodeId::new("a"));
        t.restart_coordinator();
        t.run(&["a"]);
        t.advance(60 * SECOND);
        let has_outcome = t.report("a", NodeState::Succeeded).contains(&Did::Close("a"));
        assert_eq!(has_outcome, max == 1 && has_host, "{max} {has_host}");
    }
}
