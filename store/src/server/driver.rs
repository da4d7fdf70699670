//! The thread's loop: waits for events, and tells each store what happened to it.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use mio::{Events, Poll, Token};
use tokio::sync::mpsc;
use tracing::error;

use super::connection::Readiness;
use super::store::{Opened, State, Store};
use crate::limits::CONNECTIONS_MAX;

/// Drives the stores of a thread.
#[derive(Debug)]
pub(super) struct Driver {
    poll: Poll,
    opened: mpsc::Receiver<Opened>,
    stores: BTreeMap<StoreId, Store>,
}

/// Names one store for as long as its thread lives; never used again.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct StoreId(pub(super) usize);

/// What an event comes from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Source {
    /// A handle, which wants something.
    Handle,
    Listener(StoreId),
    /// The connection in this place of its store.
    Connection(StoreId, usize),
}

impl Driver {
    pub(super) fn new(poll: Poll, opened: mpsc::Receiver<Opened>) -> Self {
        Self { poll, opened, stores: BTreeMap::new() }
    }

    /// Serves until the thread's handle is gone.
    pub(super) fn run(mut self) {
        let mut events = Events::with_capacity(EVENTS_MAX);
        while !self.opened.is_closed() {
            match self.poll.poll(&mut events, self.time_left()) {
                Err(cause) if cause.kind() == ErrorKind::Interrupted => continue,
                Err(cause) => return error!(%cause, "failed to wait for the stores' connections"),
                Ok(()) => {}
            }
            let mut count = 0;
            for event in &events {
                count += 1;
                match Source::from(event.token()) {
                    Source::Handle => self.hear(),
                    Source::Listener(id) => self.tell(id, Store::handle_arrival),
                    Source::Connection(id, place) => {
                        let readiness = Readiness::from(event);
                        self.tell(id, |store| store.handle_readiness(place, readiness));
                    }
                }
            }
            self.go_on(count);
        }
    }

    /// Returns how long to wait for events at most.
    fn time_left(&self) -> Option<Duration> {
        if self.stores.values().any(Store::is_busy) {
            return Some(Duration::ZERO);
        }
        let deadline = self.stores.values().filter_map(Store::poll_timeout).min()?;
        Some(deadline.saturating_duration_since(now()))
    }

    /// Finds out what the handles want.
    fn hear(&mut self) {
        while let Ok(opened) = self.opened.try_recv() {
            self.stores.insert(opened.id, Store::new(opened));
        }
        self.stores.retain(|_, store| attempt(store, Store::hear) == State::Open);
    }

    fn tell(&mut self, id: StoreId, what: impl FnOnce(&mut Store)) {
        // An event may still come from a store that was closed.
        let Some(store) = self.stores.get_mut(&id) else {
            return;
        };
        let state = attempt(store, |store| {
            what(store);
            State::Open
        });
        if state == State::Closed {
            self.stores.remove(&id);
        }
    }

    /// Goes on with what no event announces. A turn in which much is served accepts much: if all
    /// clients come at once, none is to wait so long that the kernel has no room for further ones.
    fn go_on(&mut self, served: usize) {
        if !self.stores.values().any(|store| store.is_busy() || store.poll_timeout().is_some()) {
            return;
        }
        let (now, registry) = (now(), self.poll.registry());
        self.stores.retain(|_, store| {
            attempt(store, |store| {
                store.handle_timeout(now);
                store.accept(registry, now, (served / 4).max(ACCEPTED_MIN));
                store.go_on();
                State::Open
            }) == State::Open
        });
    }
}

/// Lets `store` do something. If it fails, it alone is closed.
fn attempt(store: &mut Store, what: impl FnOnce(&mut Store) -> State) -> State {
    catch_unwind(AssertUnwindSafe(|| what(store))).unwrap_or_else(|_| {
        error!("a store failed; its handle says that it is closed");
        State::Closed
    })
}

#[expect(clippy::disallowed_methods, reason = "this is the clock of the stores")]
pub(super) fn now() -> Instant {
    Instant::now()
}

impl From<Token> for Source {
    fn from(Token(token): Token) -> Self {
        let id = StoreId(token >> PLACE_BITS);
        match token & PLACE_MASK {
            _ if token == HANDLE => Self::Handle,
            LISTENER => Self::Listener(id),
            place => Self::Connection(id, place),
        }
    }
}

impl From<Source> for Token {
    fn from(source: Source) -> Self {
        Self(match source {
            Source::Handle => HANDLE,
            Source::Listener(StoreId(id)) => id << PLACE_BITS | LISTENER,
            Source::Connection(StoreId(id), place) => id << PLACE_BITS | place,
        })
    }
}

/// Of a token, the lower bits are the place of a connection, or say that it is a listener; the others
/// are the store. More stores than they can count are not opened in the life of a process.
const PLACE_BITS: u32 = 17;
const PLACE_MASK: usize = (1 << PLACE_BITS) - 1;
const LISTENER: usize = PLACE_MASK;
const HANDLE: usize = usize::MAX;
const _: () = assert!(CONNECTIONS_MAX <= LISTENER, "every place has a token");

/// Events taken from the kernel at once.
const EVENTS_MAX: usize = 1024;

/// Connections that a store accepts in one turn although little else is asked of it. So few that
/// who is connected already does not notice.
const ACCEPTED_MIN: usize = 8;

#[cfg(test)]
mod tests {
    use tokio::sync::watch;

    use super::super::Admission;
    use super::super::store::Policy;
    use super::*;

    /// A store that fails is closed, and ends nobody else.
    #[test]
    fn failures_are_contained() {
        let (_handle, policy) = watch::channel(Policy::Open(Admission::Anybody));
        let (_handed_over, taken_over) = mpsc::channel(1);
        let mut store = Store::new(Opened {
            id: StoreId(0),
            listener: None,
            policy,
            taken_over,
            memory_max: usize::MAX,
            refusals: None,
        });
        assert_eq!(attempt(&mut store, Store::hear), State::Open);
        assert_eq!(attempt(&mut store, |_| unreachable!("but it happens")), State::Closed);
    }

    /// Every source has a token of its own.
    #[test]
    fn tokens_tell_their_source() {
        for id in [0, 1, 1 << 40].map(StoreId) {
            for place in [0, 1, CONNECTIONS_MAX - 1] {
                let source = Source::Connection(id, place);
                assert_eq!(Source::from(Token::from(source)), source);
            }
            let source = Source::Listener(id);
            assert_eq!(Source::from(Token::from(source)), source);
        }
        assert_eq!(Source::from(Token::from(Source::Handle)), Source::Handle);
    }
}
