//! Finds the members that can confirm the users of connections to a round's store, by their addresses.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use crate::{
    batch::Batch,
    group::Group,
    ids::{GroupRank, NodeId},
    limits::{CHECKED_ADDRESSES_MAX, OWNER_CHECK_INTERVAL},
    message::STORE_CONNECTIONS_MAX,
    roster::Roster,
    table::reachable,
};

/// The members that can confirm the users of connections to the store of a running round.
#[derive(Debug)]
pub(crate) struct OwnerChecks {
    /// The member that serves the store.
    pub(crate) server: NodeId,
    /// The members by the addresses of their workers, past ones included.
    by_address: BTreeMap<IpAddr, BTreeSet<NodeId>>,
    /// The addresses of each member, the newest ones first.
    addresses: BTreeMap<NodeId, Vec<IpAddr>>,
    /// The answers for the server: the number of a connection, and true if a member confirms its user.
    pub(crate) answers: Batch<(u64, bool)>,
}

impl OwnerChecks {
    /// Returns the checks of a group; `None` if the node that serves its store is unknown.
    pub(crate) fn new(group: &Group, roster: &Roster) -> Option<Self> {
        let (server, _) = group.members().find(|(_, member)| member.rank == GroupRank(0))?;
        let answers = Batch::new(STORE_CONNECTIONS_MAX, OWNER_CHECK_INTERVAL);
        let mut checks = Self {
            server: server.clone(),
            by_address: BTreeMap::new(),
            addresses: BTreeMap::new(),
            answers,
        };
        for (id, _) in group.members() {
            checks.add_addresses(roster, id);
        }
        Some(checks)
    }

    /// Returns the members at `address`.
    pub(crate) fn at(&self, address: IpAddr) -> impl Iterator<Item = &NodeId> {
        self.by_address.get(&address.to_canonical()).into_iter().flatten()
    }

    /// Adds the addresses of a member. If there are too many, the oldest are forgotten.
    pub(crate) fn add_addresses(&mut self, roster: &Roster, id: &NodeId) {
        let Some(node) = roster.get(id) else { return };
        let before = self.addresses.remove(id).unwrap_or_default();
        let named = reachable(&node.description).map(|address| address.to_canonical());
        let mut seen = BTreeSet::new();
        let mut addresses: Vec<IpAddr> =
            named.chain(before).filter(|address| seen.insert(*address)).collect();
        for forgotten in addresses.drain(CHECKED_ADDRESSES_MAX.min(addresses.len())..) {
            if let Some(members) = self.by_address.get_mut(&forgotten) {
                members.remove(id);
                if members.is_empty() {
                    self.by_address.remove(&forgotten);
                }
            }
        }
        for address in &addresses {
            self.by_address.entry(*address).or_default().insert(id.clone());
        }
        self.addresses.insert(id.clone(), addresses);
    }
}
