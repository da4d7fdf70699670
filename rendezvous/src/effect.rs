//! Defines the actions that the machine asks its driver to carry out.

use crate::{
    event::Event,
    ids::{Peer, Term},
    message::ToNode,
    settings::JobState,
};

/// One action. Effects are carried out in the order in which they are returned.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Effect {
    /// Sends a message on one stream. Ignored if that stream has ended.
    Send {
        /// The stream.
        to: Peer,
        /// The message.
        message: ToNode,
    },
    /// Ends one stream without a message. Its agent registers again and receives the current state.
    HangUp {
        /// The stream.
        to: Peer,
    },
    /// Adds an event to the journal.
    Record(Event),
    /// Writes this to the state file before any later effect is carried out.
    Remember(Box<JobState>),
    /// Ends this elected coordinator: a node knows a higher term. The process may coordinate again
    /// when it is elected in a term above that one.
    Resign {
        /// The term that the node knows.
        term: Term,
    },
    /// Ends this elected coordinator: the node in its process has left, or the process is ending.
    /// Another voter should be elected, so this process must not become a candidate again.
    HandOver,
    /// Ends this elected coordinator: its job had ended before, and none of its nodes is left. The
    /// voters must forget the job, so that another one can begin.
    Forget,
    /// The coordinator may exit: every node has acknowledged that the job is closed, the
    /// coordinator's process is ending, or it steps down for another coordinator.
    Finish {
        /// True if no later coordinator should continue from this one's state file.
        is_over: bool,
    },
}
