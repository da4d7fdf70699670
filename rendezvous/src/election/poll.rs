//! One round of questions to all voters, and what the answers amount to.

use std::time::Instant;

use crate::{
    election::message::{Answer, Place, Replica, VoterMessage},
    ids::{NodeId, Term},
};

/// The answers of all voters to one request of a candidate, its own included.
#[derive(Debug)]
pub(super) struct Poll {
    pub(super) sequence: u64,
    pub(super) deadline: Instant,
    ballots: Vec<Option<Ballot>>,
}

/// The answer of one voter.
#[derive(Debug)]
pub(super) struct Ballot {
    pub(super) process: NodeId,
    is_fresh: bool,
    is_granted: bool,
    /// The time until which workers of earlier leaders may run.
    shadow_until: Instant,
    former: Option<(Term, NodeId)>,
    replica: Option<Replica>,
}

/// The result of a poll so far.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Tally {
    /// More answers are needed.
    Open,
    /// A majority has agreed.
    Won,
    /// All voters have answered, and all were started a moment ago.
    AllFresh,
    /// The answers that are missing cannot change the result.
    Lost,
}

/// What a winner learns from those that have voted for it.
#[derive(Clone, Debug)]
pub(super) struct Inheritance {
    pub(super) others_until: Instant,
    pub(super) former: Option<NodeId>,
    pub(super) replica: Option<Replica>,
}

impl Ballot {
    pub(super) fn new(now: Instant, process: NodeId, is_fresh: bool, answer: Answer) -> Self {
        Self {
            process,
            is_fresh,
            is_granted: answer.is_granted,
            shadow_until: now + answer.shadow_left,
            former: answer.former,
            replica: answer.replica.map(|replica| *replica),
        }
    }
}

impl Poll {
    pub(super) fn new(sequence: u64, deadline: Instant, voters: usize) -> Self {
        Self { sequence, deadline, ballots: (0..voters).map(|_| None).collect() }
    }

    /// Records an answer, unless it belongs to an earlier poll. Returns true if it was recorded.
    pub(super) fn record(&mut self, now: Instant, message: VoterMessage<Answer>) -> bool {
        let is_of_this_poll = message.sequence == self.sequence;
        let ballot = Ballot::new(now, message.process, message.is_fresh, message.body);
        let ballots = self.ballots.get_mut(message.place.0).filter(|_| is_of_this_poll);
        ballots.is_some_and(|slot| slot.replace(ballot).is_none())
    }

    pub(super) fn record_own(&mut self, place: Place, ballot: Ballot) {
        if let Some(slot) = self.ballots.get_mut(place.0) {
            *slot = Some(ballot);
        }
    }

    pub(super) fn has_answer_of(&self, place: Place) -> bool {
        self.ballots.get(place.0).is_some_and(Option::is_some)
    }

    /// Returns the processes that have answered, by place.
    pub(super) fn processes(&self) -> Vec<Option<NodeId>> {
        let process =
            |ballot: &Option<Ballot>| ballot.as_ref().map(|ballot| ballot.process.clone());
        self.ballots.iter().map(process).collect()
    }

    /// Counts the answers. The vote of a fresh voter counts only if all voters are fresh.
    pub(super) fn tally(&self) -> Tally {
        let given = || self.ballots.iter().flatten();
        let missing = self.ballots.len() - given().count();
        if missing == 0 && given().all(|ballot| ballot.is_fresh && ballot.is_granted) {
            return Tally::AllFresh;
        }
        let granted = self.granted(|_, ballot| !ballot.is_fresh).count();
        let may_be_fresh = given().all(|ballot| ballot.is_fresh && ballot.is_granted);
        self.result(granted, missing, may_be_fresh)
    }

    /// Counts the votes of an election among fresh voters: only those of the processes in `asked`.
    pub(super) fn tally_of(&self, asked: &[Option<NodeId>]) -> Tally {
        let given = self.ballots.iter().flatten().count();
        let granted = self.granted(|place, ballot| is_asked(asked, place, ballot)).count();
        self.result(granted, self.ballots.len() - given, false)
    }

    fn result(&self, granted: usize, missing: usize, may_be_fresh: bool) -> Tally {
        let majority = majority(self.ballots.len());
        if granted >= majority {
            Tally::Won
        } else if granted + missing >= majority || may_be_fresh && missing > 0 {
            Tally::Open
        } else {
            Tally::Lost
        }
    }

    fn granted(&self, counts: impl Fn(usize, &Ballot) -> bool) -> impl Iterator<Item = &Ballot> {
        let given = self.ballots.iter().enumerate();
        given.filter_map(move |(place, ballot)| {
            ballot.as_ref().filter(|ballot| ballot.is_granted && counts(place, ballot))
        })
    }

    /// Returns what those that have voted know of the leaders before.
    pub(super) fn inheritance(&self, now: Instant) -> Inheritance {
        let votes = || self.ballots.iter().flatten().filter(|ballot| ballot.is_granted);
        let former = votes().filter_map(|ballot| ballot.former.clone()).max();
        let replicas = votes().filter_map(|ballot| ballot.replica.clone());
        Inheritance {
            others_until: votes().map(|ballot| ballot.shadow_until).max().unwrap_or(now),
            former: former.map(|(_, process)| process),
            replica: replicas.max_by_key(|replica| replica.version),
        }
    }
}

/// Returns true if the voter at `place` is the process that was asked.
fn is_asked(asked: &[Option<NodeId>], place: usize, ballot: &Ballot) -> bool {
    asked.get(place).is_some_and(|asked| asked.as_ref() == Some(&ballot.process))
}

/// Returns the smallest majority of so many voters.
pub(super) fn majority(voters: usize) -> usize {
    voters / 2 + 1
}
