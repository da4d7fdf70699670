//! The state of the job that this process coordinates, for requests and for clients that watch it.

use std::sync::Arc;

use ragent_proto::convert::{NotHere, StatusAnswer};
use ragent_rendezvous::snapshot::Snapshot;
use tokio::sync::mpsc;
use tonic::Status;

use super::{
    collected::Collected,
    driver,
    journal::JournalReader,
    readers::{Place, send},
    role::Role,
    status_page::snapshot,
};
use crate::{coordinator::limits, net::refusals::Refusals, sys::clock};

/// The states of the job that this process coordinates, collected at most ten times a second for all callers.
pub(super) struct States {
    role: Arc<Role>,
    refusals: Arc<Refusals>,
    last: Collected<Option<Arc<Snapshot>>>,
}

impl States {
    pub(super) fn new(role: Arc<Role>, refusals: Arc<Refusals>) -> Self {
        Self { role, refusals, last: Collected::default() }
    }

    /// Returns the state, or the process that has it.
    pub(super) async fn get(&self) -> Result<Result<Arc<Snapshot>, NotHere>, Status> {
        let inputs = match self.role.coordinator_to_read() {
            Ok(inputs) => inputs,
            Err(not_here) => return Ok(Err(not_here)),
        };
        let collect = async { snapshot(&inputs, &self.refusals).await.map(Arc::new) };
        let snapshot = self.last.get(collect).await;
        snapshot.map(Ok).ok_or_else(|| Status::unavailable("the job has ended"))
    }

    /// Returns the process that has the state, if it is another one.
    pub(super) fn elsewhere(&self) -> Option<NotHere> {
        self.role.coordinator_to_read().err()
    }

    /// Returns the journal of the coordinator in this process.
    pub(super) async fn journal(&self) -> Result<JournalReader, Status> {
        let journal = match self.role.coordinator_to_read() {
            Ok(inputs) => driver::journal(&inputs).await,
            Err(_) => None,
        };
        journal.ok_or_else(|| Status::unavailable("the coordinator has ended"))
    }

    /// Sends the state after each event, and at intervals if it has changed, until the coordinator or the client ends.
    pub(super) async fn send_changes(
        self: Arc<Self>,
        first: Arc<Snapshot>,
        mut journal: JournalReader,
        to: mpsc::Sender<StatusAnswer>,
        _place: Place,
    ) {
        let mut last = journal.newest();
        let mut sent = first.without_ages();
        loop {
            tokio::select! {
                () = clock::until(Some(clock::now() + limits::WATCH_INTERVAL)) => {}
                // The end of a job is followed by the end of its coordinator.
                Some(part) = journal.next(Some(last)) => last = part.last.unwrap_or(last),
                () = to.closed() => return,
            }
            let state = tokio::select! {
                biased;
                () = journal.ended() => None,
                state = self.get() => state.ok().and_then(Result::ok),
            };
            let is_last = state.is_none();
            let state = state.or_else(|| journal.last_state());
            let ageless = state.as_deref().map(Snapshot::without_ages);
            if let (Some(state), Some(ageless)) = (state, ageless)
                && ageless != sent
            {
                sent = ageless;
                let answer = StatusAnswer::Snapshot(Box::new((*state).clone()));
                if !send(&to, answer).await {
                    return;
                }
            }
            if is_last {
                // The client asks for the next coordinator, unless the job is closed.
                return;
            }
        }
    }
}
