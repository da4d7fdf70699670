//! Writes a coordinator's state file beside its loop: a disk may be slow, and agents are not to lose
//! their leases because of it.
//!
//! What the machine wants to be remembered before anyone is told is written before anyone is told;
//! but a disk that takes longer than [`limits::STATE_FILE_PATIENCE`] is not waited for.

use std::{
    io, mem,
    path::PathBuf,
    time::{Duration, Instant},
};

use ragent_rendezvous::settings::Memory;
use tokio::task::{JoinHandle, spawn_blocking};
use tracing::warn;

use super::proofs::Key;
use crate::{clock, limits, state_file};

/// The state file of one coordinator, if it has one.
#[derive(Debug)]
pub(super) struct Remembering {
    path: Option<PathBuf>,
    key: Key,
    writing: Option<JoinHandle<io::Result<()>>>,
    /// The write under way repeats the last one, so that no effect waits for it.
    is_touch: bool,
    /// What is to be written next; older wishes are out of date.
    next: Option<Memory>,
    /// The memory that was written last.
    last: Option<Memory>,
    /// When that is written again, so that the file does not become outdated.
    touch_at: Option<Instant>,
    /// How long agents may wait for the next coordinator.
    kept: Duration,
    /// Until when others wait for the write that is under way.
    patience: Option<Instant>,
}

impl Remembering {
    pub(super) fn new(path: Option<PathBuf>, key: Key) -> Self {
        Self {
            path,
            key,
            writing: None,
            is_touch: false,
            next: None,
            last: None,
            touch_at: None,
            kept: Duration::ZERO,
            patience: None,
        }
    }

    /// Begins to write `memory`; agents may wait for `kept` for the next coordinator.
    pub(super) fn remember(&mut self, memory: Memory, kept: Duration) {
        if self.path.is_none() {
            return;
        }
        self.kept = kept;
        self.next = Some(memory);
        if self.writing.is_none() || mem::take(&mut self.is_touch) {
            self.patience = Some(clock::now() + limits::STATE_FILE_PATIENCE);
        }
        if self.writing.is_none() {
            self.write_next();
        }
    }

    /// When the file is to be written again although nothing has changed.
    pub(super) fn touch_at(&self) -> Option<Instant> {
        self.touch_at.filter(|_| self.writing.is_none())
    }

    /// Writes the file again; no effect waits for that.
    pub(super) fn touch(&mut self) {
        if self.writing.is_none() {
            self.next = self.last.take();
            self.write_next();
            self.is_touch = true;
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

    /// Forgets the job, once a write that is under way has ended. A slow disk is waited for as long as
    /// for a write; after that the file is removed while this process goes on.
    pub(super) async fn forget(self) {
        let Self { path: Some(path), writing, .. } = self else { return };
        let forgetting = tokio::spawn(async move {
            if let Some(writing) = writing {
                // Whether it succeeded does not matter any more.
                let _ = writing.await;
            }
            spawn_blocking(move || state_file::forget(&path)).await
        });
        let _ = tokio::time::timeout(limits::STATE_FILE_PATIENCE, forgetting).await;
    }

    fn write_next(&mut self) {
        self.is_touch = false;
        let Some((path, memory)) = self.path.clone().zip(self.next.take()) else {
            self.patience = None;
            return;
        };
        let (key, kept) = (self.key.clone(), self.kept);
        self.last = Some(memory.clone());
        self.touch_at = Some(clock::now() + limits::STATE_FILE_INTERVAL);
        self.writing =
            Some(spawn_blocking(move || state_file::write_memory(&path, &memory, kept, &key)));
    }
}

#[cfg(test)]
mod tests {
    use ragent_rendezvous::ids::{JobUid, Round};

    use super::*;

    const KEPT: Duration = Duration::from_secs(600);

    fn key() -> Key {
        Key::from_hex(&"ab".repeat(32)).unwrap()
    }

    fn memory(round: u64) -> Memory {
        Memory { round: Round(round), ..Memory::fresh(JobUid::new("u")) }
    }

    /// Others wait until what is to be remembered is written, and no longer.
    #[tokio::test]
    async fn writing_is_awaited() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run/job.json");
        let mut file = Remembering::new(Some(path.clone()), key());
        assert!(!file.is_awaited());
        file.remember(memory(1), KEPT);
        assert!(file.is_awaited() && file.poll_timeout().is_some());
        file.written().await;
        assert!(!file.is_awaited());
        assert_eq!(state_file::read_memory(&path), Some(memory(1)));
        assert_eq!(state_file::read_key(&path), Some(key()));
        file.forget().await;
        assert_eq!(state_file::read_memory(&path), None);
    }

    /// What comes while something is written is written next, the newest only.
    #[tokio::test]
    async fn newest_is_written_last() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job.json");
        let mut file = Remembering::new(Some(path.clone()), key());
        for round in 1..=3 {
            file.remember(memory(round), KEPT);
        }
        file.written().await;
        assert!(file.is_awaited());
        file.written().await;
        assert!(!file.is_awaited());
        assert_eq!(state_file::read_memory(&path), Some(memory(3)));
    }

    /// Neither a disk that is slow nor one that refuses keeps anybody, nor does a coordinator without a
    /// state file wait for one.
    #[tokio::test]
    async fn disk_keeps_nobody() {
        let mut file = Remembering::new(Some("/proc/no/job.json".into()), key());
        file.remember(memory(1), KEPT);
        file.handle_timeout();
        assert!(!file.is_awaited());
        file.remember(memory(2), KEPT);
        file.written().await;
        file.written().await;
        assert!(!file.is_awaited());
        let mut nowhere = Remembering::new(None, key());
        nowhere.remember(memory(1), KEPT);
        assert!(!nowhere.is_awaited());
    }

    /// The file is rewritten at intervals, so that its age stays small; effects do not wait for that,
    /// but for a memory that changes meanwhile.
    #[tokio::test]
    async fn file_is_kept_young() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job.json");
        let mut file = Remembering::new(Some(path.clone()), key());
        assert_eq!(file.touch_at(), None);
        file.remember(memory(1), KEPT);
        assert_eq!(file.touch_at(), None);
        file.written().await;
        assert!(file.touch_at().is_some_and(|at| at > clock::now()));
        std::fs::remove_file(&path).unwrap();
        file.touch();
        assert!(!file.is_awaited());
        file.remember(memory(2), KEPT);
        assert!(file.is_awaited());
        file.written().await;
        assert!(file.is_awaited());
        file.written().await;
        assert!(!file.is_awaited());
        assert_eq!(state_file::read_memory(&path), Some(memory(2)));
    }
}
