//! Writes a voter's copy of the coordinator's memory to its state file. No effect waits for the file: a
//! majority of the voters has the memory. The file is read when the voter's process is started again.

use std::{io, path::PathBuf, time::Duration};

use tokio::{sync::watch, task::spawn_blocking};
use tracing::warn;

use super::state_file;
use crate::{coordinator::limits, sys::clock, voter::Stored};

/// Writes each change of `stored`, until its voter ends. `kept` is the time for which agents may wait for the
/// next leader.
pub(crate) async fn keep(path: PathBuf, mut stored: watch::Receiver<Stored>, kept: Duration) {
    let mut is_reported = false;
    loop {
        let (to, state) = (path.clone(), stored.borrow_and_update().clone());
        let written = spawn_blocking(move || state_file::write_copy(&to, &state, kept)).await;
        match written.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(()) => is_reported = false,
            Err(error) if !is_reported => {
                is_reported = true;
                warn!(
                    path = %path.display(), %error,
                    "failed to write the state of the job; this voter will not know it after a restart"
                );
            }
            Err(_) => {}
        }
        // Written again although nothing has changed, so that the age of the file stays small.
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
    use ragent_rendezvous::{
        election::message::{Replica, Version},
        ids::{JobUid, Round, Term},
        settings::Memory,
    };

    use super::*;

    fn stored(number: u64) -> Stored {
        let version = Version { term: Term(7), number };
        let memory = Memory { round: Round(number), ..Memory::fresh(JobUid::new("u")) };
        Stored { replica: Replica { version, memory: Some(memory) }, highest: Term(9) }
    }

    /// Each copy is written with its version, including the last copy before the voter ends.
    #[tokio::test]
    async fn copies_are_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job.json");
        let (sender, receiver) = watch::channel(Stored::default());
        let kept = Duration::from_secs(600);
        let keeping = tokio::spawn(keep(path.clone(), receiver, kept));
        sender.send_replace(stored(1));
        sender.send_replace(stored(2));
        drop(sender);
        keeping.await.unwrap();
        // A dropped sender does not hide its last value.
        assert_eq!(state_file::read_copy(&path), Some(stored(2)));
        assert_eq!(state_file::read_memory(&path).map(|memory| memory.round), Some(Round(2)));
    }

    /// The file of a sole coordinator is not read as a copy.
    #[test]
    fn file_of_a_sole_coordinator_is_no_copy() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job.json");
        let memory = Memory::fresh(JobUid::new("u"));
        state_file::write_memory(&path, &memory, Duration::from_secs(600)).unwrap();
        assert_eq!(state_file::read_copy(&path), None);
    }
}
