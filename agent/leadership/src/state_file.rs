//! Keeps small files from which a restarted process recovers, and from which `ragent status` lists the jobs of this machine.
//!
//! They are in a folder that only their user can write to, `PrivateFolder`:
//!
//! - `job_state`: the state of a coordinator or voter. `death_notice`, next to it: the proof that its host has ended.
//! - `closed_job`: the outcome of a job, for agents that a service manager restarts. `ended_jobs`: jobs whose state files do not count.
//! - `agent_file`: a running agent. `warned_jobs`: jobs with a warning that was already printed.
//!
//! `age` and `cleaning` keep old files from being used. `files` has their names.

mod age;
mod agent_file;
mod cleaning;
mod closed_job;
mod death_notice;
mod ended_jobs;
mod files;
mod job_state;
mod warned_jobs;

use std::path::Path;

use ragent_base::sys::private_folder::PrivateFolder;

pub use self::{
    agent_file::{
        AgentFile, RegisteredCredentials, RunningAgent, Stage, running_agents, running_agents_in,
    },
    cleaning::clean,
    closed_job::ClosedJob,
    death_notice::{
        DEATH_NOTICE_PATH, DeathNotice, has_death_notice, parse_death_notice, write_death_notice,
    },
    ended_jobs::EndedJobs,
    files::{job_state_path, member_path, member_ports, voter_path},
    job_state::{read_copy, read_job_state, write_copy},
    warned_jobs::is_first_warning,
};
use self::{
    death_notice::death_notice_path,
    files::{folder_of, name_of},
};

/// Removes the content of a state file that could not be written. A process that continues from the old content could elect a leader by an
/// older list of voters. Returns true if the content is gone.
pub(crate) fn discard(state_file: &Path) -> bool {
    forget(state_file);
    !state_file.exists() || std::fs::write(state_file, "").is_ok()
}

/// Removes the state file of a job, if there is one.
pub fn forget(state_file: &Path) {
    let Ok(folder) = PrivateFolder::open(folder_of(state_file)) else { return };
    for path in [state_file, &death_notice_path(state_file)] {
        folder.remove(name_of(path));
    }
}
