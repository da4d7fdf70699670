//! `GET /v1/events`: the journal of the job as JSON lines. An agent that does not coordinate asks the coordinator.

use std::sync::Arc;

use axum::{
    Extension,
    body::Body,
    extract::{RawQuery, State},
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use ragent_proto::convert::{JournalRequest, NotHere};
use tokio::{sync::mpsc, time::interval};
use tokio_stream::{Stream, StreamExt, wrappers::ReceiverStream};

use super::{
    client::{self, Journal},
    driver,
    journal::JournalReader,
    readers::{Place, Readers, send},
    role::Role,
    status_page::{Trail, bad_gateway, unavailable},
};
use crate::{coordinator::limits, net::connection_quota::Origin, secret::Credentials};

/// The journal, for a limited number of readers.
pub(super) struct EventsPage {
    role: Arc<Role>,
    credentials: Credentials,
    readers: Readers,
}

/// The parts of a journal.
pub(super) type Parts = ReceiverStream<String>;

type Refusal = (StatusCode, String);

impl EventsPage {
    pub(super) fn new(role: Arc<Role>, credentials: Credentials, readers: Readers) -> Self {
        Self { role, credentials, readers }
    }

    /// Opens the journal of the coordinator in this process.
    pub(super) async fn open_here(
        &self,
        request: JournalRequest,
        origin: Origin,
    ) -> Result<Result<Parts, NotHere>, Refusal> {
        let inputs = match self.role.coordinator_to_read() {
            Ok(inputs) => inputs,
            Err(not_here) => return Ok(Err(not_here)),
        };
        let place = self.admit(request, origin)?;
        let reader = driver::journal(&inputs).await;
        let reader = reader.ok_or_else(|| unavailable("the job has ended"))?;
        let (to, parts) = mpsc::channel(1);
        tokio::spawn(pass_on(reader, request, to, place));
        Ok(Ok(ReceiverStream::new(parts)))
    }

    /// Opens the journal, which may be at another process.
    async fn open(&self, request: JournalRequest, origin: Origin) -> Result<Parts, Refusal> {
        let mut not_here = match self.open_here(request, origin).await? {
            Ok(parts) => return Ok(parts),
            Err(not_here) => not_here,
        };
        let place = self.admit(request, origin)?;
        let mut trail = Trail::default();
        loop {
            let endpoint = trail.next(not_here)?;
            match client::journal(&endpoint, &self.credentials, request).await {
                Ok(Journal::Parts(parts)) => {
                    let (to, relayed) = mpsc::channel(1);
                    tokio::spawn(relay(*parts, to, place));
                    return Ok(ReceiverStream::new(relayed));
                }
                Ok(Journal::NotHere(other)) => not_here = other,
                Err(error) => return Err(bad_gateway("the journal", &endpoint, &error)),
            }
        }
    }

    fn admit(&self, request: JournalRequest, origin: Origin) -> Result<Place, Refusal> {
        let place = if request.follow {
            self.readers.follow(origin)
        } else {
            self.readers.read_once(origin)
        };
        place.map_err(unavailable)
    }
}

/// Sends the parts of a journal until its end, until the coordinator ends, or until the client does.
async fn pass_on(
    mut reader: JournalReader,
    JournalRequest { mut after, follow }: JournalRequest,
    to: mpsc::Sender<String>,
    _place: Place,
) {
    loop {
        let part = reader.after(after);
        let part = if part.last.is_some() {
            part
        } else if !follow {
            return;
        } else {
            tokio::select! {
                part = reader.next(after) => match part {
                    Some(part) => part,
                    None => return,
                },
                () = to.closed() => return,
            }
        };
        after = part.last.or(after);
        if !send(&to, part.lines).await {
            return;
        }
    }
}

/// Passes the parts of a journal at another process on.
async fn relay(mut parts: client::Parts, to: mpsc::Sender<String>, _place: Place) {
    loop {
        tokio::select! {
            part = parts.next() => match part {
                Ok(Some(lines)) => {
                    if !send(&to, lines).await {
                        return;
                    }
                }
                Ok(None) | Err(_) => return,
            },
            () = to.closed() => return,
        }
    }
}

/// Answers a request for the journal.
pub(super) async fn events_page(
    State(page): State<Arc<EventsPage>>,
    Extension(origin): Extension<Origin>,
    RawQuery(query): RawQuery,
) -> Response {
    let opened = match request(query.as_deref().unwrap_or_default()) {
        Ok(request) => page.open(request, origin).await,
        Err(why) => Err((StatusCode::BAD_REQUEST, why)),
    };
    match opened {
        Ok(parts) => {
            let parts = with_heartbeats(parts).map(Ok::<_, std::convert::Infallible>);
            ([(CONTENT_TYPE, "application/jsonl")], Body::from_stream(parts)).into_response()
        }
        Err((status, why)) => (status, why + "\n").into_response(),
    }
}

/// Adds an empty line to a journal at intervals without an event, so that the loss of the client is noticed.
fn with_heartbeats(parts: Parts) -> impl Stream<Item = String> {
    let mut heartbeats = interval(limits::FOLLOWER_HEARTBEAT);
    // The first one of a new interval is due at once.
    heartbeats.reset();
    let parts = parts.timeout_repeating(heartbeats);
    parts.map(|part| part.unwrap_or_else(|_| "\n".to_owned()))
}

/// Reads `since=ID` and `follow` in the query of a request.
fn request(query: &str) -> Result<JournalRequest, String> {
    let mut request = JournalRequest::default();
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        match parameter.split_once('=').unwrap_or((parameter, "")) {
            ("since", id) => {
                let id = id.parse().map_err(|_| {
                    "`since` must be the id of an event, such as `since=2.118`".to_owned()
                })?;
                request.after = Some(id);
            }
            ("follow", "" | "1" | "true") => request.follow = true,
            ("follow", "0" | "false") => request.follow = false,
            (name, value) => {
                return Err(format!(
                    "unknown parameter `{name}={value}`; there are `since=ID` and `follow`"
                ));
            }
        }
    }
    Ok(request)
}

#[cfg(test)]
mod tests {
    use ragent_rendezvous::{event::EventId, ids::Term};

    use super::*;
    use crate::sys::clock;

    /// Between events, a client receives an empty line after each interval; the stream ends with the journal.
    #[tokio::test(start_paused = true)]
    async fn heartbeats_fill_pauses() {
        let (to, parts) = mpsc::channel(1);
        let lines = with_heartbeats(ReceiverStream::new(parts));
        tokio::pin!(lines);
        let begun = clock::now();
        assert_eq!(lines.next().await.as_deref(), Some("\n"));
        assert_eq!(clock::now() - begun, limits::FOLLOWER_HEARTBEAT);
        to.send("event\n".to_owned()).await.unwrap();
        assert_eq!(lines.next().await.as_deref(), Some("event\n"));
        drop(to);
        assert_eq!(lines.next().await, None);
    }

    /// A query selects events; anything else in it is refused.
    #[test]
    fn queries_are_read() {
        let after = Some(EventId { term: Term(2), number: 118 });
        let followed = JournalRequest { after, follow: true };
        for query in ["since=2.118&follow", "follow=1&since=2.118&"] {
            assert_eq!(request(query), Ok(followed), "{query}");
        }
        assert_eq!(request(""), Ok(JournalRequest::default()));
        assert_eq!(request("follow=0"), Ok(JournalRequest::default()));
        for query in ["since=", "since=2", "since=2.x", "since=2.%31", "follow=2", "other", "=&"] {
            assert!(request(query).is_err(), "{query}");
        }
    }
}
