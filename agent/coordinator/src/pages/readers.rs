//! Limits the clients that read from this process for long. A client that does not read loses its place.

use std::{convert::Infallible, sync::Arc};

use axum::{
    body::{Body, Bytes},
    http::{
        HeaderName, HeaderValue,
        header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS},
    },
    response::{IntoResponse, Response},
};
use ragent_base::net::connection_quota::ConnectionOrigin;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::{interval, timeout},
};
use tokio_stream::{Stream, StreamExt, wrappers::ReceiverStream};

use crate::limits;

/// The places for readers. Clients that follow may stay for hours, so they have other places than clients that read once. Clients of
/// unknown origin may use half of each.
#[derive(Clone, Debug)]
pub struct Readers {
    following: ReaderPlaces,
    once: ReaderPlaces,
}

#[derive(Clone, Debug)]
struct ReaderPlaces {
    all: Arc<Semaphore>,
    of_unknown: Arc<Semaphore>,
}

/// The place of a reader.
#[derive(Debug)]
pub(super) struct ReaderPlace {
    #[expect(dead_code, reason = "it is taken until it is dropped")]
    permits: [Option<OwnedSemaphorePermit>; 2],
}

impl Default for Readers {
    fn default() -> Self {
        let places = || ReaderPlaces {
            all: Arc::new(Semaphore::new(limits::READERS)),
            of_unknown: Arc::new(Semaphore::new(limits::UNKNOWN_READERS)),
        };
        Self { following: places(), once: places() }
    }
}

impl Readers {
    /// Takes a place for a client that follows. Returns the reason if there is none.
    pub(super) fn follow(&self, origin: ConnectionOrigin) -> Result<ReaderPlace, String> {
        self.following.take(origin)
    }

    /// Waits, for a limited time, until no client follows. Clients of this process's coordinator end once they have received its last
    /// state.
    pub async fn wait_for_followers(&self) {
        let all = u32::try_from(limits::READERS).unwrap_or(u32::MAX);
        // After this time, or if the places are closed, there is nothing left to wait for.
        let _ = timeout(limits::LAST_STATE_PATIENCE, self.following.all.acquire_many(all)).await;
    }

    /// Takes a place for a client that reads once. Returns the reason if there is none.
    pub(super) fn read_once(&self, origin: ConnectionOrigin) -> Result<ReaderPlace, String> {
        self.once.take(origin)
    }
}

impl ReaderPlaces {
    fn take(&self, origin: ConnectionOrigin) -> Result<ReaderPlace, String> {
        let of_unknown = match origin {
            ConnectionOrigin::Known => None,
            ConnectionOrigin::Unknown => {
                Some(take(&self.of_unknown, limits::UNKNOWN_READERS, " from outside the job")?)
            }
        };
        let permits = [of_unknown, Some(take(&self.all, limits::READERS, "")?)];
        Ok(ReaderPlace { permits })
    }
}

fn take(places: &Arc<Semaphore>, max: usize, which: &str) -> Result<OwnedSemaphorePermit, String> {
    Arc::clone(places).try_acquire_owned().map_err(|_| {
        format!("{max} clients{which} already read from this process; try again later")
    })
}

/// Sends a part to a client. Returns false if the client has ended, or has read nothing for [`limits::READER_PATIENCE`].
pub(super) async fn send<T>(to: &mpsc::Sender<T>, part: T) -> bool {
    timeout(limits::READER_PATIENCE, to.send(part)).await.is_ok_and(|sent| sent.is_ok())
}

/// The parts of a page, as they are sent.
pub(super) type Parts = ReceiverStream<Bytes>;

/// The headers of all answers about a job.
pub(super) const PAGE_HEADERS: [(HeaderName, HeaderValue); 2] = [
    (CACHE_CONTROL, HeaderValue::from_static("no-store")),
    (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
];

/// Returns parts as the answer to a request.
pub(super) fn answer(
    media_type: &'static str,
    parts: impl Stream<Item = Bytes> + Send + 'static,
) -> Response {
    let body = Body::from_stream(parts.map(Ok::<_, Infallible>));
    (PAGE_HEADERS, [(CONTENT_TYPE, media_type)], body).into_response()
}

/// Returns lines of JSON as the answer to a request. Between lines, an empty line at intervals shows whether the client is lost.
pub(super) fn answer_lines(parts: impl Stream<Item = Bytes> + Send + 'static) -> Response {
    answer("application/jsonl", with_heartbeats(parts))
}

fn with_heartbeats(parts: impl Stream<Item = Bytes>) -> impl Stream<Item = Bytes> {
    let mut heartbeats = interval(limits::FOLLOWER_HEARTBEAT);
    // The first tick of a new interval is due at once.
    heartbeats.reset();
    let parts = parts.timeout_repeating(heartbeats);
    parts.map(|part| part.unwrap_or_else(|_| Bytes::from_static(b"\n")))
}

#[cfg(test)]
mod tests {
    use ragent_base::sys::clock;

    use super::*;

    /// Between lines, a client receives an empty one after each interval. The stream ends with the page.
    #[tokio::test(start_paused = true)]
    async fn heartbeats_fill_pauses() {
        let (to, parts) = mpsc::channel(1);
        let lines = with_heartbeats(ReceiverStream::new(parts));
        tokio::pin!(lines);
        let begun = clock::now();
        assert_eq!(lines.next().await.as_deref(), Some(&b"\n"[..]));
        assert_eq!(clock::now() - begun, limits::FOLLOWER_HEARTBEAT);
        to.send(Bytes::from_static(b"event\n")).await.unwrap();
        assert_eq!(lines.next().await.as_deref(), Some(&b"event\n"[..]));
        drop(to);
        assert_eq!(lines.next().await, None);
    }

    /// Clients that follow do not use the places of others. Strangers leave half of the places to the job. A client that does not read
    /// loses its place.
    #[tokio::test(start_paused = true)]
    async fn places_are_bounded() {
        let readers = Readers::default();
        let take = |origin| -> Vec<ReaderPlace> {
            std::iter::from_fn(|| readers.follow(origin).ok()).take(limits::READERS + 1).collect()
        };
        let (of_unknown, of_known) =
            (take(ConnectionOrigin::Unknown), take(ConnectionOrigin::Known));
        assert_eq!((of_unknown.len(), of_known.len()), (32, 32));
        assert!(
            readers
                .follow(ConnectionOrigin::Known)
                .unwrap_err()
                .contains("64 clients already read")
        );
        drop(of_known);
        assert!(readers.follow(ConnectionOrigin::Unknown).unwrap_err().contains("32 clients"));
        drop(readers.read_once(ConnectionOrigin::Unknown).unwrap());
        drop(of_unknown);
        assert!(readers.follow(ConnectionOrigin::Unknown).is_ok());
        let (to, mut parts) = mpsc::channel(1);
        assert!(send(&to, 1).await);
        assert!(!send(&to, 2).await, "the queue is full");
        assert_eq!(parts.recv().await, Some(1));
        drop(parts);
        assert!(!send(&to, 3).await);
    }
}
