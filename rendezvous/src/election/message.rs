//! The messages between voters.

use std::time::Duration;

use crate::{
    ids::{NodeId, Term},
    settings::Memory,
};

/// The place of a voter in the list that all voters share, counted from zero.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Place(pub usize);

/// A message from one voter to another.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct VoterMessage<Body> {
    /// The place of the sender.
    pub place: Place,
    /// The process that sends it.
    pub process: NodeId,
    /// True if the sender was started less than a voter's lease ago, and may have forgotten a vote
    /// or a lease.
    pub is_fresh: bool,
    /// The highest term that the sender knows.
    pub highest: Term,
    /// The number of the request; an answer repeats it.
    pub sequence: u64,
    /// The request or the answer.
    pub body: Body,
}

/// A request to a voter.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Request {
    /// The pre-vote: asks whether the voter would vote for the sender, and changes nothing.
    PreVote,
    /// Asks for the vote in `term`.
    Vote {
        /// The term.
        term: Term,
        /// In a cold election, the process that is asked; no other process at its place may vote.
        cold: Option<NodeId>,
    },
    /// Asks for a lease, and copies the leader's memory.
    Renew {
        /// The leader's term.
        term: Term,
        /// After a cold election, the process whose silence after its start ends with this renewal.
        cold: Option<NodeId>,
        /// The leader's memory.
        replica: Box<Replica>,
    },
    /// Returns the lease.
    Release {
        /// The leader's term.
        term: Term,
    },
}

/// The answer to a request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Answer {
    /// True if the voter would vote for the sender, has voted for it, or has granted the lease.
    pub is_granted: bool,
    /// The time for which workers of earlier leaders may still run, as far as the voter knows.
    pub workers_for: Duration,
    /// The last process to which the voter granted a lease, and its term.
    pub former: Option<(Term, NodeId)>,
    /// The newest copy of the memory that the voter has; only with a vote.
    pub replica: Option<Box<Replica>>,
    /// The version of that copy.
    pub version: Version,
}

/// A copy of the leader's memory.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Replica {
    /// Its version.
    pub version: Version,
    /// The memory; `None` until the first leader has written one.
    pub memory: Option<Memory>,
}

/// The version of a [`Replica`]; compared by term first.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct Version {
    /// The term of the leader that wrote it.
    pub term: Term,
    /// The number of changes within the term.
    pub number: u64,
}
