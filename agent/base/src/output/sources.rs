//! Lets readers follow the output of this node's workers, without delaying the workers.
//!
//! 1. Each stream that passes through the agent is registered when its worker starts: with its file, or with the end of it that the agent
//!    keeps.
//! 2. A reader has a position in each stream. It is woken when something was copied, and reads from there.
//! 3. A reader that is too slow goes on at the end of the stream. The lines between are counted.

mod cursor;

use std::{
    collections::VecDeque,
    fs::File,
    io,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use tokio::sync::watch;

pub use self::cursor::{Cursor, OutputPart, Start};
use super::{streams::Stream, tail::SharedTail};
use crate::output::limits;

/// The output of a node's workers, of the newest rounds.
#[derive(Debug)]
pub struct Outputs {
    rounds: Mutex<VecDeque<RoundOutputs>>,
    /// True once there is no more output.
    is_closed: watch::Sender<bool>,
}

/// The output of one round.
#[derive(Clone, Debug, Default)]
pub struct RoundOutputs {
    /// The term and the round.
    id: (u64, u64),
    /// The streams that can be read.
    pub streams: Vec<Arc<OutputStream>>,
    /// The numbers of streams that cannot be read, because they do not pass through the agent: stdout, and stderr.
    pub unread: [usize; 2],
}

/// A stream of a worker.
#[derive(Debug)]
pub struct OutputStream {
    /// The global rank of the worker.
    pub rank: u32,
    /// The stream.
    pub stream: Stream,
    /// The round.
    pub round: u64,
    content: Content,
}

/// The place of the content of a stream.
#[derive(Debug)]
pub enum Content {
    /// A file.
    File(OutputFile),
    /// The memory of the agent, which has its end.
    Tail(SharedTail),
}

/// A file with a stream.
#[derive(Debug)]
pub struct OutputFile {
    path: PathBuf,
    /// The length of the file when the worker started.
    begin: u64,
    /// The length of the file when a later round began that appends to it.
    end: OnceLock<u64>,
    /// The file, after the first read.
    opened: Mutex<Option<Arc<File>>>,
}

impl OutputFile {
    /// Creates a file whose content from `begin` on is read.
    pub fn new(path: PathBuf, begin: u64) -> Self {
        Self { path, begin, end: OnceLock::new(), opened: Mutex::default() }
    }

    /// Ends the content where `later` begins, if that is in the same file.
    fn end_before(&self, later: &Self) {
        if self.path == later.path {
            // Only the first later round counts: this has no effect after that.
            let _ = self.end.set(later.begin);
        }
    }

    /// Opens the file, unless a reader has done so.
    fn open(&self) -> io::Result<Arc<File>> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = &*opened {
            return Ok(Arc::clone(file));
        }
        let file = Arc::new(File::open(&self.path)?);
        *opened = Some(Arc::clone(&file));
        Ok(file)
    }
}

impl Default for Outputs {
    fn default() -> Self {
        Self { rounds: Mutex::default(), is_closed: watch::channel(false).0 }
    }
}

impl Outputs {
    /// Adds a stream of a worker. Without content, it cannot be read.
    pub fn add(&self, id: (u64, u64), rank: u32, stream: Stream, content: Option<Content>) {
        {
            let mut rounds = self.lock();
            if rounds.back().is_none_or(|newest| newest.id != id) {
                rounds.push_back(RoundOutputs { id, ..RoundOutputs::default() });
            }
            while rounds.len() > limits::OUTPUT_ROUNDS {
                rounds.pop_front();
            }
            if let Some(Content::File(later)) = &content {
                let older = rounds.iter().filter(|round| round.id != id);
                for stream in older.flat_map(|round| &round.streams) {
                    if let Content::File(file) = &stream.content {
                        file.end_before(later);
                    }
                }
            }
            let Some(newest) = rounds.back_mut() else { return };
            match (content, &mut newest.unread) {
                (Some(content), _) => {
                    let round = id.1;
                    newest.streams.push(Arc::new(OutputStream { rank, stream, round, content }));
                }
                (None, [stdout, stderr]) => match stream {
                    Stream::Stdout => *stdout += 1,
                    Stream::Stderr => *stderr += 1,
                },
            }
        }
        self.handle_output();
    }

    /// Returns the newest rounds, the oldest first.
    pub fn rounds(&self) -> Vec<RoundOutputs> {
        self.lock().iter().cloned().collect()
    }

    /// Wakes the readers.
    pub(super) fn handle_output(&self) {
        self.is_closed.send_modify(|_| {});
    }

    /// Reports that there is no more output.
    pub fn close(&self) {
        self.is_closed.send_replace(true);
    }

    /// Returns a receiver that changes with each output. Its value is true once there is no more output.
    pub fn subscribe(&self) -> watch::Receiver<bool> {
        self.is_closed.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<RoundOutputs>> {
        self.rounds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
