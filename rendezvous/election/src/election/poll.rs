//! A poll: one request to all voters, and its outcome.

use std::{collections::BTreeMap, time::Instant};

use ragent_rendezvous::ids::{NodeId, Term, VoterAddress, VoterId};

use crate::election::{
    message::{Answer, Replica, Seat, VoterMessage},
    timers::Timers,
};

/// The answers of all voters to one request of a candidate, including its own.
#[derive(Debug)]
pub(super) struct Poll {
    pub(super) sequence: u64,
    pub(super) deadline: Instant,
    ballots: BTreeMap<VoterAddress, Ballot>,
}

/// The answer of one voter.
#[derive(Debug)]
pub(super) struct Ballot {
    voter: VoterId,
    process: NodeId,
    is_fresh: bool,
    is_granted: bool,
    /// The time until which workers of earlier leaders may run.
    workers_until: Instant,
    former: Option<(Term, NodeId)>,
}

/// The processes whose votes count in a cold election, by address; empty in any other election.
pub(super) type Cold = BTreeMap<VoterAddress, NodeId>;

/// The outcome of a poll so far.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Outcome {
    /// More answers are needed.
    Open,
    /// A majority has granted the request.
    Won,
    /// All voters have granted the request, and all are fresh.
    AllFresh,
    /// The missing answers cannot make a majority.
    Lost,
}

/// The state of earlier leaders that a winner receives with its votes.
#[derive(Clone, Debug)]
pub(super) struct Inheritance {
    pub(super) workers_until: Instant,
    pub(super) former: Option<NodeId>,
}

impl Ballot {
    /// Creates the ballot of a voter from its answer.
    pub(super) fn new(now: Instant, timers: Timers, message: VoterMessage<Answer>) -> Self {
        let VoterMessage { voter, process, is_fresh, body, .. } = message;
        Self {
            voter,
            process,
            is_fresh,
            is_granted: body.is_granted,
            // No worker outlives the longest lease of a voter.
            workers_until: now + body.workers_for.min(timers.voter_lease),
            former: body.former,
        }
    }
}

impl Poll {
    pub(super) fn new(sequence: u64, deadline: Instant) -> Self {
        Self { sequence, deadline, ballots: BTreeMap::new() }
    }

    /// Records the answer of the voter at this address, unless it belongs to an earlier poll. Returns true if it was
    /// recorded.
    pub(super) fn record(
        &mut self,
        now: Instant,
        timers: Timers,
        message: VoterMessage<Answer>,
    ) -> bool {
        if message.sequence != self.sequence || self.ballots.contains_key(&message.address) {
            return false;
        }
        self.ballots.insert(message.address.clone(), Ballot::new(now, timers, message));
        true
    }

    pub(super) fn has_answer_of(&self, address: &VoterAddress) -> bool {
        self.ballots.contains_key(address)
    }

    /// Returns the processes that have answered, by address.
    pub(super) fn processes(&self) -> Cold {
        let process =
            |(address, ballot): (&VoterAddress, &Ballot)| (address.clone(), ballot.process.clone());
        self.ballots.iter().map(process).collect()
    }

    /// Counts the answers of the voters in `replica`. Those of fresh voters count only if all voters are fresh.
    pub(super) fn outcome(&self, replica: &Replica) -> Outcome {
        let lists = &replica.lists;
        let is_fresh = |ballot: &Ballot| ballot.is_fresh && ballot.is_granted;
        if lists.seats().all(|seat| self.ballot(replica, seat).is_some_and(is_fresh)) {
            return Outcome::AllFresh;
        }
        let grants = |seat: &Seat| {
            self.ballot(replica, seat).is_some_and(|ballot| ballot.is_granted && !ballot.is_fresh)
        };
        let is_missing = |seat: &Seat| !self.ballots.contains_key(&seat.address);
        let may_be_fresh =
            lists.seats().all(|s| is_missing(s) || self.ballot(replica, s).is_some_and(is_fresh));
        if lists.has_majority(grants) {
            Outcome::Won
        } else if may_be_fresh || lists.has_majority(|seat| grants(seat) || is_missing(seat)) {
            Outcome::Open
        } else {
            Outcome::Lost
        }
    }

    /// Counts the votes of a cold election: all processes in `asked` must vote.
    ///
    /// A majority is not enough: the voters have answered one after another, so one of them may have
    /// been elected by another one, which was then replaced by a fresh process.
    pub(super) fn outcome_among(&self, replica: &Replica, asked: &Cold) -> Outcome {
        let has_voted = |seat: &Seat| {
            let is_asked =
                |ballot: &&Ballot| asked.get(&seat.address).is_some_and(|id| *id == ballot.process);
            self.ballot(replica, seat).filter(is_asked).is_some_and(|ballot| ballot.is_granted)
        };
        let mut seats = replica.lists.seats();
        if replica.lists.seats().all(has_voted) {
            Outcome::Won
        } else if seats.all(|s| has_voted(s) || !self.ballots.contains_key(&s.address)) {
            Outcome::Open
        } else {
            Outcome::Lost
        }
    }

    /// Returns the ballot of the voter on this seat.
    fn ballot(&self, replica: &Replica, seat: &Seat) -> Option<&Ballot> {
        let is_of_seat = |ballot: &&Ballot| replica.is_seat_of(seat, ballot.voter, &seat.address);
        self.ballots.get(&seat.address).filter(is_of_seat)
    }

    /// Returns the state of earlier leaders that came with the votes.
    pub(super) fn inheritance(&self, now: Instant) -> Inheritance {
        let votes = || self.ballots.values().filter(|ballot| ballot.is_granted);
        let former = votes().filter_map(|ballot| ballot.former.clone()).max();
        Inheritance {
            workers_until: votes().map(|ballot| ballot.workers_until).max().unwrap_or(now),
            former: former.map(|(_, process)| process),
        }
    }
}
