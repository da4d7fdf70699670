//! A folder for sockets of this node's workers, which only this user can access.

use std::{
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use ragent_base::sys::{
    folder_lock::{is_old, lock, random_name},
    private_folder::PrivateFolder,
};
use ragent_rendezvous::ids::LocalRank;

/// A folder with a random name. Dropping this removes it, with the sockets in it.
#[derive(Debug)]
pub struct SocketFolder {
    path: PathBuf,
    /// `None` if the file system has no locks.
    _lock: Option<File>,
}

impl SocketFolder {
    /// Makes a folder in `dir`, and removes those of killed agents.
    ///
    /// # Errors
    ///
    /// Returns the system's error, or that another user can put another folder in the place of `dir`.
    pub fn make(dir: &Path) -> io::Result<Self> {
        PrivateFolder::make_for_paths(dir)?;
        remove_left(dir);
        let path = dir.join(format!("{PREFIX}{}", random_name()));
        DirBuilder::new().mode(0o700).create(&path)?;
        let lock = lock(&path).ok();
        Ok(Self { path, _lock: lock })
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFolder {
    fn drop(&mut self) {
        // The folder has no other files. If it stays, it does no harm.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Returns the path of the socket of a worker for checkpoints in memory, which is `RAGENT_MEMORY_SOCKET`.
pub fn memory_socket(folder: &Path, worker: LocalRank) -> PathBuf {
    folder.join(format!("{worker}.memory"))
}

/// Removes the sockets of killed agents, among the first entries.
fn remove_left(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten().take(EXAMINED) {
        let folder = entry.path();
        if is_old(&entry, PREFIX)
            && let Ok(_lock) = lock(&folder)
        {
            // A folder that stays does no harm.
            let _ = fs::remove_dir_all(&folder);
        }
    }
}

const PREFIX: &str = "sockets-";

/// The number of entries that are examined: more than agents run on a machine. A thousand agents that start together would else examine each
/// other's folders.
const EXAMINED: usize = 32;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// No sockets are made where another user can put other ones in their place.
    #[test]
    fn replaceable_folders_are_refused() {
        let temp = tempfile::tempdir().unwrap();
        for (mode, expected) in [(0o777, false), (0o2770, false), (0o1777, true), (0o755, true)] {
            fs::set_permissions(temp.path(), fs::Permissions::from_mode(mode)).unwrap();
            let made = SocketFolder::make(&temp.path().join("ragent"));
            assert_eq!(made.is_ok(), expected, "{mode:o}: {made:?}");
        }
    }

    /// The sockets of a killed agent are removed. Those of a running agent are kept, however old they are, even if another process has its
    /// process id, or if the id is unknown because the agent is in another container.
    #[test]
    fn only_sockets_of_killed_agents_are_removed() {
        let temp = tempfile::tempdir().unwrap();
        let open = || SocketFolder::make(temp.path()).unwrap();
        let (running, killed) = (open(), temp.path().join(format!("{PREFIX}AAAAAAAA")));
        DirBuilder::new().mode(0o700).create(&killed).unwrap();
        for folder in [running.path(), &killed] {
            File::open(folder).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
        }
        let other = open();
        assert_ne!(other.path(), running.path());
        assert!(running.path().exists() && !killed.exists());
        drop((running, other));
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 0);
    }
}
