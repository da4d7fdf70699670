//! Remembers the jobs for which this user has seen the warning about a missing secret.
//!
//! The warning is printed once for each name, not at each start.

use std::{io, path::Path};

use ragent_base::sys::host::ThisHost;
use ragent_rendezvous::ids::RunId;
use tracing::debug;

use super::files::{job_key, read, replace};

/// The maximum number of names. The oldest one is dropped.
const MAX: usize = 64;

/// Returns true if no warning was given for this name yet, and remembers that it is given now.
pub fn is_first_warning(run_id: &RunId) -> bool {
    note(&ThisHost.state_dir().join("warned.json"), run_id)
}

fn note(path: &Path, run_id: &RunId) -> bool {
    let key = job_key(run_id, "warned");
    let mut warned: Vec<String> = read(path).unwrap_or_default();
    if warned.contains(&key) {
        return false;
    }
    warned.push(key);
    let first = warned.len().saturating_sub(MAX);
    let text = serde_json::to_vec(&warned[first..]).map_err(io::Error::other);
    if let Err(error) = text.and_then(|text| replace(path, &text)) {
        debug!(path = %path.display(), %error, "failed to record a warning");
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// There is one warning for each of the newest names. A malformed file counts as empty and is replaced.
    #[test]
    fn each_name_is_warned_of_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("warned.json");
        let is_first = |number: usize| note(&path, &RunId::new(format!("job{number}")));
        assert_eq!([1, 2, 1, 2].map(is_first), [true, true, false, false]);
        std::fs::write(&path, "[{").unwrap();
        assert!(is_first(1));
        assert!((2..=MAX + 1).all(is_first));
        assert_eq!([MAX + 1, 2, 1].map(is_first), [false, false, true]);
    }

    /// A folder that cannot be written to does not suppress the warning.
    #[test]
    fn warning_comes_without_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().join("warned.json");
        assert_eq!([1, 1].map(|_| note(&path, &RunId::new("job"))), [true, true]);
    }
}
