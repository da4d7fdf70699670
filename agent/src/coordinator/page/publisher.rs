//! The states of the page, made once for all of its readers, and only while there are readers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ragent_proto::convert::NotHere;
use ragent_rendezvous::event::EventId;
use tokio::sync::{mpsc, watch};
use tonic::Status;

use super::view::{Frame, Message, View};
use crate::{
    coordinator::{
        journal::JournalReader,
        limits,
        readers::{Place, send},
        states::States,
    },
    sys::clock,
};

type Sender = Arc<watch::Sender<Arc<Frame>>>;
/// The newest state of the page.
pub(super) type Frames = watch::Receiver<Arc<Frame>>;

/// The source of the page's states in the process that coordinates.
pub(super) struct Publisher {
    states: Arc<States>,
    running: Mutex<Option<Sender>>,
}

impl Publisher {
    pub(super) fn new(states: Arc<States>) -> Self {
        Self { states, running: Mutex::default() }
    }

    /// Returns the states of the page, from the next one on, or the process that has them.
    pub(super) async fn subscribe(self: Arc<Self>) -> Result<Result<Frames, NotHere>, Status> {
        if let Some(not_here) = self.states.elsewhere() {
            return Ok(Err(not_here));
        }
        if let Some(frames) = self.running_frames() {
            return Ok(Ok(frames));
        }
        let snapshot = match self.states.get().await? {
            Ok(snapshot) => snapshot,
            Err(not_here) => return Ok(Err(not_here)),
        };
        let journal = self.states.journal().await?;
        let mut running = self.lock();
        if let Some(sender) = &*running {
            return Ok(Ok(sender.subscribe()));
        }
        let mut view = View::default();
        let (events, last) = journal.tail(None, limits::PAGE_EVENTS);
        let (sender, frames) = watch::channel(Arc::new(view.apply(&snapshot, &events)));
        let sender = Arc::new(sender);
        *running = Some(Arc::clone(&sender));
        drop(running);
        tokio::spawn(publish(self, sender, view, journal, last));
        Ok(Ok(frames))
    }

    fn running_frames(&self) -> Option<Frames> {
        self.lock().as_ref().map(|sender| sender.subscribe())
    }

    fn lock(&self) -> MutexGuard<'_, Option<Sender>> {
        // Nothing panics while it holds the lock.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a publication if nobody reads it. Returns true if it has ended.
    fn ends_unread(&self, sender: &Sender) -> bool {
        let mut running = self.lock();
        let is_unread = sender.receiver_count() == 0;
        if is_unread {
            remove(&mut running, sender);
        }
        is_unread
    }
}

fn remove(running: &mut Option<Sender>, sender: &Sender) {
    running.take_if(|running| Arc::ptr_eq(running, sender));
}

/// Publishes the state after each event, and at intervals, until no reader is left or the coordinator ends.
async fn publish(
    publisher: Arc<Publisher>,
    sender: Sender,
    mut view: View,
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
            state = publisher.states.get() => state.ok().and_then(Result::ok),
        };
        let is_last = state.is_none();
        let (events, newest) = journal.tail(last, limits::PAGE_EVENTS);
        last = newest.or(last);
        if let Some(state) = state.or_else(|| journal.last_state()) {
            sender.send_replace(Arc::new(view.apply(&state, &events)));
        }
        if is_last {
            // The clients ask for the next coordinator, unless the job is closed.
            remove(&mut publisher.lock(), &sender);
            return;
        }
    }
}

/// Sends the states to a reader, until the coordinator or the reader ends. A slow reader receives
/// the whole state in place of the changes that it has missed.
pub(super) async fn pass_on(mut frames: Frames, to: mpsc::Sender<Message>, _place: Place) {
    let mut last = None;
    loop {
        let frame = Arc::clone(&frames.borrow_and_update());
        for message in frame.after(last) {
            if !send(&to, Arc::clone(message)).await {
                return;
            }
        }
        last = Some(frame.number);
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

    use ragent_rendezvous::{
        event::{Event, EventKind},
        ids::{JobUid, Round, RunId, Term},
        snapshot::Snapshot,
    };

    use super::*;
    use crate::coordinator::{
        driver::{Input, tests::empty_snapshot},
        journal::EventJournal,
        role::Role,
    };

    /// A coordinator that answers requests for the state and the journal; returns the source of its page.
    fn coordinator(journal: &EventJournal) -> Arc<Publisher> {
        let (inputs, mut asked) = mpsc::channel(crate::limits::COORDINATOR_QUEUE);
        let reader = journal.reader();
        tokio::spawn(async move {
            while let Some(input) = asked.recv().await {
                match input {
                    Input::Snapshot(answer) => answer.send(empty_snapshot()).unwrap(),
                    Input::Journal(answer) => answer.send(reader.clone()).unwrap(),
                    input => panic!("{input:?}"),
                }
            }
        });
        let (role, _) = Role::of(inputs, "10.0.0.1:1");
        Arc::new(Publisher::new(Arc::new(States::new(Arc::new(role), Arc::default()))))
    }

    fn record(journal: &mut EventJournal, number: u64) {
        let id = EventId { term: Term(1), number };
        let (cause, node, kind) = (None, None, EventKind::RoundStopped);
        journal.record(&Event { id, cause, round: Round(1), node, kind }, &JobUid::new("u"));
    }

    /// An event is published within a quarter of a second, and without events a state follows each second. Nothing is
    /// published after the last reader has left, and the next reader begins with the whole state.
    #[tokio::test(start_paused = true)]
    async fn events_are_published_soon() {
        let mut journal = EventJournal::new(RunId::new("j"), None);
        record(&mut journal, 1);
        let publisher = coordinator(&journal);
        let mut frames = Arc::clone(&publisher).subscribe().await.unwrap().unwrap();
        assert!(frames.borrow_and_update().after(None)[0].contains(r#""id":"1.1""#));
        let begun = clock::now();
        frames.changed().await.unwrap();
        let waited = clock::now() - begun;
        assert!(waited <= limits::WATCH_INTERVAL + limits::STATUS_INTERVAL, "{waited:?}");
        record(&mut journal, 2);
        let begun = clock::now();
        loop {
            frames.changed().await.unwrap();
            let frame = Arc::clone(&frames.borrow_and_update());
            if frame.after(Some(frame.number - 1))[0].contains(r#""id":"1.2""#) {
                break;
            }
        }
        let waited = clock::now() - begun;
        assert!(waited <= limits::PAGE_PAUSE + limits::STATUS_INTERVAL, "{waited:?}");
        drop(frames);
        clock::until(Some(clock::now() + Duration::from_secs(5))).await;
        assert!(publisher.lock().is_none());
        let frames = publisher.subscribe().await.unwrap().unwrap();
        assert_eq!(frames.borrow().number, 1);
    }

    /// A reader receives the last state of the coordinator before the end of its events.
    #[tokio::test(start_paused = true)]
    async fn last_state_is_published() {
        let mut journal = EventJournal::new(RunId::new("j"), None);
        record(&mut journal, 1);
        let publisher = coordinator(&journal);
        let frames = Arc::clone(&publisher).subscribe().await.unwrap().unwrap();
        let (to, mut messages) = mpsc::channel(1);
        let place = crate::coordinator::readers::Readers::default()
            .follow(crate::net::connection_quota::Origin::Known)
            .unwrap();
        tokio::spawn(pass_on(frames, to, place));
        assert!(messages.recv().await.unwrap().contains(r#""max_restarts":0"#));
        let last = Snapshot { max_restarts: 77, ..empty_snapshot() };
        journal.end(last).await;
        let mut newest = messages.recv().await.unwrap();
        while let Some(message) = messages.recv().await {
            newest = message;
        }
        assert!(newest.contains(r#""max_restarts":77"#), "{newest}");
    }
}
