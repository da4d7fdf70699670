//! Tracks which other voters are reached, for reports.
//!
//! - Without a leader for 10 s, every voter reports which voters it does not reach.
//! - A leader reports a voter that is lost for a minute.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::{Duration, Instant},
};

use ragent_core::reported_causes::ReportedCauses;
use ragent_rendezvous::ids::VoterAddress;

use super::limits;

/// The connections to the other voters, and their addresses.
#[derive(Debug)]
pub(super) struct VoterReach {
    /// The other voters, and the processes that may become voters.
    others: BTreeMap<VoterAddress, OtherVoter>,
    /// The number of voters.
    voters: usize,
    /// True if this process is a voter. Other processes follow no leader.
    is_voter: bool,
    /// The address of the coordinator with which this process is registered.
    trusted: Option<IpAddr>,
    /// True if this process leads.
    is_leading: bool,
    /// The start of the time without a leader; `None` while a leader is known.
    leaderless: Option<Instant>,
    /// True if no leader can be elected because the job's state is lost.
    is_state_lost: bool,
    is_reported: bool,
    mismatches: ReportedCauses,
}

/// Another voter.
#[derive(Debug)]
struct OtherVoter {
    /// The loss of the connection; `None` while it is connected.
    lost: Option<Lost>,
    addresses: Vec<IpAddr>,
    /// False if the process is not a voter.
    is_voter: bool,
}

/// The loss of a connection.
#[derive(Clone, Debug)]
struct Lost {
    cause: String,
    since: Instant,
    /// True if the loss was reported.
    is_reported: bool,
}

impl VoterReach {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            others: BTreeMap::new(),
            voters: 0,
            is_voter: false,
            trusted: None,
            is_leading: false,
            leaderless: Some(now),
            is_state_lost: false,
            is_reported: false,
            mismatches: ReportedCauses::default(),
        }
    }

    /// Replaces the processes that this one connects to. `voters` are the voters among them, `count` is the number of all voters.
    /// `is_voter` is true if this process is one.
    pub(super) fn handle_voters(
        &mut self,
        now: Instant,
        others: &BTreeSet<VoterAddress>,
        voters: &BTreeSet<VoterAddress>,
        (count, is_voter): (usize, bool),
    ) {
        self.voters = count;
        if is_voter && !self.is_voter && self.leaderless.is_some() {
            self.leaderless = Some(now);
        }
        self.is_voter = is_voter;
        self.others.retain(|address, _| others.contains(address));
        for address in others {
            let unknown =
                Lost { cause: "not connected yet".to_owned(), since: now, is_reported: false };
            let new = OtherVoter { lost: Some(unknown), addresses: Vec::new(), is_voter: false };
            let other = self.others.entry(address.clone()).or_insert(new);
            other.is_voter = voters.contains(address);
        }
    }

    /// Notes that a voter has answered.
    pub(super) fn handle_answer(&mut self, address: &VoterAddress) {
        if let Some(known) = self.others.get_mut(address) {
            known.lost = None;
        }
    }

    /// Notes that a voter is not connected, and why.
    pub(super) fn handle_lost(&mut self, now: Instant, address: &VoterAddress, cause: String) {
        if let Some(known) = self.others.get_mut(address) {
            let before = known.lost.as_ref();
            let (since, is_reported) =
                before.map_or((now, false), |lost| (lost.since, lost.is_reported));
            known.lost = Some(Lost { cause, since, is_reported });
        }
    }

    /// Returns true if a voter is connected and has answered.
    pub(super) fn is_connected(&self, address: &VoterAddress) -> bool {
        self.others.get(address).is_some_and(|other| other.lost.is_none())
    }

    /// Notes the addresses of a voter.
    pub(super) fn handle_resolved(&mut self, address: &VoterAddress, addresses: Vec<IpAddr>) {
        if let Some(known) = self.others.get_mut(address) {
            known.addresses = addresses;
        }
    }

    /// Returns true if no leader has been known for this time.
    pub(super) fn lacks_leader_for(&self, now: Instant, time: Duration) -> bool {
        self.leaderless.is_some_and(|since| since + time <= now)
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

    /// Notes whether the state of the job is lost. Another report then explains the missing leader.
    pub(super) fn handle_state_loss(&mut self, is_lost: bool) {
        self.is_state_lost = is_lost;
    }

    /// Notes the address of the coordinator with which this agent is registered. That coordinator may send requests before this process
    /// knows that it is a voter.
    pub(super) fn handle_trusted(&mut self, trusted: Option<IpAddr>) {
        self.trusted = trusted;
    }

    /// Returns true if the address belongs to another voter, or to the coordinator of this agent.
    pub(super) fn is_voter(&self, ip: IpAddr) -> bool {
        let known = self.others.values().flat_map(|other| &other.addresses);
        known.chain(&self.trusted).any(|known| known.to_canonical() == ip)
    }

    /// Returns true if the address belongs to this voter.
    pub(super) fn is_at(&self, voter: &VoterAddress, ip: IpAddr) -> bool {
        let known = self.others.get(voter).into_iter().flat_map(|other| &other.addresses);
        known.into_iter().any(|known| known.to_canonical() == ip)
    }

    /// Returns true if this cause was not reported yet for this address.
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
        let is_due = self.is_voter && !self.is_reported && !self.is_state_lost;
        self.leaderless.filter(|_| is_due).map(|since| since + limits::WAIT_WARNING)
    }

    fn lost_due(&self) -> Option<Instant> {
        let unreported = |lost: &&Lost| !lost.is_reported;
        let since =
            self.lost().map(|(_, lost)| lost).filter(unreported).map(|lost| lost.since).min();
        since.filter(|_| self.is_leading).map(|since| since + limits::LOST_WARNING)
    }

    /// Returns the other voters that are not connected.
    fn lost(&self) -> impl Iterator<Item = (&VoterAddress, &Lost)> {
        let voters = self.others.iter().filter(|(_, other)| other.is_voter);
        voters.filter_map(|(address, other)| Some((address, other.lost.as_ref()?)))
    }

    fn leaderless_report(&self, waited: Duration) -> String {
        let absent: Vec<_> =
            self.lost().map(|(address, lost)| format!("{address} ({})", lost.cause)).collect();
        let (waited, all) = (waited.as_secs(), self.voters);
        if absent.is_empty() {
            return format!(
                "no coordinator was elected for {waited} s, although all voters are connected; check that all \
                 were started with the same `--rdzv-endpoint` and `--nnodes`"
            );
        }
        format!(
            "no coordinator was elected for {waited} s: a majority of the {all} voters is needed; not reached: {}; \
             check these hosts, or use another `--rdzv-id` for a new job",
            absent.join(", ")
        )
    }

    /// Returns a report of voters that have been silent for long, for the user of the leader's agent.
    fn lost_report(&mut self, now: Instant) -> Option<String> {
        if self.lost_due().is_none_or(|due| now < due) {
            return None;
        }
        let absent: Vec<_> = self.lost().map(|(address, _)| address.to_string()).collect();
        let (all, left) = (self.voters, self.voters.saturating_sub(absent.len()));
        for lost in self.others.values_mut().filter_map(|other| other.lost.as_mut()) {
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
             that host, or start another agent, which replaces the voter",
            limits::LOST_WARNING.as_secs()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: &str) -> VoterAddress {
        VoterAddress::new(format!("{host}:1"))
    }

    /// Creates the reachability of two other voters, in a process that is not a voter.
    fn reachability(now: Instant) -> VoterReach {
        let mut reach = VoterReach::new(now);
        let voters = BTreeSet::from([at("b"), at("c")]);
        let others = BTreeSet::from([at("b"), at("c"), at("d")]);
        reach.handle_voters(now, &others, &voters, (3, true));
        reach
    }

    /// A missing leader is reported once, with the voters that are not reached.
    #[test]
    fn lack_of_a_leader_is_reported_once() {
        let start = ragent_base::sys::clock::now_blocking();
        let mut reach = reachability(start);
        reach.handle_answer(&at("b"));
        reach.handle_lost(start, &at("c"), "refused".to_owned());
        assert_eq!(reach.poll_timeout(), Some(start + limits::WAIT_WARNING));
        assert_eq!(reach.handle_timeout(start), None);
        let due = start + limits::WAIT_WARNING;
        let expected = "no coordinator was elected for 10 s: a majority of the 3 voters is needed; not \
                        reached: c:1 (refused); check these hosts, or use another `--rdzv-id` for a new job";
        assert_eq!(reach.handle_timeout(due).as_deref(), Some(expected));
        assert_eq!((reach.poll_timeout(), reach.handle_timeout(due)), (None, None));
        reach.handle_leader(due, true, false);
        assert_eq!(reach.poll_timeout(), None, "only a leader reports lost voters");
        reach.handle_leader(due, false, false);
        assert_eq!(reach.poll_timeout(), Some(due + limits::WAIT_WARNING));
        reach.handle_state_loss(true);
        assert_eq!(reach.poll_timeout(), None, "the loss of the state is reported");
    }

    /// A process that is not a voter follows no leader, so it does not report a missing one.
    #[test]
    fn only_voters_report_the_lack_of_a_leader() {
        let start = ragent_base::sys::clock::now_blocking();
        let mut reach = VoterReach::new(start);
        let others = BTreeSet::from([at("b")]);
        reach.handle_voters(start, &others, &others, (1, false));
        assert_eq!(reach.poll_timeout(), None);
        let later = start + limits::WAIT_WARNING;
        reach.handle_voters(later, &others, &others, (2, true));
        assert_eq!(reach.poll_timeout(), Some(later + limits::WAIT_WARNING));
    }

    /// A leader reports a voter that is lost for a minute, once per loss.
    #[test]
    fn lost_voters_are_reported() {
        let start = ragent_base::sys::clock::now_blocking();
        let mut reach = reachability(start);
        reach.handle_leader(start, true, true);
        reach.handle_answer(&at("b"));
        let due = start + limits::LOST_WARNING;
        assert_eq!(reach.poll_timeout(), Some(due));
        reach.handle_lost(start, &at("c"), "refused".to_owned());
        let expected = "no answer from c:1 for 60 s: 2 of 3 voters are left, and the loss of another one \
                        stops the job; check that host, or start another agent, which replaces the \
                        voter";
        assert_eq!(reach.handle_timeout(due).as_deref(), Some(expected));
        reach.handle_lost(due, &at("c"), "refused".to_owned());
        assert_eq!((reach.poll_timeout(), reach.handle_timeout(due)), (None, None));
        reach.handle_answer(&at("c"));
        reach.handle_lost(due, &at("c"), "refused".to_owned());
        assert_eq!(reach.poll_timeout(), Some(due + limits::LOST_WARNING));
    }

    /// The addresses of the other voters and of the coordinator are recognised.
    #[test]
    fn addresses_of_voters_are_known() {
        let start = ragent_base::sys::clock::now_blocking();
        let mut reach = reachability(start);
        let ip = |last| IpAddr::from([10, 0, 0, last]);
        reach.handle_resolved(&at("a"), vec![ip(1)]);
        reach.handle_resolved(&at("b"), vec![ip(2)]);
        assert_eq!([1, 2, 3].map(|last| reach.is_voter(ip(last))), [false, true, false]);
        assert!(reach.is_at(&at("b"), ip(2)) && !reach.is_at(&at("c"), ip(2)));
        reach.handle_trusted(Some(ip(3)));
        assert!(reach.is_voter(ip(3)), "the coordinator with which the agent is registered");
    }
}
