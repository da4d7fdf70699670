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
    /// Writes this to the state file before any later effect is carried out.
    Remember(Memory),
    /// The job is closed and everyone has acknowledged it: the coordinator may go.
    Finish,
}
