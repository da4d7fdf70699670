//! A folder that only its user can write to, and the files in it.
//!
//! Other users may be able to write to the parent folder, as to `/tmp`: an entry of the same name
//! may be theirs, or a link to anywhere. So the folder is opened once, without following a link,
//! its owner and mode are checked on the descriptor, and all other access is relative to that
//! descriptor.

use std::{
    ffi::OsStr,
    fs::{self, DirBuilder, File, Metadata},
    io::{self, Read, Write},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::{DirBuilderExt, FileExt, MetadataExt},
    },
    path::Path,
    sync::Once,
};

use nix::{
    fcntl::{OFlag, open, openat, renameat},
    sys::stat::Mode,
    unistd::{UnlinkatFlags, geteuid, unlinkat},
};
use tracing::warn;

use super::{parents, proc, users};
use crate::sys::limits;

/// A folder that belongs to this user, and that no other user can write to.
#[derive(Debug)]
pub struct PrivateFolder(OwnedFd);

impl PrivateFolder {
    /// Opens the folder at `path`.
    ///
    /// # Errors
    ///
    /// Returns the system's error, or [`io::ErrorKind::PermissionDenied`] if another user owns the
    /// folder or can write to it.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        let found = match open(path, flags, Mode::empty()) {
            Ok(folder) => File::from(folder),
            Err(errno) => {
                let error = io::Error::from(errno);
                if error.kind() != io::ErrorKind::NotFound {
                    warn_once(path, &error.to_string());
                }
                return Err(error);
            }
        };
        let about = found.metadata()?;
        let (owner, mode) = (about.uid(), about.mode() & 0o7777);
        if !users::owns(&found, owner, mode) || mode & 0o022 != 0 {
            warn_once(path, &format!("it belongs to uid {owner} and has mode {mode:04o}"));
            let error = "other users may write to its folder";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, error));
        }
        Ok(Self(found.into()))
    }

    /// Creates the folder if it does not exist, and opens it.
    ///
    /// # Errors
    ///
    /// As [`PrivateFolder::open`].
    pub fn make(path: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        Self::open(path)
    }

    /// As [`PrivateFolder::make`], for entries that other processes of this user open by their path.
    ///
    /// # Errors
    ///
    /// As [`PrivateFolder::make`], and if another user can put another folder in the place of this one.
    pub fn make_for_paths(path: &Path) -> io::Result<Self> {
        let folder = Self::make(path)?;
        match parents::unsound(path)? {
            None => Ok(folder),
            Some(why) => Err(io::Error::other(format!(
                "other users can put another folder in the place of {}, because {why}; name another one with \
                 XDG_RUNTIME_DIR or TMPDIR",
                path.display()
            ))),
        }
    }

    /// Reads a file, up to [`limits::MAX_STATE_FILE`].
    ///
    /// # Errors
    ///
    /// Returns the system's error, or [`io::ErrorKind::PermissionDenied`] if it is not a regular
    /// file of this user.
    pub fn read(&self, name: &OsStr) -> io::Result<String> {
        let (file, _) = self.open_file(name, OFlag::O_RDONLY)?;
        let mut text = String::new();
        file.take(limits::MAX_STATE_FILE).read_to_string(&mut text)?;
        Ok(text)
    }

    /// Returns true if there is a file of that name.
    pub fn has(&self, name: &OsStr) -> bool {
        self.open_file(name, OFlag::O_RDONLY).is_ok()
    }

    /// Overwrites a file that already has the length of `text`; returns false if there is none.
    ///
    /// # Errors
    ///
    /// Returns the system's error of the write.
    pub fn write_over(&self, name: &OsStr, text: &[u8]) -> io::Result<bool> {
        match self.open_file(name, OFlag::O_WRONLY) {
            Ok((file, about)) if about.len() == text.len() as u64 => {
                file.write_all_at(text, 0).map(|()| true)
            }
            Ok(_) | Err(_) => Ok(false),
        }
    }

    /// Writes a temporary file and renames it, so that a reader sees the old file or the new one.
    ///
    /// # Errors
    ///
    /// Returns the system's error.
    pub fn replace(&self, name: &OsStr, text: &[u8]) -> io::Result<()> {
        self.replace_locked(name, text).map(drop)
    }

    /// As [`PrivateFolder::replace`]. The file is locked as long as the returned one is open, if the file system has locks.
    ///
    /// # Errors
    ///
    /// Returns the system's error.
    pub fn replace_locked(&self, name: &OsStr, text: &[u8]) -> io::Result<File> {
        let mut draft = name.to_owned();
        draft.push(format!(".{}.tmp", std::process::id()));
        // A temporary file of an earlier process with the same number.
        self.remove(&draft);
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        let file = openat(&self.0, draft.as_os_str(), flags | OFlag::O_NOFOLLOW, mode)?;
        let mut file = File::from(file);
        file.write_all(text)?;
        let _ = file.try_lock();
        renameat(&self.0, draft.as_os_str(), &self.0, name)?;
        Ok(file)
    }

    /// Removes a file that no process has locked.
    pub fn remove_unlocked(&self, name: &OsStr) {
        let open = || self.open_file(name, OFlag::O_RDONLY);
        let Ok((file, about)) = open() else { return };
        // A process that replaces its file unlocks the old one afterwards: then the name is that of another file.
        if file.try_lock().is_ok() && open().is_ok_and(|(_, now)| now.ino() == about.ino()) {
            self.remove(name);
        }
    }

    /// Removes a file; there may be none.
    pub fn remove(&self, name: &OsStr) {
        let _ = unlinkat(&self.0, name, UnlinkatFlags::NoRemoveDir);
    }

    /// Returns the first [`limits::MAX_STATE_ENTRIES`] names in the folder.
    pub fn names(&self) -> Vec<std::ffi::OsString> {
        let here = proc::descriptor(self.0.as_fd().as_raw_fd());
        let entries = fs::read_dir(here).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name()).take(limits::MAX_STATE_ENTRIES).collect()
    }

    /// Opens a regular file of this user, without further hard links.
    fn open_file(&self, name: &OsStr, how: OFlag) -> io::Result<(File, Metadata)> {
        // Opening a pipe must not wait for its other end.
        let flags = how | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let file = File::from(openat(&self.0, name, flags, Mode::empty())?);
        let about = file.metadata()?;
        let is_own = users::owns(&file, about.uid(), about.mode() & 0o7777);
        if about.is_file() && is_own && about.nlink() == 1 {
            return Ok((file, about));
        }
        Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "it is not a regular file of this user with a single link",
        ))
    }
}

/// Logs the reason why the folder is not used, once per process.
fn warn_once(path: &Path, why: &str) {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        warn!(
            "the folder {} is not used for state: {why}; it must belong to uid {}, and no other \
             user may write to it",
            path.display(),
            geteuid()
        );
    });
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use nix::unistd::mkfifo;

    use super::*;

    fn chmod(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    /// A folder that others can write to, or that is reached through a link, is not used.
    #[test]
    fn folders_of_others_are_not_used() {
        let temp = tempfile::tempdir().unwrap();
        let (own, link) = (temp.path().join("own"), temp.path().join("link"));
        assert!(PrivateFolder::open(&own).is_err());
        PrivateFolder::make(&own).unwrap();
        symlink(&own, &link).unwrap();
        for open in [PrivateFolder::open, PrivateFolder::make] {
            assert!(open(&own).is_ok());
            assert!(open(&link).is_err());
            for mode in [0o777, 0o720, 0o702, 0o1777] {
                chmod(&own, mode);
                let error = open(&own).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{mode:o}");
            }
            chmod(&own, 0o755);
            assert!(open(&own).is_ok());
        }
    }

    /// Only a regular file of the user, without further hard links, is read or overwritten.
    #[test]
    fn strange_files_are_no_files() {
        let temp = tempfile::tempdir().unwrap();
        let (own, elsewhere) = (temp.path().join("own"), temp.path().join("elsewhere"));
        let folder = PrivateFolder::make(&own).unwrap();
        fs::write(&elsewhere, "secret").unwrap();
        symlink(&elsewhere, own.join("link")).unwrap();
        fs::hard_link(&elsewhere, own.join("hard")).unwrap();
        fs::create_dir(own.join("folder")).unwrap();
        mkfifo(&own.join("pipe"), Mode::S_IRWXU).unwrap();
        for name in ["link", "hard", "folder", "pipe", "nothing"].map(OsStr::new) {
            assert!(folder.read(name).is_err(), "{name:?}");
            assert!(!folder.has(name));
            assert!(!folder.write_over(name, b"public").unwrap());
        }
        assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "secret");
        // The entry of this name is a new file afterwards.
        folder.replace(OsStr::new("hard"), b"mine").unwrap();
        assert_eq!(folder.read(OsStr::new("hard")).unwrap(), "mine");
        assert!(folder.write_over(OsStr::new("hard"), b"ours").unwrap());
        assert_eq!(folder.read(OsStr::new("hard")).unwrap(), "ours");
        assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "secret");
        assert_eq!(folder.names().len(), 4);
    }
}
