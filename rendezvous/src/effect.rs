//! The actions that the machine asks its driver to carry out.

use crate::{
    event::Event,
    ids::{Peer, Term},
    message::ToNode,
    settings::JobState,
};

/// One action. Effects are carried out in the order in which they are returned.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Effect {
    /// Sends a message on one stream; ignored if that stream has ended.
    Send {
        /// The stream.
        to: Peer,
        /// The message.
        message: ToNode,
    },
    /// Ends one stream without a message; its agent registers again and receives the current state.
    HangUp {
        /// The stream.
        to: Peer,
    },
    /// Adds an event to the journal.
    Record(Event),
    /// Writes this to the state file before any later effect is carried out.
    Remember(Box<JobState>),
    /// End this elected coordinator: a node knows a higher term. The process may coordinate again when it is elected
    /// in a term above that one.
    Resign {
        /// The term that the node knows.
        term: Term,
    },
    /// End this elected coordinator: the node in its process has left, or the process is to end. Another voter is to be
    /// elected; this process must not become a candidate again.
    HandOver,
    /// End this elected coordinator: its job had ended before, and no node of it is left. The voters are to forget the job, so that
    /// another one can begin.
    Forget,
    /// The coordinator may exit: every node has acknowledged that the job is closed, the
    /// coordinator's process is to end, or it steps down for another coordinator.
    Finish {
        /// True if no later coordinator is to continue from the state file of this one.
        is_over: bool,
    },
}
