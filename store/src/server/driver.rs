//! The thread's loop: waits for events, and passes each to its store.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::{Events, Poll};
use tokio::sync::mpsc;
use tracing::error;

use super::connection::Readiness;
use super::counters::Counters;
use super::source::{PollSource, StoreId};
use super::store::{NewStore, Store, StoreState};

/// Drives the stores of a thread.
#[derive(Debug)]
pub(super) struct StoreDriver {
    poll: Poll,
    opened: mpsc::Receiver<NewStore>,
    stores: BTreeMap<StoreId, Store>,
    counters: Arc<Counters>,
}

impl StoreDriver {
    pub(super) fn new(
        poll: Poll,
        opened: mpsc::Receiver<NewStore>,
        counters: Arc<Counters>,
    ) -> Self {
        Self { poll, opened, stores: BTreeMap::new(), counters }
    }

    /// Serves until the thread's handle is dropped.
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
                match PollSource::from(event.token()) {
                    PollSource::Handle => self.poll_handles(),
                    PollSource::Listener(id) => self.dispatch(id, Store::handle_arrival),
                    PollSource::Connection(id, slot) => {
                        let readiness = Readiness::from(event);
                        self.dispatch(id, |store| store.handle_readiness(slot, readiness));
                    }
                }
            }
            self.run_ready(count);
            self.publish_counts();
        }
    }

    /// Publishes the numbers of all stores; there are few.
    fn publish_counts(&mut self) {
        let counts = self.stores.values_mut().map(Store::take_counts);
        let (connections, requests) =
            counts.fold((0, 0), |sum, counts| (sum.0 + counts.0, sum.1 + counts.1));
        self.counters.publish(connections, requests);
    }

    /// Returns the longest time to wait for events, if limited.
    fn time_left(&self) -> Option<Duration> {
        if self.stores.values().any(Store::is_busy) {
            return Some(Duration::ZERO);
        }
        let deadline = self.stores.values().filter_map(Store::poll_timeout).min()?;
        Some(deadline.saturating_duration_since(now()))
    }

    /// Handles new stores, and changes that handles made.
    fn poll_handles(&mut self) {
        while let Ok(opened) = self.opened.try_recv() {
            self.stores.insert(opened.id, Store::new(opened));
        }
        self.stores
            .retain(|_, store| catch_panic(store, Store::on_policy_changed) == StoreState::Open);
    }

    fn dispatch(&mut self, id: StoreId, what: impl FnOnce(&mut Store)) {
        // An event may still arrive for a store that was closed.
        let Some(store) = self.stores.get_mut(&id) else { return };
        let state = catch_panic(store, |store| {
            what(store);
            StoreState::Open
        });
        if state == StoreState::Closed {
            self.stores.remove(&id);
        }
    }

    /// Does work that no event announces. The more events a turn has, the more connections it
    /// accepts: if all clients connect at once, the kernel's backlog must not fill up meanwhile.
    fn run_ready(&mut self, served: usize) {
        if !self.stores.values().any(|store| store.is_busy() || store.poll_timeout().is_some()) {
            return;
        }
        let (now, registry) = (now(), self.poll.registry());
        self.stores.retain(|_, store| {
            catch_panic(store, |store| {
                store.handle_timeout(now);
                store.accept(registry, now, (served / 4).max(ACCEPTED_MIN));
                store.run_ready();
                StoreState::Open
            }) == StoreState::Open
        });
    }
}

/// Runs `what` on `store`. If it panics, only this store is closed.
fn catch_panic(store: &mut Store, what: impl FnOnce(&mut Store) -> StoreState) -> StoreState {
    catch_unwind(AssertUnwindSafe(|| what(store))).unwrap_or_else(|_| {
        error!("a store failed and was closed");
        StoreState::Closed
    })
}

#[expect(clippy::disallowed_methods, reason = "this is the clock of the stores")]
pub(super) fn now() -> Instant {
    Instant::now()
}

/// Events taken from the kernel at once.
const EVENTS_MAX: usize = 1024;

/// Connections that a store accepts per turn even if there are few events. So few that connected
/// clients do not notice.
const ACCEPTED_MIN: usize = 8;

#[cfg(test)]
mod tests {
    use tokio::sync::watch;

    use super::super::AdmissionRule;
    use super::super::store::Policy;
    use super::*;

    /// A store that panics is closed, and the others continue.
    #[test]
    fn failures_are_contained() {
        let (_handle, policy) = watch::channel(Policy::Open(AdmissionRule::Anybody));
        let (_handed_over, taken_over) = mpsc::channel(1);
        let mut store = Store::new(NewStore {
            id: StoreId(0),
            listener: None,
            policy,
            taken_over,
            memory_max: usize::MAX,
            refusals: None,
        });
        assert_eq!(catch_panic(&mut store, Store::on_policy_changed), StoreState::Open);
        assert_eq!(catch_panic(&mut store, |_| unreachable!("but it happens")), StoreState::Closed);
    }
}
