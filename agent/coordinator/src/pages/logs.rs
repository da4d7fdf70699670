//! Serves `GET /v1/logs`: the output of this node's workers, as JSON lines.
//!
//! The output may contain secrets. It crosses the network only if the job has a secret or certificates. Otherwise this user and root read it
//! on this machine.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

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
        streams::Stream,
    },
    sys::{clock, host::ThisHost},
};
use ragent_options::spec::RankRanges;
use serde::{Deserialize, Serialize};
use tokio::{sync::mpsc, task::spawn_blocking, time::timeout};
use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use tracing::debug;

use super::{
    metrics::MetricsPage,
    readers::{self, ReaderPlace, Readers, send},
    relay::{Asker, Refusal, unavailable},
};
use crate::limits;

/// The newest lines of each stream that a client gets by default.
pub const NEWEST_LINES: usize = 2_000;

/// The path of the page.
pub const LOGS_PATH: &str = "/v1/logs";

/// The page, for a limited number of readers.
#[derive(Clone)]
pub(crate) struct LogsPage {
    /// The page that knows this node.
    pub(crate) node: Arc<MetricsPage>,
    pub(crate) readers: Readers,
    /// True if clients prove that they belong to the job.
    pub(crate) is_secured: bool,
}

/// A request for the output of a node's workers.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LogsRequest {
    /// The global ranks of the workers; all if `None`.
    pub ranks: Option<RankRanges>,
    /// True if later output is requested as well, until the agent ends.
    pub follow: bool,
    /// The newest lines of each stream that are requested, at most this many.
    pub newest: usize,
    /// The newest round that the client has seen. Only what is new in it is requested.
    pub seen: Option<u64>,
}

impl Default for LogsRequest {
    fn default() -> Self {
        Self { ranks: None, follow: false, newest: NEWEST_LINES, seen: None }
    }
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
        /// True if the output was there before the first read of its stream. Its order relative to other ranks is not known.
        is_old: bool,
        /// The lines before these that were left out, because the reader was too slow.
        skipped: u64,
        /// The lines.
        lines: Vec<String>,
    },
    /// There is no more output. Without this line, the client was too slow, or has lost the connection.
    End,
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
        let newest = format!("newest={}", self.newest);
        let seen = self.seen.map(|seen| format!("seen={seen}"));
        let follow = self.follow.then(|| "follow".to_owned());
        let query: Vec<String> =
            [Some(newest), ranks, seen, follow].into_iter().flatten().collect();
        format!("{LOGS_PATH}?{}", query.join("&"))
    }

    /// Reads `ranks=RANKS`, `newest=N`, `seen=ROUND` and `follow` in the query of a request.
    fn read(query: &str) -> Result<Self, String> {
        let mut request = Self::default();
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
                    request.newest = newest.map_err(|_| {
                        "`newest` must be a number of lines, such as `newest=10`".to_owned()
                    })?;
                }
                ("seen", seen) => {
                    let seen = seen.parse();
                    request.seen = Some(seen.map_err(|_| {
                        "`seen` must be the number of a round, such as `seen=2`".to_owned()
                    })?);
                }
                ("follow", "" | "1" | "true") => request.follow = true,
                ("follow", "0" | "false") => request.follow = false,
                (name, value) => {
                    return Err(format!(
                        "unknown parameter `{name}={value}`; there are `ranks=RANKS`, `newest=N`, `seen=ROUND` and `follow`"
                    ));
                }
            }
        }
        Ok(request)
    }
}

/// Returns the route of the page.
pub(crate) fn route(page: LogsPage) -> Router {
    Router::new().route(LOGS_PATH, get(answer).with_state(page))
}

async fn answer(
    State(page): State<LogsPage>,
    Extension(peer): Extension<PeerAddress>,
    asker: Asker,
    RawQuery(query): RawQuery,
) -> Response {
    if !(page.is_secured || peer.is_own_user) {
        let why = "without a secret, only this user and root read the output of workers, on this machine (`ragent secret --init`)\n";
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
    let place = HeldPlace(Arc::new(Mutex::new(Some(place))));
    tokio::spawn(pass_on(Arc::clone(&node.outputs), request, to, place.clone()));
    // The place is free when the client has all of it, so that the end of the process waits for that.
    readers::answer_lines(ReceiverStream::new(parts).map(move |part| {
        let _held = &place;
        part
    }))
}

/// The place of a client. It is free when all of its holders have ended, or one of them gives it up.
#[derive(Clone)]
struct HeldPlace(Arc<Mutex<Option<ReaderPlace>>>);

impl HeldPlace {
    fn give_up(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// Sends output to a client, until it has all of it or, if the client follows, until this node or the client ends.
async fn pass_on(
    outputs: Arc<Outputs>,
    request: LogsRequest,
    to: mpsc::Sender<Bytes>,
    place: HeldPlace,
) {
    let follow = request.follow;
    let mut changes = outputs.subscribe();
    let mut reading = Reading::new(request);
    loop {
        let is_closed = *changes.borrow_and_update();
        let node = reading.update(&outputs.rounds());
        // The disk may be slow.
        let held = place.clone();
        let read = spawn_blocking(move || {
            // A disk that does not answer keeps the place.
            let _held = held;
            let messages = node.into_iter().chain(reading.read(clock::now_blocking()));
            let text = lines(messages);
            (reading, text)
        });
        let Ok((read, text)) = read.await else { return };
        reading = read;
        if !text.is_empty() && !send(&to, text.into()).await {
            // The answer still waits for a client that reads nothing.
            place.give_up();
            return;
        }
        if reading.has_more() {
            continue;
        }
        if !follow || is_closed {
            let rest = reading.rest().into_iter().chain([LogsMessage::End]);
            let is_sent = send(&to, lines(rest).into()).await;
            // There is room again once the answer has taken the last part.
            if !is_sent || timeout(limits::READER_PATIENCE, to.reserve()).await.is_err() {
                place.give_up();
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

fn lines(messages: impl Iterator<Item = LogsMessage>) -> String {
    let line = |message| serde_json::to_string(&message).expect("messages have text keys") + "\n";
    messages.map(line).collect()
}

/// The size of a line beyond its text, in memory and as JSON.
const LINE_OVERHEAD: usize = 32;

/// The positions of a client in all streams.
struct Reading {
    request: LogsRequest,
    streams: Vec<Cursor>,
    /// The stream that is read next.
    next: usize,
    /// The oldest round that this node had at the last update.
    oldest: u64,
    /// The numbers that the client knows.
    node: Option<(usize, [usize; 2])>,
    /// True until the streams that were there at first are known.
    is_first: bool,
}

impl Reading {
    fn new(request: LogsRequest) -> Self {
        Self { request, streams: Vec::new(), next: 0, oldest: 0, node: None, is_first: true }
    }

    /// Adds new streams. Returns a message if the client does not know the numbers of streams.
    fn update(&mut self, rounds: &[RoundOutputs]) -> Option<LogsMessage> {
        let is_wanted = |rank| self.request.ranks.as_ref().is_none_or(|ranks| ranks.contains(rank));
        let all = rounds.iter().flat_map(|round| &round.streams);
        let wanted: Vec<_> = all.filter(|stream| is_wanted(stream.rank)).collect();
        // Streams of older rounds are read to their ends, unless there are many of them.
        let may_have_older = self.streams.len() <= limits::OUTPUT_STREAMS.max(4 * wanted.len());
        // If the client follows, the streams of a round that is gone are read once more: lines may have been written after their last read.
        let of_all = rounds.iter().flat_map(|round| &round.streams).map(|stream| stream.round);
        let oldest = of_all.min().unwrap_or(self.oldest);
        let has_left = |cursor: &Cursor| (self.oldest..oldest).contains(&cursor.stream.round);
        for cursor in self.streams.iter_mut().filter(|cursor| has_left(cursor)) {
            cursor.has_more |= self.request.follow;
        }
        self.oldest = oldest;
        self.streams.retain(|known| {
            let is_unread = known.has_more || known.has_begun_line();
            may_have_older && is_unread
                || wanted.iter().any(|stream| Arc::ptr_eq(stream, &known.stream))
        });
        for stream in wanted {
            if self.streams.iter().any(|known| Arc::ptr_eq(&known.stream, stream)) {
                continue;
            }
            let start = match (self.is_first, self.request.seen) {
                (true, None) => Start::Newest(self.request.newest),
                (true, Some(seen)) if stream.round <= seen => Start::Newest(0),
                (true, Some(_)) | (false, _) => Start::Begin,
            };
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
                    len += lines.iter().map(|line| line.len() + LINE_OVERHEAD).sum::<usize>();
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

    fn has_more(&self) -> bool {
        self.streams.iter().any(|cursor| cursor.has_more)
    }

    fn has_begun_line(&self) -> bool {
        self.streams.iter().any(Cursor::has_begun_line)
    }
}

#[cfg(test)]
mod tests {
    use ragent_base::{
        net::connection_quota::ConnectionOrigin,
        output::{sources::Content, tail::SharedTail},
    };

    use super::*;

    /// A query is read as it was written. Anything else in it is refused.
    #[test]
    fn queries_are_read() {
        let ranks = Some("0,8-15".parse().unwrap());
        let all = LogsRequest { ranks, follow: true, newest: 10, seen: Some(2) };
        for request in [all, LogsRequest::default()] {
            let path = request.path();
            let (_, query) = path.split_once('?').unwrap();
            assert_eq!(LogsRequest::read(query), Ok(request), "{path}");
        }
        assert_eq!(LogsRequest::read(""), Ok(LogsRequest::default()));
        for query in ["ranks=", "ranks=x", "newest=-1", "seen=x", "follow=2", "other", "=&"] {
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
            LogsMessage::End | LogsMessage::Node { .. } | LogsMessage::Failed { .. } => None,
        };
        messages.iter().filter_map(text).collect()
    }

    /// A client that follows gets the newest lines, then what is new, and all of the next round. It learns what cannot be read.
    #[tokio::test]
    async fn clients_follow() {
        let (outputs, [tail, _]) = outputs();
        tail.push(b"one\ntwo\n");
        let request =
            LogsRequest { ranks: Some("0".parse().unwrap()), follow: true, newest: 1, seen: None };
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

    /// A client that has lost its connection gets what is new in the round that it has seen, and all of later ones.
    #[tokio::test]
    async fn clients_continue() {
        let (outputs, [tail, _]) = outputs();
        tail.push(b"one\n");
        let next = SharedTail::readable(None);
        next.push(b"two\n");
        outputs.add((1, 2), 0, Stream::Stderr, Some(Content::Tail(next.clone())));
        next.push(b"three\n");
        let request = LogsRequest { ranks: None, follow: true, newest: 1, seen: Some(1) };
        let mut reading = Reading::new(request);
        reading.update(&outputs.rounds());
        let now = clock::now();
        assert_eq!(texts(&reading.read(now)), [(0, 2, true, "two|three".to_owned())]);
        assert!(!reading.has_more());
        // The last lines of the second round are not lost if two rounds follow before the next read.
        next.push(b"four\n");
        for round in [3, 4] {
            let tail = SharedTail::readable(None);
            outputs.add((1, round), 0, Stream::Stderr, Some(Content::Tail(tail)));
        }
        reading.update(&outputs.rounds());
        assert_eq!(texts(&reading.read(now)), [(0, 2, false, "four".to_owned())]);
    }

    /// A client that reads once also gets a round that this node drops before it is read.
    #[test]
    fn dropped_rounds_are_read() {
        let outputs = Outputs::default();
        let add = |round| {
            let tail = SharedTail::readable(None);
            tail.push(format!("line of {round}\n").as_bytes());
            outputs.add((1, round), 0, Stream::Stdout, Some(Content::Tail(tail)));
        };
        add(1);
        add(2);
        let mut reading = Reading::new(LogsRequest::default());
        reading.update(&outputs.rounds());
        add(3);
        reading.update(&outputs.rounds());
        let read = reading.read(clock::now_blocking());
        assert_eq!(texts(&read), [(0, 1, true, "line of 1".to_owned())]);
    }

    /// A client that reads nothing for a while loses its place, even if its connection stays open.
    #[tokio::test(start_paused = true)]
    async fn stalled_clients_lose_their_place() {
        let (outputs, [tail, _]) = outputs();
        let outputs = Arc::new(outputs);
        let readers = Readers::default();
        let take = || readers.follow(ConnectionOrigin::Known);
        let place = HeldPlace(Arc::new(Mutex::new(Some(take().unwrap()))));
        let _others: Vec<_> = std::iter::from_fn(|| take().ok()).collect();
        let (to, _parts) = mpsc::channel(1);
        let request = LogsRequest { follow: true, ..LogsRequest::default() };
        let _answer = place.clone();
        let passing = tokio::spawn(pass_on(Arc::clone(&outputs), request, to, place));
        while !passing.is_finished() {
            tail.push(b"line\n");
            outputs.add((1, 1), 2, Stream::Stdout, None);
            clock::until(Some(clock::now() + limits::OUTPUT_PAUSE)).await;
        }
        // A client that reads once does not take the last part.
        let place = HeldPlace(Arc::new(Mutex::new(Some(take().unwrap()))));
        let _answer = place.clone();
        let (to, mut parts) = mpsc::channel(1);
        tokio::join!(pass_on(Arc::clone(&outputs), LogsRequest::default(), to, place), async {
            parts.recv().await.unwrap();
        });
        assert!(take().is_ok());
    }

    /// A client that reads once gets what is there, and no more.
    #[tokio::test]
    async fn clients_read_once() {
        let (outputs, tails) = outputs();
        for tail in &tails {
            tail.push(b"one\n50%");
        }
        let mut reading = Reading::new(LogsRequest::default());
        reading.update(&outputs.rounds());
        let now = clock::now();
        let expected = [(0, 1, true, "one".to_owned()), (1, 1, true, "one".to_owned())];
        assert_eq!(texts(&reading.read(now)), expected);
        tails[0].push(b"\ntwo\n");
        assert_eq!(reading.read(now), []);
        assert_eq!(texts(&reading.rest()).len(), 2);
    }
}
