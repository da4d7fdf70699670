//! Keeps what is made once for all readers: the JSON of a state, and values that are collected at most once per interval.

use std::{sync::OnceLock, time::Instant};

use axum::body::Bytes;
use ragent_base::sys::clock;
use ragent_rendezvous::snapshot::Snapshot;
use tokio::sync::Mutex;

use crate::limits;

/// A snapshot of the job, and its JSON.
#[derive(Debug)]
pub(crate) struct JsonState {
    /// The state.
    pub(crate) snapshot: Snapshot,
    json: OnceLock<Bytes>,
}

impl JsonState {
    pub(crate) fn new(snapshot: Snapshot) -> Self {
        Self { snapshot, json: OnceLock::new() }
    }

    /// Returns the state as JSON.
    pub(crate) fn json(&self) -> Bytes {
        let json = || serde_json::to_vec(&self.snapshot).expect("all keys are text").into();
        self.json.get_or_init(json).clone()
    }
}

/// A value that is collected at most once per [`limits::STATUS_INTERVAL`]. Callers that arrive during a collection share the next one.
#[derive(Debug)]
pub(super) struct Collected<T>(Mutex<Option<(Instant, T)>>);

impl<T> Default for Collected<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone> Collected<T> {
    /// Returns a value that was collected after this call.
    ///
    /// # Cancel safety
    ///
    /// If a call is cancelled, its collection is discarded, and the next caller starts another.
    pub(super) async fn get(&self, collect: impl Future<Output = T>) -> T {
        let asked = clock::now();
        let mut last = self.0.lock().await;
        if let Some((begun, value)) = &*last {
            if asked <= *begun {
                return value.clone();
            }
            clock::until(Some(*begun + limits::STATUS_INTERVAL)).await;
        }
        let begun = clock::now();
        let value = collect.await;
        *last = Some((begun, value.clone()));
        value
    }
}
