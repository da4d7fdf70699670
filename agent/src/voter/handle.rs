//! The interface between a voter's thread and the rest of the agent.

use std::{sync::Arc, time::Instant};

use ragent_rendezvous::{
    claim::Successor,
    election::{
        Leadership,
        message::{Place, Replica},
    },
    ids::{NodeId, Term},
    settings::Memory,
};
use tokio::sync::{mpsc, oneshot, watch};

use crate::net::port::VoterConnection;

/// A running voter.
#[derive(Debug)]
pub(crate) struct VoterHandle {
    /// The queue of its commands.
    pub commands: Commands,
    /// The leader, as this voter knows it.
    pub leader: watch::Receiver<Leader>,
    /// The time of the last answer of each voter.
    pub answered: watch::Receiver<Answered>,
    /// The state that the next process at this voter's place continues with.
    pub stored: watch::Receiver<Stored>,
    /// The queue of connections of other voters, for the agent's port.
    pub connections: mpsc::Sender<VoterConnection>,
}

/// The time of the last answer of each voter, by place; `None` if it has never answered.
pub(crate) type Answered = Vec<Option<Instant>>;

/// A queue of commands for a voter.
pub(crate) type Commands = mpsc::Sender<Command>;

/// A command for a voter.
#[derive(Debug)]
pub(crate) enum Command {
    /// The memory of the coordinator in this process has changed; it is to be copied to a majority.
    Remember {
        /// The term of that coordinator; the command has no effect unless this process leads in this term.
        term: Term,
        /// The memory.
        memory: Box<Memory>,
        /// The processes that succeed this one if the leader is chosen through an external store; voters have an order
        /// of their own.
        successors: Vec<Successor>,
        /// Notified when a majority has it; dropped if this process no longer leads.
        copied: oneshot::Sender<()>,
    },
    /// An agent has reported this term.
    Highest(Term),
    /// The coordinator of this term has ended; another process is to be elected.
    Resign(Term),
    /// The job has ended in this term, and all nodes have its outcome. Its record in an external store is of no more use.
    JobOver(Term),
    /// An obituary: no process of this agent is left.
    Obituary(NodeId),
    /// Resign, and never become a candidate again, because this process will end. The sender is notified when
    /// the release of the leases has been sent to the other voters.
    Leave(oneshot::Sender<()>),
}

/// The leader of the voters.
#[derive(Clone, Debug)]
pub(crate) enum Leader {
    /// No leader is known.
    Unknown,
    /// The voter at this place leads in this term.
    Other(Place, Term),
    /// The process at this endpoint leads in this term.
    At(String, Term),
    /// This process leads.
    Here(Tenancy),
}

/// A leadership of this process.
#[derive(Clone, Debug)]
pub(crate) struct Tenancy {
    /// The leadership as it began.
    pub leadership: Arc<Leadership>,
    /// Its end, which each renewal extends.
    pub until: watch::Receiver<Instant>,
}

/// The state of a voter that outlives its process, in a state file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Stored {
    /// The newest copy of the coordinator's memory.
    pub replica: Replica,
    /// The highest term that is known.
    pub highest: Term,
}

impl Default for Stored {
    fn default() -> Self {
        let replica = Replica { version: Default::default(), memory: None };
        Self { replica, highest: Term::default() }
    }
}
