//! Lists the nodes, with a row for all nodes in the same state, or a row for each.

use std::{
    cmp::{Ordering, Reverse},
    collections::{BTreeSet, HashMap},
};

use ragent_base::{report::fold, report::status_text::table};
use ragent_rendezvous::{
    ids::NodeId,
    snapshot::{NodeSnapshot, NodeStateName},
};

use super::cursor::Cursor;

/// The nodes that are listed.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Filter {
    /// All.
    #[default]
    All,
    /// Nodes whose state differs from the state of most nodes, or is a fault.
    Unusual,
}

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

    fn next(self) -> Self {
        match self {
            Self::State => Self::Rank,
            Self::Rank => Self::Host,
            Self::Host => Self::Seen,
            Self::Seen => Self::State,
        }
    }
}

/// Nodes in the same state.
#[derive(Debug)]
pub(super) struct NodeGroup {
    /// The state that they have in common. It identifies the group in the next snapshot.
    key: String,
    /// Their indexes in the snapshot, sorted.
    pub(super) members: Vec<usize>,
    /// The cells of their row, as in `ragent status`.
    pub(super) cells: [String; 5],
    /// Their state.
    pub(super) state: NodeStateName,
    /// True if their state is a fault, or not the state of most nodes.
    pub(super) is_unusual: bool,
    /// True if each of them has a row.
    pub(super) is_open: bool,
}

/// A row of the list.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Row {
    /// The nodes of a group, by its index.
    Group(usize),
    /// A node.
    Node {
        /// The index of its group.
        group: usize,
        /// Its index in the snapshot.
        node: usize,
    },
}

/// Identifies the selected row, also in the next snapshot.
#[derive(Debug)]
enum Anchor {
    Group(String),
    Node(NodeId),
}

/// The list of nodes.
#[derive(Debug, Default)]
pub(super) struct NodeList {
    /// The groups, in the order of the list.
    pub(super) groups: Vec<NodeGroup>,
    /// The rows, in the order of the list.
    pub(super) rows: Vec<Row>,
    /// The number of nodes with an unusual state.
    pub(super) unusual: usize,
    /// The keys of the groups whose nodes have a row each.
    open: BTreeSet<String>,
    /// The nodes that are listed.
    pub(super) filter: Filter,
    /// The order of rows.
    pub(super) sort: Sort,
    /// The selected row.
    pub(super) cursor: Cursor,
}

impl NodeList {
    /// Groups and sorts the nodes of a new snapshot. `before` are the nodes of the last one.
    pub(super) fn set_nodes(&mut self, before: &[NodeSnapshot], nodes: &[NodeSnapshot]) {
        let anchor = self.anchor(before);
        let usual = usual(nodes);
        self.groups =
            table::groups(nodes).into_iter().map(|members| group(members, nodes, usual)).collect();
        let is_unusual = |group: &&NodeGroup| group.is_unusual;
        self.unusual = self.groups.iter().filter(is_unusual).map(|group| group.members.len()).sum();
        let keys: BTreeSet<&str> = self.groups.iter().map(|group| group.key.as_str()).collect();
        self.open.retain(|key| keys.contains(key.as_str()));
        self.arrange(nodes, anchor);
    }

    /// Lists only the unusual nodes, or all of them again.
    pub(super) fn toggle_filter(&mut self, nodes: &[NodeSnapshot]) {
        let anchor = self.anchor(nodes);
        self.filter = match self.filter {
            Filter::All => Filter::Unusual,
            Filter::Unusual => Filter::All,
        };
        self.arrange(nodes, anchor);
    }

    /// Changes the order of rows.
    pub(super) fn next_sort(&mut self, nodes: &[NodeSnapshot]) {
        let anchor = self.anchor(nodes);
        self.sort = self.sort.next();
        self.arrange(nodes, anchor);
    }

    /// Opens or closes the selected group. Returns the node if a single node is selected.
    pub(super) fn enter(&mut self, nodes: &[NodeSnapshot]) -> Option<NodeId> {
        match *self.rows.get(self.cursor.selected)? {
            Row::Node { node, .. } => nodes.get(node).map(|node| node.node_id.clone()),
            Row::Group(group) => {
                let key = self.groups.get(group)?.key.clone();
                if !self.open.remove(&key) {
                    self.open.insert(key.clone());
                }
                self.arrange(nodes, Some(Anchor::Group(key)));
                None
            }
        }
    }

    /// Selects the next node whose host name contains `text`, in upper or lower case. Returns false if there is none.
    pub(super) fn find(&mut self, text: &str, nodes: &[NodeSnapshot]) -> bool {
        let text = text.to_lowercase();
        let fits = |node: usize| nodes[node].host_name.to_lowercase().contains(&text);
        // All nodes in the order of the list, from the one after the selected node.
        let all: Vec<(usize, usize)> = (self.groups.iter().enumerate())
            .flat_map(|(place, group)| group.members.iter().map(move |node| (place, *node)))
            .collect();
        let start = match self.rows.get(self.cursor.selected) {
            Some(&Row::Node { node, .. }) => {
                all.iter().position(|(_, other)| *other == node).map_or(0, |at| at + 1)
            }
            Some(&Row::Group(group)) => {
                all.iter().position(|(place, _)| *place == group).unwrap_or(0)
            }
            None => 0,
        };
        let (before, after) = all.split_at(start.min(all.len()));
        let Some(&(place, node)) = after.iter().chain(before).find(|(_, node)| fits(*node)) else {
            return false;
        };
        let group = &self.groups[place];
        if group.members.len() > 1 {
            self.open.insert(group.key.clone());
        }
        if !group.is_unusual {
            self.filter = Filter::All;
        }
        self.arrange(nodes, Some(Anchor::Node(nodes[node].node_id.clone())));
        true
    }

    /// Returns the identity of the selected row.
    fn anchor(&self, nodes: &[NodeSnapshot]) -> Option<Anchor> {
        match *self.rows.get(self.cursor.selected)? {
            Row::Group(group) => Some(Anchor::Group(self.groups.get(group)?.key.clone())),
            Row::Node { node, .. } => Some(Anchor::Node(nodes.get(node)?.node_id.clone())),
        }
    }

    /// Sorts the groups and their nodes, lists their rows, and selects `anchor` again.
    fn arrange(&mut self, nodes: &[NodeSnapshot], anchor: Option<Anchor>) {
        let sort = self.sort;
        for group in &mut self.groups {
            group
                .members
                .sort_by(|a, b| compare_nodes(sort, &nodes[*a], &nodes[*b]).then(a.cmp(b)));
            group.is_open = self.open.contains(&group.key);
        }
        self.groups.sort_by(|a, b| compare_groups(sort, a, b, nodes));
        self.rows.clear();
        for (place, group) in self.groups.iter().enumerate() {
            if self.filter == Filter::Unusual && !group.is_unusual {
                continue;
            }
            let single = |node: &usize| Row::Node { group: place, node: *node };
            if let [node] = &group.members[..] {
                self.rows.push(single(node));
                continue;
            }
            self.rows.push(Row::Group(place));
            if group.is_open {
                self.rows.extend(group.members.iter().map(single));
            }
        }
        if let Some(row) = anchor.and_then(|anchor| self.find_anchor(&anchor, nodes)) {
            self.cursor.selected = row;
        }
    }

    fn find_anchor(&self, anchor: &Anchor, nodes: &[NodeSnapshot]) -> Option<usize> {
        let is_group = |row: &Row, key: &str| match *row {
            Row::Group(group) => self.groups[group].key == key,
            Row::Node { group, .. } => {
                self.groups[group].members.len() == 1 && self.groups[group].key == key
            }
        };
        match anchor {
            Anchor::Group(key) => self.rows.iter().position(|row| is_group(row, key)),
            Anchor::Node(id) => {
                let node = nodes.iter().position(|node| node.node_id == *id)?;
                let exact = self
                    .rows
                    .iter()
                    .position(|row| matches!(row, Row::Node { node: other, .. } if *other == node));
                // The node may be in a group that is not open.
                exact.or_else(|| {
                    let group =
                        self.groups.iter().position(|group| group.members.contains(&node))?;
                    self.rows.iter().position(|row| *row == Row::Group(group))
                })
            }
        }
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

/// Returns true for states that are unusual even if most nodes are in them.
fn is_fault(state: NodeStateName) -> bool {
    weight(state) <= weight(NodeStateName::Leaving)
}

fn group(members: Vec<usize>, nodes: &[NodeSnapshot], usual: Option<NodeStateName>) -> NodeGroup {
    let all: Vec<&NodeSnapshot> = members.iter().map(|index| &nodes[*index]).collect();
    let first = all[0];
    let lacks_standbys = first.standbys.as_ref().is_some_and(|counts| counts.obstacle.is_some());
    let state = first.state;
    let workers = Some(first.local_world_size).filter(|_| first.group_rank.is_none());
    let key = (first.group_rank.is_some(), state, first.why(), &first.standbys, workers);
    NodeGroup {
        key: format!("{key:?}"),
        cells: table::row(&all),
        state,
        is_unusual: is_fault(state) || lacks_standbys || usual != Some(state),
        is_open: false,
        members,
    }
}

fn compare_nodes(sort: Sort, a: &NodeSnapshot, b: &NodeSnapshot) -> Ordering {
    let rank = |node: &NodeSnapshot| node.group_rank.map_or(u32::MAX, |rank| rank.0);
    match sort {
        Sort::State | Sort::Rank => rank(a).cmp(&rank(b)),
        Sort::Host => fold::compare_names(&a.host_name, &b.host_name),
        Sort::Seen => Reverse(a.last_seen_ms).cmp(&Reverse(b.last_seen_ms)),
    }
}

/// Compares groups by their first nodes, and by state if that is the order.
fn compare_groups(sort: Sort, a: &NodeGroup, b: &NodeGroup, nodes: &[NodeSnapshot]) -> Ordering {
    let first = |group: &NodeGroup| group.members[0];
    let state = |group: &NodeGroup| (!group.is_unusual, weight(group.state));
    let by_node = compare_nodes(sort, &nodes[first(a)], &nodes[first(b)]);
    let by_node = by_node.then(first(a).cmp(&first(b)));
    match sort {
        Sort::State => state(a).cmp(&state(b)).then(by_node),
        Sort::Rank | Sort::Host | Sort::Seen => by_node,
    }
}

#[cfg(test)]
mod tests {
    use ragent_base::testing::nodes;

    use super::*;

    /// The hosts of the rows. Hosts of a group are in parentheses.
    fn hosts(list: &NodeList, nodes: &[NodeSnapshot]) -> Vec<String> {
        let host = |row: &Row| match *row {
            Row::Group(group) => format!("({})", list.groups[group].cells[1]),
            Row::Node { node, .. } => nodes[node].host_name.clone(),
        };
        list.rows.iter().map(host).collect()
    }

    fn listed(nodes: &[NodeSnapshot]) -> NodeList {
        let mut list = NodeList::default();
        list.set_nodes(&[], nodes);
        list
    }

    /// Nodes with a fault or an unusual state are listed first. The others can be hidden.
    #[test]
    fn unusual_nodes_are_first() {
        let mut nodes = nodes(6, 2);
        nodes[3].state = NodeStateName::Lost;
        let mut list = listed(&nodes);
        assert_eq!(hosts(&list, &nodes), ["n3", "(n[6-7])", "(n[0-2,4-5])"]);
        assert_eq!(list.unusual, 3);
        list.toggle_filter(&nodes);
        assert_eq!(hosts(&list, &nodes), ["n3", "(n[6-7])"]);
        for node in &mut nodes {
            node.state = NodeStateName::Lost;
        }
        assert_eq!(listed(&nodes).unusual, 8);
        nodes[0].state = NodeStateName::Running;
        nodes.truncate(2);
        // If two states are equally frequent, the later one is usual.
        assert_eq!(hosts(&listed(&nodes), &nodes), ["n1", "n0"]);
    }

    /// A group is opened and closed, and its nodes are sorted.
    #[test]
    fn groups_are_opened() {
        let mut nodes = nodes(3, 0);
        nodes.reverse();
        let mut list = listed(&nodes);
        assert_eq!(list.enter(&nodes), None);
        assert_eq!(hosts(&list, &nodes), ["(n[0-2])", "n0", "n1", "n2"]);
        list.cursor.selected = 2;
        assert_eq!(list.enter(&nodes).unwrap().as_str(), "n1");
        for expected in [["n0", "n1", "n2"], ["n0", "n1", "n2"], ["n2", "n1", "n0"]] {
            list.next_sort(&nodes);
            assert_eq!(hosts(&list, &nodes)[1..], expected, "by {}", list.sort.name());
        }
        list.cursor.selected = 0;
        list.enter(&nodes);
        assert_eq!(hosts(&list, &nodes), ["(n[0-2])"]);
    }

    /// The same node stays selected when others change, even if it moves to a group.
    #[test]
    fn selection_stays() {
        let before = nodes(4, 0);
        let mut list = listed(&before);
        list.enter(&before);
        list.cursor.selected = 3;
        let mut after = before.clone();
        after[0].state = NodeStateName::Failed;
        list.set_nodes(&before, &after);
        assert_eq!(hosts(&list, &after), ["n0", "(n[1-3])", "n1", "n2", "n3"]);
        assert_eq!(list.cursor.selected, 3, "n2");
        let mut stopped = after.clone();
        for node in &mut stopped[1..] {
            node.state = NodeStateName::Stopping;
        }
        list.set_nodes(&after, &stopped);
        assert_eq!(hosts(&list, &stopped), ["n0", "(n[1-3])"]);
        assert_eq!(list.cursor.selected, 1, "its group");
    }

    /// A host is found in a group that is not open, and among hidden ones. The next search goes on from there.
    #[test]
    fn hosts_are_found() {
        let mut nodes = nodes(30, 0);
        nodes[29].state = NodeStateName::Lost;
        let mut list = listed(&nodes);
        list.toggle_filter(&nodes);
        assert!(!list.find("m", &nodes));
        assert_eq!(hosts(&list, &nodes), ["n29"]);
        let found = |list: &NodeList| match list.rows[list.cursor.selected] {
            Row::Node { node, .. } => nodes[node].host_name.clone(),
            Row::Group(_) => "a group".to_owned(),
        };
        for expected in ["n1", "n10", "n11"] {
            assert!(list.find("N1", &nodes));
            assert_eq!(found(&list), expected);
        }
        assert!(list.find("29", &nodes));
        assert_eq!(found(&list), "n29");
        assert!(!NodeList::default().find("n", &[]));
    }
}
