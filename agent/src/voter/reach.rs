//! The reachability of the other voters, for reports about an election without a majority.

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use ragent_core::reported_causes::ReportedCauses;
use ragent_rendezvous::election::message::Place;

use super::limits;
use crate::spec::Endpoint;

/// The connections to the other voters and their addresses, as this voter knows them.
#[derive(Debug)]
pub(super) struct Reachability {
    list: Vec<Endpoint>,
    own: Place,
    /// The loss of the connection to each voter, by place; `None` while it is connected.
    causes: Vec<Option<Lost>>,
    /// The addresses of each voter, by place.
    addresses: Vec<Vec<IpAddr>>,
    /// True if this process leads.
    is_leading: bool,
    /// The time since which no leader is known; `None` while one is known.
    leaderless: Option<Instant>,
    is_reported: bool,
    mismatches: ReportedCauses,
}

/// A voter that is not connected.
#[derive(Clone, Debug)]
struct Lost {
    cause: String,
    since: Instant,
    /// True if the loss was reported.
    is_reported: bool,
}

impl Reachability {
    pub(super) fn new(now: Instant, list: Vec<Endpoint>, own: Place) -> Self {
        let unknown =
            Lost { cause: "not connected yet".to_owned(), since: now, is_reported: false };
        let causes = vec![Some(unknown); list.len()];
        let addresses = vec![Vec::new(); list.len()];
        let mismatches = ReportedCauses::default();
        Self {
            list,
            own,
            causes,
            addresses,
            is_leading: false,
            leaderless: Some(now),
            is_reported: false,
            mismatches,
        }
    }

    /// Notes that a voter has answered.
    pub(super) fn handle_answer(&mut self, place: Place) {
        if let Some(known) = self.causes.get_mut(place.0) {
            *known = None;
        }
    }

    /// Notes that a voter is not connected, and the reason.
    pub(super) fn handle_lost(&mut self, now: Instant, place: Place, cause: String) {
        if let Some(known) = self.causes.get_mut(place.0) {
            let (since, is_reported) =
                known.as_ref().map_or((now, false), |lost| (lost.since, lost.is_reported));
            *known = Some(Lost { cause, since, is_reported });
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

    /// Notes whether a leader is known, and whether it is this process.
    pub(super) fn handle_leader(&mut self, now: Instant, is_known: bool, is_own: bool) {
        self.is_leading = is_own;
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

    /// Returns true if a refused message from this address was not reported yet for this cause.
    pub(super) fn is_new_mismatch(&mut self, ip: IpAddr, cause: &str) -> bool {
        self.mismatches.insert(&format!("{ip} {cause}"))
    }

    /// Returns the time of the next report.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        [self.leaderless_due(), self.lost_due()].into_iter().flatten().min()
    }

    /// Returns the report that is due, if there is one.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> Option<String> {
        if let Some(since) = self.leaderless
            && self.leaderless_due().is_some_and(|due| due <= now)
        {
            self.is_reported = true;
            return Some(self.leaderless_report(now.saturating_duration_since(since)));
        }
        self.lost_report(now)
    }

    fn leaderless_due(&self) -> Option<Instant> {
        self.leaderless.filter(|_| !self.is_reported).map(|since| since + limits::WAIT_WARNING)
    }

    fn lost_due(&self) -> Option<Instant> {
        let unreported = |lost: &&Lost| !lost.is_reported;
        let since =
            self.lost().map(|(_, lost)| lost).filter(unreported).map(|lost| lost.since).min();
        since.filter(|_| self.is_leading).map(|since| since + limits::LOST_WARNING)
    }

    /// Returns the other voters that are not connected.
    fn lost(&self) -> impl Iterator<Item = (&Endpoint, &Lost)> {
        let voters = self.list.iter().zip(&self.causes).enumerate();
        voters
            .filter(|(place, _)| *place != self.own.0)
            .filter_map(|(_, (endpoint, lost))| Some((endpoint, lost.as_ref()?)))
    }

    fn leaderless_report(&self, waited: Duration) -> String {
        let absent: Vec<_> =
            self.lost().map(|(endpoint, lost)| format!("{endpoint} ({})", lost.cause)).collect();
        let (waited, all) = (waited.as_secs(), self.list.len());
        if absent.is_empty() {
            return format!(
                "no coordinator was elected for {waited} s, although all voters are connected; check that all \
                 were started with the same `--rdzv-endpoint` and `--nnodes`"
            );
        }
        format!(
            "no coordinator was elected for {waited} s: a majority of the {all} hosts in \
             `--rdzv-endpoint` is needed; not reached: {}",
            absent.join(", ")
        )
    }

    /// Returns a report of the voters that have not answered for a long time, for the user of the leader's agent.
    fn lost_report(&mut self, now: Instant) -> Option<String> {
        if self.lost_due().is_none_or(|due| now < due) {
            return None;
        }
        let absent: Vec<_> = self.lost().map(|(endpoint, _)| endpoint.to_string()).collect();
        let (all, left) = (self.list.len(), self.list.len() - absent.len());
        for lost in self.causes.iter_mut().flatten() {
            lost.is_reported = true;
        }
        let absent = absent.join(", ");
        let consequence = if left <= all / 2 + 1 {
            "the loss of another one stops the job"
        } else {
            "the job continues while a majority is left"
        };
        Some(format!(
            "no answer from {absent} for {} s: {left} of {all} voters are left, and {consequence}; check \
             that host, or start an agent there",
            limits::LOST_WARNING.as_secs()
        ))
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
        reach.handle_answer(Place(1));
        reach.handle_lost(start, Place(2), "refused".to_owned());
        assert_eq!(reach.poll_timeout(), Some(start + limits::WAIT_WARNING));
        assert_eq!(reach.handle_timeout(start), None);
        let due = start + limits::WAIT_WARNING;
        let expected = "no coordinator was elected for 10 s: a majority of the 3 hosts in \
                        `--rdzv-endpoint` is needed; not reached: c:1 (refused)";
        assert_eq!(reach.handle_timeout(due).as_deref(), Some(expected));
        assert_eq!((reach.poll_timeout(), reach.handle_timeout(due)), (None, None));
        reach.handle_leader(due, true, false);
        assert_eq!(reach.poll_timeout(), None, "only a leader reports lost voters");
        reach.handle_leader(due, false, false);
        assert_eq!(reach.poll_timeout(), Some(due + limits::WAIT_WARNING));
    }

    /// A leader reports a voter that is lost for a minute, once for each loss.
    #[test]
    fn lost_voters_are_reported() {
        let start = crate::sys::clock::now_blocking();
        let mut reach = Reachability::new(start, list(), Place(0));
        reach.handle_leader(start, true, true);
        reach.handle_answer(Place(1));
        let due = start + limits::LOST_WARNING;
        assert_eq!(reach.poll_timeout(), Some(due));
        reach.handle_lost(start, Place(2), "refused".to_owned());
        let expected = "no answer from c:1 for 60 s: 2 of 3 voters are left, and the loss of another one \
                        stops the job; check that host, or start an agent there";
        assert_eq!(reach.handle_timeout(due).as_deref(), Some(expected));
        reach.handle_lost(due, Place(2), "refused".to_owned());
        assert_eq!((reach.poll_timeout(), reach.handle_timeout(due)), (None, None));
        reach.handle_answer(Place(2));
        reach.handle_lost(due, Place(2), "refused".to_owned());
        assert_eq!(reach.poll_timeout(), Some(due + limits::LOST_WARNING));
    }

    /// The addresses of the other voters are recognised, and this voter's own address is not.
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
