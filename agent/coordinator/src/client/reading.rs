//! Reads pages of the coordinator over HTTP.
//!
//! An agent that does not coordinate relays a request to the coordinator. A request with the header `Max-Forwards` is *direct*: such an
//! agent answers it with 421 and the coordinator's endpoint. Commands send direct requests. So do agents that relay a request, which keeps
//! two agents from asking each other in a circle.

use std::{collections::VecDeque, mem, net::SocketAddr};

use axum::{
    http::StatusCode,
    response::{IntoResponse, Response},
};
use ragent_base::{
    net::{
        self, Endpoint, authentication,
        http_client::HttpAnswer,
        secure_stream::{self, SecureStream},
    },
    secret::{ALPN_HTTP1, Credentials},
};
use ragent_proto::{convert::state_from_json, printable};
use ragent_rendezvous::{event::EventId, snapshot::Snapshot};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::{StreamError, in_time, opening_error, to_first_of, unauthenticated};
use crate::{limits, pages::logs::LogsRequest};

/// A page of the coordinator.
#[derive(Clone, Copy, Debug)]
pub enum JobPage {
    /// The state of the job.
    State,
    /// The state, and again after each change.
    States,
    /// The journal.
    Events(JournalRequest),
    /// The events of the page for browsers.
    Watch,
}

/// A request for the journal of a job.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct JournalRequest {
    /// Only events after this one are requested; all if `None`.
    pub after: Option<EventId>,
    /// True if later events are requested, too, until the coordinator ends.
    pub follow: bool,
}

/// The path of the state of the job.
pub const STATUS_PATH: &str = "/status";
/// The path of the journal.
pub const EVENTS_PATH: &str = "/v1/events";
/// The path of the events of the page for browsers.
pub const WATCH_PATH: &str = "/v1/watch";

impl JobPage {
    fn path(self) -> String {
        match self {
            Self::State => STATUS_PATH.to_owned(),
            Self::States => format!("{STATUS_PATH}?follow"),
            Self::Watch => WATCH_PATH.to_owned(),
            Self::Events(JournalRequest { after, follow }) => {
                let after = after.map(|after| format!("since={after}"));
                let follow = follow.then(|| "follow".to_owned());
                let query: Vec<String> = after.into_iter().chain(follow).collect();
                format!("{EVENTS_PATH}?{}", query.join("&"))
            }
        }
    }

    /// Returns the name of the page for messages.
    pub(crate) fn what(self) -> &'static str {
        match self {
            Self::State | Self::States => "the state of the job",
            Self::Events(_) => "the journal",
            Self::Watch => "the page's events",
        }
    }

    /// Returns true if the page does not end while the coordinator runs.
    pub(crate) fn lasts(self) -> bool {
        match self {
            Self::State => false,
            Self::Events(JournalRequest { follow, .. }) => follow,
            Self::States | Self::Watch => true,
        }
    }

    /// Returns the length of the longest line that is accepted.
    fn line_max(self) -> usize {
        match self {
            Self::State | Self::States => limits::MAX_STATE,
            Self::Events(_) | Self::Watch => limits::MAX_PAGE_LINE,
        }
    }
}

/// The answer of a process to a request that only the coordinator can answer.
#[derive(Debug)]
pub enum Asked<T> {
    /// It coordinates the job.
    Here(T),
    /// Another process coordinates the job, at this endpoint. The endpoint is empty if no coordinator is elected at present.
    Elsewhere(String),
}

/// The answer of a process that does not coordinate the job to a direct request.
#[derive(Debug, Deserialize, Serialize)]
struct ElsewhereAnswer {
    coordinator: String,
}

/// Returns the answer of a process that does not coordinate the job.
pub fn elsewhere(endpoint: &str) -> Response {
    let body = axum::Json(ElsewhereAnswer { coordinator: endpoint.to_owned() });
    (StatusCode::MISDIRECTED_REQUEST, body).into_response()
}

/// The reason why no process has answered as the coordinator.
#[derive(Debug, thiserror::Error)]
pub enum NotFound {
    /// The process at `endpoint` did not answer.
    #[error("cannot ask the process at {endpoint}")]
    Failed {
        /// The endpoint.
        endpoint: Endpoint,
        /// The reason.
        #[source]
        source: StreamError,
    },
    /// No coordinator is elected.
    #[error("{0} knows of no elected coordinator at present")]
    NotElected(Endpoint),
    /// The process has named an invalid endpoint.
    #[error("the agent at {0} has not found the coordinator of its job")]
    NotMet(Endpoint),
    /// The processes name each other.
    #[error("no process coordinates the job at present (each names the next: {}); try again", list(.0))]
    Circle(Vec<Endpoint>),
}

fn list(endpoints: &[Endpoint]) -> String {
    endpoints.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Asks the process at `first`, and then the process that it names as the coordinator, until one answers as the coordinator. Returns its
/// answer and its endpoint.
///
/// # Errors
///
/// Returns [`NotFound`] if no process answers as the coordinator.
pub async fn find<T, F: Future<Output = Result<Asked<T>, StreamError>>>(
    first: Endpoint,
    ask: impl Fn(Endpoint) -> F,
) -> Result<(T, Endpoint), NotFound> {
    let mut endpoint = first;
    let mut asked = Vec::new();
    while asked.len() < limits::STATUS_HOPS && !asked.contains(&endpoint) {
        let named = match ask(endpoint.clone()).await {
            Ok(Asked::Here(answer)) => return Ok((answer, endpoint)),
            Ok(Asked::Elsewhere(named)) => named,
            Err(source) => return Err(NotFound::Failed { endpoint, source }),
        };
        if named.is_empty() {
            return Err(NotFound::NotElected(endpoint));
        }
        let Ok(next) = named.parse() else { return Err(NotFound::NotMet(endpoint)) };
        asked.push(mem::replace(&mut endpoint, next));
    }
    asked.push(endpoint);
    Err(NotFound::Circle(asked))
}

/// Asks the process at `endpoint` for a page, with a direct request.
///
/// # Errors
///
/// Returns [`StreamError`] if it cannot be reached or does not answer as ragent.
pub async fn ask(
    endpoint: &Endpoint,
    credentials: &Credentials,
    page: JobPage,
) -> Result<Asked<PageLines>, StreamError> {
    let addresses = net::resolve(endpoint).await?;
    let open = |address| {
        let credentials = credentials.clone();
        async move {
            let stream = secure_stream::connect(address, &credentials, ALPN_HTTP1).await;
            Ok((address, stream.map_err(|error| opening_error(address, error))?))
        }
    };
    let (remote, stream) = to_first_of(&addresses, open).await?;
    request((remote, stream), credentials, &page.path(), page.line_max()).await
}

/// Asks the agent at `address` for the output of its workers.
///
/// # Errors
///
/// Returns [`StreamError`] if it cannot be reached, does not answer as ragent, or refuses this client.
pub async fn ask_logs(
    address: SocketAddr,
    credentials: &Credentials,
    page: &LogsRequest,
) -> Result<PageLines, StreamError> {
    let stream = secure_stream::connect(address, credentials, ALPN_HTTP1).await;
    let stream = stream.map_err(|error| opening_error(address, error))?;
    match request((address, stream), credentials, &page.path(), limits::MAX_OUTPUT_LINE).await? {
        Asked::Here(lines) => Ok(lines),
        Asked::Elsewhere(_) => Err(protocol(address, "it names another process")),
    }
}

/// Requests a page on an open connection.
async fn request(
    (remote, stream): (SocketAddr, SecureStream),
    credentials: &Credentials,
    path: &str,
    line_max: usize,
) -> Result<Asked<PageLines>, StreamError> {
    let opened = stream.end(remote);
    let answer = match in_time(remote, HttpAnswer::request(stream, remote, path)).await? {
        Ok(answer) => answer,
        Err(source) => {
            // The TLS alert may be lost with the connection, so the process is asked again.
            let mismatch = match opened.mismatch(credentials) {
                Some(mismatch) => Some(mismatch),
                None => authentication::mismatch_of_certificates(remote, credentials).await,
            };
            return Err(match mismatch {
                Some(mismatch) => mismatch.into(),
                None => protocol(remote, source),
            });
        }
    };
    let status = answer.status();
    let mut lines = PageLines { answer, remote, buffer: Vec::new(), line_max };
    if status == StatusCode::OK {
        return Ok(Asked::Here(lines));
    }
    lines.line_max = limits::MAX_REFUSAL;
    let text = in_time(remote, lines.all()).await??;
    Err(match status {
        StatusCode::MISDIRECTED_REQUEST => match serde_json::from_str(&text) {
            Ok(ElsewhereAnswer { coordinator }) => return Ok(Asked::Elsewhere(coordinator)),
            Err(error) => protocol(remote, error),
        },
        StatusCode::FORBIDDEN => unauthenticated(remote, credentials, text.trim()).await,
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::BAD_GATEWAY => {
            StreamError::Unable { address: remote, why: text.trim().to_owned() }
        }
        status => protocol(remote, format!("its answer has the HTTP status {status}")),
    })
}

fn protocol(
    address: SocketAddr,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> StreamError {
    StreamError::Protocol { address, source: source.into() }
}

/// The lines of a page, as they arrive.
#[derive(Debug)]
pub struct PageLines {
    answer: HttpAnswer,
    remote: SocketAddr,
    /// The start of a line that is not complete yet.
    buffer: Vec<u8>,
    line_max: usize,
}

impl PageLines {
    /// Returns the next whole lines; `None` at the end. Only the last line of the page may lack its newline.
    ///
    /// # Errors
    ///
    /// Returns [`StreamError`] if the connection broke, if nothing was received for long, or if the page is not one of ragent.
    ///
    /// # Cancel safety
    ///
    /// A cancelled call loses nothing.
    pub async fn next(&mut self) -> Result<Option<String>, StreamError> {
        loop {
            let waited = limits::PAGE_SILENCE_LIMIT;
            let part = timeout(waited, self.answer.next()).await;
            let part = part.map_err(|_| StreamError::Silent { address: self.remote, waited })?;
            let lines = match part.transpose() {
                Err(_) => return Err(StreamError::Broken(self.remote)),
                Ok(None) if self.buffer.is_empty() => return Ok(None),
                Ok(None) => mem::take(&mut self.buffer),
                Ok(Some(part)) => {
                    let end = part.iter().rposition(|&byte| byte == b'\n').map(|at| at + 1);
                    let (of_lines, rest) = part.split_at(end.unwrap_or(0));
                    let mut lines = end.map_or_else(Vec::new, |_| mem::take(&mut self.buffer));
                    lines.extend_from_slice(of_lines);
                    self.buffer.extend_from_slice(rest);
                    lines
                }
            };
            if self.buffer.len() > self.line_max {
                let why = format!("it has sent a line of more than {} bytes", self.line_max);
                return Err(protocol(self.remote, why));
            }
            if !lines.is_empty() {
                let text =
                    String::from_utf8(lines).map_err(|error| protocol(self.remote, error))?;
                return Ok(Some(printable(&text)));
            }
        }
    }

    /// Returns the whole page, which may be as long as one line.
    async fn all(&mut self) -> Result<String, StreamError> {
        let mut all = String::new();
        while let Some(part) = self.next().await? {
            all += &part;
            if all.len() > self.line_max {
                let why = format!("it has sent more than {} bytes", self.line_max);
                return Err(protocol(self.remote, why));
            }
        }
        Ok(all)
    }
}

/// Asks the process at `endpoint` for the state of its job.
///
/// # Errors
///
/// Returns [`StreamError`] if it cannot be reached or does not answer as ragent.
pub async fn state(
    endpoint: &Endpoint,
    credentials: &Credentials,
) -> Result<Asked<Box<Snapshot>>, StreamError> {
    let mut lines = match ask(endpoint, credentials, JobPage::State).await? {
        Asked::Here(lines) => lines,
        Asked::Elsewhere(named) => return Ok(Asked::Elsewhere(named)),
    };
    let text = in_time(lines.remote, lines.all()).await??;
    read_state(&text).map(Asked::Here).map_err(|source| protocol(lines.remote, source))
}

/// Asks the process at `endpoint` for the state of its job. Returns `None` if it does not coordinate the job.
///
/// # Errors
///
/// Returns [`StreamError`] if it cannot be reached or does not answer as ragent.
pub async fn job(
    endpoint: &Endpoint,
    credentials: &Credentials,
) -> Result<Option<Box<Snapshot>>, StreamError> {
    match state(endpoint, credentials).await? {
        Asked::Here(snapshot) => Ok(Some(snapshot)),
        Asked::Elsewhere(_) => Ok(None),
    }
}

/// Reads a state as JSON.
pub fn read_state(text: &str) -> Result<Box<Snapshot>, Box<dyn std::error::Error + Send + Sync>> {
    state_from_json(text).map(Box::new)
}

/// The states of a job, as they arrive.
#[derive(Debug)]
pub struct StateStream {
    lines: PageLines,
    received: VecDeque<Box<Snapshot>>,
}

impl StateStream {
    /// Returns the next state; `None` at the end.
    ///
    /// # Errors
    ///
    /// Returns [`StreamError`] if the connection broke, or the process does not answer as ragent.
    pub async fn next(&mut self) -> Result<Option<Box<Snapshot>>, StreamError> {
        loop {
            if let Some(state) = self.received.pop_front() {
                return Ok(Some(state));
            }
            let Some(part) = self.lines.next().await? else { return Ok(None) };
            for line in part.lines().filter(|line| !line.is_empty()) {
                let state =
                    read_state(line).map_err(|source| protocol(self.lines.remote, source))?;
                self.received.push_back(state);
            }
        }
    }
}

impl From<PageLines> for StateStream {
    fn from(lines: PageLines) -> Self {
        Self { lines, received: VecDeque::new() }
    }
}

#[cfg(test)]
mod tests {
    use ragent_base::secret::Unsecured;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    /// A few processes are asked, one after the other. None is asked twice, and none at an invalid endpoint.
    #[tokio::test]
    async fn coordinator_is_followed() {
        let follow = async |named: &[&str]| {
            let answers = std::cell::RefCell::new(named.iter());
            let ask = |_| {
                let next = answers.borrow_mut().next();
                let named = next.map(|named| (*named).to_owned());
                async move { Ok(named.map_or(Asked::Here(()), Asked::Elsewhere)) }
            };
            let found = find("a:1".parse().unwrap(), ask).await;
            found.map(|((), endpoint)| endpoint.to_string()).map_err(|error| error.to_string())
        };
        assert_eq!(follow(&[]).await, Ok("a:1".to_owned()));
        assert_eq!(follow(&["b:1", "c:1"]).await, Ok("c:1".to_owned()));
        let circle = follow(&["b:1", "a:1"]).await.unwrap_err();
        assert!(circle.contains("(each names the next: a:1, b:1, a:1)"), "{circle}");
        let far = follow(&["b:1", "c:1", "d:1"]).await.unwrap_err();
        assert!(far.contains("a:1, b:1, c:1, d:1)"), "{far}");
        let not_met = "the agent at b:1 has not found the coordinator of its job";
        assert_eq!(follow(&["b:1", "not valid"]).await, Err(not_met.to_owned()));
        let none = "a:1 knows of no elected coordinator at present";
        assert_eq!(follow(&[""]).await, Err(none.to_owned()));
    }

    /// Asks a server for a page, which it answers with these parts.
    async fn answered(page: JobPage, parts: Vec<Vec<u8>>) -> Result<Asked<PageLines>, StreamError> {
        answered_until(page, parts, async {}).await
    }

    /// The same; the server closes the connection at that time.
    async fn answered_until(
        page: JobPage,
        parts: Vec<Vec<u8>>,
        close: impl Future + Send + 'static,
    ) -> Result<Asked<PageLines>, StreamError> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(stream.read_u8().await.unwrap());
            }
            assert!(request.to_ascii_lowercase().windows(15).any(|it| it == b"max-forwards: 0"));
            for part in parts {
                stream.write_all(&part).await.unwrap();
                stream.flush().await.unwrap();
            }
            close.await;
        });
        let endpoint = Endpoint { host: address.ip().to_string(), port: address.port() };
        ask(&endpoint, &Credentials::unsecured(Unsecured::Chosen), page).await
    }

    async fn lines(page: JobPage, parts: Vec<Vec<u8>>) -> Result<String, StreamError> {
        let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
        let chunks = parts
            .into_iter()
            .map(|part| [format!("{:x}\r\n", part.len()).as_bytes(), &part, b"\r\n"].concat());
        let parts = [head].into_iter().chain(chunks).collect();
        let Asked::Here(mut lines) = answered(page, parts).await? else { panic!("it is here") };
        let mut all = String::new();
        while let Some(part) = lines.next().await? {
            all += &format!("{part}|");
        }
        Ok(all)
    }

    /// Parts of a page are returned as whole lines, without characters that control a terminal. A connection that ends early and a line
    /// that is too long are errors.
    #[tokio::test]
    async fn lines_are_whole() {
        let page = JobPage::Watch;
        let end = Vec::new();
        let parts = ["a\nb", "\u{1b}c", "\u{e9}\nd\ne", "f"].map(|part| part.as_bytes().to_vec());
        let whole = parts.iter().cloned().chain([end.clone()]).collect();
        assert_eq!(lines(page, whole).await.unwrap(), "a\n|bc\u{e9}\nd\n|ef|");
        let [first, ..] = parts;
        let cut = lines(page, vec![first]).await;
        assert!(matches!(cut, Err(StreamError::Broken(_))), "{cut:?}");
        let long = vec![b'x'; limits::MAX_PAGE_LINE / 2 + 1];
        let long = lines(page, vec![long.clone(), long, end]).await;
        assert!(matches!(long, Err(StreamError::Protocol { .. })), "{long:?}");
    }

    /// A page that sends nothing is given up even if its connection is open: its host may be lost.
    #[tokio::test]
    async fn silence_ends() {
        let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\n\n\r\n";
        let (stays_open, server) = tokio::sync::oneshot::channel::<()>();
        let Ok(Asked::Here(mut lines)) =
            answered_until(JobPage::Watch, vec![head.to_vec()], server).await
        else {
            panic!("it is here")
        };
        assert_eq!(lines.next().await.unwrap().as_deref(), Some("\n"));
        tokio::time::pause();
        let silent = lines.next().await;
        assert!(matches!(silent, Err(StreamError::Silent { .. })), "{silent:?}");
        drop(stays_open);
    }

    /// A process that does not coordinate names the coordinator. A reason for people is passed on, up to a limit.
    #[tokio::test]
    async fn refusals_are_understood() {
        let refusal = async |status: &str, body: &str| {
            let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", body.len());
            answered(JobPage::State, vec![head.into(), body.into()]).await
        };
        let elsewhere = refusal("421 Misdirected Request", r#"{"coordinator":"h:7"}"#).await;
        assert!(matches!(&elsewhere, Ok(Asked::Elsewhere(at)) if at == "h:7"), "{elsewhere:?}");
        let other_host = refusal("421 Misdirected Request", "unknown host name\n").await;
        assert!(matches!(other_host, Err(StreamError::Protocol { .. })), "{other_host:?}");
        let ended = refusal("503 Service Unavailable", "the job has ended\n").await.unwrap_err();
        assert!(ended.to_string().ends_with(" cannot answer at present: the job has ended"));
        let not_found = refusal("404 Not Found", "").await;
        assert!(matches!(not_found, Err(StreamError::Protocol { .. })), "{not_found:?}");
        let long = refusal("503 Service Unavailable", &"x".repeat(limits::MAX_REFUSAL + 1)).await;
        assert!(matches!(long, Err(StreamError::Protocol { .. })), "{long:?}");
    }
}
