//! Removes temporary log folders that are no longer needed: those of killed agents, of old rounds, and
//! of old failures.
//!
//! No output of workers is ever lost: only empty folders are removed, and folders with outdated reports of
//! a failure and no other file. Folders below `--log-dir` are never removed.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    output::limits,
    sys::folder_lock::{self, age, lock},
};

/// The prefix of the names of temporary log folders.
pub(super) const PREFIX: &str = "ragent_";

/// The file with the log of an agent that has failed.
pub(crate) const AGENT_LOG: &str = "agent.log";

/// The names of files that report a failure: the log of an agent, and a worker's error, stack and records. The
/// other files contain the output of workers.
const REPORTS: [&str; 4] = [AGENT_LOG, ERROR_FILE, RECORDS_FILE, STACK_FILE];

/// The file to which a script may write its error.
pub(super) const ERROR_FILE: &str = "error.json";

/// The file with torch's records of the collectives of a worker that makes no progress.
pub(super) const RECORDS_FILE: &str = "records.json";

/// The file with the stack of a worker that hangs.
pub(super) const STACK_FILE: &str = "stack.txt";

/// Removes the temporary log folders in `temp_dir` that earlier agents of this user left and that
/// contain no files, or only outdated reports.
pub fn clean(temp_dir: &Path) {
    let mut reports = Vec::new();
    for entry in fs::read_dir(temp_dir).into_iter().flatten().take(limits::MAX_TEMP_ENTRIES) {
        let Ok(entry) = entry else { continue };
        let folder = entry.path();
        // An agent holds the lock until it ends, and other processes remove a folder only with the
        // lock.
        if is_own(&entry)
            && let Ok(_lock) = lock(&folder)
        {
            match contents(&folder) {
                Contents::Folders => remove_folders(&folder),
                Contents::Reports(age) => reports.push((age, folder)),
                Contents::Files => {}
            }
        }
    }
    for folder in outdated(reports) {
        // Another agent may have removed it meanwhile.
        if let Ok(_lock) = lock(&folder)
            && matches!(contents(&folder), Contents::Reports(_))
        {
            remove_reports(&folder);
            remove_folders(&folder);
        }
    }
}

/// Returns the folders that are no longer kept, given the age of the newest report in each.
fn outdated(mut folders: Vec<(Duration, PathBuf)>) -> Vec<PathBuf> {
    folders.sort();
    let is_kept = |index: usize, age: Duration| {
        index < limits::KEPT_REPORTS && age <= limits::REPORTS_KEPT_FOR
    };
    let outdated = folders.into_iter().enumerate();
    let outdated = outdated.filter(|(index, (age, _))| !is_kept(*index, *age));
    outdated.map(|(_, (_, folder))| folder).collect()
}

/// Returns true if an entry is a temporary log folder of this user, and an old one.
fn is_own(entry: &fs::DirEntry) -> bool {
    folder_lock::is_old(entry, PREFIX) && !is_run(&entry.path())
}

/// Returns true if a folder is that of a run, as `--log-dir` contains them: with the run id `ragent` its
/// name is like that of a temporary folder, which contains the folder of its run.
fn is_run(folder: &Path) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name()).any(|name| {
        name == AGENT_LOG || name.to_str().is_some_and(|name| attempt_number(name).is_some())
    })
}

/// Returns the number of the attempt whose folder has this name.
fn attempt_number(name: &str) -> Option<u32> {
    name.strip_prefix("attempt_")?.parse().ok()
}

/// Removes a folder that contains only folders.
pub(super) fn remove_unused(folder: &Path) {
    match contents(folder) {
        Contents::Folders => remove_folders(folder),
        Contents::Reports(_) | Contents::Files => {}
    }
}

/// Removes the folders of attempts before `first` that contain no files.
pub(super) fn remove_attempts(run: &Path, first: u32) {
    for entry in fs::read_dir(run).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if name.to_str().and_then(attempt_number).is_some_and(|number| number < first) {
            remove_unused(&entry.path());
        }
    }
}

/// The contents of a folder and of the folders in it.
enum Contents {
    /// No file.
    Folders,
    /// Files named as in [`REPORTS`], and the age of the newest one.
    Reports(Duration),
    /// Other files, or unknown.
    Files,
}

fn contents(folder: &Path) -> Contents {
    let Ok(entries) = fs::read_dir(folder) else { return Contents::Files };
    let mut newest: Option<Duration> = None;
    for entry in entries {
        // The data of a symbolic link is its own.
        let Ok(entry) = entry else { return Contents::Files };
        let Ok(data) = entry.metadata() else { return Contents::Files };
        let is_report = data.is_file() && is_report(&entry.file_name());
        let age = match (data.is_dir(), is_report) {
            (true, _) => match contents(&entry.path()) {
                Contents::Folders => continue,
                Contents::Reports(age) => age,
                Contents::Files => return Contents::Files,
            },
            (false, true) => age(&data),
            (false, false) => return Contents::Files,
        };
        newest = Some(newest.map_or(age, |newest| newest.min(age)));
    }
    newest.map_or(Contents::Folders, Contents::Reports)
}

fn is_report(name: &OsStr) -> bool {
    REPORTS.iter().any(|report| name == *report)
}

/// Removes the files named as in [`REPORTS`] in a folder and in the folders in it.
fn remove_reports(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            remove_reports(&entry.path());
        } else if kind.is_file() && is_report(&entry.file_name()) {
            // A folder that stays is harmless.
            let _ = fs::remove_file(entry.path());
        }
    }
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
        fs::File,
        os::unix::fs::{DirBuilderExt, symlink},
        time::UNIX_EPOCH,
    };

    use super::*;
    use crate::sys::clock;

    fn make(path: &Path) {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path).unwrap();
    }

    fn make_old(path: &Path) {
        let long_ago = UNIX_EPOCH + clock::wall_time() - 2 * limits::UNUSED_AFTER;
        File::open(path).unwrap().set_modified(long_ago).unwrap();
    }

    /// Folders that a killed agent left are removed, and no others: a folder is kept if it is in
    /// use, contains files, is new, is a symbolic link, or only has a similar name.
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

    /// Reports of failures are kept: the newest few, for a few days, and all that are next to another file.
    /// The folder of a run in `--log-dir` is kept, even if its name is like that of a temporary one.
    #[test]
    fn outdated_reports_are_removed() {
        let temp = tempfile::tempdir().unwrap();
        let run = |number: usize| temp.path().join(format!("ragent_{number:08}/run"));
        let hour = Duration::from_secs(3600);
        let put = |number: usize, name: &str, age: Duration| {
            make(&run(number).join("attempt_0/0"));
            let file = File::create(run(number).join(name)).unwrap();
            file.set_modified(UNIX_EPOCH + clock::wall_time() - age).unwrap();
            make_old(&temp.path().join(format!("ragent_{number:08}")));
        };
        let kept = limits::KEPT_REPORTS;
        // The newest have the highest numbers.
        for number in 0..kept + 3 {
            put(number, AGENT_LOG, hour * u32::try_from(100 - number).unwrap());
        }
        put(100, AGENT_LOG, limits::REPORTS_KEPT_FOR + hour);
        put(101, AGENT_LOG, limits::REPORTS_KEPT_FOR + hour);
        put(101, "stderr.log", hour);
        put(102, AGENT_LOG, limits::REPORTS_KEPT_FOR + hour);
        symlink(run(0), run(102).join("attempt_0/agent.log")).unwrap();
        put(103, AGENT_LOG, limits::REPORTS_KEPT_FOR + hour);
        put(104, ERROR_FILE, limits::REPORTS_KEPT_FOR + hour);
        put(104, STACK_FILE, limits::REPORTS_KEPT_FOR + hour);
        let of_user = temp.path().join("ragent_00000105");
        make(&of_user.join("attempt_0/0"));
        let file = File::create(of_user.join("attempt_0/0").join(ERROR_FILE)).unwrap();
        let long_ago = limits::REPORTS_KEPT_FOR + hour;
        file.set_modified(UNIX_EPOCH + clock::wall_time() - long_ago).unwrap();
        make_old(&of_user);
        let held = lock(&temp.path().join("ragent_00000103")).unwrap();
        clean(temp.path());
        let left: Vec<usize> = (0..200).filter(|number| run(*number).exists()).collect();
        assert_eq!(left, (3..kept + 3).chain([101, 102, 103]).collect::<Vec<_>>());
        assert!(!temp.path().join("ragent_00000000").exists());
        assert!(!temp.path().join("ragent_00000104").exists());
        assert!(of_user.join("attempt_0/0").join(ERROR_FILE).exists());
        drop(held);
        clean(temp.path());
        assert!(!run(103).exists());
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
