//! The clients that read from this process for long: their number is bounded, and a client that does not read loses its place.

use std::sync::Arc;

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::timeout,
};

use crate::coordinator::limits;

/// The places for readers: some for clients that follow, which may stay, and others for those that read once.
#[derive(Clone, Debug)]
pub(crate) struct Readers {
    following: Arc<Semaphore>,
    once: Arc<Semaphore>,
}

/// The place of a reader.
pub(super) type Place = OwnedSemaphorePermit;

impl Default for Readers {
    fn default() -> Self {
        let places = || Arc::new(Semaphore::new(limits::READERS));
        Self { following: places(), once: places() }
    }
}

impl Readers {
    /// Takes a place of a client that follows; returns the reason if there is none.
    pub(super) fn follow(&self) -> Result<Place, String> {
        take(&self.following)
    }

    /// Waits until no client follows, for a limited time: those that follow the coordinator of this process end with it, when they
    /// have received its last state.
    pub(crate) async fn wait_for_followers(&self) {
        let all = u32::try_from(limits::READERS).unwrap_or(u32::MAX);
        // After the time, or if the places were closed, nothing is left to wait for.
        let _ = timeout(limits::LAST_STATE_PATIENCE, self.following.acquire_many(all)).await;
    }

    /// Takes a place of a client that reads once; returns the reason if there is none.
    pub(super) fn read_once(&self) -> Result<Place, String> {
        take(&self.once)
    }
}

fn take(places: &Arc<Semaphore>) -> Result<Place, String> {
    Arc::clone(places).try_acquire_owned().map_err(|_| {
        let readers = limits::READERS;
        format!("{readers} clients already read from this process; try again later")
    })
}

/// Sends a part to a client. Returns false if the client has ended, or has not read for [`limits::READER_PATIENCE`].
pub(super) async fn send<T>(to: &mpsc::Sender<T>, part: T) -> bool {
    timeout(limits::READER_PATIENCE, to.send(part)).await.is_ok_and(|sent| sent.is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clients that follow leave the places of others free, and one that does not read loses its place.
    #[tokio::test(start_paused = true)]
    async fn places_are_bounded() {
        let readers = Readers::default();
        let places: Vec<Place> =
            std::iter::from_fn(|| readers.follow().ok()).take(limits::READERS + 1).collect();
        assert_eq!(places.len(), limits::READERS);
        assert!(readers.follow().unwrap_err().contains("64 clients already read"));
        drop(readers.read_once().unwrap());
        drop(places);
        assert!(readers.follow().is_ok());
        let (to, mut parts) = mpsc::channel(1);
        assert!(send(&to, 1).await);
        assert!(!send(&to, 2).await, "the queue is full");
        assert_eq!(parts.recv().await, Some(1));
        drop(parts);
        assert!(!send(&to, 3).await);
    }
}
