//! Keeps the newest events of a job as JSON lines, for any number of readers.
//!
//! The journal is a ring buffer: old events make room for new ones. A reader gives the id of its
//! last event, and receives the events after it. [`mod@file`] appends all events to a file.

pub mod file;

use std::{
    collections::VecDeque,
    fmt::Write as _,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use ragent_base::{report::event_text, sys::clock};
use ragent_rendezvous::{
    event::{Event, EventId, EventKind},
    ids::{JobUid, Round, RunId},
    snapshot::Snapshot,
};
use serde::Serialize;
use tokio::sync::watch;

use self::file::JournalFile;
use crate::{limits, pages::cache::JsonState};

/// The schema of a line.
const SCHEMA: u32 = 1;

/// The journal, to which the coordinator adds events.
#[derive(Debug)]
pub(crate) struct EventJournal {
    run_id: RunId,
    ring: Arc<Mutex<Ring>>,
    newest: watch::Sender<EventId>,
    file: Option<JournalFile>,
}

/// The newest events, oldest first.
#[derive(Debug, Default)]
struct Ring {
    lines: VecDeque<(EventId, Arc<str>)>,
    bytes: usize,
    /// The state of the job when the coordinator ended.
    last_state: Option<Arc<JsonState>>,
}

/// A reader of a journal.
#[derive(Clone, Debug)]
pub struct JournalReader {
    ring: Arc<Mutex<Ring>>,
    newest: watch::Receiver<EventId>,
}

/// A part of a journal.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct JournalPart {
    /// The events as JSON lines: at most [`limits::JOURNAL_PART`] bytes, unless one line is longer.
    pub(crate) lines: String,
    /// The last event in it; `None` if there is none.
    pub(crate) last: Option<EventId>,
}

/// An event as a JSON object. New fields may be added, but none is renamed or removed.
#[derive(Serialize)]
struct Line<'a> {
    schema: u32,
    id: EventId,
    at: String,
    run_id: &'a RunId,
    job_uid: &'a JobUid,
    round: Round,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rank: Option<u32>,
    cause: Option<EventId>,
    text: String,
    #[serde(flatten)]
    kind: &'a EventKind,
}

impl EventJournal {
    /// Creates an empty journal. Its events are also appended to the file at `path`.
    pub(crate) fn new(run_id: RunId, path: Option<&Path>) -> Self {
        let file = path.and_then(JournalFile::open);
        Self { run_id, ring: Arc::default(), newest: watch::Sender::default(), file }
    }

    /// Adds an event, with the current time.
    pub(crate) fn record(&mut self, event: &Event, job_uid: &JobUid) {
        let rank = match &event.kind {
            EventKind::WorkerFailed { rank, .. } => Some(rank.0),
            _ => None,
        };
        let line = Line {
            schema: SCHEMA,
            id: event.id,
            at: clock::timestamp(),
            run_id: &self.run_id,
            job_uid,
            round: event.round,
            host: event.node.as_ref().map(|node| node.host_name.as_str()),
            node_id: event.node.as_ref().map(|node| node.node_id.as_str()),
            rank,
            cause: event.cause,
            text: event_text::sentence(event),
            kind: &event.kind,
        };
        // All keys are text.
        let Ok(line) = serde_json::to_string(&line) else { return };
        let line: Arc<str> = line.into();
        if let Some(file) = &mut self.file {
            file.append(Arc::clone(&line));
        }
        lock(&self.ring).add(event.id, line);
        self.newest.send_replace(event.id);
    }

    /// Adds the last state of the job and ends the readers. Waits for a limited time until all events are in the file.
    pub(crate) async fn end(mut self, state: Snapshot) {
        lock(&self.ring).last_state = Some(Arc::new(JsonState::new(state)));
        let file = self.file.take();
        drop(self);
        if let Some(file) = file {
            // This fails only if the runtime is shutting down.
            let _ = tokio::task::spawn_blocking(move || file.close()).await;
        }
    }

    /// Returns a reader of all events that the journal still has.
    pub(crate) fn reader(&self) -> JournalReader {
        JournalReader { ring: Arc::clone(&self.ring), newest: self.newest.subscribe() }
    }
}

impl Ring {
    fn add(&mut self, id: EventId, line: Arc<str>) {
        self.bytes += line.len();
        self.lines.push_back((id, line));
        while self.lines.len() > limits::JOURNAL_EVENTS || self.bytes > limits::JOURNAL_BYTES {
            let Some((_, oldest)) = self.lines.pop_front() else { return };
            self.bytes -= oldest.len();
        }
    }
}

impl JournalReader {
    /// Returns the events after `after`, from the oldest one on.
    pub(crate) fn after(&self, after: Option<EventId>) -> JournalPart {
        let ring = lock(&self.ring);
        let first = after.map_or(0, |after| ring.lines.partition_point(|(id, _)| *id <= after));
        let mut part = JournalPart::default();
        for (id, line) in ring.lines.range(first..) {
            if part.last.is_some() && part.lines.len() + line.len() >= limits::JOURNAL_PART {
                break;
            }
            // Writing to a string does not fail.
            let _ = writeln!(part.lines, "{line}");
            part.last = Some(*id);
        }
        part
    }

    /// Returns the newest events after `after`, at most `count`, oldest first, as JSON objects. Also returns the id of the last one.
    pub(crate) fn tail(
        &self,
        after: Option<EventId>,
        count: usize,
    ) -> (Vec<Arc<str>>, Option<EventId>) {
        let ring = lock(&self.ring);
        let new = after.map_or(0, |after| ring.lines.partition_point(|(id, _)| *id <= after));
        let first = new.max(ring.lines.len().saturating_sub(count));
        let lines = ring.lines.range(first..);
        let last = lines.clone().next_back().map(|(id, _)| *id);
        (lines.map(|(_, line)| Arc::clone(line)).collect(), last)
    }

    /// Returns the state of the job when the coordinator ended; `None` while it runs.
    pub(super) fn last_state(&self) -> Option<Arc<JsonState>> {
        lock(&self.ring).last_state.clone()
    }

    /// Waits until the coordinator has ended.
    ///
    /// # Cancel safety
    ///
    /// A cancelled call loses nothing.
    pub(crate) async fn ended(&self) {
        // This fails when the coordinator has ended.
        let _ = self.newest.clone().wait_for(|_| false).await;
    }

    /// Waits for events after `after` and returns them; `None` if the coordinator has ended.
    ///
    /// # Cancel safety
    ///
    /// A cancelled call loses nothing.
    pub(crate) async fn next(&mut self, after: Option<EventId>) -> Option<JournalPart> {
        let is_new = |newest: &EventId| after.is_none_or(|after| *newest > after);
        let has_ended = self.newest.wait_for(is_new).await.is_err();
        let part = self.after(after);
        (!has_ended || part.last.is_some()).then_some(part)
    }
}

fn lock(ring: &Mutex<Ring>) -> MutexGuard<'_, Ring> {
    // Nothing panics while it holds the lock.
    ring.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use ragent_rendezvous::{
        event::EventNode,
        ids::{GlobalRank, LocalRank, NodeId, Term},
        message::WorkerEnd,
    };
    use serde_json::{Value, json};

    use super::*;

    fn id(number: u64) -> EventId {
        EventId { term: Term(2), number }
    }

    fn record(journal: &mut EventJournal, number: u64, kind: EventKind) {
        let cause = (number > 1).then(|| id(number - 1));
        let node = matches!(kind, EventKind::WorkerFailed { .. })
            .then(|| EventNode { node_id: NodeId::new("n1_7"), host_name: "n1".to_owned() });
        let event = Event { id: id(number), cause, round: Round(7), node, kind };
        journal.record(&event, &JobUid::new("u4"));
    }

    /// A line has the fields that programs read, and a sentence for people.
    #[test]
    fn line_has_all_fields() {
        let mut journal = EventJournal::new(RunId::new("run7"), None);
        let failed = EventKind::WorkerFailed {
            rank: GlobalRank(11),
            local_rank: LocalRank(3),
            pid: 8621,
            end: WorkerEnd::Signaled(9),
            oom: None,
            hardware: Vec::new(),
        };
        record(&mut journal, 117, EventKind::WorkersStarted);
        record(&mut journal, 118, failed);
        let part = journal.reader().after(Some(id(117)));
        assert_eq!(part.last, Some(id(118)));
        let mut line: Value = serde_json::from_str(&part.lines).unwrap();
        let at = line.as_object_mut().unwrap().remove("at").unwrap();
        assert!(at.as_str().unwrap().ends_with('Z'), "{at}");
        let expected = json!({
            "schema": 1, "id": "2.118", "run_id": "run7", "job_uid": "u4", "round": 7,
            "kind": "worker_failed", "host": "n1", "node_id": "n1_7", "rank": 11, "cause": "2.117",
            "text": "rank 11 on n1 killed by SIGKILL (signal 9)",
            "data": {"rank": 11, "local_rank": 3, "pid": 8621, "end": {"signaled": 9}},
        });
        assert_eq!(line, expected);
    }

    /// The journal keeps the newest events, and a reader receives them in parts.
    #[test]
    fn old_events_are_dropped() {
        let mut journal = EventJournal::new(RunId::new("run7"), None);
        let count = u64::try_from(limits::JOURNAL_EVENTS).unwrap() + 100;
        for number in 1..=count {
            record(&mut journal, number, EventKind::RoundStopped);
        }
        let reader = journal.reader();
        let (mut last, mut lines) = (None, 0);
        loop {
            let part = reader.after(last);
            assert!(part.lines.len() <= limits::JOURNAL_PART);
            if part.last.is_none() {
                break;
            }
            lines += part.lines.lines().count();
            last = part.last;
        }
        assert_eq!(last, Some(id(count)));
        assert!(lock(&journal.ring).bytes <= limits::JOURNAL_BYTES);
        assert!((1_000..=limits::JOURNAL_EVENTS).contains(&lines), "{lines}");
    }

    /// A reader waits for the next event. It receives the last event before the end of the journal.
    #[tokio::test]
    async fn reader_waits_for_events() {
        let mut journal = EventJournal::new(RunId::new("run7"), None);
        record(&mut journal, 1, EventKind::RoundStopped);
        let mut reader = journal.reader();
        let first = reader.next(None).await.unwrap();
        assert_eq!(first.last, Some(id(1)));
        let waiting = tokio::spawn(async move {
            let next = reader.next(first.last).await;
            (reader, next)
        });
        record(&mut journal, 2, EventKind::RoundStopped);
        drop(journal);
        let (mut reader, next) = waiting.await.unwrap();
        assert_eq!(next.unwrap().last, Some(id(2)));
        assert_eq!(reader.next(Some(id(2))).await, None);
    }
}
