//! Decides which connections a port keeps: how long each may take to send its first request, how
//! many unknown ones may wait at once, and how many of them are read at once.
//!
//! ```text
//! accepted ──▶ silent ── first byte ──▶ read ── first whole request ──▶ served ──▶ ended
//!                 │        (waits for     │                               │
//!                 │         a place)      │ too late, or too many wait    │ too many unknown ones
//!                 └───────────────────────┴───────▶ to be closed ◀────────┘ ──────▶ ended
//! ```
//!
//! A connection that is not read costs little memory. So strangers can fill only as much memory as
//! the places for reading and for served connections allow.
//!
//! A pure machine: takes the time as an argument, and returns the connections to close.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::IpAddr,
    time::Instant,
};

use self::places::ConnectionPlaces;
use crate::net::limits;

mod places;

/// A connection of one port; numbers increase in the order of arrival.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct ConnectionId(u64);

/// The origin of a connection, as known when it is accepted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ConnectionOrigin {
    /// A socket of this user on this machine, the address of a registered node, or a process that has proven that it belongs
    /// to the job.
    Known,
    /// Any other origin.
    Unknown,
}

/// The bounds of one port.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Bounds {
    /// Connections in total.
    pub(crate) connections: usize,
    /// Waiting unknown connections in total.
    pub(crate) unknown: usize,
    /// Waiting unknown connections of one address.
    pub(crate) unknown_per_address: usize,
    /// Unknown connections that are read at once, until their first request is complete.
    pub(crate) read: usize,
    /// The same of one address, once half of the places are taken.
    pub(crate) read_per_address: usize,
    /// Served unknown connections in total.
    pub(crate) served: usize,
    /// Served unknown connections of one address.
    pub(crate) served_per_address: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            connections: limits::MAX_CONNECTIONS,
            unknown: limits::MAX_UNKNOWN,
            unknown_per_address: limits::MAX_UNKNOWN_PER_ADDRESS,
            read: limits::MAX_READ,
            read_per_address: limits::MAX_READ_PER_ADDRESS,
            served: limits::MAX_SERVED_UNKNOWN,
            served_per_address: limits::MAX_UNKNOWN_PER_ADDRESS,
        }
    }
}

/// The connections of one port.
///
/// Invariant: `deadlines` has all waiting connections, `unknown` the waiting unknown connections,
/// `overdue` the unknown connections that are no longer in `young`. `served_unknown` has
/// connections that no longer wait and were unknown when they were served, and so has
/// `served_by_network`. `leaving` is a part of the `len` connections.
#[derive(Debug)]
pub struct ConnectionQuota {
    bounds: Bounds,
    next: u64,
    len: usize,
    waiting: BTreeMap<ConnectionId, WaitingConnection>,
    deadlines: BTreeSet<(Instant, ConnectionId)>,
    /// In the order of arrival, so that the first has waited longest.
    unknown: BTreeSet<ConnectionId>,
    /// Unknown connections accepted within the grace period; some may no longer be
    /// waiting.
    young: VecDeque<(Instant, ConnectionId)>,
    /// Unknown connections that have waited for longer, to which the quotas apply.
    overdue: BTreeSet<ConnectionId>,
    overdue_by_network: BTreeMap<IpAddr, BTreeSet<ConnectionId>>,
    places: ConnectionPlaces,
    /// In the order of arrival, with their addresses, which may have become known since.
    served_unknown: BTreeMap<ConnectionId, IpAddr>,
    served_by_network: BTreeMap<IpAddr, BTreeSet<ConnectionId>>,
    /// The number of waiting connections with the longer time limit of store clients.
    store_clients: usize,
    closing: VecDeque<ConnectionId>,
    /// Connections to be closed, until they have ended.
    leaving: BTreeSet<ConnectionId>,
}

/// A connection that has not sent a whole request.
#[derive(Clone, Copy, Debug)]
struct WaitingConnection {
    deadline: Instant,
    /// The address, if the connection is unknown.
    address: Option<IpAddr>,
    is_store_client: bool,
}

impl ConnectionQuota {
    /// Creates the rules of a port without connections.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            next: 0,
            len: 0,
            waiting: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            unknown: BTreeSet::new(),
            young: VecDeque::new(),
            overdue: BTreeSet::new(),
            overdue_by_network: BTreeMap::new(),
            places: ConnectionPlaces::new(
                bounds.read,
                bounds.read_per_address,
                limits::READ_PATIENCE,
            ),
            served_unknown: BTreeMap::new(),
            served_by_network: BTreeMap::new(),
            store_clients: 0,
            closing: VecDeque::new(),
            leaving: BTreeSet::new(),
        }
    }

    /// Notes that a connection was accepted. Up to `store_clients_max` known connections at once
    /// may be silent for longer: clients of a store that is served here. If all places are taken,
    /// an unknown connection is closed, unless `is_known` recognises its address by now.
    pub fn handle_accepted(
        &mut self,
        now: Instant,
        peer: IpAddr,
        origin: ConnectionOrigin,
        store_clients_max: usize,
        is_known: impl Fn(IpAddr) -> bool,
    ) -> ConnectionId {
        let id = ConnectionId(self.next);
        self.next += 1;
        self.len += 1;
        let is_store_client =
            origin == ConnectionOrigin::Known && self.store_clients < store_clients_max;
        let patience =
            if is_store_client { limits::STORE_SILENCE } else { limits::FIRST_REQUEST_TIMEOUT };
        let address = (origin == ConnectionOrigin::Unknown).then_some(peer);
        let deadline = now + patience;
        self.waiting.insert(id, WaitingConnection { deadline, address, is_store_client });
        self.deadlines.insert((deadline, id));
        self.store_clients += usize::from(is_store_client);
        if address.is_some() {
            self.unknown.insert(id);
            self.young.push_back((now + limits::UNKNOWN_GRACE, id));
        }
        while self.bounds.connections < self.len - self.leaving.len() && self.make_room(&is_known) {
        }
        id
    }

    /// Notes that a connection is not a client of a store: the time limit of other connections
    /// applies.
    pub(crate) fn handle_not_store_client(&mut self, now: Instant, id: ConnectionId) {
        let Some(waiting) = self.waiting.get_mut(&id).filter(|one| one.is_store_client) else {
            return;
        };
        let deadline = waiting.deadline.min(now + limits::FIRST_REQUEST_TIMEOUT);
        self.deadlines.remove(&(waiting.deadline, id));
        self.deadlines.insert((deadline, id));
        waiting.deadline = deadline;
        waiting.is_store_client = false;
        self.store_clients -= 1;
    }

    /// Notes that an unknown connection has sent its first byte. It is read when
    /// [`Self::poll_read`] returns it.
    pub(crate) fn handle_begun(&mut self, id: ConnectionId) {
        if let Some(address) = self.waiting.get(&id).and_then(|waiting| waiting.address) {
            self.places.wait(id, network_of(address));
        }
    }

    /// Returns the next connection that may be read.
    pub(crate) fn poll_read(&mut self, now: Instant) -> Option<ConnectionId> {
        self.places.poll(now)
    }

    /// Notes that a connection has proven that it belongs to the job: it no longer counts as
    /// unknown.
    pub(crate) fn handle_authenticated(&mut self, id: ConnectionId) {
        if let Some(waiting) = self.forget(id) {
            self.deadlines.insert((waiting.deadline, id));
            self.store_clients += usize::from(waiting.is_store_client);
            self.waiting.insert(id, WaitingConnection { address: None, ..waiting });
        }
    }

    /// Notes that a connection has sent its first request, including the body. If too many unknown
    /// connections are served, the oldest is closed, first one of the same address. Connections do not
    /// count if `is_known` recognises their address by now.
    pub(crate) fn handle_served(&mut self, id: ConnectionId, is_known: impl Fn(IpAddr) -> bool) {
        let Some(address) = self.forget(id).and_then(|waiting| waiting.address) else { return };
        if is_known(address) {
            return;
        }
        self.served_unknown.insert(id, address);
        let of_network = self.served_by_network.entry(network_of(address)).or_default();
        of_network.insert(id);
        let of_network: Vec<_> = match of_network.len() > self.bounds.served_per_address {
            true => of_network.iter().copied().collect(),
            false => Vec::new(),
        };
        for oldest in of_network {
            if !self.served_unknown.get(&oldest).is_some_and(|address| is_known(*address)) {
                self.close(oldest);
                break;
            }
            self.forget_served(oldest);
        }
        while self.served_unknown.len() > self.bounds.served && self.close_served(&is_known) {}
    }

    /// Notes that a connection has ended, by itself or because it was closed.
    pub(crate) fn handle_ended(&mut self, id: ConnectionId) {
        self.forget(id);
        self.forget_served(id);
        self.leaving.remove(&id);
        self.len -= 1;
    }

    /// Returns true if another connection may be accepted.
    pub(crate) fn has_room(&self) -> bool {
        self.len < self.bounds.connections
            || !self.waiting.is_empty()
            || !self.served_unknown.is_empty()
    }

    /// Closes the oldest waiting unknown connection or the oldest served one, by which kind is more
    /// numerous; served ones that `is_known` recognises are passed over. If there is none, closes the
    /// known connection without a request whose time ends first: other users of a member's host have
    /// a known address, too. Returns false if all connections are known and served.
    pub(crate) fn make_room(&mut self, is_known: impl Fn(IpAddr) -> bool) -> bool {
        if self.unknown.len() < self.served_unknown.len() && self.close_served(&is_known) {
            return true;
        }
        let silent = || self.deadlines.first().map(|(_, id)| *id);
        let longest = self.unknown.first().copied().or_else(silent);
        longest.inspect(|id| self.close(*id)).is_some()
    }

    /// Closes the oldest served unknown connection. Older connections no longer count if `is_known`
    /// recognises their address. Returns false if there is none.
    fn close_served(&mut self, is_known: impl Fn(IpAddr) -> bool) -> bool {
        while let Some((&id, &address)) = self.served_unknown.first_key_value() {
            self.forget_served(id);
            if !is_known(address) {
                self.close(id);
                return true;
            }
        }
        false
    }

    /// Returns the earliest deadline.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let deadline = self.deadlines.first().map(|(deadline, _)| *deadline);
        let grown = self.young.front().map(|(grown, _)| *grown);
        deadline.into_iter().chain(grown).chain(self.places.poll_timeout()).min()
    }

    /// Applies every deadline that has passed.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        while let Some((_, id)) = self.young.pop_front_if(|(grown, _)| *grown <= now) {
            let Some(address) = self.waiting.get(&id).and_then(|one| one.address) else { continue };
            let network = network_of(address);
            self.overdue.insert(id);
            let of_network = self.overdue_by_network.entry(network).or_default();
            of_network.insert(id);
            let longest = of_network.first().copied();
            if of_network.len() > self.bounds.unknown_per_address {
                longest.into_iter().for_each(|longest| self.close(longest));
            }
            if self.overdue.len() > self.bounds.unknown {
                let longest = self.overdue.first().copied();
                longest.into_iter().for_each(|longest| self.close(longest));
            }
        }
        while let Some(&(deadline, id)) = self.deadlines.first()
            && deadline <= now
        {
            self.close(id);
        }
        // Its place is free afterwards, so this ends.
        while let Some(id) = self.places.expired(now) {
            self.close(id);
        }
    }

    /// Returns the next connection to close; it ends afterwards.
    pub(crate) fn poll_closing(&mut self) -> Option<ConnectionId> {
        self.closing.pop_front()
    }

    fn close(&mut self, id: ConnectionId) {
        self.forget(id);
        self.forget_served(id);
        self.closing.push_back(id);
        self.leaving.insert(id);
    }

    /// Notes that a connection no longer waits.
    fn forget(&mut self, id: ConnectionId) -> Option<WaitingConnection> {
        let waiting = self.waiting.remove(&id)?;
        self.deadlines.remove(&(waiting.deadline, id));
        self.store_clients -= usize::from(waiting.is_store_client);
        self.unknown.remove(&id);
        self.overdue.remove(&id);
        if let Some(network) = waiting.address.map(network_of) {
            self.places.leave(id, network);
            remove(&mut self.overdue_by_network, network, id);
        }
        Some(waiting)
    }

    /// Notes that a served unknown connection no longer counts.
    fn forget_served(&mut self, id: ConnectionId) {
        if let Some(address) = self.served_unknown.remove(&id) {
            remove(&mut self.served_by_network, network_of(address), id);
        }
    }
}

/// Removes a connection of a network.
fn remove(
    by_network: &mut BTreeMap<IpAddr, BTreeSet<ConnectionId>>,
    network: IpAddr,
    id: ConnectionId,
) {
    if let Some(of_network) = by_network.get_mut(&network) {
        of_network.remove(&id);
        if of_network.is_empty() {
            by_network.remove(&network);
        }
    }
}

/// Returns the address under which connections are counted: one customer has a whole /64 of IPv6.
fn network_of(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            std::net::Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests;
