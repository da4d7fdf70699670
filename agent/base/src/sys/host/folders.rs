//! The folders for run-time state, sockets and temporary files.

use std::path::{Path, PathBuf};

use nix::unistd;

use super::{Host, ThisHost};
use crate::sys::limits;

/// The length of `/sockets-AAAAAAAA/4095.memory` with its terminator.
const SOCKET_NAME: usize = 31;

impl ThisHost {
    /// The user's own folder for run-time state: `$XDG_RUNTIME_DIR`, else the temp folder.
    pub fn runtime_dir(self) -> PathBuf {
        match self.env("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty()) {
            Some(dir) => PathBuf::from(dir).join("ragent"),
            None => self.temp_dir().join(format!("ragent-{}", unistd::getuid())),
        }
    }

    /// A subfolder of the folder that a service manager keeps while it restarts this process:
    /// `$RUNTIME_DIRECTORY`, which systemd sets for `RuntimeDirectory=`. A subfolder, because that
    /// folder may be open to others.
    pub fn service_dir(self) -> Option<PathBuf> {
        let dirs = self.env("RUNTIME_DIRECTORY")?;
        let dir = std::env::split_paths(&dirs).next().filter(|dir| dir.is_absolute())?;
        Some(dir.join("ragent"))
    }

    /// The folder where a restarted agent finds the state of its predecessor.
    pub fn state_dir(self) -> PathBuf {
        self.service_dir().unwrap_or_else(|| self.runtime_dir())
    }

    /// The user's own folder, where the paths of Unix sockets are short enough.
    pub fn socket_dir(self) -> PathBuf {
        let own = format!("ragent-{}", unistd::getuid());
        let fits = |path: &PathBuf| path.as_os_str().len() + SOCKET_NAME < limits::MAX_SOCKET_PATH;
        let dirs = [self.runtime_dir(), self.temp_dir().join(&own)];
        dirs.into_iter().find(fits).unwrap_or_else(|| Path::new("/tmp").join(own))
    }

    /// The folder for temporary files: `$TMPDIR` if that is a folder, else `/tmp`, as for Python.
    pub fn temp_dir(self) -> PathBuf {
        let named = self.env("TMPDIR").map(PathBuf::from);
        named.filter(|dir| dir.is_dir()).unwrap_or_else(|| "/tmp".into())
    }
}
