//! A poll: one request to all voters, and its outcome.

use std::time::Instant;

use crate::{
    election::{
        message::{Answer, Place, Replica, VoterMessage},
        timers::Timers,
    },
    ids::{NodeId, Term},
};

/// The answers of all voters to one request of a candidate, including its own.
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
    workers_until: Instant,
    former: Option<(Term, NodeId)>,
    replica: Option<Replica>,
}

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
    pub(super) replica: Option<Replica>,
}

impl Ballot {
    pub(super) fn new(
        now: Instant,
        timers: Timers,
        (process, is_fresh): (NodeId, bool),
        answer: Answer,
    ) -> Self {
        Self {
            process,
            is_fresh,
            is_granted: answer.is_granted,
            // No worker outlives the longest lease of a voter.
            workers_until: now + answer.workers_for.min(timers.voter_lease),
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
    pub(super) fn record(
        &mut self,
        now: Instant,
        timers: Timers,
        message: VoterMessage<Answer>,
    ) -> bool {
        let is_of_this_poll = message.sequence == self.sequence;
        let from = (message.process, message.is_fresh);
        let ballot = Ballot::new(now, timers, from, message.body);
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

    /// Counts the answers. Those of fresh voters count only if all voters are fresh.
    pub(super) fn outcome(&self) -> Outcome {
        let given = || self.ballots.iter().flatten();
        let missing = self.ballots.len() - given().count();
        if missing == 0 && given().all(|ballot| ballot.is_fresh && ballot.is_granted) {
            return Outcome::AllFresh;
        }
        let granted = self.granted(|_, ballot| !ballot.is_fresh).count();
        let may_be_fresh = given().all(|ballot| ballot.is_fresh && ballot.is_granted);
        self.decide(granted, missing, may_be_fresh)
    }

    /// Counts the votes of a cold election: all processes in `asked` must vote.
    ///
    /// A majority is not enough: the voters have answered one after another, so one of them may have
    /// been elected by another one, which was then replaced by a fresh process.
    pub(super) fn outcome_among(&self, asked: &[Option<NodeId>]) -> Outcome {
        let given = self.ballots.iter().flatten().count();
        let granted = self.granted(|place, ballot| is_asked(asked, place, ballot)).count();
        if granted == self.ballots.len() {
            Outcome::Won
        } else if granted == given {
            Outcome::Open
        } else {
            Outcome::Lost
        }
    }

    fn decide(&self, granted: usize, missing: usize, may_be_fresh: bool) -> Outcome {
        let majority = majority(self.ballots.len());
        if granted >= majority {
            Outcome::Won
        } else if granted + missing >= majority || may_be_fresh && missing > 0 {
            Outcome::Open
        } else {
            Outcome::Lost
        }
    }

    fn granted(&self, counts: impl Fn(usize, &Ballot) -> bool) -> impl Iterator<Item = &Ballot> {
        let given = self.ballots.iter().enumerate();
        given.filter_map(move |(place, ballot)| {
            ballot.as_ref().filter(|ballot| ballot.is_granted && counts(place, ballot))
        })
    }

    /// Returns the state of earlier leaders that came with the votes.
    pub(super) fn inheritance(&self, now: Instant) -> Inheritance {
        let votes = || self.ballots.iter().flatten().filter(|ballot| ballot.is_granted);
        let former = votes().filter_map(|ballot| ballot.former.clone()).max();
        let replicas = votes().filter_map(|ballot| ballot.replica.clone());
        Inheritance {
            workers_until: votes().map(|ballot| ballot.workers_until).max().unwrap_or(now),
            former: former.map(|(_, process)| process),
            replica: replicas.max_by_key(|replica| replica.version),
        }
    }
}

/// Returns true if the voter at `place` is the process that was asked.
fn is_asked(asked: &[Option<NodeId>], place: usize, ballot: &Ballot) -> bool {
    asked.get(place).is_some_and(|asked| asked.as_ref() == Some(&ballot.process))
}

/// Returns the smallest majority of this number of voters.
pub(super) fn majority(voters: usize) -> usize {
    voters / 2 + 1
}
