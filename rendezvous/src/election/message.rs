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
    /// True if the sender was started less than a voter's lease ago, and may have forgotten a promise.
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
    /// Asks whether the voter would vote for the sender; changes nothing.
    Ask,
    /// Asks for the vote in `term`.
    Vote {
        /// The term.
        term: Term,
        /// The fresh process that is asked, if all voters are fresh: only its vote counts.
        cold: Option<NodeId>,
    },
    /// Asks for a lease, and copies the leader's memory.
    Renew {
        /// The leader's term.
        term: Term,
        /// The process whose silence after its start this ends, in a term that fresh voters have elected.
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
    /// True if the voter would vote, has voted, or has granted the lease.
    pub is_granted: bool,
    /// The time for which workers of earlier leaders may still run, as far as the voter knows.
    pub shadow_left: Duration,
    /// The last process to which the voter granted a lease, and its term.
    pub former: Option<(Term, NodeId)>,
    /// The newest memory that the voter has; only with a vote.
    pub replica: Option<Box<Replica>>,
    /// The version of that memory.
    pub version: Version,
}

/// A copy of the leader's memory.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Replica {
    /// Its version.
    pub version: Version,
    /// The memory; `None` before a first leader has written one.
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
