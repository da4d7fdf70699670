//! The places in which unknown connections are read: bounded in total and for each address, and
//! given out by turns of the addresses.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::{Duration, Instant},
};

use super::ConnectionId;

/// The places, and the connections that wait for one.
///
/// Invariant: `turns` has exactly the networks that have a waiting connection and fewer than
/// `max_per_network` places.
#[derive(Debug)]
pub(super) struct Places {
    max: usize,
    max_per_network: usize,
    /// The time for which a connection keeps its place while others wait.
    patience: Duration,
    networks: BTreeMap<IpAddr, Network>,
    turns: BTreeMap<u64, IpAddr>,
    next_turn: u64,
    taken: BTreeSet<(Instant, ConnectionId)>,
}

#[derive(Debug, Default)]
struct Network {
    /// The connections that have a place, with the time since which they have it.
    read: BTreeMap<ConnectionId, Instant>,
    /// In the order of arrival.
    waiting: BTreeSet<ConnectionId>,
    turn: Option<u64>,
}

impl Places {
    pub(super) fn new(max: usize, max_per_network: usize, patience: Duration) -> Self {
        Self {
            max,
            max_per_network,
            patience,
            networks: BTreeMap::new(),
            turns: BTreeMap::new(),
            next_turn: 0,
            taken: BTreeSet::new(),
        }
    }

    /// Adds a connection that waits for a place.
    pub(super) fn wait(&mut self, id: ConnectionId, network: IpAddr) {
        self.networks.entry(network).or_default().waiting.insert(id);
        self.take_turn(network);
    }

    /// Returns the next connection that gets a place.
    pub(super) fn poll(&mut self, now: Instant) -> Option<ConnectionId> {
        if self.taken.len() >= self.max {
            return None;
        }
        let (_, network) = self.turns.pop_first()?;
        let of_network = self.networks.get_mut(&network)?;
        of_network.turn = None;
        let id = of_network.waiting.pop_first()?;
        of_network.read.insert(id, now);
        self.taken.insert((now, id));
        self.take_turn(network);
        Some(id)
    }

    /// Removes a connection, whether it waits or has a place.
    pub(super) fn leave(&mut self, id: ConnectionId, network: IpAddr) {
        let Some(of_network) = self.networks.get_mut(&network) else { return };
        of_network.waiting.remove(&id);
        if let Some(since) = of_network.read.remove(&id) {
            self.taken.remove(&(since, id));
        }
        if of_network.waiting.is_empty() {
            if let Some(turn) = of_network.turn.take() {
                self.turns.remove(&turn);
            }
            if of_network.read.is_empty() {
                self.networks.remove(&network);
            }
        } else {
            self.take_turn(network);
        }
    }

    /// Returns the time at which a connection loses its place, because others wait.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let (since, _) = self.taken.first()?;
        (self.taken.len() >= self.max && !self.turns.is_empty()).then(|| *since + self.patience)
    }

    /// Returns the connection that loses its place now.
    pub(super) fn expired(&self, now: Instant) -> Option<ConnectionId> {
        self.poll_timeout().filter(|timeout| *timeout <= now)?;
        self.taken.first().map(|(_, id)| *id)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.networks.is_empty() && self.turns.is_empty() && self.taken.is_empty()
    }

    fn take_turn(&mut self, network: IpAddr) {
        let Some(of_network) = self.networks.get_mut(&network) else { return };
        let may_wait = !of_network.waiting.is_empty() && of_network.turn.is_none();
        if may_wait && of_network.read.len() < self.max_per_network {
            of_network.turn = Some(self.next_turn);
            self.turns.insert(self.next_turn, network);
            self.next_turn += 1;
        }
    }
}
