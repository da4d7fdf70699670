//! Records that a job has ended for good, for agents that a service manager restarts.

use std::{
    io,
    path::{Path, PathBuf},
};

use ragent_base::{net::DEFAULT_PORT, sys::host::ThisHost};
use ragent_options::spec::RendezvousMethod;
use ragent_rendezvous::{ids::RunId, message::Outcome};

use super::files::{job_key, read, replace};

/// A file with the outcome of a job that has succeeded or failed permanently. It is in a folder that a service manager keeps while it
/// restarts the agent.
///
/// Without such a folder nothing is recorded: a user who starts an agent again by hand wants the job to run again.
#[derive(Debug)]
pub struct ClosedJob(PathBuf);

impl ClosedJob {
    /// Returns the file for a job; `None` without a service manager.
    pub fn of(run_id: &RunId, rendezvous: &RendezvousMethod) -> Option<Self> {
        let folder = ThisHost.service_dir()?;
        Some(Self(folder.join(format!("closed-{}.json", key(run_id, rendezvous)))))
    }

    /// Returns the outcome of the job, if it is recorded.
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

/// Returns a string that distinguishes jobs in file names, by their port or voters.
fn key(run_id: &RunId, rendezvous: &RendezvousMethod) -> String {
    match rendezvous {
        RendezvousMethod::Standalone => job_key(run_id, DEFAULT_PORT),
        RendezvousMethod::Endpoint { endpoint, .. } => job_key(run_id, endpoint.port),
        RendezvousMethod::Voters(voters) => job_key(run_id, voters),
        RendezvousMethod::Etcd(etcd) => job_key(run_id, etcd),
        RendezvousMethod::Search(search) => job_key(run_id, search.port),
        RendezvousMethod::Static { master, .. } => job_key(run_id, master.port),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Jobs with the same name and different voters have different files.
    #[test]
    fn jobs_differ_in_their_voters() {
        let key = |voters: &str| {
            let voters = voters.parse().unwrap();
            key(&RunId::new("run"), &RendezvousMethod::Voters(voters))
        };
        assert_eq!(key("a,b,c"), key("a:29400,b:29400,c:29400"));
        assert_ne!(key("a,b,c"), key("a,b,d"));
    }
}
