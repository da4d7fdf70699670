//! `GET /`: a page that shows the job, and `GET /v1/watch`: the server-sent events that keep it up to date. An agent that does not
//! coordinate passes on what the coordinator sends.

mod document;
mod publisher;
mod view;

use std::{convert::Infallible, sync::Arc};

use axum::{
    Extension, Router,
    body::Body,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use ragent_proto::convert::NotHere;
use tokio::sync::mpsc;
use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use tonic::Status;

pub(super) use self::document::Document;
use self::{publisher::Publisher, view::Message};
use super::{
    client::{self, PageEvents},
    readers::{Place, Readers, send},
    states::States,
    status_page::{Trail, bad_gateway, unavailable},
};
use crate::{coordinator::limits, net::connection_quota::Origin, secret::Credentials};

/// The path of the page's events.
pub(crate) const WATCH_PATH: &str = "/v1/watch";

/// The page and its events, for a limited number of readers.
pub(super) struct Page {
    publisher: Arc<Publisher>,
    credentials: Credentials,
    readers: Readers,
}

/// The events of the page.
pub(super) type Events = ReceiverStream<Message>;

impl Page {
    pub(super) fn new(states: Arc<States>, credentials: Credentials, readers: Readers) -> Self {
        Self { publisher: Arc::new(Publisher::new(states)), credentials, readers }
    }

    /// Opens the events of the coordinator in this process.
    ///
    /// # Errors
    ///
    /// Returns [`Status`] if the job has ended, or too many clients read.
    pub(super) async fn open_here(
        &self,
        origin: Origin,
    ) -> Result<Result<Events, NotHere>, Status> {
        let frames = match Arc::clone(&self.publisher).subscribe().await? {
            Ok(frames) => frames,
            Err(not_here) => return Ok(Err(not_here)),
        };
        let place = self.readers.follow(origin).map_err(Status::unavailable)?;
        let (to, events) = mpsc::channel(1);
        tokio::spawn(publisher::pass_on(frames, to, place));
        Ok(Ok(ReceiverStream::new(events)))
    }

    /// Opens the events, which may be at another process.
    async fn open(&self, origin: Origin) -> Result<Events, (StatusCode, String)> {
        let opened = self.open_here(origin).await;
        let mut not_here = match opened.map_err(|status| unavailable(status.message()))? {
            Ok(events) => return Ok(events),
            Err(not_here) => not_here,
        };
        let place = self.readers.follow(origin).map_err(unavailable)?;
        let mut trail = Trail::default();
        loop {
            let endpoint = trail.next(not_here)?;
            match client::page(&endpoint, &self.credentials).await {
                Ok(PageEvents::Parts(parts)) => {
                    let (to, relayed) = mpsc::channel(1);
                    tokio::spawn(relay(*parts, to, place));
                    return Ok(ReceiverStream::new(relayed));
                }
                Ok(PageEvents::NotHere(other)) => not_here = other,
                Err(error) => return Err(bad_gateway("the page's events", &endpoint, &error)),
            }
        }
    }
}

/// Passes on the events of another process.
async fn relay(mut parts: client::PageParts, to: mpsc::Sender<Message>, _place: Place) {
    loop {
        tokio::select! {
            part = parts.next() => match part {
                Ok(Some(events)) => {
                    if !send(&to, events.into()).await {
                        return;
                    }
                }
                Ok(None) | Err(_) => return,
            },
            () = to.closed() => return,
        }
    }
}

/// Creates the routes of the page.
pub(super) fn routes(page: Arc<Page>, document: Document) -> Router {
    Router::new()
        .route("/", get(document::document).with_state(Arc::new(document)))
        .route(WATCH_PATH, get(watch).with_state(page))
}

async fn watch(State(page): State<Arc<Page>>, Extension(origin): Extension<Origin>) -> Response {
    let common = [(header::CACHE_CONTROL, "no-store"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    match page.open(origin).await {
        Ok(events) => {
            let events = events.map(|event| Ok::<_, Infallible>(event.to_string()));
            let kind = [(header::CONTENT_TYPE, "text/event-stream")];
            (common, kind, Body::from_stream(events)).into_response()
        }
        Err((status, why)) => {
            let retry = [(header::RETRY_AFTER, limits::READERS_RETRY_S.to_string())];
            (status, common, retry, why + "\n").into_response()
        }
    }
}
