//! Reads the streams of the job, as inputs of the view.

use std::{cell::Cell, error::Error, ops::ControlFlow, rc::Rc, time::Duration};

use ragent_coordinator::client::{JobPage, JournalRequest, PageLines, StateStream};
use ragent_rendezvous::{event::EventId, snapshot::Snapshot};
use tokio::sync::mpsc;

use super::model::Input;
use crate::commands::{
    error::LaunchError,
    events::JournalEntry,
    find_coordinator::FoundJob,
    follow::{Reader, go_on_if},
};

/// The reader of the job's states.
pub(super) struct StateReader {
    /// The inputs of the view.
    pub(super) to: mpsc::Sender<Input>,
    /// True if the job is closed.
    pub(super) is_closed: Rc<Cell<bool>>,
}

impl Reader for StateReader {
    type Stream = StateStream;
    const PATIENCE: Option<Duration> = None;

    fn page(&mut self, _at: &FoundJob) -> JobPage {
        JobPage::States
    }

    async fn receive(&mut self, snapshot: Box<Snapshot>) -> Result<ControlFlow<()>, LaunchError> {
        self.is_closed.set(snapshot.outcome.is_some());
        let is_sent = self.to.send(Input::State(snapshot)).await.is_ok();
        Ok(go_on_if(is_sent && !self.is_closed.get()))
    }

    async fn end(&mut self, failure: Option<&LaunchError>) -> ControlFlow<()> {
        let why = failure.map(|error| match error.source() {
            Some(cause) => cause.to_string(),
            None => error.to_string(),
        });
        go_on_if(self.to.send(Input::Lost(why)).await.is_ok())
    }
}

/// The reader of the job's events.
pub(super) struct EventReader {
    /// The inputs of the view.
    pub(super) to: mpsc::Sender<Input>,
    /// True if the job is closed.
    pub(super) is_closed: Rc<Cell<bool>>,
    /// The last event that was read.
    pub(super) after: Option<EventId>,
}

impl Reader for EventReader {
    type Stream = PageLines;
    const PATIENCE: Option<Duration> = None;

    fn page(&mut self, at: &FoundJob) -> JobPage {
        if at.snapshot.outcome.is_some() {
            self.is_closed.set(true);
        }
        JobPage::Events(JournalRequest { after: self.after, follow: true })
    }

    async fn receive(&mut self, lines: String) -> Result<ControlFlow<()>, LaunchError> {
        let entries: Vec<JournalEntry> = lines.lines().filter_map(JournalEntry::read).collect();
        self.after = entries.last().map(|entry| entry.id).or(self.after);
        Ok(go_on_if(self.to.send(Input::Events(entries)).await.is_ok()))
    }

    async fn end(&mut self, _failure: Option<&LaunchError>) -> ControlFlow<()> {
        go_on_if(!self.is_closed.get())
    }
}
