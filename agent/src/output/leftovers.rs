//! Removes temporary log folders that are no longer needed: those of killed agents, and of old
//! rounds.
//!
//! Only empty folders are removed, so no data is ever lost.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt,
    path::Path,
    time::Duration,
};

use nix::unistd::geteuid;

use crate::{limits, sys::clock};

/// The prefix of the names of temporary log folders.
pub(super) const PREFIX: &str = "ragent_";

/// Locks a folder as long as the returned file is open. Children do not inherit it.
pub(super) fn lock(folder: &Path) -> io::Result<File> {
    let lock = File::open(folder)?;
    lock.try_lock()?;
    Ok(lock)
}

/// Removes the temporary log folders in `temp_dir` that killed agents of this user left and that
/// contain no files.
pub(crate) fn clean(temp_dir: &Path) {
    for entry in fs::read_dir(temp_dir).into_iter().flatten().take(limits::MAX_TEMP_ENTRIES) {
        let Ok(entry) = entry else { continue };
        let folder = entry.path();
        // An agent holds the lock until it ends, and other processes remove a folder only with the
        // lock.
        if is_own(&entry)
            && let Ok(_lock) = lock(&folder)
        {
            remove_unused(&folder);
        }
    }
}

/// Returns true if an entry is a temporary log folder of this user, and an old one.
fn is_own(entry: &fs::DirEntry) -> bool {
    let name = entry.file_name();
    let suffix = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
    let is_named = suffix.is_some_and(|suffix| {
        suffix.len() == 8 && suffix.bytes().all(|byte| byte.is_ascii_alphanumeric())
    });
    // Symbolic links are not followed.
    is_named
        && entry.metadata().is_ok_and(|data| {
            data.is_dir()
                && data.uid() == geteuid().as_raw()
                && data.mode() & 0o077 == 0
                && age(&data) > limits::UNUSED_AFTER
        })
}

fn age(data: &fs::Metadata) -> Duration {
    let changed = u64::try_from(data.mtime()).map_or(Duration::MAX, Duration::from_secs);
    clock::wall_time().saturating_sub(changed)
}

/// Removes a folder that contains only folders.
pub(super) fn remove_unused(folder: &Path) {
    if !holds_files(folder) {
        remove_folders(folder);
    }
}

/// Removes the folders of attempts before `first` that contain no files.
pub(super) fn remove_attempts(run: &Path, first: u32) {
    for entry in fs::read_dir(run).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("attempt_"));
        if number.and_then(|number| number.parse().ok()).is_some_and(|number: u32| number < first) {
            remove_unused(&entry.path());
        }
    }
}

/// Returns true if `folder` contains anything but folders, or if that is unknown.
fn holds_files(folder: &Path) -> bool {
    let Ok(entries) = fs::read_dir(folder) else {
        return true;
    };
    entries.into_iter().any(|entry| {
        let Ok(entry) = entry else { return true };
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => holds_files(&entry.path()),
            Ok(_) | Err(_) => true,
        }
    })
}

fn remove_folders(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_folders(&entry.path());
        }
    }
    // The system refuses if something was written in the meantime; a folder that stays is harmless.
    let _ = fs::remove_dir(folder);
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::fs::{DirBuilderExt, symlink},
        time::UNIX_EPOCH,
    };

    use super::*;

    fn make(path: &Path) {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path).unwrap();
    }

    fn make_old(path: &Path) {
        let long_ago = UNIX_EPOCH + clock::wall_time() - 2 * limits::UNUSED_AFTER;
        File::open(path).unwrap().set_modified(long_ago).unwrap();
    }

    /// Folders that a killed agent left are removed, and no others: a folder is kept if it is in
    /// use, contains files, is fresh, is a symbolic link, or only has a similar name.
    #[test]
    fn only_folders_of_killed_agents_are_removed() {
        let temp = tempfile::tempdir().unwrap();
        let path = |name: &str| temp.path().join(name);
        for name in ["ragent_AAAAAAAA", "ragent_BBBBBBBB", "ragent_CCCCCCCC", "ragent_mine"] {
            make(&path(name).join("run/attempt_0/0"));
        }
        let held = lock(&path("ragent_BBBBBBBB")).unwrap();
        fs::write(path("ragent_CCCCCCCC").join("run/attempt_0/0/error.json"), "{}").unwrap();
        for name in ["ragent_AAAAAAAA", "ragent_BBBBBBBB", "ragent_CCCCCCCC", "ragent_mine"] {
            make_old(&path(name));
        }
        make(&path("ragent_DDDDDDDD"));
        make(&path("elsewhere"));
        symlink(path("elsewhere"), path("ragent_EEEEEEEE")).unwrap();
        make_old(&path("elsewhere"));
        clean(temp.path());
        let mut left: Vec<_> = fs::read_dir(temp.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        let kept = [
            "elsewhere",
            "ragent_BBBBBBBB",
            "ragent_CCCCCCCC",
            "ragent_DDDDDDDD",
            "ragent_EEEEEEEE",
            "ragent_mine",
        ];
        assert_eq!(left, kept);
        drop(held);
        clean(temp.path());
        assert!(!path("ragent_BBBBBBBB").exists());
    }

    /// The newest attempts are kept, and all attempts that contain files.
    #[test]
    fn old_attempts_are_removed() {
        let run = tempfile::tempdir().unwrap();
        let attempt = |number: u32| run.path().join(format!("attempt_{number}"));
        for number in 0..40 {
            make(&attempt(number).join("0"));
        }
        fs::write(attempt(3).join("0/error.json"), "{}").unwrap();
        remove_attempts(run.path(), 24);
        let left: Vec<u32> = (0..40).filter(|number| attempt(*number).exists()).collect();
        assert_eq!(left, [3].into_iter().chain(24..40).collect::<Vec<_>>());
    }
}
