//! Folders with random names, each locked by the process that uses it. A folder without a lock is left over.
//!
//! Process ids would not show this: containers that share a folder have process ids of their own.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt,
    path::Path,
    time::Duration,
};

use nix::unistd::geteuid;
use rand::{RngExt, distr::Alphanumeric};

use crate::sys::{clock, limits};

const RANDOM_LEN: usize = 8;

/// Returns the end of the name of a new folder.
pub fn random_name() -> String {
    rand::rng().sample_iter(Alphanumeric).take(RANDOM_LEN).map(char::from).collect()
}

/// Locks a folder as long as the returned file is open. Children do not inherit it.
pub fn lock(folder: &Path) -> io::Result<File> {
    let lock = File::open(folder)?;
    lock.try_lock()?;
    Ok(lock)
}

/// Returns true if an entry is a folder of this user with the name `prefix` and a random end, and an old one.
pub fn is_old(entry: &fs::DirEntry, prefix: &str) -> bool {
    let name = entry.file_name();
    let end = name.to_str().and_then(|name| name.strip_prefix(prefix));
    let is_named = end.is_some_and(|end| {
        end.len() == RANDOM_LEN && end.bytes().all(|byte| byte.is_ascii_alphanumeric())
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

/// Returns the time since the last change of a file or folder.
pub(crate) fn age(data: &fs::Metadata) -> Duration {
    let changed = u64::try_from(data.mtime()).map_or(Duration::MAX, Duration::from_secs);
    clock::wall_time().saturating_sub(changed)
}
