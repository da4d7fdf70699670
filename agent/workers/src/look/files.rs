//! Writes the stacks and records of a look to the log folders of the workers.
//!
//! A log folder may be on a server that does not answer. So nothing waits for the writing. Each worker has at most one
//! writing task, so that threads that wait for the server do not pile up. A worker chooses what is written, so characters
//! that control a terminal are removed from stacks.

use std::{
    io::{self, Write},
    path::Path,
    sync::Arc,
};

use ragent_base::{output::logs::WorkerFolder, sys::files};
use ragent_proto::printable;
use tokio::{
    sync::{Mutex, OwnedMutexGuard},
    task::spawn_blocking,
};
use tracing::warn;

/// The files of a worker. Only one task writes them at a time.
#[derive(Clone, Debug, Default)]
pub(crate) struct LookFiles(Arc<Mutex<()>>);

/// The new content of the files of a worker.
#[derive(Debug)]
pub(crate) struct Content {
    pub(super) folder: WorkerFolder,
    pub(super) files: LookFiles,
    /// The text for the end of `stack.txt`.
    pub(super) stack: String,
    /// The answers of torch's handlers of records, which replace `records.json`; without any, that file stays.
    pub(super) records: Vec<Vec<u8>>,
}

/// Starts to write the files of all workers. The content for files that an earlier look still writes is dropped.
pub(crate) fn write(contents: Vec<Content>) {
    let mut dropped: Option<(WorkerFolder, usize)> = None;
    for content in contents {
        match Arc::clone(&content.files.0).try_lock_owned() {
            // The end is not awaited.
            Ok(turn) => drop(spawn_blocking(move || content.write(turn))),
            Err(_) => dropped.get_or_insert((content.folder, 0)).1 += 1,
        }
    }
    if let Some((folder, workers)) = dropped {
        warn!(
            path = %folder.stack_file().display(), workers,
            "the files of an earlier look are still being written; dropping the stacks and records of this look \
             (check the disk of the log folder)"
        );
    }
}

#[cfg(test)]
impl LookFiles {
    /// Waits until no task writes.
    pub(super) async fn written(&self) {
        drop(self.0.lock().await);
    }
}

impl Content {
    /// Blocks.
    fn write(self, turn: OwnedMutexGuard<()>) {
        let Self { folder, stack, records, .. } = self;
        let (path, stack) = (folder.stack_file(), printable(&stack));
        let written =
            files::append_log(&path).and_then(|mut file| file.write_all(stack.as_bytes()));
        warn_of(written, &path, "failed to write the stack of a worker");
        if !records.is_empty() {
            let path = folder.records_file();
            let content = [b"[".as_slice(), &records.join(&b','), b"]\n"].concat();
            let written = files::rewrite_log(&path).and_then(|mut file| file.write_all(&content));
            warn_of(written, &path, "failed to write the records of a worker");
        }
        drop(turn);
    }
}

fn warn_of(written: io::Result<()>, path: &Path, text: &str) {
    if let Err(error) = written {
        warn!(path = %path.display(), %error, "{text}");
    }
}
