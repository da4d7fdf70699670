//! What the machine asks its driver to do.

use crate::{ids::Peer, message::ToNode, settings::Memory};

/// One thing to do. Effects are carried out in the order in which they are handed out.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Effect {
    /// Says something on one stream; if that stream is gone, nothing happens.
    Send {
        /// The stream.
        to: Peer,
        /// What to say.
        message: ToNode,
    },
    /// Ends one stream without a message; its agent attends again and receives the current state.
    HangUp {
        /// The stream.
        to: Peer,
    },
    /// Writes this to the state file before any later effect is carried out.
    Remember(Memory),
    /// The coordinator may go: everyone has acknowledged that the job is closed, its process is to end,
    /// or it gives way to another one.
    Finish {
        /// Whether no later coordinator is to go on where this one ends: what it has remembered is for
        /// nobody.
        is_over: bool,
    },
}
