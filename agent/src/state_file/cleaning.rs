//! Removes what killed coordinators and agents left in the folder of the state files.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
};

use super::{Age, age, age_of_memory, forget};
use crate::limits;

/// Removes state files of runs that nobody can be waiting for, and what belongs to none.
///
/// A coordinator that runs rewrites its own file every [`limits::STATE_FILE_INTERVAL`], so that is not
/// among them. Looks at the first [`limits::MAX_STATE_ENTRIES`] of the folder only.
pub fn clean(folder: &Path) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for path in entries.take(limits::MAX_STATE_ENTRIES).map(|entry| entry.path()) {
        match kind(&path) {
            Kind::Memory if is_outdated(&path) => forget(&path),
            Kind::Grave if !path.with_extension("json").exists() && is_forgotten(&path) => {
                remove(&path);
            }
            Kind::Draft if is_forgotten(&path) => remove(&path),
            Kind::Memory | Kind::Grave | Kind::Draft | Kind::Other => {}
        }
    }
}

/// What a file of the folder is.
enum Kind {
    /// A coordinator's state file.
    Memory,
    /// An obituary beside a state file.
    Grave,
    /// What a process was writing when it was killed.
    Draft,
    /// Something else.
    Other,
}

fn kind(path: &Path) -> Kind {
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let is_of_job = name.starts_with("job-");
    match path.extension().and_then(OsStr::to_str) {
        Some("json") if is_of_job => Kind::Memory,
        Some("buried") if is_of_job => Kind::Grave,
        Some("tmp") if is_of_job || name.starts_with("agent-") => Kind::Draft,
        Some(_) | None => Kind::Other,
    }
}

fn is_outdated(path: &Path) -> bool {
    match age_of_memory(path) {
        Age::Fresh => false,
        Age::Outdated => true,
        Age::Unknown => is_forgotten(path),
    }
}

fn is_forgotten(path: &Path) -> bool {
    age::changed(path) > limits::FORGOTTEN_AFTER
}

fn remove(path: &PathBuf) {
    // Another process may have removed it already.
    let _ = fs::remove_file(path);
}
