//! Makes files and folders that users asked for: by their umask, but never writable for all.
//!
//! With umask 000 another user could else write what a report quotes, or swap a folder of logs.

use std::{
    fs::{DirBuilder, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::Path,
};

/// Opens a file to append to it, and makes it if it is not there.
pub(crate) fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(FILE).open(path)
}

/// Opens a file to write at its end, and makes it if it is not there. Unlike one that is opened to append,
/// it can be spliced to; whoever writes moves to its end first.
pub(crate) fn extend(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(false).mode(FILE).open(path)
}

/// Opens a file to write it anew, and makes it if it is not there.
pub(crate) fn rewrite(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(FILE).open(path)
}

/// Makes a folder, and those above it.
pub(crate) fn make_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(FOLDER).create(path)
}

const FILE: u32 = 0o664;
/// What folders get at most, where nothing asks for less.
pub(crate) const FOLDER: u32 = 0o775;
