//! Reads whether workers can write to their folders: that of their logs, and `/dev/shm`.
//!
//! Each folder has a thread of its own for a reading, because a disk may never answer.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
    time::Instant,
};

use nix::{
    sys::statvfs::{FsFlags, statvfs},
    unistd::{AccessFlags, access},
};
use ragent_base::sys::clock;
use ragent_core::hardware::{Folder, FolderProblem};

use crate::limits;

/// The folders.
#[derive(Debug)]
pub(super) struct Folders {
    probes: Vec<Probe>,
    look: fn(&Path) -> Option<FolderProblem>,
}

#[derive(Debug)]
struct Probe {
    path: PathBuf,
    /// The beginning of a reading that has not ended.
    began: Arc<Mutex<Option<Instant>>>,
}

impl Folders {
    /// Reads `/dev/shm`, and the folder of the logs if there is one.
    pub(super) fn new(logs: Option<&Path>) -> Self {
        let shared = Path::new("/dev/shm");
        let paths = logs.into_iter().chain(shared.exists().then_some(shared));
        let probe = |path: &Path| Probe { path: path.to_owned(), began: Arc::default() };
        Self { probes: paths.map(probe).collect(), look }
    }

    /// Returns the state of those that answer soon, and of those that have not answered for seconds.
    pub(super) fn read(&self) -> Vec<Folder> {
        let (answers, answered) = mpsc::channel();
        let (now, mut folders) = (clock::now_blocking(), Vec::new());
        let folder = |path: &Path, problem| {
            let path = path.to_string_lossy().into_owned();
            Folder { path, problem }
        };
        for Probe { path, began } in &self.probes {
            let mut running = began.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(began) = *running {
                if now.saturating_duration_since(began) >= limits::FOLDER_SILENCE {
                    folders.push(folder(path, Some(FolderProblem::Silent)));
                }
                continue;
            }
            let (path, began) = (path.clone(), Arc::clone(began));
            let (answers, look) = (answers.clone(), self.look);
            let thread = thread::Builder::new().name("folder".to_owned());
            let started: io::Result<_> = thread.spawn(move || {
                let problem = look(&path);
                *began.lock().unwrap_or_else(PoisonError::into_inner) = None;
                // A late answer is dropped.
                let _ = answers.send(folder(&path, problem));
            });
            *running = started.is_ok().then_some(now);
        }
        drop(answers);
        let deadline = now + limits::FOLDER_TIME;
        let left = || deadline.saturating_duration_since(clock::now_blocking());
        while let Ok(folder) = answered.recv_timeout(left()) {
            folders.push(folder);
        }
        folders
    }
}

fn look(path: &Path) -> Option<FolderProblem> {
    let Ok(system) = statvfs(path) else { return Some(FolderProblem::NotWritable) };
    let is_read_only = system.flags().contains(FsFlags::ST_RDONLY);
    let free = system.blocks_available().saturating_mul(system.fragment_size());
    // Some file systems have no limit of files or of bytes, and report 0 of 0.
    let has_files = system.files() == 0 || system.files_available() > 0;
    let has_room = system.blocks() == 0 || free >= limits::FOLDER_ROOM;
    if is_read_only || access(path, AccessFlags::W_OK).is_err() {
        Some(FolderProblem::NotWritable)
    } else if !has_room || !has_files {
        Some(FolderProblem::Full)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder in which workers can write has no problem, and one that does not exist is not writable.
    #[test]
    fn folders_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let gone = folder.path().join("gone");
        assert_eq!(look(folder.path()), None);
        assert_eq!(look(&gone), Some(FolderProblem::NotWritable));
        let path = folder.path().to_string_lossy().into_owned();
        let read = Folders::new(Some(folder.path())).read();
        assert!(read.contains(&Folder { path, problem: None }), "{read:?}");
    }

    /// A disk that does not answer delays nothing for long. It is named once it has been silent for seconds, and is not asked again.
    #[test]
    fn silent_disk_is_named() {
        fn hung(_: &Path) -> Option<FolderProblem> {
            loop {
                thread::park();
            }
        }
        let folders = Folders { look: hung, ..Folders::new(Some(Path::new("/logs"))) };
        let is_silent = |folder: &Folder| folder.problem == Some(FolderProblem::Silent);
        assert_eq!(folders.read(), []);
        let began = folders.probes[0].began.lock().unwrap().unwrap();
        *folders.probes[0].began.lock().unwrap() = began.checked_sub(limits::FOLDER_SILENCE);
        let read = folders.read();
        assert!(read.iter().all(is_silent) && read[0].path == "/logs", "{read:?}");
    }
}
