//! The nodes that the outcome of a job names if it ends for lack of nodes.

use std::time::Duration;

use super::fixture::{Fixture, SECOND, ready};
use crate::message::{DepartedNode, Departure, FromNode, JobResult, NodeState};

const LEFT: NodeState = NodeState::Leaving { reaped: true };

/// Returns the nodes that the outcome names, and the number of the others.
#[track_caller]
fn departed(t: &Fixture) -> (Vec<DepartedNode>, u32) {
    match t.outcome().expect("closed").result {
        JobResult::JoinTimeout { departed, .. } => (departed.first, departed.more),
        other => panic!("{other:?}"),
    }
}

fn node(host_name: &str, how: Departure, ago: Duration) -> DepartedNode {
    DepartedNode { host_name: host_name.to_owned(), how, ago }
}

/// Lost nodes and nodes that left are named with the reason and the time, the first to depart first.
#[test]
fn departed_nodes_are_named() {
    let mut t = Fixture::new(4, 4);
    t.run(&["a", "b", "c", "d"]);
    t.keep_all_alive();
    t.live(&["a", "c", "d"], 10 * SECOND);
    t.back("a");
    t.back("d");
    t.report("d", LEFT);
    t.message("d", FromNode::Goodbye);
    t.live(&["a", "c"], SECOND);
    t.die("c");
    t.live(&["a"], 600 * SECOND);
    let expected = vec![
        node("b", Departure::Silent, 611 * SECOND),
        node("d", Departure::Left, 601 * SECOND),
        node("c", Departure::AgentEnded, 600 * SECOND),
    ];
    assert_eq!(departed(&t), (expected, 0));
}

/// A member that does not stop in time is named although it is still registered.
#[test]
fn member_that_is_not_ready_is_named() {
    let mut t = Fixture::new(3, 3);
    t.run(&["a", "b", "c"]);
    t.die("c");
    t.back("a");
    t.live(&["a", "b"], 700 * SECOND);
    let (nodes, more) = departed(&t);
    let named: Vec<_> = nodes.iter().map(|node| (node.host_name.as_str(), node.how)).collect();
    assert_eq!(named, [("c", Departure::AgentEnded), ("b", Departure::NotReady)]);
    assert_eq!(more, 0);
}

/// Nodes that are back, or replaced by a new agent of their machine, are not named, even if that
/// agent registered before the loss of the old one was known. Departures before the last round are
/// not named either.
#[test]
fn nodes_that_are_back_are_not_named() {
    let mut t = Fixture::with(4, 5, |shared| shared.timeouts.shrink = Duration::ZERO);
    t.run(&["a", "b", "c", "d", "e"]);
    t.die("e");
    for name in ["a", "b", "c", "d"] {
        t.back(name);
    }
    for name in ["a", "b", "c", "d"] {
        t.report(name, NodeState::Running);
    }
    t.register("b2", NodeState::Preparing);
    t.live(&["a", "b2"], 10 * SECOND);
    t.back("a");
    t.register("c", NodeState::Preparing);
    t.live(&["a", "c", "b2"], 600 * SECOND);
    let (nodes, more) = departed(&t);
    assert_eq!(nodes.iter().map(|node| node.host_name.as_str()).collect::<Vec<_>>(), ["d"]);
    assert_eq!(more, 0);
}

/// The number of named nodes is bounded. The others are counted.
#[test]
fn few_departed_nodes_are_named() {
    let names = ["a", "b", "c", "d", "e", "f", "x"];
    let mut t = Fixture::new(8, 8);
    for name in names {
        t.register(name, ready());
    }
    for name in &names[1..] {
        t.die(name);
    }
    t.live(&["a"], 600 * SECOND);
    let (nodes, more) = departed(&t);
    let named: Vec<_> = nodes.iter().map(|node| node.host_name.as_str()).collect();
    assert_eq!((named, more), (vec!["b", "c", "d", "e"], 2));
}
