//! The first gathering: last call, limits, refusals, the join timeout.

use super::fixture::{Did, Fixture, SECOND, describe, keep_alive, ready};
use crate::{
    effect::Effect,
    ids::{JobUid, Round, RunId, Term, VoterAddress},
    message::{FromNode, JobResult, NodeState, PROTOCOL_VERSION, RefuseReason, ToNode, WaitReason},
    settings::Leases,
    snapshot::Explanation,
};

/// `max` nodes complete the round at once. Ranks are in the order of host names.
#[test]
fn max_nodes_complete_at_once() {
    let mut t = Fixture::new(1, 3);
    assert_eq!(t.join("c"), [Did::Welcome("c"), Did::Wait("c", WaitReason::Gathering)]);
    assert_eq!(t.join("a"), [Did::Welcome("a"), Did::Wait("a", WaitReason::Gathering)]);
    let complete = [Did::Admit("a", 1, 0), Did::Admit("b", 1, 1), Did::Admit("c", 1, 2)];
    assert_eq!(t.join("b"), [&[Did::Welcome("b"), Did::Remember(1, 0)][..], &complete].concat());
}

/// The last call starts when `min` nodes are ready, and later arrivals do not move its end.
#[test]
fn late_arrival_does_not_extend_last_call() {
    let mut t = Fixture::new(2, 4);
    t.join("a");
    t.join("b");
    assert_eq!(t.live(&["a", "b"], 29 * SECOND), []);
    assert_eq!(t.why(), "last call, 1 s left for up to 2 more nodes");
    t.join("c");
    let complete = [Did::Admit("a", 1, 0), Did::Admit("b", 1, 1), Did::Admit("c", 1, 2)];
    assert_eq!(t.advance(SECOND), [&[Did::Remember(1, 0)][..], &complete].concat());
}

/// A message that arrives at the end of the last call, before its deadline is applied, does not hide that deadline.
#[test]
fn end_of_the_last_call_is_not_missed() {
    let mut t = Fixture::new(1, 2);
    t.join("a");
    t.live(&["a"], 29 * SECOND);
    t.now += 2 * SECOND;
    t.keep_alive(&["a"]);
    assert_eq!(t.advance(SECOND), [Did::Remember(1, 0), Did::Admit("a", 1, 0)]);
}

/// A last call ends without a round if too few nodes are left. The next one lasts its full time.
#[test]
fn last_call_is_cleared_below_min() {
    let mut t = Fixture::new(2, 4);
    t.join("a");
    t.join("b");
    t.live(&["a", "b"], 20 * SECOND);
    assert_eq!(t.die("b"), []);
    assert_eq!(t.live(&["a"], 20 * SECOND), []);
    assert_eq!(
        t.why(),
        "waiting for 1 more node (1 of at least 2 are ready), join timeout in 560 s; lost or left: b"
    );
    t.join("c");
    assert_eq!(t.live(&["a", "c"], 29 * SECOND), []);
    assert_eq!(t.live(&["a", "c"], SECOND).len(), 3);
}

/// A node that is registered but not ready does not count.
#[test]
fn preparing_node_does_not_count() {
    let mut t = Fixture::new(2, 2);
    t.join("a");
    let wait = Did::Wait("b", WaitReason::Gathering);
    assert_eq!(t.register("b", NodeState::Preparing), [Did::Welcome("b"), wait]);
    assert_eq!(t.back("b").len(), 3);
}

/// The job closes when the join timeout has passed, and reports how many nodes were ready and
/// needed.
#[test]
fn join_timeout_closes_the_job() {
    let mut t = Fixture::new(2, 2);
    t.join("a");
    let closed = [Did::Remember(0, 0), Did::Close("a")];
    assert_eq!(t.live(&["a"], 600 * SECOND), closed);
    let result = t.outcome().expect("closed").result;
    let JobResult::JoinTimeout { present: 1, min: 2, waited, after: Round(0), .. } = result else {
        panic!("{result:?}");
    };
    assert_eq!(waited, 600 * SECOND);
    assert_eq!(t.message("a", FromNode::Goodbye), [Did::Finish]);
}

/// An echo contains the reason why the round is not complete if the keep-alive requests it, and none
/// while a round runs.
#[test]
fn echo_contains_the_reason_on_request() {
    let mut t = Fixture::new(2, 2);
    t.join("a");
    let reason = |t: &mut Fixture, asks_reason| {
        let peer = t.peer("a");
        t.machine.handle_message(t.now, peer, keep_alive(asks_reason, None, None));
        match t.machine.poll_effect() {
            Some(Effect::Send { message: ToNode::Echo { sequence: 1, reason, .. }, .. }) => reason,
            other => panic!("{other:?}"),
        }
    };
    let expected = Explanation { kind: "too_few_nodes".to_owned(), text: t.why() };
    assert_eq!(reason(&mut t, true), Some(expected));
    assert_eq!(reason(&mut t, false), None);
    t.join("b");
    assert_eq!(reason(&mut t, true), None);
}

/// A registration that does not match is refused, with the coordinator's side of the mismatch.
#[test]
fn misfits_are_refused_with_the_reason() {
    let mut t = Fixture::new(2, 2);
    let ours = t.shared;
    let mut registration = t.registration_of("a", ready());
    registration.protocol_version = 7;
    let reason = RefuseReason::ProtocolVersion { ours: PROTOCOL_VERSION };
    assert_eq!(t.register_with(registration), [Did::Refuse("a", reason)]);
    let mut registration = t.registration_of("a", ready());
    registration.run_id = RunId::new("other");
    let reason = RefuseReason::RunId { ours: RunId::new("run") };
    assert_eq!(t.register_with(registration), [Did::Refuse("a", reason)]);
    let mut registration = t.registration_of("a", ready());
    registration.job_uid = Some(JobUid::new("yesterday"));
    assert_eq!(t.register_with(registration), [Did::Refuse("a", RefuseReason::EarlierRun)]);
    let mut registration = t.registration_of("a", ready());
    registration.settings.max_restarts = 9;
    assert_eq!(t.register_with(registration), [Did::Refuse("a", RefuseReason::Settings { ours })]);
}

/// Before the first round the coordinator steps down for another one of the job, and sends nothing
/// more; with a round it stays, and also while it does not know whether there was one.
#[test]
fn gives_way_before_the_first_round_only() {
    let mut t = Fixture::new(2, 2);
    t.join("a");
    assert_eq!(t.machine.handle_rival(t.now), Some(Term(1)));
    assert_eq!(t.drain(), [Did::Finish]);
    assert_eq!(t.join("b"), []);
    assert_eq!(t.machine.handle_rival(t.now), None);
    let mut t = Fixture::new(2, 2);
    t.join("a");
    t.join("b");
    assert_eq!(t.machine.handle_rival(t.now), None);
    t.restart_coordinator();
    assert_eq!(t.machine.handle_rival(t.now), None);
    assert_eq!(t.drain(), []);
}

/// A standalone coordinator takes the settings of the first node that registers.
#[test]
fn first_registration_brings_the_settings() {
    let mut t = Fixture::new(1, 1);
    t.settings.shared = None;
    t.restart_coordinator();
    assert_eq!(t.machine.poll_timeout(), None);
    assert_eq!(t.join("a"), [Did::Welcome("a"), Did::Remember(1, 0), Did::Admit("a", 1, 0)]);
}

/// A master that only its own machine can reach closes the job before a round starts.
#[test]
fn loopback_master_closes_the_job() {
    let mut t = Fixture::new(2, 2);
    let mut registration = t.registration_of("a", ready());
    registration.node.address = "127.0.0.1".to_owned();
    t.register_with(registration);
    let closed = [Did::Remember(0, 0), Did::Close("a"), Did::Close("b")];
    assert_eq!(t.join("b"), [&[Did::Welcome("b")][..], &closed].concat());
    let (address, host_name) = ("127.0.0.1".to_owned(), "a".to_owned());
    let result = t.outcome().expect("closed").result;
    assert_eq!(result, JobResult::LoopbackMaster { address, host_name });
}

/// A node with a loopback address is refused if other nodes are on other machines.
#[test]
fn loopback_address_among_others_is_refused() {
    let mut t = Fixture::new(2, 2);
    t.join("a");
    let mut registration = t.registration_of("b", ready());
    registration.node.address = "localhost".to_owned();
    let reason = RefuseReason::LoopbackAddress { address: "localhost".to_owned() };
    assert_eq!(t.register_with(registration), [Did::Refuse("b", reason)]);
}

/// A running job on one machine is not closed because a node of another machine registers.
#[test]
fn agent_of_another_machine_does_not_close_a_job_on_loopback() {
    let mut t = Fixture::new(1, 3);
    for name in ["a", "a2"] {
        let mut registration = t.registration_of(name, ready());
        registration.node = describe(name);
        registration.node.address = "::1".to_owned();
        t.register_with(registration);
    }
    assert_eq!(t.live(&["a", "a2"], 30 * SECOND).len(), 3);
    let reason = RefuseReason::LoopbackAddress { address: "::1".to_owned() };
    assert_eq!(t.join("b"), [Did::Refuse("b", reason)]);
}

/// A welcome contains the voters that elect the coordinator. Nodes that have registered receive each
/// change.
#[test]
fn nodes_receive_the_voters() {
    let mut t = Fixture::new(1, 1);
    assert_eq!(t.machine.welcome(Leases::default()).voters, Vec::new());
    let voters = ["n0:1", "n1:1", "n2:1"].map(VoterAddress::new).to_vec();
    t.settings.voters.clone_from(&voters);
    t.restart_coordinator();
    assert_eq!(t.machine.welcome(Leases::default()).voters, voters);
    t.join("a");
    t.machine.handle_voters(voters.clone());
    assert_eq!(t.drain(), [], "they are known");
    t.machine.handle_voters(voters[..1].to_vec());
    assert_eq!(t.drain(), [Did::Voters("a", 1)]);
    assert_eq!(t.machine.welcome(Leases::default()).voters, voters[..1]);
}
