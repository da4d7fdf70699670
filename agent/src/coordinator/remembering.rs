//! Writes a coordinator's state file beside its loop: a disk may be slow, and agents are not to lose
//! their leases because of it.
//!
//! What the machine wants to be remembered before anyone is told is written before anyone is told;
//! but a disk that takes longer than [`limits::STATE_FILE_PATIENCE`] is not waited for.

use std::{io, path::PathBuf, time::Instant};

use ragent_rendezvous::settings::Memory;
use tokio::task::{JoinHandle, spawn_blocking};
use tracing::warn;

use crate::{clock, limits, state_file};

/// The state file of one coordinator, if it has one.
#[derive(Debug)]
pub(super) struct Remembering {
    path: Option<PathBuf>,
    writing: Option<JoinHandle<io::Result<()>>>,
    /// What is to be written next; older wishes are out of date.
    next: Option<Memory>,
    /// Until when others wait for the write that is under way.
    patience: Option<Instant>,
}

impl Remembering {
    pub(super) fn new(path: Option<PathBuf>) -> Self {
        Self { path, writing: None, next: None, patience: None }
    }

    /// Begins to write `memory`.
    pub(super) fn remember(&mut self, memory: Memory) {
        if self.path.is_none() {
            return;
        }
        self.next = Some(memory);
        if self.writing.is_none() {
            self.patience = Some(clock::now() + limits::STATE_FILE_PATIENCE);
            self.write_next();
        }
    }

    /// Whether what is being written must be written before anyone is told anything.
    pub(super) fn is_awaited(&self) -> bool {
        self.patience.is_some()
    }

    /// When that is over, if the disk is slow.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.patience
    }

    /// Waits no longer.
    pub(super) fn handle_timeout(&mut self) {
        self.patience = None;
        warn!(
            "the disk of the state file is slow; going on: a coordinator that is restarted now may \
             not know the newest round"
        );
    }

    /// Waits until something has been written; for ever if nothing is.
    ///
    /// # Cancel safety
    ///
    /// A cancelled call has missed nothing.
    pub(super) async fn written(&mut self) {
        let Some(writing) = &mut self.writing else { return std::future::pending().await };
        let result = writing.await.unwrap_or_else(|error| Err(io::Error::other(error)));
        self.writing = None;
        if let (Err(error), Some(path)) = (result, &self.path) {
            warn!(
                path = %path.display(), %error,
                "the state of the job cannot be written; a restarted coordinator will not know it"
            );
        }
        self.write_next();
    }

    /// Forgets the job; waits for a write that is under way, at most as long as others did.
    pub(super) async fn forget(mut self) {
        self.next = None;
        if let Some(writing) = self.writing.take() {
            let _ = tokio::time::timeout(limits::STATE_FILE_PATIENCE, writing).await;
        }
        if let Some(path) = self.path {
            // A disk that hangs must not keep the process either.
            let forgetting = spawn_blocking(move || state_file::forget(&path));
            let _ = tokio::time::timeout(limits::STATE_FILE_PATIENCE, forgetting).await;
        }
    }

    fn write_next(&mut self) {
        let Some((path, memory)) = self.path.clone().zip(self.next.take()) else {
            self.patience = None;
            return;
        };
        self.writing = Some(spawn_blocking(move || state_file::write_memory(&path, &memory)));
    }
}
