//! Chooses which of the addresses that datagrams have named are dialed.

use std::{
    cmp::Reverse,
    net::{IpAddr, SocketAddr},
    time::Instant,
};

use ragent_coordinator::pages::identity::Candidate;
use ragent_options::spec::Eligible;

use super::{ChoiceState, Effect, HostChoice, PATIENCE};
use crate::endpoint::limits::{MAX_DIALS, MAX_PLACES};

/// An address that datagrams have named.
#[derive(Clone, Copy, Debug)]
pub(super) struct NamedPlace {
    /// The time of the last datagram.
    pub(super) named: Instant,
    /// The candidate that searches there.
    pub(super) candidate: Option<Candidate>,
    /// True if a host is named there.
    pub(super) is_host: bool,
    /// The host of the member there.
    pub(super) home: Option<SocketAddr>,
    pub(super) is_dialed: bool,
    pub(super) may_dial: Instant,
    /// True if the last answer keeps others from hosting.
    pub(super) keeps: bool,
    /// True if the address belongs to this machine, and no other process answers there.
    pub(super) is_free: bool,
}

impl HostChoice {
    /// Notes that a datagram names the address `at`.
    pub(super) fn name(
        &mut self,
        now: Instant,
        at: SocketAddr,
        change: impl FnOnce(&mut NamedPlace),
    ) {
        let has_room = self.places.len() < MAX_PLACES || self.places.contains_key(&at);
        if !has_room || !is_reachable(at) {
            return;
        }
        let place = self.places.entry(at).or_insert(NamedPlace {
            named: now,
            candidate: None,
            is_host: false,
            home: None,
            is_dialed: false,
            may_dial: now,
            keeps: false,
            is_free: false,
        });
        place.named = now;
        change(place);
    }

    /// Dials named hosts, if this agent looks for hosts. The host that has waited longest comes first.
    pub(super) fn dial_hosts(&mut self, now: Instant) {
        let home = match self.state {
            ChoiceState::Searching { .. } => None,
            ChoiceState::Settled(settled) if settled.compares => settled.home,
            ChoiceState::Found | ChoiceState::Settled(_) => return,
        };
        self.places.retain(|_, place| place.is_dialed || now < place.named + PATIENCE);
        let is_host = |at: SocketAddr, place: &NamedPlace| place.is_host && Some(at) != home;
        while self.dial(now, |at, place| is_host(at, place).then_some(Reverse(place.may_dial))) {}
    }

    /// Dials an agent that may keep this one from hosting, unless one has answered a moment ago: a member of a job, or a lower candidate. The
    /// next lower one comes first, so that each candidate is asked by one other. If it does not answer, the next step dials another one.
    pub(super) fn dial_keeper(&mut self, now: Instant) {
        let ChoiceState::Searching { .. } = self.state else { return };
        let is_renewed =
            |place: &NamedPlace| place.keeps && (place.is_dialed || now < place.may_dial);
        if self.places.values().any(is_renewed) {
            return;
        }
        let (own, waits) = (self.own, self.eligible == Eligible::IfLowest);
        let is_lower = |by: &Candidate| waits && *by < own;
        self.dial(now, |_, place| {
            let lower = place.candidate.filter(is_lower);
            (place.home.is_some() || lower.is_some()).then_some((place.home.is_some(), lower))
        });
    }

    /// Dials the place with the greatest key, if there is one, and room for an attempt. Returns true if it does.
    fn dial<Key: Ord>(
        &mut self,
        now: Instant,
        key: impl Fn(SocketAddr, &NamedPlace) -> Option<Key>,
    ) -> bool {
        let is_full = self.places.values().filter(|place| place.is_dialed).count() >= MAX_DIALS;
        let free = self
            .places
            .iter_mut()
            .filter(|(_, place)| !is_full && !place.is_dialed && place.may_dial <= now);
        let keyed = free.filter_map(|(at, place)| Some((key(*at, place)?, *at, place)));
        let Some((_, at, place)) = keyed.max_by(|(one, ..), (other, ..)| one.cmp(other)) else {
            return false;
        };
        place.is_dialed = true;
        self.effects.push_back(Effect::Dial(at));
        true
    }
}

/// Returns true if an address can belong to one machine, and to the same one in the whole network.
fn is_reachable(at: SocketAddr) -> bool {
    let is_of_one = match at.ip().to_canonical() {
        IpAddr::V4(v4) => !(v4.is_unspecified() || v4.is_multicast() || v4.is_broadcast()),
        IpAddr::V6(v6) => !(v6.is_unspecified() || v6.is_multicast() || v6.is_unicast_link_local()),
    };
    is_of_one && at.port() != 0
}
