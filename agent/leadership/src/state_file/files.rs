//! Names the state files, and accesses them in their private folder.

use std::{
    ffi::{OsStr, OsString},
    fmt::Display,
    io,
    path::{Path, PathBuf},
};

use ragent_base::{
    net::Endpoint,
    sys::{host::ThisHost, private_folder::PrivateFolder},
};
use ragent_rendezvous::ids::RunId;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

/// Returns the path of the state file for the coordinator of a job at `endpoint`.
pub fn job_state_path(run_id: &RunId, endpoint: &Endpoint) -> PathBuf {
    ThisHost.state_dir().join(format!("job-{}.json", job_key(run_id, endpoint.port)))
}

/// Returns the path of the state file for a job's voter at `endpoint`. Voters of one machine may share a port at different addresses.
pub fn voter_path(run_id: &RunId, endpoint: &Endpoint) -> PathBuf {
    ThisHost.state_dir().join(format!("job-{}.json", job_key(run_id, endpoint)))
}

/// Returns the path of the state file for a voter that is not in the user's list. `list` is that list as given, or `auto`; `port` is the
/// port of its agent.
pub fn member_path(run_id: &RunId, list: &str, port: u16) -> PathBuf {
    ThisHost.state_dir().join(format!("{}{port}.json", member_prefix(run_id, list)))
}

/// Returns the ports of the agents that have left such files for a job.
pub fn member_ports(run_id: &RunId, list: &str) -> Vec<u16> {
    let Ok(folder) = PrivateFolder::open(&ThisHost.state_dir()) else { return Vec::new() };
    let prefix = member_prefix(run_id, list);
    let port =
        |name: OsString| name.to_str()?.strip_prefix(&prefix)?.strip_suffix(".json")?.parse().ok();
    folder.names().into_iter().filter_map(port).collect()
}

fn member_prefix(run_id: &RunId, list: &str) -> String {
    format!("job-{}-", job_key(run_id, format_args!("a member of {list}")))
}

/// Returns a string that distinguishes jobs in file names, by their name and `place`: the port of
/// the endpoint, or the voters.
pub(super) fn job_key(run_id: &RunId, place: impl Display) -> String {
    // The result is the same in every build, so that an upgraded agent finds its job.
    let digest = Sha256::digest(format!("{run_id}\0{place}"));
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// Parses a file; `None` if there is none, or if it has other content.
pub(super) fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_str(&read_text(path)?).ok()
}

/// Parses a file; `None` if there is none. An unusable folder was already reported when it was opened.
///
/// # Errors
///
/// Returns the reason why an existing file cannot be read, or has other content.
pub(super) fn read_if_there<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    let Ok(folder) = PrivateFolder::open(folder_of(path)) else { return Ok(None) };
    match folder.read(name_of(path)) {
        Ok(text) => Ok(Some(serde_json::from_str(&text)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

pub(super) fn read_text(path: &Path) -> Option<String> {
    PrivateFolder::open(folder_of(path)).ok()?.read(name_of(path)).ok()
}

pub(super) fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    PrivateFolder::make(folder_of(path))?.replace(name_of(path), text)
}

pub(super) fn folder_of(path: &Path) -> &Path {
    path.parent().unwrap_or_else(|| Path::new("/"))
}

pub(super) fn name_of(path: &Path) -> &OsStr {
    path.file_name().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// File names of jobs do not depend on the build.
    #[test]
    fn names_are_fixed() {
        assert_eq!(job_key(&RunId::new("run"), 29400), "66a9e947e24ea6ea");
    }
}
