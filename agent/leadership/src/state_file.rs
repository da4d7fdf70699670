//! Small files from which a restarted coordinator recovers its job, and from which `ragent status`
//! lists the jobs of this machine. They are in a folder that only their user can write to:
//! `PrivateFolder`.
//!
//! `job_state` is the state file of a coordinator, `death_notice` the file next to it that proves the end of
//! its host. `closed_job` records a job that has ended for good, `agent_file` a running agent.

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
    death_notice::{DeathNotice, has_death_notice, parse_death_notice, write_death_notice},
    ended_jobs::EndedJobs,
    files::{job_state_path, member_path, member_ports, voter_path},
    job_state::{read_copy, read_job_state, write_copy, write_job_state},
    warned_jobs::is_first_warning,
};
use self::{
    death_notice::death_notice_path,
    files::{folder_of, name_of},
};

/// Removes the content of a state file that could not be written: a process that continues from an older state could elect a leader
/// by an older list of voters. Returns true if it is gone.
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
