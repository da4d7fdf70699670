//! Nodes leave, including the host; the coordinator's process is shut down.

use super::fixture::{Did, Fixture, SECOND};
use crate::message::{EvictReason, FromNode, JobResult, NodeState, WaitReason};

const LEAVING: NodeState = NodeState::Leaving { reaped: false };
const LEFT: NodeState = NodeState::Leaving { reaped: true };

/// The other members run until a leaver's workers have ended. Then they re-form without waiting.
#[test]
fn leaver_is_not_replaced() {
    let mut t = Fixture::new(1, 2);
    t.run(&["a", "b"]);
    assert_eq!(t.report("a", LEAVING), []);
    assert_eq!(t.live(&["a", "b"], 20 * SECOND), []);
    assert_eq!(t.report("a", LEFT), [Did::Restart("b", 1)]);
    let did = t.back("b");
    assert_eq!(did, [Did::Dismiss("a"), Did::Remember(2, 0), Did::Admit("b", 2, 0)]);
    assert_eq!(t.message("a", FromNode::Goodbye), []);
}

/// A leaver serves its round's store until the round has stopped everywhere else.
#[test]
fn leaver_stays_until_the_round_has_stopped() {
    let mut t = Fixture::new(1, 3);
    t.run(&["a", "b", "c"]);
    t.report("a", LEFT);
    assert_eq!(t.report("b", NodeState::Preparing), []);
    assert_eq!(t.report("c", NodeState::Preparing), [Did::Dismiss("a")]);
}

/// The next round waits until the workers of a leaver have ended.
#[test]
fn round_waits_for_the_workers_of_a_leaver() {
    let mut t = Fixture::new(1, 3);
    t.run(&["a", "b", "c"]);
    t.report("a", LEAVING);
    t.die("c");
    t.back("b");
    t.live(&["a", "b"], 6 * SECOND);
    assert_eq!(t.why(), "waiting for a to stop and be ready for the next round, 29 s left");
    assert_eq!(t.report("a", LEFT).len(), 3);
}

/// A node that is not a member may leave at once.
#[test]
fn waiting_node_may_go_at_once() {
    let mut t = Fixture::new(2, 2);
    t.join("a");
    assert_eq!(t.report("a", LEFT), [Did::Dismiss("a")]);
}

/// The job closes if all nodes are leaving.
#[test]
fn job_closes_when_all_leave() {
    let mut t = Fixture::new(1, 2);
    t.run(&["a", "b"]);
    t.report("a", LEAVING);
    let closed = [Did::Remember(1, 0), Did::Close("a"), Did::Close("b")];
    assert_eq!(t.report("b", LEAVING), closed);
    assert_eq!(t.outcome().expect("closed").result, JobResult::AllLeft);
}

/// A goodbye of a node that was not dismissed is ignored.
#[test]
fn goodbye_counts_only_after_dismissal() {
    let mut t = Fixture::new(1, 1);
    t.run(&["a"]);
    assert_eq!(t.message("a", FromNode::Goodbye), []);
    assert_eq!(t.register("a", NodeState::Running), [Did::Welcome("a"), Did::Admit("a", 1, 0)]);
}

/// The host announces that it leaves, exits when all members have stopped, and ends the
/// coordinator.
#[test]
fn host_leaves_last() {
    let mut t = Fixture::new(1, 2).host("a");
    t.run(&["a", "b"]);
    assert_eq!(t.report("a", LEAVING), [Did::HostLeaving("a"), Did::HostLeaving("b")]);
    assert_eq!(t.report("a", LEFT), [Did::Restart("b", 1)]);
    let wait = Did::Wait("b", WaitReason::Gathering);
    assert_eq!(t.back("b"), [Did::Dismiss("a"), wait]);
    assert_eq!(t.why(), "the coordinator's host is leaving: no round follows");
    assert_eq!(t.message("a", FromNode::Goodbye), [Did::Finish]);
    assert_eq!(t.machine.poll_timeout(), None);
    assert_eq!(t.join("b"), []);
}

/// The host of a closed job stays until every node has received the outcome, even if it is leaving.
#[test]
fn leaving_host_of_a_closed_job_waits_for_everyone() {
    let mut t = Fixture::new(1, 2).host("a");
    t.run(&["a", "b"]);
    t.report("a", LEAVING);
    let closed = [Did::Remember(1, 0), Did::Close("a"), Did::Close("b")];
    assert_eq!(t.report("b", LEAVING), closed);
    assert_eq!(t.message("a", FromNode::Goodbye), []);
    assert_eq!(t.message("b", FromNode::Goodbye), [Did::Finish]);
}

/// A leaving host does not wait for a lost member.
#[test]
fn leaving_host_waits_for_the_living_only() {
    let mut t = Fixture::new(1, 2).host("a");
    t.run(&["a", "b"]);
    t.report("a", LEFT);
    let did = t.live(&["a"], 3 * SECOND);
    assert_eq!(did, [Did::Evict("b", EvictReason::Silent), Did::Dismiss("a")]);
}

/// A coordinator that is shut down stops the round with grace, and ends.
#[test]
fn shutdown_stops_the_round() {
    let mut t = Fixture::new(1, 2);
    t.run(&["a", "b"]);
    t.machine.handle_shutdown(t.now);
    let leaving = [Did::HostLeaving("a"), Did::HostLeaving("b")];
    let restart = [Did::Restart("a", 1), Did::Restart("b", 1)];
    assert_eq!(t.drain(), [leaving, restart].concat());
    assert_eq!(t.back("a"), [Did::Wait("a", WaitReason::Gathering)]);
    assert_eq!(t.back("b"), [Did::Finish]);
}

/// Without a round, a shutdown is immediate.
#[test]
fn shutdown_while_gathering_is_immediate() {
    let mut t = Fixture::new(2, 2);
    t.join("a");
    t.machine.handle_shutdown(t.now);
    assert_eq!(t.drain(), [Did::HostLeaving("a"), Did::Finish]);
}

/// Members that stay when others have left form no round if they are too few.
#[test]
fn leavers_do_not_lower_min() {
    let mut t = Fixture::new(2, 3);
    t.run(&["a", "b", "c"]);
    t.report("a", LEFT);
    t.report("b", LEFT);
    let dismissed = [Did::Dismiss("a"), Did::Dismiss("b"), Did::Wait("c", WaitReason::Gathering)];
    assert_eq!(t.back("c"), dismissed);
    t.message("a", FromNode::Goodbye);
    t.message("b", FromNode::Goodbye);
    assert_eq!(t.live(&["c"], 599 * SECOND), []);
    assert_eq!(
        t.why(),
        "waiting for 1 more node (1 of at least 2 are ready), join timeout in 1 s; lost or left: a, b"
    );
}

/// A node that leaves while it is being admitted has left that round too.
#[test]
fn leaving_crosses_the_admission() {
    let mut t = Fixture::new(1, 2);
    t.join("a");
    let before = t.rounds.clone();
    t.join("b");
    t.report("b", NodeState::Running);
    t.rounds = before;
    assert_eq!(t.report("a", LEFT), [Did::Restart("b", 1)]);
}

/// The host of a closed job waits for an agent that is alive but does not disconnect, for as long
/// as stopping its workers may take, and no longer.
#[test]
fn closed_job_does_not_wait_for_ever() {
    let mut t = Fixture::new(1, 2);
    t.run(&["a", "b"]);
    t.report("a", NodeState::Succeeded);
    t.report("b", NodeState::Succeeded);
    t.message("a", FromNode::Goodbye);
    assert_eq!(t.live(&["b"], 34 * SECOND), []);
    assert_eq!(t.live(&["b"], SECOND), [Did::Finish]);
}
