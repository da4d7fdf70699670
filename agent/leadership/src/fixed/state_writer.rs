//! Writes a coordinator's state file without blocking its loop, so that agents keep their leases while a disk is slow.
//!
//! A new state is written before any node acts on it. But a disk that needs longer than [`limits::STATE_FILE_PATIENCE`]
//! is not waited for.

use std::{
    io, mem,
    path::PathBuf,
    time::{Duration, Instant},
};

use ragent_base::sys::clock;
use ragent_rendezvous::settings::JobState;
use tokio::task::{JoinHandle, spawn_blocking};
use tracing::warn;

use crate::{limits, state_file};

/// The state file of one coordinator, if it has one.
#[derive(Debug)]
pub(crate) struct StateWriter {
    path: Option<PathBuf>,
    writing: Option<JoinHandle<io::Result<()>>>,
    /// True if the current write repeats the last one, so that no effect waits for it.
    is_touch: bool,
    /// The state to write next. It replaces older ones.
    next: Option<JobState>,
    /// The state that was written last.
    last: Option<JobState>,
    /// The time at which `last` is written again, to keep the file's age small.
    touch_at: Option<Instant>,
    /// The time that agents may wait for the next coordinator.
    kept: Duration,
    /// The time until which effects wait for the current write.
    patience: Option<Instant>,
    /// True if the last write has failed. This is reported once.
    has_failed: bool,
}

impl StateWriter {
    pub(super) fn new(path: Option<PathBuf>) -> Self {
        Self {
            path,
            writing: None,
            is_touch: false,
            next: None,
            last: None,
            touch_at: None,
            kept: Duration::ZERO,
            patience: None,
            has_failed: false,
        }
    }

    /// Starts to write `job_state`. Agents may wait for the next coordinator for `kept`.
    pub(super) fn remember(&mut self, job_state: JobState, kept: Duration) {
        if self.path.is_none() {
            return;
        }
        self.kept = kept;
        self.next = Some(job_state);
        if self.writing.is_none() || mem::take(&mut self.is_touch) {
            self.patience = Some(clock::now() + limits::STATE_FILE_PATIENCE);
        }
        if self.writing.is_none() {
            self.write_next();
        }
    }

    /// Returns true if effects must wait for the current write.
    pub(super) fn is_awaited(&self) -> bool {
        self.patience.is_some()
    }

    /// Returns the next deadline: the end of the wait for a slow disk, or the next rewrite of an unchanged file.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let touch_at = self.touch_at.filter(|_| self.writing.is_none());
        [self.patience, touch_at].into_iter().flatten().min()
    }

    /// Applies the deadlines that have passed.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.patience.is_some_and(|at| at <= now) {
            self.give_up_waiting();
        }
        if self.writing.is_none() && self.touch_at.is_some_and(|at| at <= now) {
            self.next = self.last.take();
            self.write_next();
            // No effect waits for it.
            self.is_touch = true;
        }
    }

    fn give_up_waiting(&mut self) {
        self.patience = None;
        warn!(
            "the disk of the state file is slow; continuing before the state is written: a \
             coordinator that is restarted now may not know the newest round"
        );
    }

    /// Waits until a write has ended. Never returns if there is none.
    ///
    /// # Cancel safety
    ///
    /// A cancelled call loses nothing.
    pub(super) async fn written(&mut self) {
        let Some(writing) = &mut self.writing else { return std::future::pending().await };
        let result = writing.await.unwrap_or_else(|error| Err(io::Error::other(error)));
        self.writing = None;
        let had_failed = mem::replace(&mut self.has_failed, result.is_err());
        if let (Err(error), Some(path), false) = (result, &self.path, had_failed) {
            warn!(
                path = %path.display(), %error,
                "failed to write the state of the job; a restarted coordinator will not know it"
            );
        }
        self.write_next();
    }

    /// Deletes the state file after the current write has ended, but waits at most
    /// [`limits::STATE_FILE_REMOVAL`] for a slow disk.
    pub(super) async fn forget(&mut self) {
        let Some(path) = self.path.take() else { return };
        (self.next, self.touch_at, self.patience) = (None, None, None);
        let writing = self.writing.take();
        let forgetting = tokio::spawn(async move {
            if let Some(writing) = writing {
                // The result of this write no longer matters.
                let _ = writing.await;
            }
            spawn_blocking(move || state_file::forget(&path)).await
        });
        let _ = tokio::time::timeout(limits::STATE_FILE_REMOVAL, forgetting).await;
    }

    fn write_next(&mut self) {
        self.is_touch = false;
        let Some((path, job_state)) = self.path.clone().zip(self.next.take()) else {
            self.patience = None;
            return;
        };
        let kept = self.kept;
        self.last = Some(job_state.clone());
        self.touch_at = Some(clock::now() + limits::STATE_FILE_INTERVAL);
        self.writing =
            Some(spawn_blocking(move || state_file::write_job_state(&path, &job_state, kept)));
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use ragent_rendezvous::ids::{JobUid, Round};
    use tokio::sync::oneshot;

    use super::*;

    const KEPT: Duration = Duration::from_secs(600);

    fn job_state(round: u64) -> JobState {
        JobState { round: Round(round), ..JobState::new(JobUid::new("u")) }
    }

    /// Effects wait until the state is written, and not longer.
    #[tokio::test]
    async fn writing_is_awaited() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run/job.json");
        let mut file = StateWriter::new(Some(path.clone()));
        assert!(!file.is_awaited());
        file.remember(job_state(1), KEPT);
        assert!(file.is_awaited() && file.poll_timeout().is_some());
        file.written().await;
        assert!(!file.is_awaited());
        assert_eq!(state_file::read_job_state(&path), Some(job_state(1)));
        file.forget().await;
        assert_eq!(state_file::read_job_state(&path), None);
    }

    /// Of all states that arrive during a write, only the newest is written next.
    #[tokio::test]
    async fn newest_is_written_last() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job.json");
        let mut file = StateWriter::new(Some(path.clone()));
        for round in 1..=3 {
            file.remember(job_state(round), KEPT);
        }
        file.written().await;
        assert!(file.is_awaited());
        file.written().await;
        assert!(!file.is_awaited());
        assert_eq!(state_file::read_job_state(&path), Some(job_state(3)));
    }

    /// Effects do not wait for a slow or failing disk. Without a state file they never wait.
    #[tokio::test]
    async fn disk_keeps_nobody() {
        let mut file = StateWriter::new(Some("/proc/no/job.json".into()));
        file.remember(job_state(1), KEPT);
        file.handle_timeout(clock::now() + limits::STATE_FILE_PATIENCE);
        assert!(!file.is_awaited());
        file.remember(job_state(2), KEPT);
        file.written().await;
        file.written().await;
        assert!(!file.is_awaited());
        let mut nowhere = StateWriter::new(None);
        nowhere.remember(job_state(1), KEPT);
        assert!(!nowhere.is_awaited());
    }

    /// The file of a finished job is removed after the current write has ended. That write would create it again.
    #[tokio::test(start_paused = true)]
    async fn removal_follows_the_last_write() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job.json");
        let mut file = StateWriter::new(Some(path.clone()));
        // A write that ends only when the test allows it.
        let (resume, resumed) = oneshot::channel();
        let written_to = path.clone();
        file.writing = Some(tokio::spawn(async move {
            let _ = resumed.await;
            state_file::write_job_state(&written_to, &job_state(1), KEPT)
        }));
        let mut forgetting = pin!(file.forget());
        // The clock moves only when no task can continue and no removal is running.
        let early = tokio::time::timeout(limits::STATE_FILE_REMOVAL / 2, &mut forgetting).await;
        assert!(early.is_err(), "the file is removed before the write has ended");
        resume.send(()).unwrap();
        forgetting.await;
        assert!(!path.exists());
    }

    /// The file is rewritten at intervals, so that its age stays small. Effects do not wait for
    /// that, but they wait for a new state.
    #[tokio::test]
    async fn file_is_kept_young() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job.json");
        let mut file = StateWriter::new(Some(path.clone()));
        assert_eq!(file.poll_timeout(), None);
        file.remember(job_state(1), KEPT);
        file.written().await;
        let touch_at = file.poll_timeout().unwrap();
        assert!(touch_at > clock::now());
        std::fs::remove_file(&path).unwrap();
        file.handle_timeout(touch_at);
        assert!(!file.is_awaited());
        file.remember(job_state(2), KEPT);
        assert!(file.is_awaited());
        file.written().await;
        assert!(file.is_awaited());
        file.written().await;
        assert!(!file.is_awaited());
        assert_eq!(state_file::read_job_state(&path), Some(job_state(2)));
    }
}
