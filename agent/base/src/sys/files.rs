//! Creates files and folders for the user: with the user's umask, but never writable for all.
//!
//! With umask 000 another user could otherwise forge text that a report quotes, or replace a log
//! folder.

use std::{
    fs::{DirBuilder, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::Path,
};

/// Opens a file for appending; creates it if it does not exist.
pub fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(FILE).open(path)
}

/// Opens a file for writing at its end; creates it if it does not exist. It is opened without
/// `O_APPEND`, so that it can be a target of `splice`; writers seek to its end first.
pub(crate) fn extend(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(false).mode(FILE).open(path)
}

/// Opens a file and truncates it; creates it if it does not exist.
pub fn rewrite(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(FILE).open(path)
}

/// Creates a folder and its parents.
pub fn make_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(FOLDER).create(path)
}

const FILE: u32 = 0o664;
/// The widest mode of folders.
pub(crate) const FOLDER: u32 = 0o775;
