//! The static backend: a node's group rank is its `--node-rank`, also after nodes come and go.

use super::fixture::{Did, Fixture, SECOND, ready};
use crate::message::{NodeState, RefuseReason, WaitReason};

fn fixture(nodes: u32) -> Fixture {
    Fixture::with(nodes, nodes, |shared| shared.fixed_ranks = true)
}

impl Fixture {
    fn join_as(&mut self, name: &'static str, node_rank: u32) -> Vec<Did> {
        let mut registration = self.registration_of(name, ready());
        registration.node.node_rank = Some(node_rank);
        self.register_with(registration)
    }

    /// Ends the stream of a node, so that another one may have its rank.
    fn cut(&mut self, name: &str) {
        let peer = self.peer(name);
        self.machine.handle_detached(self.now, peer);
        self.drain();
    }
}

/// Ranks are the given ones, neither in the order of host names nor of arrival.
#[test]
fn ranks_are_node_ranks() {
    let mut t = fixture(3);
    t.join_as("a", 2);
    t.join_as("b", 0);
    let admitted = [Did::Admit("b", 1, 0), Did::Admit("c", 1, 1), Did::Admit("a", 1, 2)];
    let mut did = t.join_as("c", 1);
    did.retain(|did| matches!(did, Did::Admit(..)));
    did.sort_by_key(|did| if let Did::Admit(_, _, rank) = did { *rank } else { 0 });
    assert_eq!(did, admitted);
}

/// The second of two nodes with the same rank is refused.
#[test]
fn rank_that_is_taken_is_refused() {
    let mut t = fixture(2);
    t.join_as("a", 1);
    let reason = RefuseReason::NodeRankTaken { node_rank: 1, host_name: "a".to_owned() };
    assert_eq!(t.join_as("b", 1), [Did::Refuse("b", reason)]);
}

/// A node keeps the rank of its first registration.
#[test]
fn rank_of_a_node_is_constant() {
    let mut t = fixture(2);
    t.join_as("a", 1);
    t.join_as("a", 0);
    let did = t.join_as("b", 0);
    assert!(
        did.contains(&Did::Admit("b", 1, 0)) && did.contains(&Did::Admit("a", 1, 1)),
        "{did:?}"
    );
}

/// A replacement waits while the keep-alives of the node that has the rank are overdue: that node
/// may be lost, and then the replacement takes its place.
#[test]
fn replacement_of_a_silent_node_waits() {
    let mut t = fixture(2);
    t.join_as("a", 0);
    t.join_as("b", 1);
    for name in ["a", "b"] {
        t.report(name, NodeState::Running);
    }
    t.live(&["a"], SECOND);
    assert_eq!(t.join_as("x", 1), [Did::Welcome("x"), Did::Wait("x", WaitReason::Spare)]);
    t.live(&["a", "x"], 2 * SECOND);
    let did = t.back("a");
    assert!(
        did.contains(&Did::Admit("a", 2, 0)) && did.contains(&Did::Admit("x", 2, 1)),
        "{did:?}"
    );
}

/// A rank that no node of the job can have is refused: its node would never be in a round.
#[test]
fn rank_beyond_the_job_is_refused() {
    let mut t = fixture(2);
    t.join_as("a", 0);
    let reason = RefuseReason::NodeRankTooHigh { node_rank: 7, nodes: 2 };
    assert_eq!(t.join_as("b", 7), [Did::Refuse("b", reason)]);
    // Without fixed ranks it only orders the nodes.
    let mut t = Fixture::new(2, 2);
    assert_eq!(t.join_as("b", 7), [Did::Welcome("b"), Did::Wait("b", WaitReason::Gathering)]);
}

/// The successor of a leaving node waits, and takes its rank when that node has left.
#[test]
fn successor_of_a_leaver_waits() {
    let mut t = fixture(2);
    t.join_as("a", 0);
    t.join_as("b", 1);
    for name in ["a", "b"] {
        t.report(name, NodeState::Running);
    }
    t.report("b", NodeState::Leaving { reaped: false });
    assert_eq!(t.join_as("b2", 1), [Did::Welcome("b2"), Did::Wait("b2", WaitReason::Spare)]);
    t.report("b", NodeState::Leaving { reaped: true });
    let did = t.back("a");
    assert!(
        did.contains(&Did::Admit("a", 2, 0)) && did.contains(&Did::Admit("b2", 2, 1)),
        "{did:?}"
    );
}

/// A rank is given to one node, even if several are ready for it: the round waits for the others.
#[test]
fn doubled_rank_completes_nothing() {
    let mut t = fixture(2);
    t.join_as("a", 1);
    t.cut("a");
    assert_eq!(t.join_as("a2", 1), [Did::Welcome("a2"), Did::Wait("a2", WaitReason::Gathering)]);
    assert_eq!(
        t.why(),
        "waiting for 1 more node (1 of at least 2 are ready), join timeout in 600 s"
    );
    t.join_as("a", 1);
    let did = t.join_as("b", 0);
    assert!(
        did.contains(&Did::Admit("a", 1, 1)) && did.contains(&Did::Admit("b", 1, 0)),
        "{did:?}"
    );
}

/// The node that replaces a lost one has its rank, including rank zero.
#[test]
fn replacement_has_the_same_rank() {
    let mut t = fixture(2);
    t.join_as("b", 0);
    t.join_as("c", 1);
    for name in ["b", "c"] {
        t.report(name, NodeState::Running);
    }
    t.die("b");
    t.back("c");
    let mut did = t.live(&["c"], SECOND);
    did.extend(t.join_as("x", 0));
    assert!(
        did.contains(&Did::Admit("x", 2, 0)) && did.contains(&Did::Admit("c", 2, 1)),
        "{did:?}"
    );
}
