//! Appends events to the file of `--journal`, in a thread of its own, so that a slow disk delays nothing.

use std::{
    fs::{self, File},
    io::{self, ErrorKind, Write},
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel},
    },
    thread,
};

use ragent_base::sys::files;
use tracing::warn;

use crate::limits;

/// The file of a journal.
#[derive(Debug)]
pub(super) struct JournalFile {
    path: PathBuf,
    /// The queue of the thread; `None` only while the file is closed.
    lines: Option<SyncSender<Arc<str>>>,
    /// Disconnected when the thread has written all lines.
    written: Receiver<()>,
    /// The number of events that the file lacks.
    lost: u64,
}

impl JournalFile {
    /// Opens a file at its end. If that fails, a warning is logged.
    pub(super) fn open(path: &Path) -> Option<Self> {
        let start = open(path).and_then(|file| {
            let (lines, queue) = sync_channel(limits::JOURNAL_QUEUE);
            let (done, written) = sync_channel(0);
            let path = path.to_owned();
            let writer = {
                let path = path.clone();
                move || write(file, &path, &queue, done)
            };
            thread::Builder::new().name("journal".to_owned()).spawn(writer)?;
            Ok(Self { path, lines: Some(lines), written, lost: 0 })
        });
        start
            .inspect_err(|error| {
                warn!(path = %path.display(), %error, "cannot open the file of `--journal`");
            })
            .ok()
    }

    /// Queues a line for the file. If the queue is full because the disk is slow, the line counts as lost.
    pub(super) fn append(&mut self, line: Arc<str>) {
        let Some(lines) = &self.lines else { return };
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = lines.try_send(line) {
            self.lost += 1;
            if self.lost == 1 {
                warn!(
                    path = %self.path.display(),
                    "the file of `--journal` lacks events: its disk is too slow, or full"
                );
            }
        }
    }
}

impl JournalFile {
    /// Waits for a limited time until all lines are in the file.
    pub(super) fn close(mut self) {
        self.lines = None;
        if self.written.recv_timeout(limits::JOURNAL_PATIENCE) == Err(RecvTimeoutError::Timeout) {
            warn!(path = %self.path.display(), "the last events are not in the file of `--journal` yet");
        }
    }
}

/// Opens the file of `--journal`, and creates it if it does not exist.
///
/// # Errors
///
/// Returns the system's error. A pipe is an error, too: it would wait for a reader.
pub fn open(path: &Path) -> io::Result<File> {
    if fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_fifo()) {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is a pipe; give a regular file"));
    }
    files::append(path)
}

/// Appends lines until no sender is left.
fn write(mut file: File, path: &Path, lines: &Receiver<Arc<str>>, done: SyncSender<()>) {
    let mut has_failed = false;
    for line in lines {
        // One call for each line, so that lines of several processes are not mixed.
        let written = file.write_all(format!("{line}\n").as_bytes());
        if let Err(error) = written
            && !has_failed
        {
            has_failed = true;
            warn!(path = %path.display(), %error, "cannot write to the file of `--journal`");
        }
    }
    drop(done);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All lines are in the file once the journal is dropped; an existing file is continued.
    #[test]
    fn lines_are_appended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        for lines in [["a", "b"], ["c", "d"]] {
            let mut file = JournalFile::open(&path).unwrap();
            lines.into_iter().for_each(|line| file.append(line.into()));
            file.close();
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "a\nb\nc\nd\n");
    }

    /// A file that cannot be opened, or a full disk, costs a warning only.
    #[test]
    fn failures_end_nothing() {
        assert!(JournalFile::open(Path::new("/proc/no/journal")).is_none());
        let mut full = JournalFile::open(Path::new("/dev/full")).unwrap();
        full.append("a".into());
        full.close();
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(JournalFile::open(&pipe).is_none(), "this waits for no reader");
    }
}
