//! The members that can vouch for connections to the store of a round, by their addresses.

use std::{collections::BTreeMap, net::IpAddr};

use crate::{
    batch::Batch,
    group::Group,
    ids::{GroupRank, NodeId},
    limits::VOUCHER_INTERVAL,
    message::STORE_CONNECTIONS_MAX,
    roster::Roster,
    table::reachable,
};

/// The members that can vouch for connections to the store of a running round.
#[derive(Debug)]
pub(crate) struct Vouchers {
    /// The member that serves the store.
    pub(crate) server: NodeId,
    /// The members by the addresses of their workers, present and past.
    pub(crate) by_address: BTreeMap<IpAddr, Vec<NodeId>>,
    /// The answers for the server: the number of a connection, and true if a member vouches for it.
    pub(crate) answers: Batch<(u64, bool)>,
}

impl Vouchers {
    /// Returns the vouchers of a group; `None` if the node that serves its store is not known.
    pub(crate) fn new(group: &Group, roster: &Roster) -> Option<Self> {
        let (server, _) = group.seats().find(|(_, seat)| seat.rank == GroupRank(0))?;
        let answers = Batch::new(STORE_CONNECTIONS_MAX, VOUCHER_INTERVAL);
        let mut vouchers = Self { server: server.clone(), by_address: BTreeMap::new(), answers };
        for (id, _) in group.seats() {
            vouchers.add_addresses(roster, id);
        }
        Some(vouchers)
    }

    /// Adds the addresses of a member.
    pub(crate) fn add_addresses(&mut self, roster: &Roster, id: &NodeId) {
        let node = roster.get(id);
        for address in node.iter().flat_map(|node| reachable(&node.description)) {
            let members = self.by_address.entry(address.to_canonical()).or_default();
            if !members.contains(id) {
                members.push(id.clone());
            }
        }
    }
}
