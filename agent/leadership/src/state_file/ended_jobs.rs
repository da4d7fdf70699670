//! Records the jobs of one name that have ended, as far as this machine knows.
//!
//! State files of these jobs do not count any more, on this machine and on others.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use ragent_base::sys::host::ThisHost;
use ragent_rendezvous::ids::{JobUid, RunId};
use serde::{Deserialize, Serialize};
use tracing::debug;

use super::{
    age::{self, WriteStamp},
    files::{job_key, read, replace},
};

/// The jobs of one name that have ended.
#[derive(Clone, Debug)]
pub struct EndedJobs {
    path: PathBuf,
    /// The life of a state file after its last write.
    kept: Duration,
    /// Held while the file is changed, because each change reads it first.
    changes: Arc<Mutex<()>>,
}

#[derive(Debug, Deserialize, Serialize)]
struct EndedJob {
    uid: String,
    written: WriteStamp,
}

/// The maximum number of jobs. More would mean that a job is started again every few seconds.
const MAX: usize = 8;

/// Time that a job is remembered beyond the life of its state files.
const MARGIN: Duration = Duration::from_secs(70);

impl EndedJobs {
    /// Returns the ended jobs of a name. Its state files live for `kept` after their last write.
    pub fn of(run_id: &RunId, kept: Duration) -> Self {
        let name = format!("ended-{}.json", job_key(run_id, "ended"));
        Self { path: ThisHost.state_dir().join(name), kept, changes: Arc::default() }
    }

    /// Returns the jobs, newest last; none if the file is missing or malformed.
    pub fn read(&self) -> Vec<JobUid> {
        self.entries().into_iter().map(|job| JobUid::new(job.uid)).collect()
    }

    /// Adds a job. An error is only logged: without this record, a process that returns with a state file of that job waits until the file
    /// is too old.
    pub fn add(&self, uid: &JobUid) {
        // A poisoned lock is harmless: it protects only a file, which is replaced as a whole.
        let _held = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut jobs = self.entries();
        jobs.retain(|job| job.uid != uid.as_str());
        jobs.push(EndedJob { uid: uid.to_string(), written: WriteStamp::now() });
        let first = jobs.len().saturating_sub(MAX);
        let written = serde_json::to_vec(&jobs[first..])
            .map_err(std::io::Error::other)
            .and_then(|text| replace(&self.path, &text));
        if let Err(error) = written {
            debug!(path = %self.path.display(), %error, "failed to record the end of a job");
        }
    }

    fn entries(&self) -> Vec<EndedJob> {
        let jobs: Vec<EndedJob> = read(&self.path).unwrap_or_default();
        let (now, changed) = (WriteStamp::now(), age::changed(Path::new(&self.path)));
        let lives = self.kept.saturating_add(MARGIN);
        let is_recent = |job: &EndedJob| job.written.age(&now, changed) <= lives;
        let jobs: Vec<EndedJob> =
            jobs.into_iter().filter(|job| !job.uid.is_empty() && is_recent(job)).collect();
        let first = jobs.len().saturating_sub(MAX);
        jobs.into_iter().skip(first).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The newest jobs are kept, each once. A malformed file counts as empty and is replaced.
    #[test]
    fn newest_jobs_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ended-x.json");
        let jobs = EndedJobs {
            path: path.clone(),
            kept: Duration::from_secs(600),
            changes: Arc::default(),
        };
        assert_eq!(jobs.read(), []);
        std::fs::write(&path, "[{").unwrap();
        assert_eq!(jobs.read(), []);
        for number in [1, 2, 1].into_iter().chain(3..=9) {
            jobs.add(&JobUid::new(format!("job{number}")));
        }
        let expected: Vec<_> =
            [1, 3, 4, 5, 6, 7, 8, 9].map(|number| JobUid::new(format!("job{number}"))).into();
        assert_eq!(jobs.read(), expected);
    }
}
