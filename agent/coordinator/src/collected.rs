//! Collects a value for any number of callers, at most once per interval.
//!
//! Callers that arrive during a collection share the next one, so the load does not grow with their number.

use std::time::Instant;

use ragent_base::sys::clock;
use tokio::sync::Mutex;

use crate::limits;

/// A value that is collected at most once per [`limits::STATUS_INTERVAL`], for all callers.
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
