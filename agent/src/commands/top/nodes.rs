//! Lists the nodes, with a row for all nodes in the same state, or a row for each.

use std::{
    cmp::{Ordering, Reverse},
    collections::HashMap,
};

use ragent_base::{report::fold, report::status_text::table};
use ragent_rendezvous::snapshot::{NodeSnapshot, NodeStateName};

use super::scroll::Scroll;

/// The order of rows.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Sort {
    /// By state: unusual nodes first.
    #[default]
    State,
    /// By group rank.
    Rank,
    /// By host name.
    Host,
    /// By the time since the last message, longest first.
    Seen,
}

impl Sort {
    /// Returns the name of the order.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::State => "state",
            Self::Rank => "rank",
            Self::Host => "host",
            Self::Seen => "seen",
        }
    }

    /// Returns the order after this one.
    pub(super) fn next(self) -> Self {
        match self {
            Self::State => Self::Rank,
            Self::Rank => Self::Host,
            Self::Host => Self::Seen,
            Self::Seen => Self::State,
        }
    }
}

/// The list of nodes.
#[derive(Debug, Default)]
pub(super) struct NodeList {
    /// The rows, in the order of the list. Each has the indexes of its nodes in the snapshot.
    pub(super) rows: Vec<Vec<usize>>,
    /// The number of nodes with an unusual state.
    pub(super) unusual: usize,
    /// The order of rows.
    pub(super) sort: Sort,
    /// True if each node has a row of its own.
    pub(super) is_split: bool,
    /// The part that is shown.
    pub(super) scroll: Scroll,
}

impl NodeList {
    /// Lists the nodes of a snapshot.
    pub(super) fn arrange(&mut self, nodes: &[NodeSnapshot]) {
        let usual = usual(nodes);
        let compare =
            |a: &usize, b: &usize| compare(self.sort, usual, &nodes[*a], &nodes[*b]).then(a.cmp(b));
        let mut rows = match self.is_split {
            true => (0..nodes.len()).map(|node| vec![node]).collect(),
            false => table::groups(nodes),
        };
        rows.iter_mut().for_each(|row| row.sort_by(compare));
        // Each row has at least one node.
        rows.sort_by(|a, b| compare(&a[0], &b[0]));
        self.rows = rows;
        self.unusual = nodes.iter().filter(|node| is_unusual(node, usual)).count();
    }
}

/// Returns the state of most nodes.
fn usual(nodes: &[NodeSnapshot]) -> Option<NodeStateName> {
    let mut counts: HashMap<&str, (usize, Weight, NodeStateName)> = HashMap::new();
    for node in nodes {
        let state = node.state;
        let first = || (0, weight(state), state);
        counts.entry(state.name()).or_insert_with(first).0 += 1;
    }
    let most = counts.into_values().max_by_key(|(count, weight, _)| (*count, *weight));
    most.map(|(_, _, state)| state)
}

type Weight = u8;

/// Returns the place of a state in the list: faults first, then the states that a round waits for.
fn weight(state: NodeStateName) -> Weight {
    match state {
        NodeStateName::Lost => 0,
        NodeStateName::Failed => 1,
        NodeStateName::Quarantined | NodeStateName::Unhealthy | NodeStateName::Excluded => 2,
        NodeStateName::Leaving => 3,
        NodeStateName::Stopping => 4,
        NodeStateName::Preparing => 5,
        NodeStateName::Waiting => 6,
        NodeStateName::Joined => 7,
        NodeStateName::Spare => 8,
        NodeStateName::Running => 9,
        NodeStateName::Succeeded => 10,
    }
}

/// Returns true for a node with a fault, without the standbys that it should have, or with another
/// state than most nodes.
fn is_unusual(node: &NodeSnapshot, usual: Option<NodeStateName>) -> bool {
    let lacks_standbys = node.standbys.as_ref().is_some_and(|counts| counts.obstacle.is_some());
    let is_fault = weight(node.state) <= weight(NodeStateName::Leaving);
    is_fault || lacks_standbys || usual != Some(node.state)
}

fn compare(
    sort: Sort,
    usual: Option<NodeStateName>,
    a: &NodeSnapshot,
    b: &NodeSnapshot,
) -> Ordering {
    let state = |node: &NodeSnapshot| (!is_unusual(node, usual), weight(node.state));
    let rank = |node: &NodeSnapshot| node.group_rank.map_or(u32::MAX, |rank| rank.0);
    match sort {
        Sort::State => state(a).cmp(&state(b)).then(rank(a).cmp(&rank(b))),
        Sort::Rank => rank(a).cmp(&rank(b)),
        Sort::Host => fold::compare_names(&a.host_name, &b.host_name),
        Sort::Seen => Reverse(a.last_seen_ms).cmp(&Reverse(b.last_seen_ms)),
    }
}

#[cfg(test)]
mod tests {
    use ragent_base::testing::nodes;

    use super::*;

    /// The hosts of the rows.
    fn hosts(list: &NodeList, nodes: &[NodeSnapshot]) -> Vec<String> {
        let host = |row: &Vec<usize>| {
            let members: Vec<&NodeSnapshot> = row.iter().map(|node| &nodes[*node]).collect();
            table::row(&members)[1].clone()
        };
        list.rows.iter().map(host).collect()
    }

    fn listed(nodes: &[NodeSnapshot]) -> NodeList {
        let mut list = NodeList::default();
        list.arrange(nodes);
        list
    }

    /// Nodes with a fault or an unusual state are listed first.
    #[test]
    fn unusual_nodes_are_first() {
        let mut nodes = nodes(6, 2);
        nodes[3].state = NodeStateName::Lost;
        let list = listed(&nodes);
        assert_eq!(hosts(&list, &nodes), ["n3", "n[6-7]", "n[0-2,4-5]"]);
        assert_eq!(list.unusual, 3);
        for node in &mut nodes {
            node.state = NodeStateName::Lost;
        }
        assert_eq!(listed(&nodes).unusual, 8);
        nodes[0].state = NodeStateName::Running;
        nodes.truncate(2);
        // If two states are equally frequent, the later one is usual.
        assert_eq!(hosts(&listed(&nodes), &nodes), ["n1", "n0"]);
    }

    /// Each node can have a row, in each of the orders.
    #[test]
    fn rows_are_split_and_sorted() {
        let mut nodes = nodes(3, 0);
        nodes.reverse();
        nodes[1].last_seen_ms = 7_000;
        let mut list = listed(&nodes);
        assert_eq!(hosts(&list, &nodes), ["n[0-2]"]);
        list.is_split = true;
        let mut names = Vec::new();
        for expected in
            [["n0", "n1", "n2"], ["n0", "n1", "n2"], ["n0", "n1", "n2"], ["n1", "n2", "n0"]]
        {
            list.arrange(&nodes);
            names.push(list.sort.name());
            assert_eq!(hosts(&list, &nodes), expected, "by {}", list.sort.name());
            list.sort = list.sort.next();
        }
        assert_eq!((&names[..], list.sort), (&["state", "rank", "host", "seen"][..], Sort::State));
    }
}
