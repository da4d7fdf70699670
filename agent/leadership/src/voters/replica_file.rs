//! Writes a voter's copy of the job's state to its state file, which a restarted voter reads.
//!
//! Effects do not wait for the file, because a majority of the voters has the state. A change of the voters is the exception.

use std::{
    io,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use ragent_base::sys::clock;
use ragent_election::election::message::Knowledge;
use tokio::{sync::watch, task::spawn_blocking};
use tracing::warn;

use crate::{Stored, limits, state_file};

/// The state file of a voter. Two threads write it.
#[derive(Debug)]
pub struct ReplicaFile {
    path: PathBuf,
    /// The time that agents may wait for the next leader.
    kept: Duration,
    /// The newest state in the file.
    newest: Mutex<Knowledge>,
}

impl ReplicaFile {
    /// Names a file. It need not exist.
    pub fn new(path: PathBuf, kept: Duration) -> Self {
        Self { path, kept, newest: Mutex::default() }
    }

    /// Writes a state, unless the file has a newer one.
    ///
    /// # Errors
    ///
    /// Returns the system's error.
    pub fn write(&self, stored: &Stored) -> io::Result<()> {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let knowledge = stored.replica.knowledge();
        if knowledge < *newest {
            return Ok(());
        }
        state_file::write_copy(&self.path, stored, self.kept)?;
        *newest = knowledge;
        Ok(())
    }

    /// Removes the content of a file that could not be written. Returns true if it is gone.
    pub fn discard(&self) -> bool {
        state_file::discard(&self.path)
    }
}

/// Writes each change of `stored`, until the voter ends.
pub async fn keep(file: Arc<ReplicaFile>, mut stored: watch::Receiver<Stored>) {
    let mut is_reported = false;
    loop {
        let (to, state) = (Arc::clone(&file), stored.borrow_and_update().clone());
        let written = spawn_blocking(move || to.write(&state)).await;
        match written.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(()) => is_reported = false,
            Err(error) if !is_reported => {
                is_reported = true;
                warn!(
                    path = %file.path.display(), %error,
                    "failed to write the state of the job; this voter will not know it after a restart"
                );
            }
            Err(_) => {}
        }
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
        let job_state = JobState::new(JobUid::new("u"));
        state_file::write_job_state(&path, &job_state, Duration::from_secs(600)).unwrap();
        assert_eq!(state_file::read_copy(&path), None);
    }
}
