//! The record of a job that has failed permanently, for agents that a service manager restarts.

use std::{
    io,
    path::{Path, PathBuf},
};

use ragent_rendezvous::{ids::RunId, message::Outcome};

use super::files::{job_key, read, replace};
use crate::{spec::Endpoint, sys::host::ThisHost};

/// A file with the outcome of a job that has failed permanently, in a folder that a service manager
/// keeps for as long as it restarts the agent.
///
/// Without such a folder nothing is recorded: a user who starts an agent again by hand wants the
/// job to run again.
#[derive(Debug)]
pub struct ClosedJob(PathBuf);

impl ClosedJob {
    /// Returns the file for a job; `None` without a service manager.
    pub fn of(run_id: &RunId, endpoint: &Endpoint) -> Option<Self> {
        let folder = ThisHost.service_dir()?;
        Some(Self(folder.join(format!("closed-{}.json", job_key(run_id, endpoint)))))
    }

    /// Returns the outcome of the job, if it has failed permanently.
    pub fn outcome(&self) -> Option<Outcome> {
        read(&self.0)
    }

    /// Records the outcome of the job.
    ///
    /// # Errors
    ///
    /// Returns the system's error.
    pub fn remember(&self, outcome: &Outcome) -> io::Result<()> {
        replace(&self.0, &serde_json::to_vec(outcome)?)
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.0
    }
}
