//! Counts the answers of all voters to one request of a candidate.

use std::{collections::BTreeMap, time::Instant};

use ragent_rendezvous::ids::{NodeId, Term, VoterAddress, VoterId};

use crate::election::{
    message::{Answer, Replica, VoterMessage, VoterSlot},
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
    has_just_started: bool,
    is_granted: bool,
    /// The time until which workers of earlier leaders may run.
    workers_until: Instant,
    former: Option<(Term, NodeId)>,
}

/// The outcome of a poll so far.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum PollOutcome {
    /// More answers are needed.
    Open,
    /// A majority has granted the request.
    Won,
    /// The missing answers cannot make a majority.
    Lost,
}

/// The state of earlier leaders, as the votes of a winner contain it.
#[derive(Clone, Debug)]
pub(super) struct Inheritance {
    pub(super) workers_until: Instant,
    pub(super) former: Option<NodeId>,
}

impl Ballot {
    /// Creates the ballot of a voter from its answer.
    pub(super) fn new(now: Instant, timers: Timers, message: VoterMessage<Answer>) -> Self {
        let VoterMessage { voter, has_just_started, body, .. } = message;
        Self {
            voter,
            has_just_started,
            is_granted: body.is_granted,
            // No worker runs for longer than the longest lease of a voter.
            workers_until: now + body.workers_for.min(timers.voter_lease),
            former: body.former,
        }
    }
}

impl Poll {
    pub(super) fn new(sequence: u64, deadline: Instant) -> Self {
        Self { sequence, deadline, ballots: BTreeMap::new() }
    }

    /// Records the answer of the voter at this address, unless it belongs to an earlier poll.
    /// Returns true if it was recorded.
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

    /// Counts the answers of the voters in `replica`, except those of voters that have just
    /// started.
    pub(super) fn outcome(&self, replica: &Replica) -> PollOutcome {
        let lists = &replica.lists;
        let grants = |slot: &VoterSlot| {
            self.ballot(replica, slot)
                .is_some_and(|ballot| ballot.is_granted && !ballot.has_just_started)
        };
        let is_missing = |slot: &VoterSlot| !self.ballots.contains_key(&slot.address);
        if lists.has_majority(grants) {
            PollOutcome::Won
        } else if lists.has_majority(|slot| grants(slot) || is_missing(slot)) {
            PollOutcome::Open
        } else {
            PollOutcome::Lost
        }
    }

    /// Returns the ballot of the voter in this slot.
    fn ballot(&self, replica: &Replica, slot: &VoterSlot) -> Option<&Ballot> {
        let is_of_slot = |ballot: &&Ballot| replica.is_slot_of(slot, ballot.voter, &slot.address);
        self.ballots.get(&slot.address).filter(is_of_slot)
    }

    /// Returns what the votes contain about earlier leaders.
    pub(super) fn inheritance(&self, now: Instant) -> Inheritance {
        let votes = || self.ballots.values().filter(|ballot| ballot.is_granted);
        let former = votes().filter_map(|ballot| ballot.former.clone()).max();
        Inheritance {
            workers_until: votes().map(|ballot| ballot.workers_until).max().unwrap_or(now),
            former: former.map(|(_, process)| process),
        }
    }
}
