//! Defines the messages between voters.

use std::time::Duration;

use ragent_rendezvous::{
    ids::{JobUid, NodeId, Round, Term, VoterAddress, VoterId},
    known_job::KnownJob,
    settings::JobState,
};

pub use super::lists::{Lists, VoterSlot};

/// A message from one voter to another.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct VoterMessage<Body> {
    /// The sender.
    pub voter: VoterId,
    /// The address of the sender.
    pub address: VoterAddress,
    /// The process that sends it.
    pub process: NodeId,
    /// True if the sender was started less than a voter's lease ago, so that it may have forgotten
    /// a vote or a lease.
    pub has_just_started: bool,
    /// The highest term that the sender knows.
    pub highest: Term,
    /// The state of the job that the sender knows.
    pub knows: Knowledge,
    /// The unfinished job with a round that the sender knows.
    pub job: Option<KnownJob>,
    /// Jobs of this name that are known to the sender to have ended.
    pub ended: Vec<JobUid>,
    /// The number of the request. An answer repeats it.
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
    },
    /// Asks for a lease, and copies the leader's state of the job.
    Renew {
        /// The leader's term.
        term: Term,
        /// The leader's state of the job.
        replica: Box<Replica>,
        /// True if a majority has this state.
        is_copied: bool,
    },
    /// Returns the lease.
    Release {
        /// The leader's term.
        term: Term,
    },
    /// Asks the leader to replace the sender, whose process will end.
    Leave,
    /// Shows the sender's job, and asks for the receiver's, which the answer shows.
    Hello,
}

/// The answer to a request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Answer {
    /// True if the voter would vote for the sender, has voted for it, or has granted the lease. In
    /// an answer to [`Request::Leave`]: true while the sender is being replaced.
    pub is_granted: bool,
    /// True if the voter has a connection of its own to the sender.
    pub is_connected: bool,
    /// The time for which workers of earlier leaders may still run, as far as the voter knows.
    pub workers_for: Duration,
    /// The last process to which the voter granted a lease, and that process's term.
    pub former: Option<(Term, NodeId)>,
    /// The voter's copy of the state, if it is newer than the copy of the request's sender.
    pub replica: Option<Box<Replica>>,
}

/// A copy of the leader's state of the job.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Replica {
    /// Its version.
    pub version: Version,
    /// The voters of the job.
    pub lists: Lists,
    /// The job's state; `None` until the first leader has written one.
    pub job_state: Option<JobState>,
}

/// The version of a [`Replica`]. The term is compared first.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct Version {
    /// The term of the leader that wrote it.
    pub term: Term,
    /// The number of changes within the term.
    pub number: u64,
}

/// A summary of the state that a voter knows, to compare it with another one. A job with a round is
/// greater than a job without, even if its version is lower: terms of two jobs cannot be compared,
/// and a process without a state file cannot distinguish a new job from a forgotten one.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct Knowledge {
    /// True if the job has completed a round.
    pub has_round: bool,
    /// The version of the replica.
    pub version: Version,
}

impl Replica {
    /// Returns true if the job has completed a round, so that its voters are known by their
    /// identities.
    pub fn has_round(&self) -> bool {
        self.job_state.as_ref().is_some_and(|job_state| job_state.round > Round(0))
    }

    /// Returns true if the job has ended.
    pub fn is_closed(&self) -> bool {
        self.job_state.as_ref().is_some_and(|job_state| job_state.closed.is_some())
    }

    /// Returns the version, and whether the job has a round.
    pub fn knowledge(&self) -> Knowledge {
        Knowledge { has_round: self.has_round(), version: self.version }
    }

    /// Returns true if this voter is in one of the lists.
    pub fn has_slot_of(&self, voter: VoterId, address: &VoterAddress) -> bool {
        self.lists.slots().any(|slot| self.is_slot_of(slot, voter, address))
    }

    /// Returns true if the slot belongs to this voter.
    pub(super) fn is_slot_of(
        &self,
        slot: &VoterSlot,
        voter: VoterId,
        address: &VoterAddress,
    ) -> bool {
        match slot.voter {
            Some(listed) => listed == voter,
            None => !self.has_round() && slot.address == *address,
        }
    }

    /// Returns true if both belong to the same job, or one of them has no round.
    pub(super) fn is_of_same_job(&self, other: &Self) -> bool {
        let uid = |replica: &Self| {
            replica
                .job_state
                .as_ref()
                .filter(|_| replica.has_round())
                .map(|job_state| job_state.job_uid.clone())
        };
        uid(self).zip(uid(other)).is_none_or(|(one, other)| one == other)
    }
}
