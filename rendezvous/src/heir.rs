//! The members of a job that may coordinate it later.

use crate::ids::{NodeId, VoterAddress, VoterId};

/// A member of the job that could become a voter.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Member {
    /// The voter of its process.
    pub voter: VoterId,
    /// The endpoint at which the voter is reached.
    pub address: VoterAddress,
}

/// A process that may succeed the leader.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Successor {
    /// The process.
    pub process: NodeId,
    /// The endpoint of its agent, which receives the obituary of the leader's process.
    pub endpoint: String,
}
