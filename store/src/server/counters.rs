//! Numbers that the thread of the stores publishes.

use std::sync::atomic::{AtomicU64, Ordering};

/// The numbers of all stores of a thread, published after each turn of its loop.
#[derive(Debug, Default)]
pub struct Counters {
    connections: AtomicU64,
    requests: AtomicU64,
}

impl Counters {
    /// Returns the number of connections at present.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Returns the number of requests that were executed so far.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    pub(super) fn publish(&self, connections: usize, new_requests: u64) {
        self.connections.store(connections as u64, Ordering::Relaxed);
        self.requests.fetch_add(new_requests, Ordering::Relaxed);
    }
}
