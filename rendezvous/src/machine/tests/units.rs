//! Groups whose number of nodes is a multiple of a unit: `--nnodes 2:8:2`.

use super::fixture::{Did, Fixture, SECOND};
use crate::{
    message::{NodeState, WaitReason},
    settings::NodeRange,
};

fn fixture(min: u32, max: u32, unit: u32) -> Fixture {
    let nodes = NodeRange::in_units(min, max, unit).unwrap();
    Fixture::with(min, max, |shared| shared.nodes = nodes)
}

fn admitted(did: Vec<Did>) -> Vec<Did> {
    did.into_iter().filter(|did| matches!(did, Did::Admit(..))).collect()
}

/// The bounds are those of whole units. A range without one is an error.
#[test]
fn bounds_are_whole_units() {
    let bounds = |text: &str| text.parse::<NodeRange>().map(|nodes| (nodes.min(), nodes.max()));
    assert_eq!(bounds("1:7:2"), Ok((2, 6)));
    assert_eq!(bounds("4:8:4"), Ok((4, 8)));
    assert_eq!(bounds("3"), Ok((3, 3)));
    let text = |text: &str| bounds(text).unwrap_err().to_string();
    assert_eq!(text("3:3:2"), "allows no number of nodes: no multiple of 2 is between 3 and 3");
    assert_eq!(text("2:4:0"), "allows no number of nodes: no multiple of 0 is between 2 and 4");
    assert_eq!(text("1:2:3:4"), "is not of the form `N`, `MIN:MAX` or `MIN:MAX:UNIT`");
    assert_eq!("2:8:2".parse::<NodeRange>().unwrap().to_string(), "2:8:2");
}

/// The last call takes whole units. A surplus node is a spare.
#[test]
fn surplus_node_is_a_spare() {
    let mut t = fixture(2, 6, 2);
    for name in ["a", "b", "c"] {
        t.join(name);
    }
    let did = t.live(&["a", "b", "c"], 30 * SECOND);
    assert!(did.contains(&Did::Wait("c", WaitReason::Spare)), "{did:?}");
    assert_eq!(admitted(did), [Did::Admit("a", 1, 0), Did::Admit("b", 1, 1)]);
}

/// A running group is interrupted only when a whole unit waits, `join_settle` after that.
#[test]
fn group_grows_by_whole_units() {
    let mut t = fixture(2, 6, 2);
    t.join("a");
    t.join("b");
    t.live(&["a", "b"], 30 * SECOND);
    for name in ["a", "b"] {
        t.report(name, NodeState::Running);
    }
    t.join("c");
    assert_eq!(t.live(&["a", "b", "c"], 60 * SECOND), [Did::Remember(1, 0)]);
    t.join("d");
    assert_eq!(t.live(&["a", "b", "c", "d"], 2 * SECOND), []);
    let did = t.live(&["a", "b", "c", "d"], SECOND);
    assert_eq!(did[..2], [Did::Restart("a", 1), Did::Restart("b", 1)]);
    t.back("a");
    let did = admitted(t.back("b"));
    let ranks = [("a", 0), ("b", 1), ("c", 2), ("d", 3)];
    assert_eq!(did, ranks.map(|(name, rank)| Did::Admit(name, 2, rank)));
}

/// If a node is lost for good, the member with the highest rank becomes a spare, and comes back
/// with the next node that joins.
#[test]
fn group_shrinks_by_whole_units() {
    let mut t = fixture(2, 4, 2);
    t.run(&["a", "b", "c", "d"]);
    t.die("b");
    for name in ["a", "c", "d"] {
        t.back(name);
    }
    assert_eq!(t.why(), "the group would shrink from 4 to 2: waiting 5 s for a replacement");
    let did = t.live(&["a", "c", "d"], 5 * SECOND);
    assert!(did.contains(&Did::Wait("d", WaitReason::Spare)), "{did:?}");
    assert_eq!(admitted(did), [Did::Admit("a", 2, 0), Did::Admit("c", 2, 1)]);
    for name in ["a", "c"] {
        t.report(name, NodeState::Running);
    }
    t.join("x");
    t.live(&["a", "c", "d", "x"], 3 * SECOND);
    t.back("a");
    let did = admitted(t.back("c"));
    assert_eq!(did.len(), 4, "{did:?}");
}

/// A group does not wait for a replacement of a leaving node: the others continue at once, in whole
/// units.
#[test]
fn leaver_shrinks_at_once() {
    let mut t = fixture(2, 4, 2);
    t.run(&["a", "b", "c", "d"]);
    t.report("d", NodeState::Leaving { reaped: false });
    t.report("d", NodeState::Leaving { reaped: true });
    t.back("a");
    t.back("b");
    let did = t.back("c");
    assert_eq!(admitted(did), [Did::Admit("a", 2, 0), Did::Admit("b", 2, 1)]);
}
