//! Decides which connections a port keeps: how long each may take to send its first request, and how
//! many unknown ones may be waiting at once.
//!
//! ```text
//! accepted ──▶ waiting ── first whole request ──▶ served ──▶ ended
//!                 │ too late, or too many wait      │ all places are taken, and it is a stranger
//!                 └──────────▶ to be closed ◀───────┘ ──────▶ ended
//! ```
//!
//! A pure machine: takes the time as an argument, and returns the connections to close.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::IpAddr,
    time::Instant,
};

use crate::net::limits;

/// A connection of one port; numbers increase in the order of arrival.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Visitor(u64);

/// The origin of a connection, as known when it is accepted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Origin {
    /// A socket of this user on this machine, or the address of a registered node.
    Known,
    /// Any other origin.
    Stranger,
}

/// The bounds of one port.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Quotas {
    /// Connections in total.
    pub(crate) places: usize,
    /// Waiting strangers in total.
    pub(crate) strangers: usize,
    /// Waiting strangers of one address.
    pub(crate) strangers_per_address: usize,
}

impl Default for Quotas {
    fn default() -> Self {
        Self {
            places: limits::MAX_CONNECTIONS,
            strangers: limits::MAX_STRANGERS,
            strangers_per_address: limits::MAX_STRANGERS_PER_ADDRESS,
        }
    }
}

/// The connections of one port.
///
/// Invariant: `deadlines` has all waiting connections, `strangers` the waiting strangers, `overdue`
/// the strangers that are no longer in `young`. `served_strangers` has connections that no longer
/// wait and were strangers when they were accepted. `leaving` is a part of the `len` connections.
#[derive(Debug)]
pub(crate) struct Door {
    quotas: Quotas,
    next: u64,
    len: usize,
    waiting: BTreeMap<Visitor, Waiting>,
    deadlines: BTreeSet<(Instant, Visitor)>,
    /// In the order of arrival, so that the first has waited longest.
    strangers: BTreeSet<Visitor>,
    /// Strangers accepted within the grace period, some of which may no longer be waiting.
    young: VecDeque<(Instant, Visitor)>,
    /// Strangers that have waited for longer, to which the quotas apply.
    overdue: BTreeSet<Visitor>,
    overdue_by_network: BTreeMap<IpAddr, BTreeSet<Visitor>>,
    /// In the order of arrival, with their addresses, which may have become known since.
    served_strangers: BTreeMap<Visitor, IpAddr>,
    /// The number of waiting connections with the longer time limit of store clients.
    patient: usize,
    closing: VecDeque<Visitor>,
    /// Connections to be closed, until they have ended.
    leaving: BTreeSet<Visitor>,
}

/// A connection that has not sent a whole request.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    deadline: Instant,
    /// The address, if it is a stranger.
    address: Option<IpAddr>,
    is_patient: bool,
}

impl Door {
    pub(crate) fn new(quotas: Quotas) -> Self {
        Self {
            quotas,
            next: 0,
            len: 0,
            waiting: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            strangers: BTreeSet::new(),
            young: VecDeque::new(),
            overdue: BTreeSet::new(),
            overdue_by_network: BTreeMap::new(),
            served_strangers: BTreeMap::new(),
            patient: 0,
            closing: VecDeque::new(),
            leaving: BTreeSet::new(),
        }
    }

    /// Notes that a connection was accepted. Up to `patient_max` known connections at once may be
    /// silent for longer: clients of a store that is served here. If all places are taken, a
    /// stranger makes room, unless `is_known` recognises its address by now.
    pub(crate) fn handle_accepted(
        &mut self,
        now: Instant,
        peer: IpAddr,
        origin: Origin,
        patient_max: usize,
        is_known: impl Fn(IpAddr) -> bool,
    ) -> Visitor {
        let visitor = Visitor(self.next);
        self.next += 1;
        self.len += 1;
        let is_patient = origin == Origin::Known && self.patient < patient_max;
        let patience =
            if is_patient { limits::STORE_SILENCE } else { limits::FIRST_REQUEST_TIMEOUT };
        let address = (origin == Origin::Stranger).then_some(peer);
        let deadline = now + patience;
        self.waiting.insert(visitor, Waiting { deadline, address, is_patient });
        self.deadlines.insert((deadline, visitor));
        self.patient += usize::from(is_patient);
        if address.is_some() {
            self.strangers.insert(visitor);
            self.young.push_back((now + limits::STRANGER_GRACE, visitor));
        }
        while self.quotas.places < self.len - self.leaving.len() && self.make_room(&is_known) {}
        visitor
    }

    /// Notes that a connection is not a client of a store: the time limit of other connections applies.
    pub(crate) fn handle_hurried(&mut self, now: Instant, visitor: Visitor) {
        let Some(waiting) = self.waiting.get_mut(&visitor).filter(|one| one.is_patient) else {
            return;
        };
        let deadline = waiting.deadline.min(now + limits::FIRST_REQUEST_TIMEOUT);
        self.deadlines.remove(&(waiting.deadline, visitor));
        self.deadlines.insert((deadline, visitor));
        waiting.deadline = deadline;
        waiting.is_patient = false;
        self.patient -= 1;
    }

    /// Notes that a connection has sent its first request, including the body.
    pub(crate) fn handle_served(&mut self, visitor: Visitor) {
        if let Some(waiting) = self.forget(visitor)
            && let Some(address) = waiting.address
        {
            self.served_strangers.insert(visitor, address);
        }
    }

    /// Notes that a connection has ended, by itself or because it was closed.
    pub(crate) fn handle_ended(&mut self, visitor: Visitor) {
        self.forget(visitor);
        self.served_strangers.remove(&visitor);
        self.leaving.remove(&visitor);
        self.len -= 1;
    }

    /// Returns true if another connection may be accepted.
    pub(crate) fn has_room(&self) -> bool {
        self.len < self.quotas.places
            || !self.strangers.is_empty()
            || !self.served_strangers.is_empty()
    }

    /// Closes the oldest waiting stranger or the oldest served one, by which kind is more numerous;
    /// served ones that `is_known` recognises are passed over. Returns false if there is none.
    pub(crate) fn make_room(&mut self, is_known: impl Fn(IpAddr) -> bool) -> bool {
        while self.strangers.len() < self.served_strangers.len()
            && let Some((visitor, address)) = self.served_strangers.pop_first()
        {
            if !is_known(address) {
                self.close(visitor);
                return true;
            }
        }
        let longest = self.strangers.first().copied();
        longest.inspect(|visitor| self.close(*visitor)).is_some()
    }

    /// Returns the earliest deadline.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let deadline = self.deadlines.first().map(|(deadline, _)| *deadline);
        let grown = self.young.front().map(|(grown, _)| *grown);
        deadline.into_iter().chain(grown).min()
    }

    /// Applies every deadline that has passed.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        while let Some((_, visitor)) = self.young.pop_front_if(|(grown, _)| *grown <= now) {
            let Some(address) = self.waiting.get(&visitor).and_then(|one| one.address) else {
                continue;
            };
            let network = network_of(address);
            self.overdue.insert(visitor);
            let of_network = self.overdue_by_network.entry(network).or_default();
            of_network.insert(visitor);
            let longest = of_network.first().copied();
            if of_network.len() > self.quotas.strangers_per_address {
                longest.into_iter().for_each(|longest| self.close(longest));
            }
            if self.overdue.len() > self.quotas.strangers {
                let longest = self.overdue.first().copied();
                longest.into_iter().for_each(|longest| self.close(longest));
            }
        }
        while let Some(&(deadline, visitor)) = self.deadlines.first()
            && deadline <= now
        {
            self.close(visitor);
        }
    }

    /// Returns the next connection to close; it ends afterwards.
    pub(crate) fn poll_closing(&mut self) -> Option<Visitor> {
        self.closing.pop_front()
    }

    fn close(&mut self, visitor: Visitor) {
        self.forget(visitor);
        self.closing.push_back(visitor);
        self.leaving.insert(visitor);
    }

    /// Notes that a connection no longer waits.
    fn forget(&mut self, visitor: Visitor) -> Option<Waiting> {
        let waiting = self.waiting.remove(&visitor)?;
        self.deadlines.remove(&(waiting.deadline, visitor));
        self.patient -= usize::from(waiting.is_patient);
        self.strangers.remove(&visitor);
        self.overdue.remove(&visitor);
        if let Some(network) = waiting.address.map(network_of)
            && let Some(of_network) = self.overdue_by_network.get_mut(&network)
        {
            of_network.remove(&visitor);
            if of_network.is_empty() {
                self.overdue_by_network.remove(&network);
            }
        }
        Some(waiting)
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
