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

/// A node that a round was formed without, while it imported, waits for its standbys again.
#[test]
fn gate_closes_again() {
    let mut t = importing();
    t.assign(waits(WaitReason::NextRound));
    t.assign(waits(WaitReason::Gathering));
    assert_eq!(t.assign(waits(WaitReason::NextRound)), [t.sends(NodeState::Preparing)]);
    t.agent.handle_standbys_settled(t.now);
    assert_eq!(t.effects(), [t.sends(NodeState::Ready { store_port: PORT })]);
    t.assign(waits(WaitReason::Gathering));
    assert_eq!(t.assign(waits(WaitReason::NextRound)), []);

    let mut t = importing();
    t.assign(waits(WaitReason::Gathering));
    t.now += limits::IMPORT_TIMEOUT;
    assert_eq!(t.assign(waits(WaitReason::NextRound)), []);
}

/// If the gate closes and an admission is on its way, the node takes part: its report would be taken for an older one. If the admission was
/// lost with the stream, or came to nothing, workers may have connected to the store that the node had offered.
#[test]
fn gate_closes_while_the_node_is_admitted() {
    let closed_again = || {
        let mut t = importing();
        t.assign(waits(WaitReason::Gathering));
        assert_eq!(t.assign(waits(WaitReason::NextRound)), [t.sends(NodeState::Preparing)]);
        t
    };
    let mut t = closed_again();
    let effects = t.assign(Assignment::Admit(admission(1, 1)));
    let start = Effect::Local(Action::Start(Box::new(admission(1, 1))));
    assert_eq!(effects, [t.sends(NodeState::Running), start]);
    assert_eq!(t.assign(waits(WaitReason::NextRound)), []);

    // The admission is repeated on the next stream, or its round is over.
    for is_imported in [false, true] {
        let again = || {
            let mut t = closed_again();
            t.agent.handle_disconnected(t.now);
            if is_imported {
                t.agent.handle_standbys_settled(t.now);
            }
            assert_eq!(t.welcome(1), [t.sends(NodeState::Preparing)]);
            t
        };
        let mut t = again();
        let effects = t.assign(Assignment::Admit(admission(1, 1)));
        assert_eq!(effects[0], t.sends(NodeState::Running));

        let mut t = again();
        assert_eq!(t.assign(waits(WaitReason::NextRound)), [OPEN_STORE]);
        let opened = t.store_open();
        let ready = is_imported.then(|| t.sends(NodeState::Ready { store_port: PORT }));
        assert_eq!(opened, Vec::from_iter(ready));
        assert_eq!(t.assign(waits(WaitReason::NextRound)), [], "the new store is kept");
    }

    // A node that leaves goes on leaving, whatever becomes of its run.
    let mut t = closed_again();
    t.signal();
    t.agent.handle_refused(RefuseReason::EarlierRun);
    assert!(t.agent.is_leaving());
    assert!(!t.effects().contains(&OPEN_STORE));

    let mut t = closed_again();
    let evict = Assignment::Evict { round: round(1, 1), reason: EvictReason::Silent };
    assert_eq!(t.assign(evict.clone()), [OPEN_STORE, t.sends(NodeState::Preparing)]);
    assert_eq!(t.assign(evict), []);
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
