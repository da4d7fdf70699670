//! Waiting and released clients.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use bytes::Bytes;

use crate::limits::AWAITED_OVERHEAD;

/// The name of a client during the life of a store; never used again.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ClientId(pub u64);

/// Clients whose `WAIT` or `BARRIER` has not ended yet.
///
/// A name needs to be stored once only, even if it is deleted before the others are stored: a wait
/// counts down, as upstream, and does not check again.
///
/// Unlike upstream, a client has at most one pending wait, the newest; a released or disconnected
/// client is removed everywhere, so it cannot be released twice; and clients at a barrier are in
/// separate lines, so that only the barrier releases them.
///
/// Invariant: a client is in the line of a name exactly if it still waits for that name, and in the
/// line of a barrier exactly if it is parked there; no line and no set of names is empty.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    parked: HashMap<ClientId, Parked>,
    by_name: HashMap<Bytes, Line>,
    by_barrier: HashMap<Bytes, Line>,
    woken: VecDeque<ClientId>,
    arrivals: u64,
    cost: usize,
}

/// Clients in the order of their first wait.
type Line = BTreeMap<u64, ClientId>;

#[derive(Debug)]
struct Parked {
    /// The client's key in every line.
    arrival: u64,
    awaits: Awaits,
}

#[derive(Debug)]
enum Awaits {
    /// Until each of these names is stored.
    Names(HashSet<Bytes>),
    /// Until the barrier under this key is complete.
    Barrier(Bytes),
}

impl Waiters {
    /// Parks `client` until each of `names`, which is not empty, has been stored.
    pub(crate) fn park(&mut self, client: ClientId, names: HashSet<Bytes>) {
        debug_assert!(!names.is_empty(), "a wait for no keys ends at once");
        self.forget(client);
        let arrival = self.next_arrival();
        for name in &names {
            self.cost += cost(name);
            self.by_name.entry(name.clone()).or_default().insert(arrival, client);
        }
        self.parked.insert(client, Parked { arrival, awaits: Awaits::Names(names) });
    }

    /// Parks `client` until the barrier under `key` is complete.
    pub(crate) fn park_at_barrier(&mut self, client: ClientId, key: Bytes) {
        self.forget(client);
        let arrival = self.next_arrival();
        self.cost += cost(&key);
        self.by_barrier.entry(key.clone()).or_default().insert(arrival, client);
        self.parked.insert(client, Parked { arrival, awaits: Awaits::Barrier(key) });
    }

    /// Removes `name`, which was stored, from the names that clients wait for.
    pub(crate) fn stored(&mut self, name: &[u8]) {
        for client in self.by_name.remove(name).into_iter().flat_map(Line::into_values) {
            self.done(client, name);
        }
    }

    /// Removes `name`, a queue to which a value was pushed, from the names that clients wait for,
    /// up to and including the first client that is released by that.
    ///
    /// One value serves one waiter. A client that waits for something else as well does not use it
    /// up, otherwise a value could remain in the queue while others wait for it.
    pub(crate) fn pushed(&mut self, name: &[u8]) {
        let Some(mut line) = self.by_name.remove(name) else { return };
        while let Some((_, client)) = line.pop_first() {
            if self.done(client, name) {
                break;
            }
        }
        if !line.is_empty() {
            self.by_name.insert(Bytes::copy_from_slice(name), line);
        }
    }

    /// Releases the clients at the barrier under `key`, which is complete, and clients that wait
    /// for the key.
    pub(crate) fn completed(&mut self, key: &[u8]) {
        self.stored(key);
        for client in self.by_barrier.remove(key).into_iter().flat_map(Line::into_values) {
            self.cost -= cost(key);
            self.wake(client);
        }
    }

    /// Removes the wait of `client`, if it has one.
    pub(crate) fn forget(&mut self, client: ClientId) {
        let Some(Parked { arrival, awaits }) = self.parked.remove(&client) else { return };
        match awaits {
            Awaits::Names(names) => {
                for name in names {
                    self.cost -= cost(&name);
                    leave(&mut self.by_name, &name, arrival);
                }
            }
            Awaits::Barrier(key) => {
                self.cost -= cost(&key);
                leave(&mut self.by_barrier, &key, arrival);
            }
        }
    }

    /// Returns the next client that was released.
    pub(crate) fn poll_woken(&mut self) -> Option<ClientId> {
        self.woken.pop_front()
    }

    /// Returns the bytes that the awaited names occupy.
    pub(crate) fn cost(&self) -> usize {
        self.cost
    }

    /// Removes `name`, whose line `client` has left, from the names that it waits for; returns true
    /// if that released it.
    fn done(&mut self, client: ClientId, name: &[u8]) -> bool {
        let Some(Parked { awaits: Awaits::Names(missing), .. }) = self.parked.get_mut(&client)
        else {
            debug_assert!(false, "a queued client waits for keys");
            return false;
        };
        self.cost -= cost(name);
        missing.remove(name);
        let released = missing.is_empty();
        if released {
            self.wake(client);
        }
        released
    }

    fn wake(&mut self, client: ClientId) {
        self.parked.remove(&client);
        self.woken.push_back(client);
    }

    fn next_arrival(&mut self) -> u64 {
        self.arrivals += 1;
        self.arrivals
    }
}

/// Returns the bytes that waiting for `name` is assumed to occupy.
pub(crate) fn cost(name: &[u8]) -> usize {
    name.len() + AWAITED_OVERHEAD
}

fn leave(lines: &mut HashMap<Bytes, Line>, name: &[u8], arrival: u64) {
    if let Some(line) = lines.get_mut(name) {
        line.remove(&arrival);
        if line.is_empty() {
            lines.remove(name);
        }
    }
}

#[cfg(test)]
impl Waiters {
    pub(crate) fn assert_invariant(&self) {
        let mut expected_cost = 0;
        let mut slots = 0;
        for (client, Parked { arrival, awaits }) in &self.parked {
            let (lines, names): (_, Vec<&Bytes>) = match awaits {
                Awaits::Names(names) => (&self.by_name, names.iter().collect()),
                Awaits::Barrier(key) => (&self.by_barrier, vec![key]),
            };
            assert!(!names.is_empty());
            for name in names {
                assert_eq!(lines[name].get(arrival), Some(client));
                expected_cost += cost(name);
                slots += 1;
            }
        }
        let lines = || self.by_name.values().chain(self.by_barrier.values());
        assert!(lines().all(|line| !line.is_empty()));
        assert_eq!(lines().map(Line::len).sum::<usize>(), slots);
        assert_eq!(self.cost, expected_cost);
    }
}
