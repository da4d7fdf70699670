//! What the connections of one store share.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use super::peer::Peer;
use crate::engine::{ClientId, Engine};
use crate::limits::{BUFFER_LEN_FREE, BUFFERS_LEN_MAX, READ_LEN};
use crate::session::Violation;

/// The engine of a store, and the way to each of its clients.
///
/// All on one thread; every borrow ends before the function that took it returns.
#[derive(Debug)]
pub(super) struct State {
    pub(super) engine: RefCell<Engine>,
    /// Where a read goes first; the connections take turns.
    pub(super) scratch: RefCell<Box<[u8]>>,
    peers: RefCell<HashMap<ClientId, Rc<Peer>>>,
    pub(super) buffered: Cell<usize>,
    clients: Cell<u64>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            engine: RefCell::default(),
            scratch: RefCell::new(vec![0; READ_LEN].into()),
            peers: RefCell::default(),
            buffered: Cell::default(),
            clients: Cell::default(),
        }
    }
}

impl State {
    /// Enters a client that is reached through `peer`.
    pub(super) fn enter(&self, peer: Rc<Peer>) -> ClientId {
        let client = ClientId(self.clients.get());
        self.clients.set(client.0 + 1);
        self.peers.borrow_mut().insert(client, peer);
        client
    }

    /// Forgets a client that is gone, and what it had buffered.
    pub(super) fn leave(&self, client: ClientId, buffered: usize) {
        self.peers.borrow_mut().remove(&client);
        let mut engine = self.engine.borrow_mut();
        engine.cancel_wait(client);
        engine.released_all();
        self.buffered.set(self.buffered.get() - buffered);
    }

    /// Answers those whose wait is over.
    pub(super) fn answer_woken(&self) {
        let mut engine = self.engine.borrow_mut();
        while let Some(client) = engine.poll_woken() {
            if let Some(peer) = self.peers.borrow().get(&client) {
                peer.stop_waiting();
            }
        }
    }

    /// Takes note that a connection which had `before` bytes buffered has `now`.
    pub(super) fn rebuffer(&self, before: usize, now: usize) -> Result<(), Violation> {
        let buffered = self.buffered.get() - before + now;
        self.buffered.set(buffered);
        // Who shrinks is not the one to blame, nor is who holds little.
        let full = BUFFERS_LEN_MAX < buffered && before < now && BUFFER_LEN_FREE < now;
        if full { Err(Violation::BuffersFull) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who takes the last room for buffers is to blame; who gives some back or holds little is not.
    #[test]
    fn buffers_are_limited_together() {
        const MUCH: usize = BUFFER_LEN_FREE + 2;
        let state = State::default();
        assert_eq!(state.rebuffer(0, BUFFERS_LEN_MAX), Ok(()));
        assert_eq!(state.rebuffer(0, BUFFER_LEN_FREE), Ok(()));
        assert_eq!(state.rebuffer(0, MUCH), Err(Violation::BuffersFull));
        assert_eq!(state.rebuffer(MUCH, MUCH - 1), Ok(()));
    }
}
