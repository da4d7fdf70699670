//! Relays pages from the coordinator on another node.
//!
//! A process that does not coordinate asks the coordinator as a member of the job, and passes the
//! answer on. A direct request is not relayed: the client gets the coordinator's endpoint instead.

use std::convert::Infallible;

use axum::{
    body::Bytes,
    extract::FromRequestParts,
    http::{
        HeaderMap, HeaderValue, StatusCode,
        header::{MAX_FORWARDS, RETRY_AFTER},
        request::Parts as RequestParts,
    },
    response::{IntoResponse, Response},
};
use ragent_base::{
    net::{Endpoint, connection_quota::ConnectionOrigin},
    secret::Credentials,
};
use ragent_proto::convert::CoordinatorAddress;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::readers::{PAGE_HEADERS, Parts, ReaderPlace, Readers, send};
use crate::{
    client::{self, Asked, JobPage, NotFound, PageLines, StreamError},
    limits,
};

/// The reason why a request for a page has no answer here.
#[derive(Clone, Debug)]
pub(super) enum Refusal {
    /// Another process coordinates the job.
    Elsewhere(CoordinatorAddress),
    /// Any other reason.
    Other(Reason),
}

/// An HTTP status, and a reason for people.
pub(super) type Reason = (StatusCode, String);

/// Returns the reason of a process that may answer later.
pub(super) fn unavailable(why: impl Into<String>) -> Reason {
    (StatusCode::SERVICE_UNAVAILABLE, why.into())
}

impl From<CoordinatorAddress> for Refusal {
    fn from(elsewhere: CoordinatorAddress) -> Self {
        Self::Elsewhere(elsewhere)
    }
}

impl From<Reason> for Refusal {
    fn from(reason: Reason) -> Self {
        Self::Other(reason)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, why) = match self {
            Self::Elsewhere(CoordinatorAddress { endpoint, .. }) => {
                return client::elsewhere(&endpoint);
            }
            Self::Other(reason) => reason,
        };
        let mut answer = (status, PAGE_HEADERS, why + "\n").into_response();
        if status == StatusCode::SERVICE_UNAVAILABLE {
            let seconds = HeaderValue::from(limits::READERS_RETRY_S);
            answer.headers_mut().insert(RETRY_AFTER, seconds);
        }
        answer
    }
}

/// The client of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker {
    /// Its origin.
    pub(super) origin: ConnectionOrigin,
    /// True if only the coordinator itself should answer: the client is a command, or a process that relays the answer.
    pub(super) is_direct: bool,
}

impl Asker {
    /// Returns true if only the coordinator itself should answer the request.
    pub(crate) fn is_direct(headers: &HeaderMap) -> bool {
        headers.contains_key(MAX_FORWARDS)
    }
}

impl<S: Sync> FromRequestParts<S> for Asker {
    type Rejection = Infallible;

    async fn from_request_parts(request: &mut RequestParts, _: &S) -> Result<Self, Infallible> {
        let origin = request.extensions.get().copied().unwrap_or(ConnectionOrigin::Unknown);
        Ok(Self { origin, is_direct: Self::is_direct(&request.headers) })
    }
}

/// The relay of pages from the coordinator on another node.
#[derive(Clone)]
pub(crate) struct PageRelay {
    pub(crate) credentials: Credentials,
    pub(crate) readers: Readers,
}

impl PageRelay {
    /// Takes a place for a client that reads this page.
    pub(super) fn admit(&self, page: JobPage, asker: Asker) -> Result<ReaderPlace, Reason> {
        let Self { readers, .. } = self;
        let origin = asker.origin;
        let place = if page.lasts() { readers.follow(origin) } else { readers.read_once(origin) };
        place.map_err(unavailable)
    }

    /// Fetches a page from the coordinator on another node. Returns `refusal` again if it has another reason, or if the request is direct.
    pub(super) async fn open(
        &self,
        refusal: Refusal,
        page: JobPage,
        asker: Asker,
    ) -> Result<Parts, Refusal> {
        let elsewhere = match refusal {
            Refusal::Elsewhere(elsewhere) if !asker.is_direct => elsewhere,
            refusal => return Err(refusal),
        };
        let place = self.admit(page, asker)?;
        let ask = |endpoint| async move { client::ask(&endpoint, &self.credentials, page).await };
        let lines = self.ask(elsewhere, page.what(), ask).await?;
        let (to, parts) = mpsc::channel(1);
        tokio::spawn(pass_on(lines, to, place));
        Ok(ReceiverStream::new(parts))
    }

    /// Asks the coordinator on another node for `what`, as a member of the job.
    pub(super) async fn ask<T, F: Future<Output = Result<Asked<T>, StreamError>>>(
        &self,
        elsewhere: CoordinatorAddress,
        what: &str,
        ask: impl Fn(Endpoint) -> F,
    ) -> Result<T, Reason> {
        let named = elsewhere.endpoint;
        if named.is_empty() {
            return Err(unavailable("no coordinator is elected at present"));
        }
        let Ok(endpoint) = named.parse::<Endpoint>() else {
            let why = format!("the endpoint of the coordinator, `{named}`, is not valid");
            return Err(unavailable(why));
        };
        match client::find(endpoint, ask).await {
            Ok((answer, _)) => Ok(answer),
            Err(NotFound::Failed { endpoint, source }) => {
                let why =
                    format!("cannot read {what} from the coordinator at {endpoint}: {source}");
                Err((StatusCode::BAD_GATEWAY, why))
            }
            Err(error) => Err(unavailable(error.to_string())),
        }
    }
}

/// Passes on the parts of a page, until the page or the client ends.
async fn pass_on(mut lines: PageLines, to: mpsc::Sender<Bytes>, _place: ReaderPlace) {
    loop {
        tokio::select! {
            part = lines.next() => match part {
                Ok(Some(part)) => {
                    if !send(&to, part.into()).await {
                        return;
                    }
                }
                Ok(None) | Err(_) => return,
            },
            () = to.closed() => return,
        }
    }
}
