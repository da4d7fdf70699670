//! The sources of events that one thread waits for, and their names for the kernel.

use mio::Token;

use super::clients::SLOT_BITS;
use crate::limits::CONNECTIONS_MAX;

/// The name of a store during the life of its thread; never used again.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct StoreId(pub(super) usize);

/// The source of an event.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum PollSource {
    /// A handle, with a new store, policy or connection.
    Handle,
    Listener(StoreId),
    /// The connection in this slot of its store.
    Connection(StoreId, usize),
}

impl From<Token> for PollSource {
    fn from(Token(token): Token) -> Self {
        let id = StoreId(token >> SLOT_BITS);
        match token & SLOT_MASK {
            _ if token == HANDLE => Self::Handle,
            LISTENER => Self::Listener(id),
            slot => Self::Connection(id, slot),
        }
    }
}

impl From<PollSource> for Token {
    fn from(source: PollSource) -> Self {
        Self(match source {
            PollSource::Handle => HANDLE,
            PollSource::Listener(StoreId(id)) => id << SLOT_BITS | LISTENER,
            PollSource::Connection(StoreId(id), slot) => id << SLOT_BITS | slot,
        })
    }
}

/// The lower bits of a token, as many as a slot has, are the slot of a connection, or mark a listener; the others are the
/// store. A process does not live long enough to open more stores than these can count.
const SLOT_MASK: usize = (1 << SLOT_BITS) - 1;
const LISTENER: usize = SLOT_MASK;
const HANDLE: usize = usize::MAX;
const _: () = assert!(CONNECTIONS_MAX <= LISTENER, "every slot has a token");

#[cfg(test)]
mod tests {
    use super::*;

    /// Every source has a token of its own.
    #[test]
    fn tokens_identify_their_source() {
        for id in [0, 1, 1 << 40].map(StoreId) {
            for slot in [0, 1, CONNECTIONS_MAX - 1] {
                let source = PollSource::Connection(id, slot);
                assert_eq!(PollSource::from(Token::from(source)), source);
            }
            let source = PollSource::Listener(id);
            assert_eq!(PollSource::from(Token::from(source)), source);
        }
        assert_eq!(PollSource::from(Token::from(PollSource::Handle)), PollSource::Handle);
    }
}
