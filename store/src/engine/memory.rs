//! Accounting of the memory that a store holds.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::limits::SHARED_VALUE_LEN_MIN;

/// The bytes that the entries of a store occupy, and their limit.
///
/// A value that was replaced while it is being sent to a slow reader counts until it is released;
/// otherwise a client could make the store hold any number of them.
#[derive(Debug)]
pub(super) struct Memory {
    used: usize,
    max: usize,
    /// Replaced values that may still be in the output of a reader.
    lingering: VecDeque<Value>,
    /// Number of lingering values at which the unused ones are freed next.
    free_at: usize,
}

/// A value and its capacity in bytes, which is larger than the value after an append.
#[derive(Debug)]
pub(super) struct Value {
    pub(super) bytes: Bytes,
    pub(super) room: usize,
}

/// The store holds as much as it may.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the store would hold {needed} bytes, more than {max}")]
pub struct StoreFull {
    /// The bytes that it would have held.
    pub needed: usize,
    /// The bytes that it may hold.
    pub max: usize,
}

impl Value {
    /// Copies `bytes`, so that the buffer that they came in can be freed.
    pub(super) fn copy(bytes: &[u8]) -> Self {
        Self { bytes: Bytes::copy_from_slice(bytes), room: bytes.len() }
    }

    /// Returns true if a reader holds the value. Short values are copied into answers instead.
    pub(super) fn is_read(&self) -> bool {
        SHARED_VALUE_LEN_MIN <= self.bytes.len() && !self.bytes.is_unique()
    }
}

impl From<Vec<u8>> for Value {
    fn from(bytes: Vec<u8>) -> Self {
        Self { room: bytes.capacity(), bytes: bytes.into() }
    }
}

impl Memory {
    pub(super) fn new(max: usize) -> Self {
        Self { used: 0, max, lingering: VecDeque::new(), free_at: FREE_AT_MIN }
    }

    /// Returns the bytes that count as held.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// Checks that `len` more bytes may be held, given `elsewhere` bytes that are counted
    /// elsewhere.
    pub(super) fn allow(&mut self, len: usize, elsewhere: usize) -> Result<(), StoreFull> {
        if self.max < self.used + elsewhere + len {
            self.free_unused();
        }
        let needed = self.used + elsewhere + len;
        if self.max < needed { Err(StoreFull { needed, max: self.max }) } else { Ok(()) }
    }

    /// Counts `len` bytes, which were allowed.
    pub(super) fn add(&mut self, len: usize) {
        self.used += len;
    }

    /// Subtracts `len` bytes that no reader can hold.
    pub(super) fn sub(&mut self, len: usize) {
        self.used -= len;
    }

    /// Subtracts a value, as soon as no reader holds it.
    pub(super) fn retire(&mut self, value: Value) {
        if !value.is_read() {
            return self.sub(value.room);
        }
        self.lingering.push_back(value);
        if self.lingering.len() >= self.free_at {
            self.free_unused();
            self.free_at = FREE_AT_MIN.max(2 * self.lingering.len());
        }
    }

    /// Frees the replaced values that no reader holds any more.
    pub(super) fn free_unused(&mut self) {
        self.lingering.retain(|value| {
            let lingers = value.is_read();
            self.used -= if lingers { 0 } else { value.room };
            lingers
        });
    }

    /// Frees the next few replaced values only, so that it can be called often.
    pub(super) fn free_some(&mut self) {
        for _ in 0..self.lingering.len().min(FREE_AT_MIN) {
            match self.lingering.pop_front() {
                Some(value) if !value.is_read() => self.used -= value.room,
                lingers => self.lingering.extend(lingers),
            }
        }
    }
}

#[cfg(test)]
impl Memory {
    pub(super) fn lingering_len(&self) -> usize {
        self.lingering.len()
    }

    pub(super) fn assert_used(&self, live: usize) {
        let lingering = self.lingering.iter().map(|value| value.room).sum::<usize>();
        assert_eq!(self.used, live + lingering);
    }
}

const FREE_AT_MIN: usize = 16;
