//! Moves the output of a worker from its pipe to its destination, so that the agent may be killed
//! at any moment: the keeper shares all descriptors, and continues from their state.
//!
//! 1. With one destination, one system call removes a byte from its source and adds it to the destination (`splice`). A console that is a
//!    regular file does not support it. There a byte is copied first, and then removed.
//! 2. Lines with a prefix are also copied first, to the file and to the console, and then removed. A `BegunLine` has the start of a line
//!    that is removed already.
//!
//! So nothing is lost. If the agent is killed between copy and removal, the keeper copies the same piece again.

mod handover;
mod shown_lines;

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

pub use self::handover::{FlowOrder, HandedOver, finish_all};
use self::shown_lines::ShownLines;
use super::{
    begun_line::BegunLine,
    lines::{Choice, Cutter},
    pipes::{CopyProgress, Pipe, Target, Tools, enlarge},
    streams::Stream,
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
        /// The stream that is this console.
        stream: Stream,
        /// The text before each line.
        prefix: Vec<u8>,
        /// The lines that are also copied to a file of their own; none if `None`.
        choice: Option<Choice>,
        /// A file for the unchanged stream.
        file: Option<OwnedFd>,
    },
}

#[derive(Debug)]
enum FlowRoute {
    File(OwnedFd),
    Console(OwnedFd),
    Lines(Box<ShownLines>),
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
        let mut size = limits::CONSOLE_CHUNK;
        let route = match destination {
            StreamDestination::File(file) => {
                // With more room, the worker can go on writing in the meantime.
                enlarge(&source, limits::TEE_CHUNK);
                FlowRoute::File(file)
            }
            StreamDestination::Console(console) => FlowRoute::Console(console),
            StreamDestination::Lines { console, stream, prefix, choice, file } => {
                if file.is_some() {
                    size = limits::TEE_CHUNK;
                }
                enlarge(&source, size);
                let cutter = Cutter { prefix, choice, begun: Vec::new() };
                let begun = BegunLine::new()?;
                FlowRoute::Lines(Box::new(ShownLines { console, stream, cutter, begun, file }))
            }
        };
        let tools = Tools::new(Pipe::new(size)?)?;
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

    /// Returns true if lines of this stream are written to stderr.
    pub(super) fn shows_lines_on_stderr(&self) -> bool {
        matches!(&self.route, FlowRoute::Lines(lines) if lines.stream == Stream::Stderr)
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
                self.progress = self.tools.look(self.source.as_fd(), self.tail.as_ref());
                lines.copy_to_file(&self.tools)
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
                        self.progress = self.tools.look(self.source.as_fd(), self.tail.as_ref());
                    }
                    let chosen = &mut self.chosen;
                    let shown = lines.show(self.progress, &self.source, &mut self.tools, chosen);
                    result = result.and(shown);
                    if lines.file.is_some() || self.progress != CopyProgress::More {
                        break;
                    }
                }
                result
            }
        }
    }
}
