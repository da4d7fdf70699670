//! The mark of the first start under a name that no other job has, such as that of a step of Slurm.

use std::{ffi::OsString, path::Path};

use ragent_rendezvous::ids::RunId;

use super::files::job_key;
use crate::sys::{host::ThisHost, private_folder::PrivateFolder};

/// The beginning of the names of these files.
pub(super) const PREFIX: &str = "begun-";

/// Records that the agent of a node was started, and returns true if none was before. Returns false also if that cannot be
/// recorded, so that an agent that is started again in a script's loop is never taken for the first one.
pub fn mark_start(run_id: &RunId, node_rank: Option<u32>) -> bool {
    mark_start_in(&ThisHost.state_dir(), run_id, node_rank)
}

fn mark_start_in(folder: &Path, run_id: &RunId, node_rank: Option<u32>) -> bool {
    let rank = node_rank.map_or(-1, i64::from);
    let name = OsString::from(format!("{PREFIX}{}", job_key(run_id, rank)));
    PrivateFolder::make(folder).and_then(|folder| folder.create(&name)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only the first agent of a node and a name is the first one; none is without a folder that can be written to.
    #[test]
    fn first_start_is_marked() {
        let folder = tempfile::tempdir().unwrap();
        let mark = |name: &str, rank| mark_start_in(folder.path(), &RunId::new(name), rank);
        for (name, rank) in [("a", None), ("b", None), ("a", Some(0)), ("a", Some(1))] {
            assert_eq!([(); 2].map(|()| mark(name, rank)), [true, false], "{name} {rank:?}");
        }
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(!mark_start_in(&file, &RunId::new("a"), None));
    }
}
