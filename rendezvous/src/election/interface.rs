//! The configuration and the effects of a voter.

use std::time::Instant;

use crate::{
    election::{
        message::{Place, Request, Version, VoterMessage},
        timers::Timers,
    },
    ids::{NodeId, Term},
    settings::Memory,
};

/// The configuration of one voter.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The place of this voter in the list that all voters share, which is sorted.
    pub place: Place,
    /// The position of this voter in the list as the user gave it, counted from zero: the delay of its
    /// candidacies, so that the first voter that is alive leads.
    pub turn: usize,
    /// The number of voters in the list.
    pub voters: usize,
    /// This process.
    pub process: NodeId,
    /// The leases; the same for all voters.
    pub timers: Timers,
    /// The seed of terms and delays; different in each process.
    pub seed: u64,
}

/// An action for the driver.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Effect {
    /// Send a request to the voter at this place; drop the request if the voter cannot be reached.
    Send {
        /// The voter.
        to: Place,
        /// The request.
        message: VoterMessage<Request>,
    },
    /// Start coordinating the job.
    Lead(Box<Leadership>),
    /// Coordinate until this time, unless it is extended again.
    Extend(Instant),
    /// A majority has this version of the memory.
    Copied(Version),
    /// Stop coordinating, if this process does, and redirect agents to the leader.
    Follow {
        /// The leader's place; `None` if none is known.
        leader: Option<Place>,
    },
    /// Report that two places of the list belong to the same process.
    Duplicate {
        /// The place whose process also answers at another one.
        place: Place,
    },
}

/// A leadership that begins.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Leadership {
    /// Its term.
    pub term: Term,
    /// Its end, unless it is extended.
    pub until: Instant,
    /// The time until which workers under earlier leaders may run.
    pub workers_until: Instant,
    /// The previous leader, if one is known.
    pub former: Option<NodeId>,
    /// The memory of that leader; `None` if this is the first one.
    pub memory: Option<Memory>,
}
