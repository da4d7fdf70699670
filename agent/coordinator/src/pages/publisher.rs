//! Publishes the states of a view to the clients that follow it.
//!
//! Each state is made once for all clients, after each event and at intervals, and only while there are clients. A client that reads too
//! slowly misses changes. It receives the whole state next.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Bytes;
use ragent_base::sys::clock;
use ragent_rendezvous::event::EventId;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;

use super::{
    cache::JsonState,
    readers::{Parts, ReaderPlace, send},
    relay::{Asker, PageRelay, Refusal},
    states::States,
};
use crate::{client::JobPage, journal::JournalReader, limits};

/// A view of the job. Its states are applied to it one after the other.
pub(super) trait View: Default + Send + 'static {
    /// One state of the view, for all readers.
    type Frame: Frame;

    /// Applies the newest state, and the events since the previous state as JSON, oldest first.
    fn apply(&mut self, state: &Arc<JsonState>, new_events: &[Arc<str>]) -> Self::Frame;
}

/// One state of a view.
pub(super) trait Frame: Send + Sync + 'static {
    /// Returns the number of the state. It is one higher than before, or the same if the view has not changed.
    fn number(&self) -> u64;

    /// Returns the messages for a reader that has received the state `last`.
    fn after(&self, last: Option<u64>) -> &[Bytes];
}

type Sender<F> = Arc<watch::Sender<Arc<F>>>;

/// The newest state of a view.
#[derive(Debug)]
pub(super) struct Frames<F>(watch::Receiver<Arc<F>>);

/// The source of a view's states in the process that coordinates.
pub(super) struct Publisher<V: View> {
    states: Arc<States>,
    running: Mutex<Option<Sender<V::Frame>>>,
}

impl<V: View> Publisher<V> {
    pub(super) fn new(states: Arc<States>) -> Self {
        Self { states, running: Mutex::default() }
    }

    /// Opens a page with the states of the view. Unless the request is direct, they may be at another process.
    pub(super) async fn open(
        self: &Arc<Self>,
        relay: &PageRelay,
        page: JobPage,
        asker: Asker,
    ) -> Result<Parts, Refusal> {
        match Arc::clone(self).subscribe().await {
            Ok(frames) => Ok(frames.parts(relay.admit(page, asker)?)),
            Err(refusal) => relay.open(refusal, page, asker).await,
        }
    }

    /// Returns the states of the view, from the next one on.
    ///
    /// # Errors
    ///
    /// Returns [`Refusal`] if another process coordinates, or if the job has ended.
    pub(super) async fn subscribe(self: Arc<Self>) -> Result<Frames<V::Frame>, Refusal> {
        if let Some(elsewhere) = self.states.elsewhere() {
            return Err(elsewhere.into());
        }
        if let Some(sender) = &*self.lock() {
            return Ok(Frames(sender.subscribe()));
        }
        let state = self.states.get().await?;
        let journal = self.states.journal().await?;
        let mut running = self.lock();
        if let Some(sender) = &*running {
            return Ok(Frames(sender.subscribe()));
        }
        let mut view = V::default();
        let (events, last) = journal.tail(None, limits::PAGE_EVENTS);
        let (sender, frames) = watch::channel(Arc::new(view.apply(&state, &events)));
        let sender = Arc::new(sender);
        *running = Some(Arc::clone(&sender));
        drop(running);
        tokio::spawn(publish(self, sender, view, journal, last));
        Ok(Frames(frames))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Sender<V::Frame>>> {
        // Nothing panics while it holds the lock.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a publication that has no reader. Returns true if it has ended.
    fn ends_unread(&self, sender: &Sender<V::Frame>) -> bool {
        let mut running = self.lock();
        let is_unread = sender.receiver_count() == 0;
        if is_unread {
            remove(&mut running, sender);
        }
        is_unread
    }
}

fn remove<F>(running: &mut Option<Sender<F>>, sender: &Sender<F>) {
    running.take_if(|running| Arc::ptr_eq(running, sender));
}

/// Publishes the state after each event and at intervals, until no reader is left or the coordinator ends.
async fn publish<V: View>(
    publisher: Arc<Publisher<V>>,
    sender: Sender<V::Frame>,
    mut view: V,
    mut journal: JournalReader,
    mut last: Option<EventId>,
) {
    loop {
        let begun = clock::now();
        tokio::select! {
            () = clock::until(Some(begun + limits::WATCH_INTERVAL)) => {}
            part = journal.next(last) => if part.is_some() {
                // Events that follow each other quickly are sent together.
                tokio::select! {
                    () = clock::until(Some(begun + limits::PAGE_PAUSE)) => {}
                    () = journal.ended() => {}
                }
            },
            () = sender.closed() => if publisher.ends_unread(&sender) {
                return;
            },
        }
        let state = tokio::select! {
            biased;
            () = journal.ended() => None,
            state = publisher.states.get() => state.ok(),
        };
        let is_last = state.is_none();
        let (events, newest) = journal.tail(last, limits::PAGE_EVENTS);
        last = newest.or(last);
        if let Some(state) = state.or_else(|| journal.last_state()) {
            let frame = view.apply(&state, &events);
            sender.send_if_modified(|last| {
                let is_new = frame.number() != last.number();
                if is_new {
                    *last = Arc::new(frame);
                }
                is_new
            });
        }
        if is_last {
            // The clients look for the next coordinator, unless the job is closed.
            remove(&mut publisher.lock(), &sender);
            return;
        }
    }
}

impl<F: Frame> Frames<F> {
    /// Returns the messages for one reader, as parts of its page.
    pub(super) fn parts(self, place: ReaderPlace) -> Parts {
        let (to, parts) = mpsc::channel(1);
        tokio::spawn(pass_on(self.0, to, place));
        ReceiverStream::new(parts)
    }
}

/// Sends the states to a reader, until the coordinator or the reader ends. A slow reader receives
/// the whole state instead of the changes.
async fn pass_on<F: Frame>(
    mut frames: watch::Receiver<Arc<F>>,
    to: mpsc::Sender<Bytes>,
    _place: ReaderPlace,
) {
    let mut last = None;
    loop {
        let frame = Arc::clone(&frames.borrow_and_update());
        for message in frame.after(last) {
            if !send(&to, message.clone()).await {
                return;
            }
        }
        last = Some(frame.number());
        tokio::select! {
            changed = frames.changed() => if changed.is_err() {
                return;
            },
            () = to.closed() => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ragent_base::net::connection_quota::ConnectionOrigin;
    use ragent_base::testing::empty_snapshot;
    use ragent_rendezvous::{
        event::{Event, EventKind},
        ids::{JobUid, Round, RunId, Term},
        snapshot::Snapshot,
    };
    use tokio_stream::StreamExt;

    use super::*;
    use crate::{
        driver::Input,
        journal::EventJournal,
        pages::{browser::PageView, readers::Readers},
        role::Role,
    };

    /// A coordinator that answers requests for the state and the journal; returns the source of its page.
    fn coordinator(journal: &EventJournal) -> Arc<Publisher<PageView>> {
        let (inputs, mut asked) = mpsc::channel(limits::COORDINATOR_QUEUE);
        let reader = journal.reader();
        tokio::spawn(async move {
            while let Some(input) = asked.recv().await {
                match input {
                    Input::Snapshot(answer) => answer.send(empty_snapshot().into()).unwrap(),
                    Input::Journal(answer) => answer.send(reader.clone()).unwrap(),
                    input => panic!("{input:?}"),
                }
            }
        });
        let (role, _) = Role::of(inputs, "10.0.0.1:1");
        Arc::new(Publisher::new(Arc::new(States::new(Arc::new(role), Arc::default()))))
    }

    fn has(message: &Bytes, text: &str) -> bool {
        str::from_utf8(message).unwrap().contains(text)
    }

    fn record(journal: &mut EventJournal, number: u64) {
        let id = EventId { term: Term(1), number };
        let (cause, node, kind) = (None, None, EventKind::RoundStopped);
        journal.record(&Event { id, cause, round: Round(1), node, kind }, &JobUid::new("u"));
    }

    /// An event is published within a quarter of a second. Without events, a state follows each second. Nothing is published after the last
    /// reader has left, and the next reader starts with the whole state.
    #[tokio::test(start_paused = true)]
    async fn events_are_published_soon() {
        let mut journal = EventJournal::new(RunId::new("j"), None);
        record(&mut journal, 1);
        let publisher = coordinator(&journal);
        let Frames(mut frames) = Arc::clone(&publisher).subscribe().await.unwrap();
        assert!(has(&frames.borrow_and_update().after(None)[0], r#""id":"1.1""#));
        let begun = clock::now();
        frames.changed().await.unwrap();
        let waited = clock::now() - begun;
        assert!(waited <= limits::WATCH_INTERVAL + limits::STATUS_INTERVAL, "{waited:?}");
        record(&mut journal, 2);
        let begun = clock::now();
        loop {
            frames.changed().await.unwrap();
            let frame = Arc::clone(&frames.borrow_and_update());
            if has(&frame.after(Some(frame.number() - 1))[0], r#""id":"1.2""#) {
                break;
            }
        }
        let waited = clock::now() - begun;
        assert!(waited <= limits::PAGE_PAUSE + limits::STATUS_INTERVAL, "{waited:?}");
        drop(frames);
        clock::until(Some(clock::now() + Duration::from_secs(5))).await;
        assert!(publisher.lock().is_none());
        let Frames(frames) = publisher.subscribe().await.unwrap();
        assert_eq!(frames.borrow().number(), 1);
    }

    /// A reader receives the last state of the coordinator before the end of its events.
    #[tokio::test(start_paused = true)]
    async fn last_state_is_published() {
        let mut journal = EventJournal::new(RunId::new("j"), None);
        record(&mut journal, 1);
        let publisher = coordinator(&journal);
        let frames = Arc::clone(&publisher).subscribe().await.unwrap();
        let mut messages =
            frames.parts(Readers::default().follow(ConnectionOrigin::Known).unwrap());
        assert!(has(&messages.next().await.unwrap(), r#""max_restarts":0"#));
        let last = Snapshot { max_restarts: 77, ..empty_snapshot() };
        journal.end(last).await;
        let mut newest = messages.next().await.unwrap();
        while let Some(message) = messages.next().await {
            newest = message;
        }
        assert!(has(&newest, r#""max_restarts":77"#), "{newest:?}");
    }
}
