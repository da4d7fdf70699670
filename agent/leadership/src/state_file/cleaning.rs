//! Removes files that killed coordinators and agents have left in the state folder.

use std::{ffi::OsStr, path::Path};

use ragent_base::sys::private_folder::PrivateFolder;

use super::{
    age,
    death_notice::death_notice_path,
    files::{folder_of, name_of},
    job_state::{Age, age_of_job_state},
};
use crate::limits;

/// Removes state files of runs that no agent can still wait for, and other files without a state file. `own` is the state file of the
/// starting coordinator.
///
/// The file of a running coordinator or voter stays, because it is rewritten every `limits::STATE_FILE_INTERVAL`. Only the first
/// `limits::MAX_STATE_ENTRIES` entries are examined, and none in a folder that is not private.
pub fn clean(own: &Path) {
    let folder = folder_of(own);
    let Ok(private) = PrivateFolder::open(folder) else { return };
    for name in private.names() {
        let path = folder.join(&name);
        // The own file may be outdated until this coordinator has written it.
        if path == own || path == death_notice_path(own) {
            continue;
        }
        let is_outdated = match kind(&path) {
            // A voter without a leader keeps writing its file, although its content is outdated.
            FileKind::JobState => {
                age::changed(&path) > 3 * limits::STATE_FILE_INTERVAL && is_outdated(&path)
            }
            FileKind::DeathNotice => {
                !private.has(name_of(&path.with_extension("json"))) && is_forgotten(&path)
            }
            FileKind::EndedJobs => age::changed(&path) > limits::ENDED_JOBS_KEPT,
            FileKind::Draft => is_forgotten(&path),
            FileKind::Other => false,
        };
        if is_outdated {
            private.remove(&name);
            if let FileKind::JobState = kind(&path) {
                private.remove(name_of(&death_notice_path(&path)));
            }
        }
    }
}

/// The kind of a file in the folder.
enum FileKind {
    /// A coordinator's state file.
    JobState,
    /// A death notice next to a state file.
    DeathNotice,
    /// A list of ended jobs.
    EndedJobs,
    /// A temporary file of a process that was killed during a write.
    Draft,
    /// Any other file.
    Other,
}

fn kind(path: &Path) -> FileKind {
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let is_of_job = name.starts_with("job-");
    match path.extension().and_then(OsStr::to_str) {
        Some("json") if is_of_job => FileKind::JobState,
        Some("death-notice") if is_of_job => FileKind::DeathNotice,
        Some("json") if name.starts_with("ended-") => FileKind::EndedJobs,
        Some("tmp") if WRITTEN.iter().any(|start| name.starts_with(start)) => FileKind::Draft,
        Some(_) | None => FileKind::Other,
    }
}

/// How the names of files in the folder begin.
const WRITTEN: [&str; 4] = ["job-", "agent-", "ended-", "warned"];

fn is_outdated(path: &Path) -> bool {
    match age_of_job_state(path) {
        Age::Recent => false,
        Age::Outdated => true,
        Age::Unknown => is_forgotten(path),
    }
}

fn is_forgotten(path: &Path) -> bool {
    age::changed(path) > limits::FORGOTTEN_AFTER
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use ragent_base::sys::clock;

    use super::*;
    use crate::state_file::job_state::tests::write_aged;

    /// Outdated files are removed, and no other files.
    #[test]
    fn cleaning_removes_what_is_outdated() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        write_aged(&path("job-recent.json"), 0, |_| {});
        write_aged(&path("job-old.json"), 620, |_| {});
        let forgotten = std::time::UNIX_EPOCH;
        let set_modified = |name: &str, at| {
            let file = File::options().append(true).open(path(name)).unwrap();
            file.set_modified(at).unwrap();
        };
        write_aged(&path("job-leaderless.json"), 620, |_| {});
        set_modified("job-old.json", forgotten);
        for name in [
            "job-recent.death-notice",
            "job-old.death-notice",
            "job-lone.death-notice",
            "job-x.9.tmp",
            "ended-x.json.9.tmp",
            "ended-old.json",
            "else",
        ] {
            fs::write(path(name), "n 1").unwrap();
            set_modified(name, forgotten);
        }
        fs::write(path("job-new.death-notice"), "n 1").unwrap();
        fs::write(path("ended-hours.json"), "[]").unwrap();
        let hours = clock::wall_time() - 2 * limits::FORGOTTEN_AFTER;
        set_modified("ended-hours.json", forgotten + hours);
        fs::write(path("job-other.json"), "{}").unwrap();
        write_aged(&path("job-own.json"), 620, |_| {});
        clean(&path("job-own.json"));
        let mut left: Vec<String> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        let expected = [
            "else",
            "ended-hours.json",
            "job-leaderless.json",
            "job-new.death-notice",
            "job-other.json",
            "job-own.json",
            "job-recent.death-notice",
            "job-recent.json",
        ];
        assert_eq!(left, expected);
    }
}
