//! Computes the answer of each operation of a store, and the clients that it releases.
//!
//! Operations carry the protocol's names. No call blocks: [`Engine::wait`] and [`Engine::barrier`]
//! return [`Wait::Ready`] or [`Wait::Parked`], and [`Engine::poll_woken`], which is to be drained
//! after every call, returns the clients that are released later.
//!
//! Keys and queues are two namespaces: only [`Engine::check`] and [`Engine::wait`] look at both.
//! The engine has neither a clock nor I/O: a wait ends early by `CANCEL_WAIT` or a closed
//! connection.

use std::collections::{HashMap, HashSet, VecDeque};
use std::mem;

use bytes::Bytes;

use crate::limits::{APPENDED_LEN_MAX, ENTRY_OVERHEAD, STORE_MEMORY_MAX};
pub use crate::waiters::ClientId;
use crate::waiters::{self, Waiters};

mod integer;
mod memory;
#[cfg(test)]
mod tests;

use self::integer::{Decimal, leading_integer};
pub use self::memory::StoreFull;
use self::memory::{Memory, Value};

/// One store: its keys, its queues and the clients that wait for them.
///
/// Invariant: no queue is empty; `memory` counts every key, value and queued value; `keys_len` is the
/// sum of the lengths of the keys.
#[derive(Debug)]
pub struct Engine {
    entries: HashMap<Bytes, Value>,
    keys_len: usize,
    queues: HashMap<Bytes, VecDeque<Bytes>>,
    waiters: Waiters,
    memory: Memory,
}

/// The result of a `WAIT` or `BARRIER`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub enum Wait {
    /// The wait has ended: answer.
    Ready,
    /// [`Engine::poll_woken`] will return the client.
    Parked,
}

/// The result of a `COMPARE_SET`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CompareSet<'a> {
    /// The value differs and stays.
    Differs(&'a Bytes),
    /// The key is absent, though a value was expected.
    Missing,
    /// The value was as expected; this is the new one, which is stored.
    Stored(&'a Bytes),
}

/// A number cannot be added.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum AddError {
    /// The sum does not fit into the store.
    #[error(transparent)]
    Full(#[from] StoreFull),
    /// The value does not begin with a 64-bit integer.
    #[error("the value is not a number")]
    NotANumber,
}

/// A value cannot be extended.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum AppendError {
    /// The value does not fit into the store.
    #[error(transparent)]
    Full(#[from] StoreFull),
    /// The value would have this many bytes, too many.
    #[error("an appended value of {0} bytes is longer than {APPENDED_LEN_MAX}")]
    TooLong(usize),
}

impl Default for Engine {
    fn default() -> Self {
        Self::with_memory_max(STORE_MEMORY_MAX)
    }
}

impl Engine {
    /// Returns an empty store that holds at most `memory_max` bytes.
    pub fn with_memory_max(memory_max: usize) -> Self {
        Self {
            entries: HashMap::new(),
            keys_len: 0,
            queues: HashMap::new(),
            waiters: Waiters::default(),
            memory: Memory::new(memory_max),
        }
    }

    /// Stores `value` under `key` and releases the clients that wait for it.
    ///
    /// # Errors
    ///
    /// Returns [`StoreFull`] and changes nothing if there is no room.
    pub fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), StoreFull> {
        self.store(key, value, 0)?;
        self.waiters.stored(key);
        Ok(())
    }

    /// Returns the value under `key`.
    pub fn get(&self, key: &[u8]) -> Option<&Bytes> {
        self.entries.get(key).map(|value| &value.bytes)
    }

    /// Adds `delta` to the decimal integer under `key` and returns the sum.
    ///
    /// An absent key counts as zero; the sum wraps, as upstream.
    ///
    /// # Errors
    ///
    /// Returns [`AddError`] and changes nothing if the value does not begin with an integer.
    pub fn add(&mut self, key: &[u8], delta: i64) -> Result<i64, AddError> {
        let sum = self.sum(key, delta)?;
        self.set(key, &Decimal::from(sum))?;
        Ok(sum)
    }

    /// Stores `desired` under `key` if the value is `expected`, or if there is no value and
    /// `expected` is empty. Only then does it release the clients that wait for the key; upstream
    /// does so also when nothing was stored.
    ///
    /// # Errors
    ///
    /// Returns [`StoreFull`] and changes nothing if there is no room.
    pub fn compare_set(
        &mut self,
        key: &[u8],
        expected: &[u8],
        desired: &[u8],
    ) -> Result<CompareSet<'_>, StoreFull> {
        let matches = self.get(key).map_or(expected.is_empty(), |value| value == expected);
        if matches {
            self.set(key, desired)?;
        }
        let found = if matches { CompareSet::Stored } else { CompareSet::Differs };
        Ok(self.get(key).map_or(CompareSet::Missing, found))
    }

    /// Returns true if each of `names` is a key or a queue that is not empty.
    pub fn check(&self, names: &[&[u8]]) -> bool {
        names.iter().all(|name| self.is_present(name))
    }

    /// Lets `client` wait until each of `names` is present.
    ///
    /// Replaces an earlier wait of the client.
    ///
    /// # Errors
    ///
    /// Returns [`StoreFull`] if there is no room to store the names.
    pub fn wait(&mut self, client: ClientId, names: &[&[u8]]) -> Result<Wait, StoreFull> {
        self.waiters.forget(client);
        let missing: HashSet<&[u8]> =
            names.iter().copied().filter(|name| !self.is_present(name)).collect();
        if missing.is_empty() {
            return Ok(Wait::Ready);
        }
        self.allow(missing.iter().map(|name| waiters::cost(name)).sum())?;
        self.waiters.park(client, missing.into_iter().map(Bytes::copy_from_slice).collect());
        Ok(Wait::Parked)
    }

    /// Counts an arrival of `client` under `key`, and lets it wait until `world_size` have arrived.
    ///
    /// The count is a decimal value like any other and never decreases, so a key serves one
    /// barrier. Clients that wait for the key are released only when the barrier is complete, as
    /// upstream. Clients at the barrier are released by its completion alone; upstream also
    /// releases them for a `SET`, `ADD` or `COMPARE_SET` of the key.
    ///
    /// # Errors
    ///
    /// Returns [`AddError`] and changes nothing if the value does not begin with an integer.
    pub fn barrier(
        &mut self,
        client: ClientId,
        key: &[u8],
        world_size: i64,
    ) -> Result<Wait, AddError> {
        self.waiters.forget(client);
        let arrived = self.sum(key, 1)?;
        if arrived >= world_size {
            self.store(key, &Decimal::from(arrived), 0)?;
            self.waiters.completed(key);
            return Ok(Wait::Ready);
        }
        self.store(key, &Decimal::from(arrived), waiters::cost(key))?;
        self.waiters.park_at_barrier(client, Bytes::copy_from_slice(key));
        Ok(Wait::Parked)
    }

    /// Removes the wait of `client`, which canceled it or has disconnected.
    pub fn cancel_wait(&mut self, client: ClientId) {
        self.waiters.forget(client);
    }

    /// Returns the next client whose wait has ended.
    pub fn poll_woken(&mut self) -> Option<ClientId> {
        self.waiters.poll_woken()
    }

    /// Frees some replaced values whose readers are done; called after a reader released one.
    pub fn released(&mut self) {
        self.memory.free_some();
    }

    /// Frees all replaced values whose readers are done; called after any number were released.
    pub fn released_all(&mut self) {
        self.memory.free_unused();
    }

    /// Returns the bytes that count as held: keys, values, queues and waits, each with its assumed
    /// overhead, and replaced values that have not been freed yet.
    pub fn memory_used(&self) -> usize {
        self.memory.used() + self.waiters.cost()
    }

    /// Returns the number of keys.
    pub fn num_keys(&self) -> usize {
        self.entries.len()
    }

    /// Returns the sum of the lengths of all keys.
    pub fn keys_len(&self) -> usize {
        self.keys_len
    }

    /// Returns all keys, in any order.
    pub fn list_keys(&self) -> impl Iterator<Item = &Bytes> {
        self.entries.keys()
    }

    /// Removes `key` and returns true if it was present. Releases no client.
    pub fn delete_key(&mut self, key: &[u8]) -> bool {
        let Some((key, value)) = self.entries.remove_entry(key) else { return false };
        self.keys_len -= key.len();
        self.memory.sub(entry_cost(&key));
        self.memory.retire(value);
        true
    }

    /// Appends `value` to the value under `key`, if any, and releases the clients that wait for it.
    ///
    /// # Errors
    ///
    /// Returns [`AppendError`] and changes nothing if the value would be too long.
    pub fn append(&mut self, key: &[u8], value: &[u8]) -> Result<(), AppendError> {
        let Some(len) = self.get(key).map(Bytes::len) else { return Ok(self.set(key, value)?) };
        if APPENDED_LEN_MAX < len + value.len() {
            return Err(AppendError::TooLong(len + value.len()));
        }
        // If the value has to move, it takes up to twice the room.
        self.allow(EXTENDED_ROOM_MIN.max(2 * (len + value.len())))?;
        if let Some(entry) = self.entries.get_mut(key) {
            let old_room = entry.room;
            let (extended, replaced) = extended(mem::take(&mut entry.bytes), value);
            *entry = extended;
            self.memory.add(entry.room);
            match replaced {
                Some(bytes) => self.memory.retire(Value { bytes, room: old_room }),
                None => self.memory.sub(old_room),
            }
        }
        self.waiters.stored(key);
        Ok(())
    }

    /// Appends `value` to `queue` and releases one client that waits for it.
    ///
    /// # Errors
    ///
    /// Returns [`StoreFull`] and changes nothing if there is no room.
    pub fn queue_push(&mut self, queue: &[u8], value: &[u8]) -> Result<(), StoreFull> {
        let cost = value.len() + ENTRY_OVERHEAD;
        self.allow(cost + entry_cost(queue))?;
        self.memory.add(cost);
        let value = Bytes::copy_from_slice(value);
        if let Some(values) = self.queues.get_mut(queue) {
            values.push_back(value);
        } else {
            self.memory.add(entry_cost(queue));
            self.queues.insert(Bytes::copy_from_slice(queue), VecDeque::from([value]));
        }
        self.waiters.pushed(queue);
        Ok(())
    }

    /// Removes the first value of `queue` and returns it with the length before.
    pub fn queue_pop(&mut self, queue: &[u8]) -> Option<(usize, Bytes)> {
        let values = self.queues.get_mut(queue)?;
        let len = values.len();
        let value = values.pop_front()?;
        if values.is_empty() {
            self.queues.remove(queue);
            self.memory.sub(entry_cost(queue));
        }
        // From here on, the caller accounts for the value.
        self.memory.sub(ENTRY_OVERHEAD + value.len());
        Some((len, value))
    }

    /// Returns the number of values in `queue`.
    pub fn queue_len(&self, queue: &[u8]) -> usize {
        self.queues.get(queue).map_or(0, VecDeque::len)
    }

    fn is_present(&self, name: &[u8]) -> bool {
        self.entries.contains_key(name) || self.queues.contains_key(name)
    }

    fn sum(&self, key: &[u8], delta: i64) -> Result<i64, AddError> {
        let current = match self.get(key) {
            Some(value) => leading_integer(value).ok_or(AddError::NotANumber)?,
            None => 0,
        };
        Ok(current.wrapping_add(delta))
    }

    /// Stores a value without releasing any client, if there is room for it and for `reserved` bytes.
    fn store(&mut self, key: &[u8], value: &[u8], reserved: usize) -> Result<(), StoreFull> {
        let old = self.entries.get_mut(key);
        let grows_by = match &old {
            // The old value stays in memory in addition to the new one.
            Some(old) if old.is_read() => value.len(),
            Some(old) => value.len().saturating_sub(old.room),
            None => value.len() + entry_cost(key),
        };
        self.memory.allow(grows_by + reserved, self.waiters.cost())?;
        let value = Value::copy(value);
        self.memory.add(value.room);
        if let Some(old) = old {
            self.memory.retire(mem::replace(old, value));
        } else {
            self.keys_len += key.len();
            self.memory.add(entry_cost(key));
            self.entries.insert(Bytes::copy_from_slice(key), value);
        }
        Ok(())
    }

    fn allow(&mut self, len: usize) -> Result<(), StoreFull> {
        self.memory.allow(len, self.waiters.cost())
    }
}

/// Returns the bytes that a key or queue occupies without its values.
fn entry_cost(key: &[u8]) -> usize {
    key.len() + ENTRY_OVERHEAD
}

/// Returns `value` extended by `tail`, and the original if a reader still holds that.
///
/// Extends in place if possible, so that many small appends do not copy the value each time.
fn extended(value: Bytes, tail: &[u8]) -> (Value, Option<Bytes>) {
    match value.try_into_mut() {
        Ok(mut value) => {
            value.extend_from_slice(tail);
            let room = value.capacity();
            (Value { bytes: value.freeze(), room }, None)
        }
        Err(read) => (Value::from([&read, tail].concat()), Some(read)),
    }
}

/// The least room of an extended value, as the standard library allocates it.
const EXTENDED_ROOM_MIN: usize = 8;
