//! The reachability of the other voters, for reports about an election without a majority.

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use ragent_core::reported_causes::ReportedCauses;
use ragent_rendezvous::election::message::Place;

use super::limits;
use crate::spec::Endpoint;

/// The other voters, as this one reaches them.
#[derive(Debug)]
pub(super) struct Reachability {
    list: Vec<Endpoint>,
    own: Place,
    /// The reason for which each voter is not connected, by place; `None` if it is.
    causes: Vec<Option<String>>,
    /// The addresses of each voter, by place.
    addresses: Vec<Vec<IpAddr>>,
    /// The time since which no leader is known; `None` while there is one.
    leaderless: Option<Instant>,
    is_reported: bool,
    mismatches: ReportedCauses,
}

impl Reachability {
    pub(super) fn new(now: Instant, list: Vec<Endpoint>, own: Place) -> Self {
        let causes = vec![Some("not connected yet".to_owned()); list.len()];
        let addresses = vec![Vec::new(); list.len()];
        let mismatches = ReportedCauses::default();
        Self { list, own, causes, addresses, leaderless: Some(now), is_reported: false, mismatches }
    }

    /// Notes that a voter is connected, or the reason why not.
    pub(super) fn handle_connection(&mut self, place: Place, cause: Option<String>) {
        if let Some(known) = self.causes.get_mut(place.0) {
            *known = cause;
        }
    }

    /// Returns true if a voter is connected, and has answered.
    pub(super) fn is_connected(&self, place: Place) -> bool {
        self.causes.get(place.0).is_some_and(Option::is_none)
    }

    /// Notes the addresses of a voter.
    pub(super) fn handle_resolved(&mut self, place: Place, addresses: Vec<IpAddr>) {
        if let Some(known) = self.addresses.get_mut(place.0) {
            *known = addresses;
        }
    }

    /// Notes whether a leader is known.
    pub(super) fn handle_leader(&mut self, now: Instant, is_known: bool) {
        if is_known {
            self.leaderless = None;
            self.is_reported = false;
        } else {
            self.leaderless.get_or_insert(now);
        }
    }

    /// Returns true if the address is one of another voter.
    pub(super) fn is_voter(&self, ip: IpAddr) -> bool {
        let others = self.addresses.iter().enumerate().filter(|(place, _)| *place != self.own.0);
        others.flat_map(|(_, addresses)| addresses).any(|known| known.to_canonical() == ip)
    }

    /// Returns true if this message of an address was not reported yet.
    pub(super) fn is_new_mismatch(&mut self, ip: IpAddr, cause: &str) -> bool {
        self.mismatches.insert(&format!("{ip} {cause}"))
    }

    /// Returns the time at which the lack of a leader is to be reported.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.leaderless.filter(|_| !self.is_reported).map(|since| since + limits::WAIT_WARNING)
    }

    /// Returns the report that no leader was elected, if it is due.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> Option<String> {
        let since = self.leaderless?;
        if self.poll_timeout().is_none_or(|due| now < due) {
            return None;
        }
        self.is_reported = true;
        let absent = self.list.iter().zip(&self.causes).enumerate().filter_map(|(place, voter)| {
            let (endpoint, cause) = voter;
            cause
                .as_ref()
                .filter(|_| place != self.own.0)
                .map(|cause| format!("{endpoint} ({cause})"))
        });
        let absent: Vec<_> = absent.collect();
        let waited: Duration = now.saturating_duration_since(since);
        Some(if absent.is_empty() {
            format!(
                "no coordinator was elected for {} s, although all voters are connected",
                waited.as_secs()
            )
        } else {
            format!(
                "no coordinator was elected for {} s: a majority of the {} hosts in \
                 `--rdzv-endpoint` is needed; not reached: {}",
                waited.as_secs(),
                self.list.len(),
                absent.join(", ")
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list() -> Vec<Endpoint> {
        ["a", "b", "c"].map(|host| Endpoint { host: host.to_owned(), port: 1 }).to_vec()
    }

    /// The lack of a leader is reported once, with the voters that are not reached.
    #[test]
    fn lack_of_a_leader_is_reported_once() {
        let start = crate::sys::clock::now_blocking();
        let mut reach = Reachability::new(start, list(), Place(0));
        reach.handle_connection(Place(1), None);
        reach.handle_connection(Place(2), Some("refused".to_owned()));
        assert_eq!(reach.poll_timeout(), Some(start + limits::WAIT_WARNING));
        assert_eq!(reach.handle_timeout(start), None);
        let due = start + limits::WAIT_WARNING;
        let expected = "no coordinator was elected for 10 s: a majority of the 3 hosts in \
                        `--rdzv-endpoint` is needed; not reached: c:1 (refused)";
        assert_eq!(reach.handle_timeout(due).as_deref(), Some(expected));
        assert_eq!((reach.poll_timeout(), reach.handle_timeout(due)), (None, None));
        reach.handle_leader(due, true);
        reach.handle_leader(due, false);
        assert_eq!(reach.poll_timeout(), Some(due + limits::WAIT_WARNING));
    }

    /// The addresses of the other voters are recognised, not the own ones.
    #[test]
    fn addresses_of_voters_are_known() {
        let start = crate::sys::clock::now_blocking();
        let mut reach = Reachability::new(start, list(), Place(0));
        let ip = |last| IpAddr::from([10, 0, 0, last]);
        reach.handle_resolved(Place(0), vec![ip(1)]);
        reach.handle_resolved(Place(1), vec![ip(2)]);
        assert_eq!([1, 2, 3].map(|last| reach.is_voter(ip(last))), [false, true, false]);
    }
}
