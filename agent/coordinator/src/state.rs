//! Keeps a snapshot of the job with its JSON, which is made once for all readers.

use std::sync::OnceLock;

use axum::body::Bytes;
use ragent_rendezvous::snapshot::Snapshot;

/// A snapshot of the job, and its JSON.
#[derive(Debug)]
pub(super) struct JsonState {
    /// The state.
    pub(super) snapshot: Snapshot,
    json: OnceLock<Bytes>,
}

impl JsonState {
    pub(super) fn new(snapshot: Snapshot) -> Self {
        Self { snapshot, json: OnceLock::new() }
    }

    /// Returns the state as JSON.
    pub(super) fn json(&self) -> Bytes {
        let json = || serde_json::to_vec(&self.snapshot).expect("all keys are text").into();
        self.json.get_or_init(json).clone()
    }
}
