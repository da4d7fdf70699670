//! Creates files and folders for the user: with the user's umask, but writable for this user alone.
//!
//! Another user could otherwise forge text that a report quotes, or replace a log folder. A link in a log folder is not followed: another
//! user may have put it there, to change a file of this user.

use std::{
    fs::{DirBuilder, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::Path,
};

use nix::fcntl::OFlag;

/// Opens a file for appending; creates it if it does not exist.
pub fn append(path: &Path) -> io::Result<File> {
    options().append(true).open(path)
}

/// Opens a file of a log folder for appending; creates it if it does not exist.
pub fn append_log(path: &Path) -> io::Result<File> {
    options().append(true).custom_flags(OFlag::O_NOFOLLOW.bits()).open(path)
}

/// Opens a file for writing at its end; creates it if it does not exist. It is opened without
/// `O_APPEND`, so that it can be a target of `splice`; writers seek to its end first.
pub(crate) fn extend(path: &Path) -> io::Result<File> {
    options().write(true).truncate(false).custom_flags(OFlag::O_NOFOLLOW.bits()).open(path)
}

/// Opens a file and truncates it; creates it if it does not exist.
pub fn rewrite(path: &Path) -> io::Result<File> {
    options().write(true).truncate(true).open(path)
}

/// Opens a file of a log folder and truncates it; creates it if it does not exist.
pub fn rewrite_log(path: &Path) -> io::Result<File> {
    options().write(true).truncate(true).custom_flags(OFlag::O_NOFOLLOW.bits()).open(path)
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.create(true).mode(FILE);
    options
}

/// Creates a folder and its parents.
pub fn make_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(FOLDER).create(path)
}

const FILE: u32 = 0o644;
/// The widest mode of folders.
pub(crate) const FOLDER: u32 = 0o755;

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    /// A link in a log folder is not followed, so what it names is neither written nor truncated.
    #[test]
    fn links_are_not_followed() {
        let temp = tempfile::tempdir().unwrap();
        let (target, link) = (temp.path().join("target"), temp.path().join("stack.txt"));
        fs::write(&target, "mine").unwrap();
        symlink(&target, &link).unwrap();
        for open in [append_log, extend, rewrite_log] {
            open(&link).unwrap_err();
        }
        assert_eq!(fs::read_to_string(&target).unwrap(), "mine");
        append(&link).unwrap();
    }
}
