//! Serves `GET /v1/events`: the journal of the job as JSON lines.
//!
//! An agent that does not coordinate relays the journal of the coordinator.

use std::sync::Arc;

use axum::{
    Router,
    body::Bytes,
    extract::{RawQuery, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::get,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::{
    readers::{self, Parts, ReaderPlace, send},
    relay::{Asker, PageRelay, Refusal},
    states::States,
};
use crate::{
    client::{EVENTS_PATH, JobPage, JournalRequest},
    journal::JournalReader,
};

/// The journal, for a limited number of readers.
pub(super) struct EventsPage {
    states: Arc<States>,
    relay: PageRelay,
}

impl EventsPage {
    /// Opens the journal. Unless the request is direct, the journal may be at another process.
    async fn open(&self, request: JournalRequest, asker: Asker) -> Result<Parts, Refusal> {
        let page = JobPage::Events(request);
        match self.states.journal().await {
            Ok(reader) => {
                let place = self.relay.admit(page, asker)?;
                let (to, parts) = mpsc::channel(1);
                tokio::spawn(pass_on(reader, request, to, place));
                Ok(ReceiverStream::new(parts))
            }
            Err(refusal) => self.relay.open(refusal, page, asker).await,
        }
    }
}

/// Returns the route of the page.
pub(crate) fn route(states: Arc<States>, relay: PageRelay) -> Router {
    let page = Arc::new(EventsPage { states, relay });
    Router::new().route(EVENTS_PATH, get(answer).with_state(page))
}

/// Sends parts of the journal to a client, until its end or, if the client follows, until the
/// coordinator or the client ends.
async fn pass_on(
    mut reader: JournalReader,
    JournalRequest { mut after, follow }: JournalRequest,
    to: mpsc::Sender<Bytes>,
    _place: ReaderPlace,
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
        if !send(&to, part.lines.into()).await {
            return;
        }
    }
}

/// Answers a request for the journal.
async fn answer(
    State(page): State<Arc<EventsPage>>,
    asker: Asker,
    RawQuery(query): RawQuery,
) -> Response {
    let opened = match request(query.as_deref().unwrap_or_default()) {
        Ok(request) => page.open(request, asker).await,
        Err(why) => Err((StatusCode::BAD_REQUEST, why).into()),
    };
    opened.map_or_else(IntoResponse::into_response, readers::answer_lines)
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

    /// A query selects events. Anything else in it is refused.
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
