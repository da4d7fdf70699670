//! Limits how many unknown connections are read at once, in total and for each address.
//!
//! A connection waits until it gets a place. Addresses take turns, so that one address with many
//! connections does not keep another one waiting. The limit for each address applies once half of
//! the places are taken: the agents of one address then start together while the port is idle.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::{Duration, Instant},
};

use super::ConnectionId;

/// The places, and the connections that wait for one.
///
/// Invariant: `turns` has exactly the networks that have a waiting connection.
#[derive(Debug)]
pub(super) struct ConnectionPlaces {
    max: usize,
    max_per_network: usize,
    /// The time that a connection keeps its place while others wait.
    patience: Duration,
    networks: BTreeMap<IpAddr, Network>,
    turns: BTreeMap<u64, IpAddr>,
    turns_given: u64,
    taken: BTreeSet<(Instant, ConnectionId)>,
    /// The places of networks that have all that they may have, and a waiting connection.
    crowded: BTreeSet<(Instant, ConnectionId)>,
}

#[derive(Debug, Default)]
struct Network {
    /// The connections that have a place, with the time since which they have it.
    read: BTreeMap<ConnectionId, Instant>,
    /// In the order of arrival.
    waiting: BTreeSet<ConnectionId>,
    turn: Option<u64>,
}

impl ConnectionPlaces {
    pub(super) fn new(max: usize, max_per_network: usize, patience: Duration) -> Self {
        Self {
            max,
            max_per_network,
            patience,
            networks: BTreeMap::new(),
            turns: BTreeMap::new(),
            turns_given: 0,
            taken: BTreeSet::new(),
            crowded: BTreeSet::new(),
        }
    }

    /// Adds a connection that waits for a place.
    pub(super) fn wait(&mut self, id: ConnectionId, network: IpAddr) {
        self.networks.entry(network).or_default().waiting.insert(id);
        self.note(network);
    }

    /// Returns the next connection that gets a place.
    pub(super) fn poll(&mut self, now: Instant) -> Option<ConnectionId> {
        if self.taken.len() >= self.max {
            return None;
        }
        let (turn, network) = self.next_turn(self.taken.len() < self.max / 2)?;
        self.turns.remove(&turn);
        let of_network = self.networks.get_mut(&network)?;
        of_network.turn = None;
        let id = of_network.waiting.pop_first()?;
        of_network.read.insert(id, now);
        self.taken.insert((now, id));
        self.note(network);
        Some(id)
    }

    /// Removes a connection, whether it waits or has a place.
    pub(super) fn leave(&mut self, id: ConnectionId, network: IpAddr) {
        let Some(of_network) = self.networks.get_mut(&network) else { return };
        of_network.waiting.remove(&id);
        if let Some(since) = of_network.read.remove(&id) {
            self.taken.remove(&(since, id));
            self.crowded.remove(&(since, id));
        }
        self.note(network);
    }

    /// Returns the time at which a connection loses its place, because others wait.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.next_to_lose().map(|(since, _)| since + self.patience)
    }

    /// Returns the connection that loses its place now.
    pub(super) fn expired(&self, now: Instant) -> Option<ConnectionId> {
        let (since, id) = self.next_to_lose()?;
        (since + self.patience <= now).then_some(id)
    }

    fn next_to_lose(&self) -> Option<(Instant, ConnectionId)> {
        let is_full = self.taken.len() >= self.max && self.next_turn(false).is_some();
        let of_all = self.taken.first().filter(|_| is_full);
        of_all.into_iter().chain(self.crowded.first()).min().copied()
    }

    /// Returns the next turn of a network that may have a further place. Few networks can have all that they may have.
    fn next_turn(&self, may_have_more: bool) -> Option<(u64, IpAddr)> {
        let may = |network| {
            let of_network = self.networks.get(network);
            may_have_more
                || of_network.is_some_and(|of_network| of_network.read.len() < self.max_per_network)
        };
        self.turns.iter().find(|(_, network)| may(network)).map(|(turn, network)| (*turn, *network))
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let is_empty = self.networks.is_empty() && self.turns.is_empty();
        is_empty && self.taken.is_empty() && self.crowded.is_empty()
    }

    /// Notes that the connections of a network have changed.
    fn note(&mut self, network: IpAddr) {
        let Some(of_network) = self.networks.get_mut(&network) else { return };
        let is_full = of_network.read.len() >= self.max_per_network;
        let waits = !of_network.waiting.is_empty();
        match of_network.turn {
            None if waits => {
                of_network.turn = Some(self.turns_given);
                self.turns.insert(self.turns_given, network);
                self.turns_given += 1;
            }
            Some(turn) if !waits => {
                of_network.turn = None;
                self.turns.remove(&turn);
            }
            _ => {}
        }
        // At most half of the places, or `max_per_network`.
        for (id, since) in &of_network.read {
            if waits && is_full {
                self.crowded.insert((*since, *id));
            } else {
                self.crowded.remove(&(*since, *id));
            }
        }
        if !waits && of_network.read.is_empty() {
            self.networks.remove(&network);
        }
    }
}
