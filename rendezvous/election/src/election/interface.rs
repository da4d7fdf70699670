//! Defines the settings and the effects of a voter.

use std::time::Instant;

use ragent_rendezvous::{
    ids::{JobUid, NodeId, Term, VoterAddress, VoterId},
    known_job::Seniority,
    message::Outcome,
    settings::JobState,
};

use crate::election::{
    message::{Request, Version, VoterMessage, VoterSlot},
    timers::Timers,
};

/// The settings of one voter.
#[derive(Clone, Debug)]
pub struct ElectionSettings {
    /// This voter.
    pub voter: VoterId,
    /// True if this is the first process of the voter, so that no earlier process has promised
    /// anything.
    pub is_new: bool,
    /// True if no earlier job of this name can exist. Then the voter votes at once.
    pub is_first_start: bool,
    /// Jobs of this name that have ended, as an earlier process at this place knew.
    pub ended: Vec<JobUid>,
    /// The address at which other voters reach it.
    pub address: VoterAddress,
    /// The endpoints that the user gave, in this order, or the endpoint that a search has found. They are the
    /// voters of a job without a round. A voter further down the list waits longer before it becomes a
    /// candidate, so the first living voter leads.
    pub listed: Vec<VoterAddress>,
    /// This process.
    pub process: NodeId,
    /// The intervals, the same for all voters.
    pub timers: Timers,
    /// The seed of terms and delays; different in each process.
    pub seed: u64,
}

/// An action for the driver.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Effect {
    /// Write the voter's state to its file before any further answer is sent. The voters have
    /// changed, and a process that forgets it could elect a leader by the old list.
    Store,
    /// Send a request to the voter at this address. Drop it if the voter cannot be reached.
    Send {
        /// The address of the voter.
        to: VoterAddress,
        /// The request.
        message: VoterMessage<Request>,
    },
    /// Start coordinating the job.
    Lead(Box<NewLeadership>),
    /// Coordinate until this time, unless it is extended again.
    Extend(Instant),
    /// A majority has this version of the state.
    Copied(Version),
    /// The voters have changed while this process leads.
    Voters(Vec<VoterSlot>),
    /// Stop coordinating, if this process does, and redirect agents to the leader.
    Follow {
        /// The leader's address; `None` if none is known.
        leader: Option<VoterAddress>,
    },
    /// The jobs that other processes have shown have changed.
    /// [`Election::other_jobs`](super::Election::other_jobs) has them.
    OtherJobs,
    /// A job of this name has ended. Keep this for the next process at this place.
    Ended(JobUid),
    /// Another job of this name goes on, and this one ends: a leader closes it, and any other
    /// process ends.
    Yield {
        /// The other job.
        other: Seniority,
        /// The address of its leader.
        at: VoterAddress,
    },
    /// The job of this process has ended while it had no leader, so this process ends. Contains the
    /// outcome, if it is known.
    Outlived(Option<Box<Outcome>>),
    /// Report that two addresses of the list lead to the same process.
    Duplicate {
        /// The address whose process also answers at another one.
        address: VoterAddress,
    },
}

/// The leadership that a process has won.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NewLeadership {
    /// Its term.
    pub term: Term,
    /// Its end, unless it is extended.
    pub until: Instant,
    /// The time until which workers of earlier leaders may run.
    pub workers_until: Instant,
    /// The previous leader, if one is known.
    pub former: Option<NodeId>,
    /// The state of the job; `None` if this is the first leader.
    pub job_state: Option<JobState>,
    /// The voters; empty if an external store has chosen the leader.
    pub voters: Vec<VoterSlot>,
}
