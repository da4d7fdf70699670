//! Serves `GET /v1/logs`: the output of this node's workers, as JSON lines.
//!
//! The output may contain secrets. It crosses the network only if the job has a secret or certificates. Otherwise this user and root read it
//! on this machine.

use std::{sync::Arc, time::Instant};

use axum::{
    Extension, Router,
    body::Bytes,
    extract::{RawQuery, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::get,
};
use ragent_base::{
    net::connection::PeerAddress,
    output::{
        limits::OUTPUT_LINE_PATIENCE,
        sources::{Cursor, OutputPart, Outputs, RoundOutputs, Start},
    },
    spec::{RankRanges, Stream},
    sys::{clock, host::ThisHost},
};
use serde::{Deserialize, Serialize};
use tokio::{sync::mpsc, task::spawn_blocking};
use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use tracing::debug;

use super::{
    metrics::MetricsPage,
    readers::{self, Readers, send},
    relay::{Asker, Refusal, unavailable},
};
use crate::limits;

/// The path of the page.
pub const LOGS_PATH: &str = "/v1/logs";

/// The page, for a limited number of readers.
#[derive(Clone)]
pub(super) struct LogsPage {
    /// The page that knows this node.
    pub(super) node: Arc<MetricsPage>,
    pub(super) readers: Readers,
    /// True if members of the job have proven that they are.
    pub(super) is_secured: bool,
}

/// A request for the output of a node's workers.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LogsRequest {
    /// The global ranks of the workers; all if `None`.
    pub ranks: Option<RankRanges>,
    /// True if later output is requested as well, until the agent ends.
    pub follow: bool,
    /// The newest lines of each stream that are requested, at most this many; the whole stream if `None`.
    pub newest: Option<usize>,
}

/// A line of the answer.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LogsMessage {
    /// The node: the first line, and again if the numbers have changed.
    Node {
        /// Its host name.
        host: String,
        /// The number of streams that are read.
        streams: usize,
        /// The numbers of workers whose stdout and stderr cannot be read, because they do not pass through the agent.
        unread: [usize; 2],
    },
    /// Output of a worker.
    Output {
        /// Its global rank.
        rank: u32,
        /// True for stderr.
        is_stderr: bool,
        /// The round.
        round: u64,
        /// True if the output was older than the first read of its stream, so that its order with that of other ranks is not
        /// known.
        is_old: bool,
        /// The lines before these that were left out, because the reader was too slow.
        skipped: u64,
        /// The lines.
        lines: Vec<String>,
    },
    /// A stream that cannot be read any more.
    Failed {
        /// The global rank of the worker.
        rank: u32,
        /// True for stderr.
        is_stderr: bool,
        /// The error.
        error: String,
    },
}

impl LogsRequest {
    /// Returns the path and the query of the request.
    pub fn path(&self) -> String {
        let ranks = self.ranks.as_ref().map(|ranks| format!("ranks={ranks}"));
        let newest = self.newest.map(|newest| format!("newest={newest}"));
        let follow = self.follow.then(|| "follow".to_owned());
        let query: Vec<String> = ranks.into_iter().chain(newest).chain(follow).collect();
        format!("{LOGS_PATH}?{}", query.join("&"))
    }

    /// Reads `ranks=RANKS`, `newest=N` and `follow` in the query of a request.
    fn read(query: &str) -> Result<Self, String> {
        let mut request = Self { ranks: None, follow: false, newest: None };
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            match parameter.split_once('=').unwrap_or((parameter, "")) {
                ("ranks", ranks) => {
                    let ranks = ranks.parse();
                    request.ranks = Some(ranks.map_err(|()| {
                        "`ranks` must be a list of ranks, such as `ranks=0,8-15`".to_owned()
                    })?);
                }
                ("newest", newest) => {
                    let newest = newest.parse();
                    request.newest = Some(newest.map_err(|_| {
                        "`newest` must be a number of lines, such as `newest=10`".to_owned()
                    })?);
                }
                ("follow", "" | "1" | "true") => request.follow = true,
                ("follow", "0" | "false") => request.follow = false,
                (name, value) => {
                    return Err(format!(
                        "unknown parameter `{name}={value}`; there are `ranks=RANKS`, `newest=N` and `follow`"
                    ));
                }
            }
        }
        Ok(request)
    }
}

/// Returns the route of the page.
pub(super) fn route(page: LogsPage) -> Router {
    Router::new().route(LOGS_PATH, get(answer).with_state(page))
}

async fn answer(
    State(page): State<LogsPage>,
    Extension(peer): Extension<PeerAddress>,
    asker: Asker,
    RawQuery(query): RawQuery,
) -> Response {
    if !(page.is_secured || peer.is_own_user) {
        let why = "the output of workers crosses the network only in jobs with a secret (`ragent secret --init`)\n";
        return (StatusCode::FORBIDDEN, why).into_response();
    }
    let request = match LogsRequest::read(query.as_deref().unwrap_or_default()) {
        Ok(request) => request,
        Err(why) => return (StatusCode::BAD_REQUEST, why + "\n").into_response(),
    };
    let Some(node) = page.node.node() else {
        return (StatusCode::NOT_FOUND, "this process has no workers\n").into_response();
    };
    let LogsPage { readers, .. } = &page;
    let place = match request.follow {
        true => readers.follow(asker.origin),
        false => readers.read_once(asker.origin),
    };
    let place = match place {
        Ok(place) => place,
        Err(why) => return Refusal::Other(unavailable(why)).into_response(),
    };
    let (to, parts) = mpsc::channel(1);
    tokio::spawn(pass_on(Arc::clone(&node.outputs), request, to));
    // The place is free when the client has all of it, so that the end of the process waits for that.
    readers::answer_lines(ReceiverStream::new(parts).map(move |part| {
        let _held = &place;
        part
    }))
}

/// Sends output to a client, until it has all of it or, if the client follows, until this node or the client ends.
async fn pass_on(outputs: Arc<Outputs>, request: LogsRequest, to: mpsc::Sender<Bytes>) {
    let follow = request.follow;
    let mut changes = outputs.subscribe();
    let mut reading = Reading::new(request);
    loop {
        let is_closed = *changes.borrow_and_update();
        let node = reading.update(&outputs.rounds());
        // The disk may be slow.
        let read = spawn_blocking(move || {
            let messages = reading.read(clock::now_blocking());
            (reading, messages)
        });
        let Ok((read, mut messages)) = read.await else { return };
        reading = read;
        messages.splice(0..0, node);
        if !messages.is_empty() {
            if !send(&to, lines(&messages).into()).await {
                return;
            }
            continue;
        }
        if !follow || is_closed {
            let rest = reading.rest();
            if !rest.is_empty() {
                // The client may have ended.
                send(&to, lines(&rest).into()).await;
            }
            return;
        }
        let begun = reading.has_begun_line().then(|| clock::now() + OUTPUT_LINE_PATIENCE);
        tokio::select! {
            changed = changes.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            () = clock::until(begun) => {}
            () = to.closed() => return,
        }
        // Lines that follow each other quickly are sent together.
        clock::until(Some(clock::now() + limits::OUTPUT_PAUSE)).await;
    }
}

fn lines(messages: &[LogsMessage]) -> String {
    let line = |message| serde_json::to_string(message).expect("messages have text keys") + "\n";
    messages.iter().map(line).collect()
}

/// The positions of a client in all streams.
struct Reading {
    request: LogsRequest,
    streams: Vec<Cursor>,
    /// The stream that is read next.
    next: usize,
    /// The numbers that the client knows.
    node: Option<(usize, [usize; 2])>,
    /// True until the streams that were there at first are known.
    is_first: bool,
}

impl Reading {
    fn new(request: LogsRequest) -> Self {
        Self { request, streams: Vec::new(), next: 0, node: None, is_first: true }
    }

    /// Adds new streams. Returns a message if the client does not know the numbers of streams.
    fn update(&mut self, rounds: &[RoundOutputs]) -> Option<LogsMessage> {
        let is_wanted = |rank| self.request.ranks.as_ref().is_none_or(|ranks| ranks.contains(rank));
        let all = rounds.iter().flat_map(|round| &round.streams);
        let wanted: Vec<_> = all.filter(|stream| is_wanted(stream.rank)).collect();
        // Streams of older rounds were read to their ends.
        self.streams.retain(|known| wanted.iter().any(|stream| Arc::ptr_eq(stream, &known.stream)));
        for stream in wanted {
            if self.streams.iter().any(|known| Arc::ptr_eq(&known.stream, stream)) {
                continue;
            }
            let newest = self.request.newest.filter(|_| self.is_first);
            let start = newest.map_or(Start::Begin, Start::Newest);
            self.streams.push(Cursor::new(Arc::clone(stream), start));
        }
        self.is_first = false;
        let unread = rounds.last().map_or([0; 2], |newest| newest.unread);
        let node = (self.streams.len(), unread);
        (self.node.replace(node) != Some(node)).then(|| LogsMessage::Node {
            host: ThisHost.name(),
            streams: node.0,
            unread,
        })
    }

    /// Reads a part of what is new; nothing if there is nothing new.
    fn read(&mut self, now: Instant) -> Vec<LogsMessage> {
        loop {
            // The lines of a rank are in the order of the rounds.
            let unread = self.streams.iter().filter(|cursor| cursor.has_more);
            let oldest = unread.map(|cursor| cursor.stream.round).min().unwrap_or(u64::MAX);
            let messages = self.read_up_to(oldest, now);
            let has_newer = self.streams.iter().any(|cursor| cursor.stream.round > oldest);
            if !messages.is_empty() || !has_newer {
                return messages;
            }
        }
    }

    /// Reads a part of what is new in the rounds up to this one.
    fn read_up_to(&mut self, round: u64, now: Instant) -> Vec<LogsMessage> {
        let follow = self.request.follow;
        let (mut messages, mut len) = (Vec::new(), 0);
        let (first, count) = (std::mem::take(&mut self.next), self.streams.len());
        // Each stream has its turn, also if others have much.
        for at in (0..count).map(|index| (first + index) % count) {
            let Some(cursor) = self.streams.get_mut(at) else { break };
            let is_old = cursor.is_new();
            if cursor.stream.round > round || !is_old && !follow {
                continue;
            }
            let read = cursor.read(now);
            cursor.has_more &= follow;
            let (rank, round) = (cursor.stream.rank, cursor.stream.round);
            let is_stderr = cursor.stream.stream == Stream::Stderr;
            match read {
                Ok(part) if part.lines.is_empty() && part.skipped == 0 => {}
                Ok(OutputPart { lines, skipped, .. }) => {
                    len += lines.iter().map(String::len).sum::<usize>();
                    let output =
                        LogsMessage::Output { rank, is_stderr, round, is_old, skipped, lines };
                    messages.push(output);
                }
                Err(error) => {
                    debug!(%error, rank, "failed to read the output of a worker");
                    let error = error.to_string();
                    messages.push(LogsMessage::Failed { rank, is_stderr, error });
                }
            }
            if len >= limits::OUTPUT_SENT {
                self.next = at + 1;
                break;
            }
        }
        messages
    }

    /// Returns the lines that have begun and will not end.
    fn rest(&mut self) -> Vec<LogsMessage> {
        let rest = self.streams.iter_mut().filter_map(|cursor| {
            let line = cursor.take_begun()?;
            Some(LogsMessage::Output {
                rank: cursor.stream.rank,
                is_stderr: cursor.stream.stream == Stream::Stderr,
                round: cursor.stream.round,
                is_old: !self.request.follow,
                skipped: 0,
                lines: vec![line],
            })
        });
        rest.collect()
    }

    fn has_begun_line(&self) -> bool {
        self.streams.iter().any(Cursor::has_begun_line)
    }
}

#[cfg(test)]
mod tests {
    use ragent_base::output::{sources::Content, tail::SharedTail};

    use super::*;

    /// A query is read as it was written. Anything else in it is refused.
    #[test]
    fn queries_are_read() {
        let ranks = Some("0,8-15".parse().unwrap());
        let all = LogsRequest { ranks, follow: true, newest: Some(10) };
        let none = LogsRequest { ranks: None, follow: false, newest: None };
        for request in [all, none] {
            let path = request.path();
            let (_, query) = path.split_once('?').unwrap();
            assert_eq!(LogsRequest::read(query), Ok(request), "{path}");
        }
        for query in ["ranks=", "ranks=x", "newest=-1", "newest=x", "follow=2", "other", "=&"] {
            assert!(LogsRequest::read(query).is_err(), "{query}");
        }
    }

    fn outputs() -> (Outputs, [SharedTail; 2]) {
        let (outputs, tails) = (Outputs::default(), [(); 2].map(|()| SharedTail::readable(None)));
        for (rank, tail) in (0..).zip(&tails) {
            outputs.add((1, 1), rank, Stream::Stdout, None);
            outputs.add((1, 1), rank, Stream::Stderr, Some(Content::Tail(tail.clone())));
        }
        (outputs, tails)
    }

    fn texts(messages: &[LogsMessage]) -> Vec<(u32, u64, bool, String)> {
        let text = |message: &LogsMessage| match message {
            LogsMessage::Output { rank, round, is_old, lines, .. } => {
                Some((*rank, *round, *is_old, lines.join("|")))
            }
            LogsMessage::Node { .. } | LogsMessage::Failed { .. } => None,
        };
        messages.iter().filter_map(text).collect()
    }

    /// A client that follows gets the newest lines, then what is new, and all of the next round. It learns what cannot be read.
    #[tokio::test]
    async fn clients_follow() {
        let (outputs, [tail, _]) = outputs();
        tail.push(b"one\ntwo\n");
        let request =
            LogsRequest { ranks: Some("0".parse().unwrap()), follow: true, newest: Some(1) };
        let mut reading = Reading::new(request);
        let Some(LogsMessage::Node { streams, unread, .. }) = reading.update(&outputs.rounds())
        else {
            panic!("it is the first message")
        };
        assert_eq!((streams, unread), (1, [2, 0]));
        assert_eq!(reading.update(&outputs.rounds()), None);
        let now = clock::now();
        assert_eq!(texts(&reading.read(now)), [(0, 1, true, "two".to_owned())]);
        assert_eq!(reading.read(now), []);
        let mut changes = outputs.subscribe();
        changes.borrow_and_update();
        tail.push(b"three\nfo");
        let next = SharedTail::readable(None);
        next.push(b"a\nb\n");
        outputs.add((1, 2), 0, Stream::Stderr, Some(Content::Tail(next)));
        assert!(changes.has_changed().unwrap());
        assert!(reading.update(&outputs.rounds()).is_some());
        let expected = [(0, 1, false, "three".to_owned()), (0, 2, true, "a|b".to_owned())];
        assert_eq!(texts(&reading.read(now)), expected);
        assert_eq!(texts(&reading.rest()), [(0, 1, false, "fo".to_owned())]);
        outputs.close();
        assert!(*changes.borrow_and_update());
    }

    /// A client that reads once gets what is there, and no more.
    #[tokio::test]
    async fn clients_read_once() {
        let (outputs, tails) = outputs();
        for tail in &tails {
            tail.push(b"one\n50%");
        }
        let mut reading =
            Reading::new(LogsRequest { ranks: None, follow: false, newest: Some(100) });
        reading.update(&outputs.rounds());
        let now = clock::now();
        let expected = [(0, 1, true, "one".to_owned()), (1, 1, true, "one".to_owned())];
        assert_eq!(texts(&reading.read(now)), expected);
        tails[0].push(b"\ntwo\n");
        assert_eq!(reading.read(now), []);
        assert_eq!(texts(&reading.rest()).len(), 2);
    }
}
