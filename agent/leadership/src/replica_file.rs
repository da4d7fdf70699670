//! Writes the state of the job to the state file of a voter, or of a fixed coordinator, which a restarted process reads. No loop waits for the
//! disk.
//!
//! Effects of a voter do not wait for the file, because a majority of the voters has the state. A change of the voters is the exception.
//! Effects of a fixed coordinator wait until `ReplicaFile::attempted` has their state.

use std::{
    io,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use ragent_base::sys::clock;
use ragent_election::election::message::{Knowledge, Version};
use tokio::{sync::watch, task::spawn_blocking};
use tracing::warn;

use crate::{Stored, limits, state_file};

/// The state file of a voter or a fixed coordinator. Several threads write it.
#[derive(Debug)]
pub struct ReplicaFile {
    path: PathBuf,
    /// The time that agents may wait for the next leader.
    kept: Duration,
    /// The newest state in the file; `None` after its removal.
    newest: Mutex<Option<Knowledge>>,
    attempted: watch::Sender<Version>,
}

impl ReplicaFile {
    /// Names a file. It need not exist.
    pub fn new(path: PathBuf, kept: Duration) -> Self {
        let newest = Mutex::new(Some(Knowledge::default()));
        Self { path, kept, newest, attempted: watch::Sender::default() }
    }

    /// Writes a state, unless the file has a newer one or was removed.
    ///
    /// # Errors
    ///
    /// Returns the system's error.
    pub fn write(&self, stored: &Stored) -> io::Result<()> {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let knowledge = stored.replica.knowledge();
        if newest.is_none_or(|newest| knowledge < newest) {
            return Ok(());
        }
        state_file::write_copy(&self.path, stored, self.kept)?;
        *newest = Some(knowledge);
        Ok(())
    }

    /// Removes the file after the current write has ended. It is not written again.
    pub fn remove(&self) {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        *newest = None;
        state_file::forget(&self.path);
    }

    /// Returns the version of the newest state that [`keep`] has tried to write.
    pub(crate) fn attempted(&self) -> watch::Receiver<Version> {
        self.attempted.subscribe()
    }

    /// Removes the content of a file that could not be written. Returns true if it is gone.
    pub fn discard(&self) -> bool {
        state_file::discard(&self.path)
    }
}

/// Writes each change of `stored`, until the process that leads or votes ends. Of the states that arrive during a write, only the newest is
/// written.
pub async fn keep(file: Arc<ReplicaFile>, mut stored: watch::Receiver<Stored>) {
    let own = file.path.clone();
    // A slow disk must not delay the first write. Files that remain are removed next time.
    drop(spawn_blocking(move || state_file::clean(&own)));
    let mut is_reported = false;
    loop {
        // Written again even without a change, so that the age of the file stays small.
        let touch_at = clock::now() + limits::STATE_FILE_INTERVAL;
        tokio::select! {
            changed = stored.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            () = clock::until(Some(touch_at)) => {}
        }
        let (to, state) = (Arc::clone(&file), stored.borrow_and_update().clone());
        let version = state.replica.version;
        let written = spawn_blocking(move || to.write(&state)).await;
        match written.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(()) => is_reported = false,
            Err(error) if !is_reported => {
                is_reported = true;
                warn!(
                    path = %file.path.display(), %error,
                    "failed to write the state of the job; this process will not know it after a restart"
                );
            }
            Err(_) => {}
        }
        file.attempted.send_replace(version);
    }
}

#[cfg(test)]
mod tests {
    use ragent_election::election::message::{Lists, Replica, Version, VoterSlot};
    use ragent_rendezvous::{
        ids::{JobUid, Round, Term, VoterAddress, VoterId},
        settings::JobState,
    };

    use super::*;

    fn stored(number: u64) -> Stored {
        let version = Version { term: Term(7), number };
        let job_state = JobState { round: Round(number), ..JobState::new(JobUid::new("u")) };
        let slot = |n: u64| VoterSlot {
            address: VoterAddress::new(format!("n{n}:1")),
            voter: (n > 1).then_some(VoterId(n)),
        };
        let lists = Lists { last: vec![slot(1), slot(2)], before: Some(vec![slot(number)]) };
        let replica = Replica { version, lists, job_state: Some(job_state) };
        Stored { voter: Some(VoterId(2)), replica, highest: Term(9), is_led: true }
    }

    /// Each copy is written with its version. The last copy before the voter ends is written, too.
    #[tokio::test]
    async fn copies_are_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job.json");
        let (sender, receiver) = watch::channel(Stored::default());
        let kept = Duration::from_secs(600);
        let file = Arc::new(ReplicaFile::new(path.clone(), kept));
        let keeping = tokio::spawn(keep(Arc::clone(&file), receiver));
        sender.send_replace(stored(1));
        sender.send_replace(stored(2));
        drop(sender);
        keeping.await.unwrap();
        // A dropped sender does not hide its last value.
        let read = Stored { is_led: false, ..stored(2) };
        assert_eq!(state_file::read_copy(&path), Some(read.clone()));
        assert_eq!(
            state_file::read_job_state(&path).map(|job_state| job_state.round),
            Some(Round(2))
        );
        file.write(&stored(1)).unwrap();
        assert_eq!(state_file::read_copy(&path), Some(read), "an older state came later");
        file.remove();
        file.write(&stored(3)).unwrap();
        assert!(!path.exists(), "a removed file is written again");
    }

    /// The file is rewritten at intervals, so that its age stays small.
    #[tokio::test(start_paused = true)]
    async fn file_is_kept_young() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job.json");
        let file = Arc::new(ReplicaFile::new(path.clone(), Duration::from_secs(600)));
        let mut written = file.attempted();
        let (sender, receiver) = watch::channel(Stored::default());
        tokio::spawn(keep(Arc::clone(&file), receiver));
        sender.send_replace(stored(1));
        written.changed().await.unwrap();
        std::fs::remove_file(&path).unwrap();
        written.changed().await.unwrap();
        assert!(state_file::read_copy(&path).is_some());
    }

    /// The file of a job without a leader expires, even if restarted processes keep writing it.
    #[test]
    fn file_of_a_job_without_a_leader_expires() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job.json");
        // A file is still read for a while.
        let file = || ReplicaFile::new(path.clone(), Duration::ZERO);
        let age = |path: &std::path::Path| {
            let text = std::fs::read_to_string(path).unwrap();
            let mut content: serde_json::Value = serde_json::from_str(&text).unwrap();
            let at = content["written"]["boot_time_ms"].as_u64().unwrap();
            content["written"]["boot_time_ms"] = (at - 20_000).into();
            std::fs::write(path, content.to_string()).unwrap();
        };
        file().write(&stored(1)).unwrap();
        assert!(state_file::read_copy(&path).is_some());
        age(&path);
        file().write(&Stored { is_led: false, ..stored(1) }).unwrap();
        assert_eq!(state_file::read_copy(&path), None);
        file().write(&stored(1)).unwrap();
        assert!(state_file::read_copy(&path).is_some(), "a leader is known again");
        age(&path);
        let job_state = Some(JobState { round: Round(1), ..JobState::new(JobUid::new("other")) });
        let replica = Replica { job_state, ..stored(1).replica };
        file().write(&Stored { is_led: false, replica, ..stored(1) }).unwrap();
        assert!(state_file::read_copy(&path).is_some(), "another job");
    }

    /// The file of a fixed coordinator is not read as a copy.
    #[test]
    fn file_of_a_sole_coordinator_is_no_copy() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job.json");
        let file = ReplicaFile::new(path.clone(), Duration::from_secs(600));
        file.write(&Stored { voter: None, ..stored(1) }).unwrap();
        assert!(state_file::read_job_state(&path).is_some());
        assert_eq!(state_file::read_copy(&path), None);
    }
}
