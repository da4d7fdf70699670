//! Computes the table of a round: the ranks of each member, and its admission.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use crate::{
    ids::{GlobalRank, GroupRank, NodeId, RoleRank, Round, RoundId},
    limits::{STORE_ADDRESSES_MAX, STORE_CLIENTS_MAX},
    message::{Admission, NodeDescription, Replaced},
};

/// The composition of a round.
///
/// Invariant: there is at least one member, and so a group rank 0.
#[derive(Debug)]
pub(crate) struct Table {
    round: RoundId,
    member_ranks: Vec<MemberRanks>,
    world_size: u32,
    role_world_sizes: BTreeMap<String, u32>,
    master_port: u16,
    store_clients: Vec<IpAddr>,
    past: Past,
    /// The first node that has lost its place to a spare, if any.
    pub(crate) replaced: Option<Replaced>,
}

/// The ranks of one member. Its index is the group rank.
#[derive(Debug)]
pub(crate) struct MemberRanks {
    /// The member.
    pub(crate) node: Arc<NodeDescription>,
    /// `RANK` of its first worker.
    pub(crate) first_global_rank: GlobalRank,
    first_role_rank: RoleRank,
}

/// The part of the job's past that each member learns.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Past {
    /// The number of failures charged.
    pub(crate) restart_count: u32,
    /// The number of these that progress has forgiven.
    pub(crate) restarts_forgiven: u32,
    /// The last round charged.
    pub(crate) charged_through: Round,
    /// The number of rounds since the last one that reached a new step.
    pub(crate) rounds_without_progress: u32,
    /// The newest step that all ranks have saved.
    pub(crate) saved_step: Option<u64>,
}

impl Table {
    /// Creates the table of `members`, which are in group-rank order. Returns `None` if there are none.
    ///
    /// Global ranks are dense, in group-rank order. So are role ranks, within their role.
    pub(crate) fn new(
        round: RoundId,
        members: Vec<Arc<NodeDescription>>,
        master_port: u16,
        past: Past,
    ) -> Option<Self> {
        if members.is_empty() {
            return None;
        }
        let mut world_size = 0_u32;
        let mut role_world_sizes: BTreeMap<String, u32> = BTreeMap::new();
        let mut store_clients = Vec::new();
        let mut member_ranks = Vec::with_capacity(members.len());
        let addresses_max = (STORE_CLIENTS_MAX / members.len()).clamp(1, STORE_ADDRESSES_MAX);
        for node in members {
            let role_world_size = role_world_sizes.entry(node.role.clone()).or_default();
            let first_global_rank = GlobalRank(world_size);
            let first_role_rank = RoleRank(*role_world_size);
            let workers = node.local_world_size.get();
            world_size = world_size.saturating_add(workers);
            *role_world_size = role_world_size.saturating_add(workers);
            store_clients.extend(reachable(&node).take(addresses_max));
            member_ranks.push(MemberRanks { node, first_global_rank, first_role_rank });
        }
        store_clients.sort_unstable();
        store_clients.dedup();
        Some(Self {
            round,
            member_ranks,
            world_size,
            role_world_sizes,
            master_port,
            store_clients,
            past,
            replaced: None,
        })
    }

    /// Returns the ranks of the members, by group rank.
    pub(crate) fn member_ranks(&self) -> &[MemberRanks] {
        &self.member_ranks
    }

    /// Returns `WORLD_SIZE`.
    pub(crate) fn world_size(&self) -> u32 {
        self.world_size
    }

    /// Returns the members with their group ranks.
    pub(crate) fn members(&self) -> impl Iterator<Item = (GroupRank, &NodeId)> {
        (0..).map(GroupRank).zip(self.member_ranks.iter().map(|ranks| &ranks.node.node_id))
    }

    /// Returns group rank 0 if its address is a loopback address although members are on several
    /// machines.
    pub(crate) fn loopback_master(&self) -> Option<&NodeDescription> {
        let master = self.master();
        let elsewhere = |ranks: &MemberRanks| ranks.node.host_name != master.host_name;
        (is_loopback(&master.address) && self.member_ranks.iter().any(elsewhere)).then_some(master)
    }

    /// Returns the admission of the member at `rank`.
    pub(crate) fn admission(&self, rank: GroupRank) -> Option<Admission> {
        let ranks = self.member_ranks.get(rank.0 as usize)?;
        Some(Admission {
            round: self.round,
            group_rank: rank,
            group_world_size: u32::try_from(self.member_ranks.len()).unwrap_or(u32::MAX),
            first_global_rank: ranks.first_global_rank,
            world_size: self.world_size,
            first_role_rank: ranks.first_role_rank,
            role_world_size: self.role_world_sizes.get(&ranks.node.role).copied().unwrap_or(0),
            restart_count: self.past.restart_count,
            restarts_forgiven: self.past.restarts_forgiven,
            charged_through: self.past.charged_through,
            rounds_without_progress: self.past.rounds_without_progress,
            saved_step: self.past.saved_step,
            memory: None,
            buddy: None,
            ward: None,
            replaced: self.replaced.clone(),
            master_address: self.master().address.clone(),
            master_port: self.master_port,
            store_clients: if rank == GroupRank(0) {
                self.store_clients.clone()
            } else {
                Vec::new()
            },
        })
    }

    /// Returns the address and the port of the round's store.
    pub(crate) fn store(&self) -> (&str, u16) {
        (&self.master().address, self.master_port)
    }

    fn master(&self) -> &NodeDescription {
        &self.member_ranks[0].node
    }
}

/// Returns the addresses from which the workers of `node` reach a store on another machine, the node's own
/// address first.
fn reachable(node: &NodeDescription) -> impl Iterator<Item = IpAddr> {
    let known_by = node.address.parse::<IpAddr>().ok();
    let further = node.addresses.iter().copied();
    let further = further.filter(move |ip| Some(*ip) != known_by && !stays_on_link(*ip));
    known_by.into_iter().chain(further)
}

/// Returns true for loopback and link-local addresses, which do not reach routed networks.
fn stays_on_link(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unicast_link_local(),
    }
}

/// Returns true if `address` is a loopback address, which other machines cannot reach.
pub(crate) fn is_loopback(address: &str) -> bool {
    let address = address.trim_start_matches('[').trim_end_matches(']');
    address.eq_ignore_ascii_case("localhost")
        || address.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    fn node(name: &str, role: &str, workers: u32) -> NodeDescription {
        NodeDescription {
            addresses: vec!["10.0.0.9".parse().expect("an address")],
            agent_port: 1,
            role: role.to_owned(),
            local_world_size: NonZeroU32::new(workers).expect("a worker"),
            ..NodeDescription::new(NodeId::new(name), name, format!("10.0.0.{workers}"))
        }
    }

    fn table(members: Vec<NodeDescription>) -> Table {
        let members = members.into_iter().map(Arc::new).collect();
        Table::new(RoundId::default(), members, 7, Past::default()).expect("members")
    }

    /// Global and role ranks are dense on nodes with different workers and roles.
    #[test]
    fn ranks_are_dense_over_unequal_nodes() {
        let table = table(vec![node("a", "x", 3), node("b", "y", 1), node("c", "x", 2)]);
        let ranges: Vec<_> = (0..3)
            .filter_map(|rank| table.admission(GroupRank(rank)))
            .map(|a| (a.first_global_rank.0, a.world_size, a.first_role_rank.0, a.role_world_size))
            .collect();
        assert_eq!(ranges, [(0, 6, 0, 5), (3, 6, 0, 1), (4, 6, 3, 5)]);
    }

    /// Only group rank 0 receives the clients that its store admits: all addresses of all members, each once.
    #[test]
    fn only_the_master_receives_the_store_clients() {
        let table = table(vec![node("a", "", 3), node("b", "", 1)]);
        let clients = |rank| table.admission(GroupRank(rank)).expect("a member").store_clients;
        let addresses: Vec<String> = clients(0).iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["10.0.0.1", "10.0.0.3", "10.0.0.9"]);
        assert_eq!(clients(1), Vec::<IpAddr>::new());
    }

    /// The first addresses of a node that reach other machines are admitted. The limit of the protocol bounds
    /// the total.
    #[test]
    fn store_clients_are_bounded() {
        let many = |n: u32| {
            let mut node = node(&format!("n{n}"), "", 1);
            node.address = format!("10.{}.{}.1", n / 256, n % 256);
            node.addresses = vec!["127.0.0.1", "169.254.0.1", "fe80::1", "::1"]
                .into_iter()
                .map(|ip| ip.parse().expect("an address"))
                .chain((0..40_u32).map(|k| IpAddr::from((0x1400_0000 + n * 64 + k).to_be_bytes())))
                .collect();
            node
        };
        let clients = |nodes| {
            let table = table((0..nodes).map(many).collect());
            table.admission(GroupRank(0)).expect("a member").store_clients
        };
        let of_one = clients(1);
        assert_eq!(of_one.len(), 16);
        assert_eq!(of_one[0].to_string(), "10.0.0.1");
        assert_eq!(of_one[15].to_string(), "20.0.0.14");
        assert_eq!(clients(4_096).len(), 65_536);
        assert_eq!(clients(10_000).len(), 60_000);
    }

    /// A loopback address is recognised in all its spellings.
    #[test]
    fn loopback_is_recognised() {
        for address in ["localhost", "LocalHost", "127.0.1.1", "::1", "[::1]", "::ffff:127.0.0.1"] {
            assert!(is_loopback(address), "{address}");
        }
        for address in ["10.0.0.1", "localhost.example", "node-a", "fe80::1", ""] {
            assert!(!is_loopback(address), "{address}");
        }
    }
}
