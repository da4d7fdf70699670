//! Remembers nodes that were lost or have left since the last round was formed. A job that ends for
//! lack of nodes names them.

use std::{collections::BTreeMap, time::Instant};

use crate::{
    ids::NodeId,
    limits::{DEPARTED_NODES_MAX, DEPARTURES_MAX},
    message::{DepartedNode, DepartedNodes, Departure},
    roster::RosterNode,
};

/// The departed nodes, by id.
#[derive(Debug, Default)]
pub(crate) struct Departures(BTreeMap<NodeId, DepartureRecord>);

#[derive(Debug)]
struct DepartureRecord {
    host_name: String,
    address: String,
    /// Its position in the order of first registrations.
    arrival: u64,
    how: Departure,
    at: Instant,
}

/// The arrivals of newcomers, by host name and address.
type Arrivals<'a> = BTreeMap<(&'a str, &'a str), Vec<u64>>;

impl DepartureRecord {
    /// Removes the arrival of a later agent of the same machine. Returns false if there is none.
    fn take_replacement<'a>(&'a self, arrivals: &mut Arrivals<'a>) -> bool {
        let Some(later) = arrivals.get_mut(&(self.host_name.as_str(), self.address.as_str()))
        else {
            return false;
        };
        let found = later.iter().position(|arrival| *arrival > self.arrival);
        found.map(|index| later.swap_remove(index)).is_some()
    }
}

impl Departures {
    /// Adds the departure of a node. It replaces an earlier departure of the same node.
    pub(crate) fn add(&mut self, node: &RosterNode, how: Departure, at: Instant) {
        let id = &node.description.node_id;
        if self.0.len() < DEPARTURES_MAX || self.0.contains_key(id) {
            let departed = DepartureRecord {
                host_name: node.description.host_name.clone(),
                address: node.description.address.clone(),
                arrival: node.arrival,
                how,
                at,
            };
            self.0.insert(id.clone(), departed);
        }
    }

    /// Removes all departures.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns all departed nodes with their host names.
    pub(crate) fn host_names(&self) -> impl Iterator<Item = (&NodeId, &str)> {
        self.0.iter().map(|(id, departed)| (id, departed.host_name.as_str()))
    }

    /// Returns the missing departed nodes: without nodes for which `is_back` is true, and without nodes that
    /// a newcomer replaces. Such a newcomer is a later agent of the same machine.
    pub(crate) fn departed<'a>(
        &'a self,
        now: Instant,
        is_back: impl Fn(&NodeId, Departure) -> bool,
        newcomers: impl Iterator<Item = &'a RosterNode>,
    ) -> DepartedNodes {
        let mut arrivals: Arrivals<'_> = BTreeMap::new();
        for node in newcomers {
            let machine = (node.description.host_name.as_str(), node.description.address.as_str());
            arrivals.entry(machine).or_default().push(node.arrival);
        }
        let mut nodes: Vec<_> =
            self.0.iter().filter(|(id, departed)| !is_back(id, departed.how)).collect();
        nodes.sort_by_key(|(_, departed)| departed.at);
        nodes.retain(|(_, departed)| !departed.take_replacement(&mut arrivals));
        let more =
            u32::try_from(nodes.len().saturating_sub(DEPARTED_NODES_MAX)).unwrap_or(u32::MAX);
        let first = nodes.into_iter().take(DEPARTED_NODES_MAX).map(|(_, departed)| DepartedNode {
            host_name: departed.host_name.clone(),
            how: departed.how,
            ago: now.saturating_duration_since(departed.at),
        });
        DepartedNodes { first: first.collect(), more }
    }
}
