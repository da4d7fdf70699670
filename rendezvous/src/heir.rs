//! Describes the members of a job that may coordinate it later.

use crate::ids::{NodeId, VoterAddress, VoterId};

/// A member of the job that could become a voter.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Member {
    /// The voter of its process.
    pub voter: VoterId,
    /// The address at which the voter is reached.
    pub address: VoterAddress,
}

/// The members of a job, as its coordinator reports them to the voter of its process.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct MembersReport {
    /// The voters of the members: those at the hosts of voters first, and then by rank, the lowest first.
    pub members: Vec<Member>,
    /// The number of voters that the job should have.
    pub wanted: usize,
    /// True if the job runs, or has enough nodes to run.
    pub has_nodes: bool,
}

/// A process that may succeed the leader.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Successor {
    /// The process.
    pub process: NodeId,
    /// The endpoint of its agent, which receives the death notice of the leader's process.
    pub endpoint: String,
}
