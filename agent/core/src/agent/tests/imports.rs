//! When a node with standbys is ready: after their imports, except while nodes gather.

use super::*;

/// A registered node whose store is open and whose standbys import modules.
fn importing() -> Fixture {
    let mut t = Fixture::with_standbys(true);
    assert_eq!(t.store_open(), []);
    assert_eq!(t.welcome(1), [t.sends(NodeState::Preparing)]);
    t
}

/// A node that finds a running round is ready only when its standbys are, so that the other nodes do
/// not wait for an import.
#[test]
fn joining_node_imports_first() {
    let mut t = importing();
    assert_eq!(t.assign(waits(WaitReason::NextRound)), []);
    t.agent.handle_standbys_settled(t.now);
    assert_eq!(t.effects(), [t.sends(NodeState::Ready { store_port: PORT })]);
    t.agent.handle_standbys_settled(t.now);
    assert_eq!(t.effects(), []);
}

/// A node without a store is not ready, even if its standbys are.
#[test]
fn joining_node_needs_a_store() {
    let mut t = Fixture::with_standbys(true);
    t.welcome(1);
    t.agent.handle_standbys_settled(t.now);
    assert_eq!(t.effects(), []);
    assert_eq!(t.store_open(), [t.sends(NodeState::Ready { store_port: PORT })]);
}

/// Nodes that gather do not wait for imports, which go on in the round.
#[test]
fn gathering_does_not_wait_for_imports() {
    let mut t = importing();
    assert_eq!(t.assign(waits(WaitReason::Spare)), []);
    let ready = t.assign(waits(WaitReason::Gathering));
    assert_eq!(ready, [t.sends(NodeState::Ready { store_port: PORT })]);
}

/// A node that a round was formed without stays ready, although its standbys still import.
#[test]
fn gate_stays_open() {
    let mut t = importing();
    t.assign(waits(WaitReason::Gathering));
    assert_eq!(t.assign(waits(WaitReason::NextRound)), []);
    t.agent.handle_standbys_settled(t.now);
    assert_eq!(t.effects(), []);
}

/// An import that takes longer than a minute is not waited for.
#[test]
fn slow_import_is_not_waited_for() {
    let mut t = importing();
    t.assign(waits(WaitReason::NextRound));
    assert_eq!(t.agent.poll_timeout(), Some(t.now + limits::IMPORT_TIMEOUT));
    t.now += limits::IMPORT_TIMEOUT;
    t.agent.handle_timeout(t.now);
    assert_eq!(t.effects(), [t.sends(NodeState::Ready { store_port: PORT })]);
    assert_eq!(t.agent.poll_timeout(), None);
}
