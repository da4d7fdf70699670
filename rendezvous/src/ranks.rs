//! Assigns a rank to every member of a new round. The same inputs give the same ranks.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
};

use tracing::warn;

use crate::{
    ids::{GroupRank, NodeId},
    message::NodeDescription,
};

/// Places survivors and newcomers in ranks `0..n`, and returns them by rank. As few survivors as possible
/// move:
///
/// 1. Rank 0 is a survivor if there is one, because a newcomer has no local checkpoint to broadcast.
/// 2. Survivors keep their ranks.
/// 3. Newcomers fill the gaps in the given order.
/// 4. The highest-ranked survivors fill the remaining gaps.
pub(crate) fn assign_ranks(
    survivors: BTreeMap<GroupRank, NodeId>,
    newcomers: Vec<NodeId>,
) -> Vec<NodeId> {
    let mut survivors = survivors;
    if let Some((_, node)) = survivors.pop_first() {
        survivors.insert(GroupRank(0), node);
    }
    let size = survivors.len() + newcomers.len();
    let mut slots: Vec<Option<NodeId>> = vec![None; size];
    let mut movers = Vec::new();
    for (rank, node) in survivors {
        match slots.get_mut(rank.0 as usize) {
            Some(assign_ranks) => *assign_ranks = Some(node),
            None => movers.push(node),
        }
    }
    let mut fillers = newcomers.into_iter().chain(movers.into_iter().rev());
    slots.into_iter().filter_map(|node| node.or_else(|| fillers.next())).collect()
}

/// Sorts newcomers by `--node-rank` where given, then host name in natural order, address, node id.
///
/// If two nodes have the same `--node-rank`, it is ignored for all nodes.
pub(crate) fn sort_newcomers(newcomers: &mut [&NodeDescription]) {
    let given: Vec<u32> = newcomers.iter().filter_map(|node| node.node_rank).collect();
    let distinct: BTreeSet<u32> = given.iter().copied().collect();
    let by_node_rank = distinct.len() == given.len();
    if !by_node_rank {
        warn!(
            nodes = given.len(),
            "two nodes have the same --node-rank; sorting them by host name"
        );
    }
    let key = |node: &NodeDescription| {
        let rank = node.node_rank.filter(|_| by_node_rank);
        (rank.is_none(), rank)
    };
    newcomers.sort_by(|a, b| {
        key(a)
            .cmp(&key(b))
            .then_with(|| natural(&a.host_name, &b.host_name))
            .then_with(|| a.address.cmp(&b.address))
            .then_with(|| a.node_id.cmp(&b.node_id))
    });
}

/// Compares in natural order: `node2` before `node10`.
fn natural(a: &str, b: &str) -> Ordering {
    let (mut rest_a, mut rest_b) = (a, b);
    while !rest_a.is_empty() && !rest_b.is_empty() {
        let (part_a, part_b) = (part(&mut rest_a), part(&mut rest_b));
        let ordering = match (is_number(part_a), is_number(part_b)) {
            (true, true) => numeric(part_a, part_b),
            (true, false) | (false, true) | (false, false) => part_a.cmp(part_b),
        };
        if ordering.is_ne() {
            return ordering;
        }
    }
    rest_a.len().cmp(&rest_b.len()).then_with(|| a.cmp(b))
}

/// Splits off the leading digits of `rest`, or the leading non-digits.
fn part<'a>(rest: &mut &'a str) -> &'a str {
    let digits = is_number(rest);
    let end = rest.find(|c: char| c.is_ascii_digit() != digits).unwrap_or(rest.len());
    let (part, tail) = rest.split_at(end);
    *rest = tail;
    part
}

fn is_number(part: &str) -> bool {
    part.starts_with(|c: char| c.is_ascii_digit())
}

/// Compares numbers of any length without parsing them.
fn numeric(a: &str, b: &str) -> Ordering {
    let (a, b) = (a.trim_start_matches('0'), b.trim_start_matches('0'));
    a.len().cmp(&b.len()).then_with(|| a.cmp(b))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ids(names: &[&str]) -> Vec<NodeId> {
        names.iter().map(NodeId::new).collect()
    }

    fn survivors(ranks: &[(u32, &str)]) -> BTreeMap<GroupRank, NodeId> {
        ranks.iter().map(|(rank, name)| (GroupRank(*rank), NodeId::new(name))).collect()
    }

    fn description(host_name: &str, node_rank: Option<u32>) -> NodeDescription {
        NodeDescription {
            agent_port: 1,
            role: String::new(),
            node_rank,
            ..NodeDescription::new(NodeId::new(host_name), host_name, "")
        }
    }

    fn sorted(mut nodes: Vec<NodeDescription>) -> Vec<String> {
        let mut sorted: Vec<&NodeDescription> = nodes.iter_mut().map(|node| &*node).collect();
        sort_newcomers(&mut sorted);
        sorted.iter().map(|node| node.host_name.clone()).collect()
    }

    /// Survivors keep their ranks and a newcomer fills the gap.
    #[test]
    fn newcomer_fills_the_hole() {
        let placed = assign_ranks(survivors(&[(0, "a"), (2, "c")]), ids(&["x"]));
        assert_eq!(placed, ids(&["a", "x", "c"]));
    }

    /// Gaps that remain are filled with the highest rank.
    #[test]
    fn last_rank_fills_the_hole_of_a_group_that_shrinks() {
        let placed = assign_ranks(survivors(&[(0, "a"), (2, "c"), (3, "d")]), ids(&[]));
        assert_eq!(placed, ids(&["a", "d", "c"]));
    }

    /// If rank 0 is lost, the lowest-ranked survivor moves there, not a newcomer.
    #[test]
    fn rank_zero_is_a_survivor() {
        let placed = assign_ranks(survivors(&[(1, "b"), (2, "c")]), ids(&["x"]));
        assert_eq!(placed, ids(&["b", "x", "c"]));
    }

    /// Host names are sorted in natural order.
    #[test]
    fn node2_comes_before_node10() {
        let names = ["node10", "node2", "node02", "node", "a9b2", "a9b10"];
        let nodes = names.iter().map(|name| description(name, None)).collect();
        assert_eq!(sorted(nodes), ["a9b2", "a9b10", "node", "node02", "node2", "node10"]);
    }

    /// `--node-rank` comes first where given. It is ignored for all nodes if two have the same.
    #[test]
    fn node_rank_orders_unless_it_is_ambiguous() {
        let nodes =
            |c| vec![description("a", None), description("b", Some(7)), description("c", c)];
        assert_eq!(sorted(nodes(Some(3))), ["c", "b", "a"]);
        assert_eq!(sorted(nodes(Some(7))), ["a", "b", "c"]);
    }

    /// Two names of which one is the begin of the other are compared only as far as both go.
    #[test]
    fn shorter_name_comes_first() {
        assert_eq!(natural("a", "a1"), Ordering::Less);
        assert_eq!(natural("a1", "a"), Ordering::Greater);
        assert_eq!(natural("", "a"), Ordering::Less);
    }

    proptest! {
        /// Each node has exactly one rank, and survivors move only if they must.
        #[test]
        fn as_few_as_possible_move(ranks in prop::collection::btree_set(0u32..20, 0..12), newcomers in 0usize..6) {
            let before: BTreeMap<GroupRank, NodeId> =
                ranks.iter().map(|rank| (GroupRank(*rank), NodeId::new(format!("s{rank}")))).collect();
            let newcomers: Vec<NodeId> = (0..newcomers).map(|n| NodeId::new(format!("n{n}"))).collect();
            let placed = assign_ranks(before.clone(), newcomers.clone());
            let everyone: BTreeSet<&NodeId> = placed.iter().collect();
            prop_assert_eq!(everyone.len(), before.len() + newcomers.len());
            prop_assert_eq!(placed.len(), before.len() + newcomers.len());
            for (index, (rank, node)) in before.iter().enumerate() {
                let now = placed.iter().position(|other| other == node).expect("everyone is placed");
                let must_move = rank.0 as usize >= placed.len() || index == 0;
                prop_assert!(must_move || now == rank.0 as usize);
            }
        }

        /// Natural order is a total order.
        #[test]
        fn natural_order_is_total(a in "[a0-2]{0,6}", b in "[a0-2]{0,6}", c in "[a0-2]{0,6}") {
            prop_assert_eq!(natural(&a, &b), natural(&b, &a).reverse());
            prop_assert_eq!(natural(&a, &b).is_eq(), a == b);
            if natural(&a, &b).is_lt() && natural(&b, &c).is_lt() {
                prop_assert!(natural(&a, &c).is_lt());
            }
        }
    }
}
