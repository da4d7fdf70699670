//! Assigns each node of a round the node that keeps its copies.

use std::collections::BTreeMap;

use crate::ids::GroupRank;

/// The machine of a node, and what is lost together with it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Site<'a> {
    /// Its host name.
    pub(crate) host_name: &'a str,
    /// Its failure domain. If empty, it is the host.
    pub(crate) failure_domain: &'a str,
}

/// Returns the buddy of each node, by group rank.
///
/// All nodes have the same shift: with a shift of 2, rank 0 copies to rank 2, and rank 1 to rank 3. So no node
/// keeps the copies of two others. It is the smallest shift from half of the nodes up with which no node has a
/// buddy on its own host, or in its own failure domain. If there is none, those nodes have no buddy.
///
/// Usually the first shift fits, or the first few nodes rule it out. At worst, half of 10,000 nodes are in one
/// domain: the numbers of 50 million pairs are then compared, once for the round.
pub(crate) fn buddies(sites: &[Site<'_>]) -> Vec<Option<GroupRank>> {
    let (mut hosts, mut domains) = (BTreeMap::new(), BTreeMap::new());
    let numbers: Vec<(usize, usize)> = sites
        .iter()
        .map(|site| {
            let domain = Some(site.failure_domain).filter(|domain| !domain.is_empty());
            let host = number(&mut hosts, site.host_name);
            (host, number(&mut domains, domain.unwrap_or(site.host_name)))
        })
        .collect();
    let n = numbers.len();
    let is_apart = |rank: usize, shift: usize| {
        let (own, other) = (numbers.get(rank), numbers.get((rank + shift) % n));
        own.zip(other).is_some_and(|(own, other)| own.0 != other.0 && own.1 != other.1)
    };
    let half = n.div_ceil(2);
    let fits = |shift: &usize| (0..n).all(|rank| is_apart(rank, *shift));
    let shift = (half..n).find(fits).unwrap_or(half);
    let buddy = |rank: usize| is_apart(rank, shift).then(|| (rank + shift) % n);
    let as_rank = |rank: usize| u32::try_from(rank).ok().map(GroupRank);
    (0..n).map(|rank| buddy(rank).and_then(as_rank)).collect()
}

/// Returns the number of a text, the same for equal texts.
fn number<'a>(numbers: &mut BTreeMap<&'a str, usize>, text: &'a str) -> usize {
    let next = numbers.len();
    *numbers.entry(text).or_insert(next)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Returns the buddies of nodes, each given as `host` or `host/domain`.
    fn of(sites: &[&str]) -> Vec<Option<u32>> {
        let sites: Vec<Site<'_>> = sites
            .iter()
            .map(|text| {
                let (host_name, failure_domain) = text.split_once('/').unwrap_or((text, ""));
                Site { host_name, failure_domain }
            })
            .collect();
        buddies(&sites).into_iter().map(|buddy| buddy.map(|rank| rank.0)).collect()
    }

    /// An even number of nodes is in pairs. With an odd number, the nodes are in a ring.
    #[test]
    fn nodes_are_in_pairs() {
        assert_eq!(of(&["a", "b", "c", "d"]), [Some(2), Some(3), Some(0), Some(1)]);
        assert_eq!(of(&["a", "b", "c"]), [Some(2), Some(0), Some(1)]);
        assert_eq!(of(&["a", "b"]), [Some(1), Some(0)]);
    }

    /// A node alone has no buddy, and neither have nodes of the same host.
    #[test]
    fn no_node_is_its_own_buddy() {
        assert_eq!(of(&["a"]), [None]);
        assert_eq!(of(&["a", "a"]), [None, None]);
        assert_eq!(of(&[]), []);
    }

    /// Another shift is taken if a buddy would be in the same domain. Example: ranks 0 and 3 of six nodes share a
    /// rack.
    #[test]
    fn copies_leave_the_domain() {
        let racks = ["a/r0", "b/r1", "c/r2", "d/r0", "e/r1", "f/r2"];
        assert_eq!(of(&racks), [4, 5, 0, 1, 2, 3].map(Some));
        // The host counts too, even if its nodes have different domains.
        let hosts = ["a/r0", "b/r1", "a/r2", "b/r3"];
        assert_eq!(of(&hosts), [3, 0, 1, 2].map(Some));
    }

    /// If no shift fits, only the nodes that would meet their own domain have no buddy.
    #[test]
    fn others_keep_their_buddies() {
        assert_eq!(of(&["a/r", "b/r", "c/r", "d/s"]), [None, Some(3), None, Some(1)]);
    }

    /// No node keeps the copies of two others.
    #[test]
    fn each_node_has_one_ward() {
        for n in 2..40 {
            let names: Vec<String> = (0..n).map(|node| format!("n{node}/r{}", node / 4)).collect();
            let buddies = of(&names.iter().map(String::as_str).collect::<Vec<_>>());
            let distinct: BTreeSet<u32> = buddies.iter().copied().flatten().collect();
            assert_eq!(distinct.len(), buddies.iter().flatten().count(), "{buddies:?}");
        }
    }
}
