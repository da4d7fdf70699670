//! Chooses the nodes whose output is read.

use std::net::{IpAddr, SocketAddr};

use ragent_base::report::fold;
use ragent_options::{
    scheduler::node_list,
    spec::{Argument, RankRanges, UsageError},
};
use ragent_rendezvous::{
    ids::NodeId,
    snapshot::{NodeSnapshot, NodeStateName, Snapshot, grouped},
};

/// The nodes that are read at once. Each needs a connection, and memory for what arrives.
pub(super) const NODES_MAX: usize = 256;

/// The output that the user has asked for.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted {
    /// The ranks; all if `None`.
    pub(super) ranks: Option<RankRanges>,
    /// The names of hosts; all if `None`.
    hosts: Option<Vec<String>>,
}

/// A node that is read.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct ReadNode {
    pub(super) id: NodeId,
    pub(super) host: String,
    pub(super) address: SocketAddr,
}

/// The nodes that are read, and the reasons why others are not.
#[derive(Debug, Default, Eq, PartialEq)]
pub(super) struct Chosen {
    pub(super) nodes: Vec<ReadNode>,
    pub(super) notes: Vec<String>,
}

impl Wanted {
    /// Reads the values of RANKS and `--host`.
    pub(super) fn read(ranks: Option<RankRanges>, hosts: Option<&str>) -> Result<Self, UsageError> {
        let names = |text: &str| {
            node_list::names(text).map_err(|error| {
                Argument::new("--host", text)
                    .invalid(format_args!("is not a list of hosts: {error}"))
                    .with_hint("give names and ranges of names, such as n1,n4 or n[1-4]")
            })
        };
        Ok(Self { ranks, hosts: hosts.map(names).transpose()? })
    }

    /// Chooses among the members of the newest round. `is_here` returns true for an address of this machine. Without a
    /// secret, only nodes of this machine are read.
    pub(super) fn choose(
        &self,
        snapshot: &Snapshot,
        is_secured: bool,
        is_here: impl Fn(IpAddr) -> bool,
    ) -> Chosen {
        let is_named = |node: &&NodeSnapshot| {
            let is_host = |hosts: &Vec<String>| hosts.contains(&node.host_name);
            self.hosts.as_ref().is_none_or(is_host) && self.has_rank_of(node)
        };
        let is_there = |node: &&NodeSnapshot| node.state != NodeStateName::Lost;
        let mut nodes: Vec<_> = snapshot.nodes.iter().filter(is_named).filter(is_there).collect();
        let stalled = snapshot.stall.as_ref().and_then(|stall| stall.rank);
        nodes.sort_by_key(|node| {
            let has_problem = node.why().is_some()
                || stalled.is_some_and(|rank| {
                    ranks_of(node).is_some_and(|of| of.0 <= rank.0 && rank.0 <= of.1)
                });
            (!has_problem, node.first_global_rank)
        });
        let (mut chosen, mut elsewhere) = (Chosen::default(), Vec::new());
        for node in nodes {
            let Ok(ip) = node.address.parse::<IpAddr>() else { continue };
            if is_secured || is_here(ip) {
                let address = (ip, node.agent_port).into();
                let (id, host) = (node.node_id.clone(), node.host_name.clone());
                chosen.nodes.push(ReadNode { id, host, address });
            } else {
                elsewhere.push(node.host_name.as_str());
            }
        }
        if !elsewhere.is_empty() {
            let hosts = fold::names(elsewhere);
            chosen
                .notes
                .push(format!("{hosts}: not read: the job has no secret (ragent secret --init)"));
        }
        let further = chosen.nodes.len().saturating_sub(NODES_MAX);
        if further > 0 {
            chosen.nodes.truncate(NODES_MAX);
            let further = grouped(further as u64);
            chosen.notes.push(format!("{further} nodes not read: name them with --host"));
        }
        chosen
    }

    fn has_rank_of(&self, node: &NodeSnapshot) -> bool {
        let Some(of_node) = ranks_of(node) else { return false };
        self.ranks.as_ref().is_none_or(|ranks| ranks.overlaps(of_node))
    }
}

/// Returns the first and the last rank of a member.
fn ranks_of(node: &NodeSnapshot) -> Option<(u32, u32)> {
    let first = node.first_global_rank?.0;
    Some((first, first.saturating_add(node.local_world_size.saturating_sub(1))))
}

#[cfg(test)]
mod tests {
    use ragent_base::testing;
    use ragent_rendezvous::ids::GlobalRank;

    use super::*;

    fn job(count: u32) -> Snapshot {
        let mut nodes = testing::nodes(count, 0);
        for (number, node) in (0..).zip(&mut nodes) {
            node.host_name = format!("n{number}");
            node.address = format!("10.0.{}.{}", number / 200, number % 200);
            node.first_global_rank = Some(GlobalRank(8 * number));
            node.local_world_size = 8;
            node.state = NodeStateName::Running;
        }
        Snapshot { nodes, ..testing::empty_snapshot() }
    }

    fn hosts(chosen: &Chosen) -> Vec<&str> {
        chosen.nodes.iter().map(|node| node.host.as_str()).collect()
    }

    /// Nodes are chosen by rank and by name.
    #[test]
    fn ranks_and_hosts_choose() {
        let choose = |ranks: Option<&str>, hosts_given: Option<&str>| {
            let ranks = ranks.map(|ranks| ranks.parse().unwrap());
            let wanted = Wanted::read(ranks, hosts_given).unwrap();
            hosts(&wanted.choose(&job(4), true, |_| false)).join(",")
        };
        assert_eq!(choose(None, None), "n0,n1,n2,n3");
        assert_eq!(choose(Some("7-8,31"), None), "n0,n1,n3");
        assert_eq!(choose(Some("0-15"), Some("n[1-2]")), "n1");
        assert_eq!(choose(Some("32"), None), "");
        let error = Wanted::read(None, Some("n[1")).unwrap_err().to_string();
        assert!(error.contains("`--host n[1` is not a list of hosts"), "{error}");
    }

    /// Without a secret, only nodes of this machine are read, and the others are named.
    #[test]
    fn other_machines_need_a_secret() {
        let here = |ip: IpAddr| ip.to_string() == "10.0.0.1";
        let chosen = Wanted::default().choose(&job(4), false, here);
        assert_eq!(hosts(&chosen), ["n1"]);
        assert_eq!(
            chosen.notes,
            ["n[0,2-3]: not read: the job has no secret (ragent secret --init)"]
        );
    }

    /// In a large job, nodes with problems are read first, and the rest is counted.
    #[test]
    fn large_jobs_are_read_in_part() {
        let mut job = job(1000);
        job.nodes[700].reason = Some("its worker has failed".to_owned());
        job.nodes[800].state = NodeStateName::Lost;
        let chosen = Wanted::default().choose(&job, true, |_| false);
        assert_eq!(chosen.nodes.len(), NODES_MAX);
        assert_eq!(hosts(&chosen)[..2], ["n700", "n0"]);
        assert_eq!(chosen.notes, ["743 nodes not read: name them with --host"]);
    }
}
