//! The workers' log folders, with torchrun's layout:
//! `<log-dir>/<run id>_<random>/attempt_<restart count>/<local rank>/`.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use ragent_rendezvous::ids::{LocalRank, RunId};

use super::{streams::Stream, temp_folders};
use crate::{
    output::limits,
    sys::{
        files,
        folder_lock::{self, random_name},
    },
};

/// The folder for the files of the workers of one agent process.
#[derive(Debug)]
pub enum LogFolder {
    /// No folder: `--log-dir /dev/null`.
    Nowhere,
    /// A folder below `--log-dir`.
    Kept(PathBuf),
    /// A folder in a temporary one, which is removed at the end if it contains no files.
    Temporary {
        /// The temporary folder.
        base: PathBuf,
        /// The run's own folder in it.
        run: PathBuf,
        /// The temporary folder, locked as long as this process lives; `None` if it could not be
        /// locked.
        lock: Option<File>,
    },
}

impl LogFolder {
    /// Creates the folder of this run.
    ///
    /// # Errors
    ///
    /// Returns the path that could not be created, and the system's error.
    pub fn create(
        log_dir: Option<&Path>,
        temp_dir: &Path,
        run_id: &RunId,
    ) -> Result<Self, (PathBuf, io::Error)> {
        let name = format!("{run_id}_{}", random_name());
        let make = |path: &Path, mode| {
            let result = fs::DirBuilder::new().recursive(true).mode(mode).create(path);
            result.map_err(|error| (path.to_owned(), error))
        };
        match log_dir {
            Some(path) if path == Path::new("/dev/null") => Ok(Self::Nowhere),
            Some(log_dir) => {
                let run = log_dir.join(name);
                make(&run, files::FOLDER).map_err(|(_, error)| (log_dir.to_owned(), error))?;
                Ok(Self::Kept(run))
            }
            None => {
                let base = temp_dir.join(format!("{}{}", temp_folders::PREFIX, random_name()));
                make(&base, 0o700)?;
                let lock = folder_lock::lock(&base).ok();
                let run = base.join(name);
                make(&run, 0o700)?;
                Ok(Self::Temporary { base, run, lock })
            }
        }
    }

    /// The folder of this run; `None` if no files are kept.
    pub fn run(&self) -> Option<&Path> {
        match self {
            Self::Nowhere => None,
            Self::Kept(run) | Self::Temporary { run, .. } => Some(run),
        }
    }

    /// Creates the folder of one worker in one attempt; `None` if no files are kept.
    ///
    /// Files of an earlier round with the same restart count are kept, except the error file, which
    /// would be taken for this round's.
    ///
    /// # Errors
    ///
    /// Returns the system's refusal.
    pub fn worker(
        &self,
        restart_count: u32,
        local_rank: LocalRank,
    ) -> io::Result<Option<WorkerFolder>> {
        let Some(attempt) = self.attempt(restart_count) else { return Ok(None) };
        let folder = attempt.join(local_rank.to_string());
        files::make_folder(&folder)?;
        let folder = WorkerFolder(folder);
        match fs::remove_file(folder.error_file()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(Some(folder)),
        }
    }

    /// Opens the file for selected lines of all workers in one attempt; `None` if no files are
    /// kept.
    ///
    /// # Errors
    ///
    /// Returns the system's refusal.
    pub fn filtered(&self, restart_count: u32, stream: Stream) -> io::Result<Option<File>> {
        let Some(attempt) = self.attempt(restart_count) else { return Ok(None) };
        files::make_folder(&attempt)?;
        files::append_log(&attempt.join(format!("filtered_{}", file_name(stream)))).map(Some)
    }

    fn attempt(&self, restart_count: u32) -> Option<PathBuf> {
        Some(self.run()?.join(format!("attempt_{restart_count}")))
    }

    /// Removes a temporary folder that contains no files.
    pub fn clean_up(&self) {
        if let Self::Temporary { base, .. } = self {
            // A folder that cannot be removed is harmless.
            temp_folders::remove_unused(base);
        }
    }

    /// Removes the folders of attempts long before `restart_count` from a temporary folder, unless
    /// they contain files.
    pub fn forget_before(&self, restart_count: u32) {
        if let Self::Temporary { run, .. } = self {
            temp_folders::remove_attempts(run, restart_count.saturating_sub(limits::KEPT_ATTEMPTS));
        }
    }
}

/// The files of one worker in one attempt.
#[derive(Clone, Debug)]
pub struct WorkerFolder(PathBuf);

impl WorkerFolder {
    /// The file to which the script may write its error.
    pub fn error_file(&self) -> PathBuf {
        self.0.join(temp_folders::ERROR_FILE)
    }

    /// The file for its stack when it hangs.
    pub fn stack_file(&self) -> PathBuf {
        self.0.join(temp_folders::STACK_FILE)
    }

    /// The file for torch's records of its collectives when it makes no progress.
    pub fn records_file(&self) -> PathBuf {
        self.0.join(temp_folders::RECORDS_FILE)
    }

    /// The folder with the folders of all workers of this node and round.
    pub fn of_all_workers(&self) -> Option<&Path> {
        self.0.parent()
    }

    /// The begin of the path of the file that torch writes before a time-out. It adds the rank. All ranks of a node
    /// share a folder, as torch's `fr_trace` expects it.
    pub fn flight_record_prefix(&self) -> PathBuf {
        self.0.with_file_name("nccl_trace_rank_")
    }

    /// The file for a stream.
    pub fn log_file(&self, stream: Stream) -> PathBuf {
        self.0.join(file_name(stream))
    }

    /// Opens the file of a stream for appending.
    ///
    /// # Errors
    ///
    /// Returns the system's refusal.
    pub fn open(&self, stream: Stream) -> io::Result<File> {
        files::extend(&self.log_file(stream))
    }
}

fn file_name(stream: Stream) -> &'static str {
    match stream {
        Stream::Stdout => "stdout.log",
        Stream::Stderr => "stderr.log",
    }
}
