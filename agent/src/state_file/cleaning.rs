//! Removes what killed coordinators and agents left in the folder of the state files.

use std::{ffi::OsStr, path::Path};

use super::{Age, PrivateFolder, age, age_of_memory, grave, name_of};
use crate::limits;

/// Removes state files of runs that nobody can be waiting for, and what belongs to none.
///
/// A coordinator that runs rewrites its own file every [`limits::STATE_FILE_INTERVAL`], so that is not
/// among them. Looks at the first [`limits::MAX_STATE_ENTRIES`] of the folder only, and at none of a
/// folder that is not private.
pub fn clean(folder: &Path) {
    let Ok(private) = PrivateFolder::open(folder) else { return };
    for name in private.names() {
        let path = folder.join(&name);
        let is_outdated = match kind(&path) {
            Kind::Memory => is_outdated(&path),
            Kind::Grave => {
                !private.has(name_of(&path.with_extension("json"))) && is_forgotten(&path)
            }
            Kind::Draft => is_forgotten(&path),
            Kind::Other => false,
        };
        if is_outdated {
            private.remove(&name);
            if let Kind::Memory = kind(&path) {
                private.remove(name_of(&grave(&path)));
            }
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
