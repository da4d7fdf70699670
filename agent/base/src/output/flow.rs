//! Moves the output of a worker from its pipe to its destination, so that the agent may be killed
//! at any moment: the keeper shares all descriptors, and continues from their state.
//!
//! A byte is removed from its source by the same system call that adds it to its destination
//! (`splice`), or stays in its source until it has been added (`tee`, then a discard; so does output
//! for a console that is a regular file). Where a prefix is added, neither is possible. There a `LineJournal`, which
//! the keeper shares too, holds the intent, and the fill of two pipes that no other code touches shows how much of it
//! was carried out.
//!
//! ```text
//! source ── splice ──▶ file, or console                   one destination, unchanged
//! source ── splice ──▶ taken ── cut, write ──▶ staged ── splice ──▶ console
//!                        └───── tee ──▶ filed ── splice ──▶ file
//! ```

mod handover;
mod staged_lines;

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

pub use self::handover::{FlowOrder, HandedOver, finish_all};
use self::staged_lines::StagedLines;
use super::{
    journal::{LineJournal, LineRecord},
    lines::{Choice, Cutter},
    pipes::{CopyProgress, Pipe, Target, Tools, enlarge},
    tail::SharedTail,
};
use crate::output::limits;

/// The destination of a stream.
#[derive(Debug)]
pub enum StreamDestination {
    /// A file; the stream is unchanged.
    File(OwnedFd),
    /// The console; the stream is unchanged.
    Console(OwnedFd),
    /// The console, line by line, and optionally a file, unchanged.
    Lines {
        /// The console.
        console: OwnedFd,
        /// Lines to be written to that console, of all streams; one thread writes to it.
        staged: Arc<Pipe>,
        /// The text before each line.
        prefix: Vec<u8>,
        /// The lines that are shown; all if `None`.
        choice: Option<Choice>,
        /// A file for the unchanged stream.
        file: Option<OwnedFd>,
    },
}

#[derive(Debug)]
enum FlowRoute {
    File(OwnedFd),
    Console(OwnedFd),
    Lines(Box<StagedLines>),
}

/// One stream of a worker and its route.
#[derive(Debug)]
pub struct Flow {
    source: OwnedFd,
    route: FlowRoute,
    tail: Option<SharedTail>,
    pub(super) progress: CopyProgress,
    /// Lines that filters have selected since the last call of `chosen`.
    chosen: Vec<u8>,
    tools: Tools,
}

impl Flow {
    /// Creates a flow from `source`, the pipe of a worker.
    ///
    /// # Errors
    ///
    /// Returns the system's refusal of a pipe.
    pub(super) fn new(
        source: OwnedFd,
        destination: StreamDestination,
        tail: Option<SharedTail>,
    ) -> io::Result<Self> {
        let mut scratch = None;
        let route = match destination {
            StreamDestination::File(file) => {
                // With more room, the worker can go on writing in the meantime.
                enlarge(&source, limits::TEE_CHUNK);
                FlowRoute::File(file)
            }
            StreamDestination::Console(console) => FlowRoute::Console(console),
            StreamDestination::Lines { console, staged, prefix, choice, file } => {
                let size = if file.is_some() { limits::TEE_CHUNK } else { limits::CONSOLE_CHUNK };
                enlarge(&source, size);
                let [own, taken, filed] = Pipe::alike(size)?;
                scratch = Some(own);
                let cutter = Cutter::new(prefix, choice, limits::MAX_CONSOLE_LINE, staged.size());
                FlowRoute::Lines(Box::new(StagedLines {
                    console,
                    staged,
                    cutter,
                    taken,
                    taken_len: 0,
                    peeked: 0..0,
                    journal: LineJournal::new()?,
                    record: LineRecord::default(),
                    rest: Vec::new(),
                    file: file.map(|file| (file, filed)),
                }))
            }
        };
        let scratch = scratch.map_or_else(|| Pipe::new(limits::CONSOLE_CHUNK), Ok)?;
        let tools = Tools::new(scratch)?;
        Ok(Self { source, route, tail, progress: CopyProgress::More, chosen: Vec::new(), tools })
    }

    /// Returns true if this stream goes to a file.
    pub(super) fn has_file(&self) -> bool {
        match &self.route {
            FlowRoute::File(_) => true,
            FlowRoute::Console(_) => false,
            FlowRoute::Lines(lines) => lines.file.is_some(),
        }
    }

    /// Returns true if this stream goes to the console.
    pub(super) fn has_console(&self) -> bool {
        match &self.route {
            FlowRoute::File(_) => false,
            FlowRoute::Console(_) | FlowRoute::Lines(_) => true,
        }
    }

    /// Returns true if the lines of this stream are written through `staged`.
    pub(super) fn stages_to(&self, staged: &Arc<Pipe>) -> bool {
        matches!(&self.route, FlowRoute::Lines(lines) if Arc::ptr_eq(&lines.staged, staged))
    }

    /// Returns the lines that filters have selected since the last call, and their file.
    pub(super) fn chosen(&mut self) -> Option<(Arc<std::fs::File>, Vec<u8>)> {
        let FlowRoute::Lines(lines) = &self.route else { return None };
        let choice = lines.cutter.choice.as_ref().filter(|_| !self.chosen.is_empty())?;
        Some((Arc::clone(&choice.file), std::mem::take(&mut self.chosen)))
    }

    /// Copies the available output to the file, within limits. Only the thread that writes files
    /// may call this.
    ///
    /// # Errors
    ///
    /// Returns the file's error; the output that it refused is lost.
    pub(super) fn copy_to_file(&mut self) -> io::Result<()> {
        match &mut self.route {
            FlowRoute::File(file) => {
                let to = Target { fd: file.as_fd(), is_file: true };
                let (progress, copied) =
                    self.tools.pass_on_burst(self.source.as_fd(), to, self.tail.as_ref());
                self.progress = progress;
                copied
            }
            FlowRoute::Console(_) => Ok(()),
            FlowRoute::Lines(lines) => {
                self.progress = lines.take(&self.source, &mut self.tools, self.tail.as_ref());
                lines.copy_to_file(&mut self.tools)
            }
        }
    }

    /// Copies the available output to the console, within limits. Only the thread that writes to
    /// the console may call this.
    ///
    /// # Errors
    ///
    /// Returns the console's error; the output that it refused is lost.
    pub(super) fn copy_to_console(&mut self) -> io::Result<()> {
        match &mut self.route {
            FlowRoute::File(_) => Ok(()),
            FlowRoute::Console(console) => {
                let to = Target { fd: console.as_fd(), is_file: false };
                let (progress, copied) =
                    self.tools.pass_on_burst(self.source.as_fd(), to, self.tail.as_ref());
                self.progress = progress;
                copied
            }
            FlowRoute::Lines(lines) => {
                let mut result = Ok(());
                for _ in 0..limits::COPY_BURST {
                    if lines.file.is_none() {
                        self.progress =
                            lines.take(&self.source, &mut self.tools, self.tail.as_ref());
                    }
                    let copied = lines.copy(
                        self.progress,
                        &mut self.tools,
                        self.tail.as_ref(),
                        &mut self.chosen,
                    );
                    result = result.and(copied);
                    if lines.file.is_some() || self.progress != CopyProgress::More {
                        break;
                    }
                }
                result
            }
        }
    }
}
