//! Moves the output of a worker from its pipe to its destination, so that the agent may be killed
//! at any moment: the keeper shares all descriptors, and continues from their state.
//!
//! A byte is removed from its source by the same system call that adds it to its destination
//! (`splice`), or stays in its source until it has been added (`tee`, then a discard). Where a
//! prefix is added, neither is possible. There a [`Journal`], which the keeper shares too, holds
//! the intent, and the fill of two pipes that no other code touches shows how much of it was
//! carried out.
//!
//! ```text
//! source ── splice ──▶ file, or console                   one destination, unchanged
//! source ── splice ──▶ taken ── cut, write ──▶ staged ── splice ──▶ console
//!                        └───── tee ──▶ filed ── splice ──▶ file
//! ```

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::Instant,
};

use nix::{
    errno::Errno,
    fcntl::{SpliceFFlags, splice, tee},
    unistd,
};
use serde::{Deserialize, Serialize};

use super::{
    capture::SharedTail,
    journal::{Journal, Pending, Record},
    lines::{Choice, Cut, Cutter},
    pipes::{Pipe, Target, Tools, enlarge},
};
use crate::{limits, sys::clock};

/// The description of a flow, for the keeper.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct FlowOrder {
    route: RouteName,
    prefix: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
enum RouteName {
    File,
    Console,
    Lines,
    LinesAndFile,
}

/// The destination of a stream.
#[derive(Debug)]
pub(crate) enum Destination {
    /// A file; the stream is unchanged.
    File(OwnedFd),
    /// The console; the stream is unchanged.
    Console(OwnedFd),
    /// The console, line by line, and optionally a file, unchanged.
    Lines {
        console: OwnedFd,
        /// Lines to be written to that console, of all streams; one thread writes to it.
        staged: Arc<Pipe>,
        prefix: Vec<u8>,
        choice: Option<Choice>,
        file: Option<OwnedFd>,
    },
}

#[derive(Debug)]
enum Route {
    File(OwnedFd),
    Console(OwnedFd),
    Lines(Box<Lines>),
}

#[derive(Debug)]
struct Lines {
    console: OwnedFd,
    staged: Arc<Pipe>,
    cutter: Cutter,
    /// Content that was taken from the source and is not in `staged` yet.
    taken: Pipe,
    /// The length of that content.
    taken_len: usize,
    /// The range of `buffer` with the front of `taken`.
    peeked: std::ops::Range<usize>,
    journal: Journal,
    record: Record,
    /// The start of the next line; a copy of that in the journal.
    rest: Vec<u8>,
    /// A file, and the pipe to it.
    file: Option<(OwnedFd, Pipe)>,
}

/// The state of a stream after copying.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Progress {
    /// The source may have more.
    More,
    /// The source is empty at present.
    Empty,
    /// All writers are gone, and the source is empty.
    End,
}

/// One stream of a worker and its route.
#[derive(Debug)]
pub(crate) struct Flow {
    source: OwnedFd,
    route: Route,
    tail: Option<SharedTail>,
    pub(super) progress: Progress,
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
        destination: Destination,
        tail: Option<SharedTail>,
    ) -> io::Result<Self> {
        let mut scratch = None;
        let route = match destination {
            Destination::File(file) => {
                // With more room, the worker can go on writing in the meantime.
                enlarge(&source, limits::TEE_CHUNK);
                Route::File(file)
            }
            Destination::Console(console) => Route::Console(console),
            Destination::Lines { console, staged, prefix, choice, file } => {
                let size = if file.is_some() { limits::TEE_CHUNK } else { limits::CONSOLE_CHUNK };
                enlarge(&source, size);
                let [own, taken, filed] = Pipe::alike(size)?;
                scratch = Some(own);
                let cutter = Cutter::new(prefix, choice, limits::MAX_CONSOLE_LINE, staged.size());
                Route::Lines(Box::new(Lines {
                    console,
                    staged,
                    cutter,
                    taken,
                    taken_len: 0,
                    peeked: 0..0,
                    journal: Journal::new()?,
                    record: Record::default(),
                    rest: Vec::new(),
                    file: file.map(|file| (file, filed)),
                }))
            }
        };
        let scratch = scratch.map_or_else(|| Pipe::new(limits::CONSOLE_CHUNK), Ok)?;
        let tools = Tools::new(scratch)?;
        Ok(Self { source, route, tail, progress: Progress::More, chosen: Vec::new(), tools })
    }

    /// Returns what the keeper needs to continue this flow: see [`Flow::adopt`].
    ///
    /// # Errors
    ///
    /// Returns the system's refusal of a descriptor.
    pub(super) fn hand_over(&self) -> io::Result<(FlowOrder, Vec<OwnedFd>)> {
        let mut fds = vec![self.source.try_clone()?];
        let (route, prefix) = match &self.route {
            Route::File(file) => {
                fds.push(file.try_clone()?);
                (RouteName::File, Vec::new())
            }
            Route::Console(console) => {
                fds.push(console.try_clone()?);
                (RouteName::Console, Vec::new())
            }
            Route::Lines(lines) => {
                fds.push(lines.console.try_clone()?);
                fds.extend(lines.staged.try_clone()?);
                fds.extend(lines.taken.try_clone()?);
                fds.push(lines.journal.try_clone()?);
                let name = if let Some((file, filed)) = &lines.file {
                    fds.push(file.try_clone()?);
                    fds.extend(filed.try_clone()?);
                    RouteName::LinesAndFile
                } else {
                    RouteName::Lines
                };
                (name, lines.cutter.prefix.clone())
            }
        };
        Ok((FlowOrder { route, prefix }, fds))
    }

    /// Takes over a flow of an agent that may die later; `fds` has the descriptors of
    /// [`Flow::hand_over`].
    pub(crate) fn adopt(
        order: &FlowOrder,
        fds: &mut impl Iterator<Item = OwnedFd>,
    ) -> Option<HandedOver> {
        let count = match order.route {
            RouteName::File | RouteName::Console => 2,
            RouteName::Lines => 7,
            RouteName::LinesAndFile => 10,
        };
        let fds: Vec<OwnedFd> = fds.take(count).collect();
        (fds.len() == count).then(|| HandedOver { order: order.clone(), fds })
    }

    /// Returns true if this stream goes to a file.
    pub(super) fn has_file(&self) -> bool {
        match &self.route {
            Route::File(_) => true,
            Route::Console(_) => false,
            Route::Lines(lines) => lines.file.is_some(),
        }
    }

    /// Returns true if this stream goes to the console.
    pub(super) fn has_console(&self) -> bool {
        match &self.route {
            Route::File(_) => false,
            Route::Console(_) | Route::Lines(_) => true,
        }
    }

    /// Returns true if the lines of this stream are written through `staged`.
    pub(super) fn stages_to(&self, staged: &Arc<Pipe>) -> bool {
        matches!(&self.route, Route::Lines(lines) if Arc::ptr_eq(&lines.staged, staged))
    }

    /// Returns the lines that filters have selected since the last call, and their file.
    pub(super) fn chosen(&mut self) -> Option<(Arc<std::fs::File>, Vec<u8>)> {
        let Route::Lines(lines) = &self.route else { return None };
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
            Route::File(file) => {
                let to = Target { fd: file.as_fd(), is_file: true };
                let (progress, copied) =
                    self.tools.pass_on_burst(self.source.as_fd(), to, self.tail.as_ref());
                self.progress = progress;
                copied
            }
            Route::Console(_) => Ok(()),
            Route::Lines(lines) => {
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
            Route::File(_) => Ok(()),
            Route::Console(console) => {
                let to = Target { fd: console.as_fd(), is_file: false };
                let (progress, copied) =
                    self.tools.pass_on_burst(self.source.as_fd(), to, self.tail.as_ref());
                self.progress = progress;
                copied
            }
            Route::Lines(lines) => {
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
                    if lines.file.is_some() || self.progress != Progress::More {
                        break;
                    }
                }
                result
            }
        }
    }
}

/// A flow that its agent copies as long as that lives.
#[derive(Debug)]
pub(crate) struct HandedOver {
    order: FlowOrder,
    fds: Vec<OwnedFd>,
}

impl HandedOver {
    /// Continues where the agent was killed.
    fn resume(self, deadline: Instant) -> Option<Flow> {
        let mut fds = self.fds.into_iter();
        let mut next = || fds.next();
        let source = next()?;
        let target = next()?;
        let route = match self.order.route {
            RouteName::File => Route::File(target),
            RouteName::Console => Route::Console(target),
            RouteName::Lines | RouteName::LinesAndFile => {
                let staged = Pipe { read: next()?, write: next()? };
                let taken = Pipe { read: next()?, write: next()? };
                let journal = Journal::from(next()?);
                let file = next();
                let file = match file {
                    Some(file) => Some((file, Pipe { read: next()?, write: next()? })),
                    None => None,
                };
                let record = journal.record();
                let size = staged.size();
                Route::Lines(Box::new(Lines {
                    console: target,
                    staged: Arc::new(staged),
                    cutter: Cutter::new(self.order.prefix, None, limits::MAX_CONSOLE_LINE, size),
                    taken_len: taken.fill(),
                    taken,
                    peeked: 0..0,
                    rest: Vec::new(),
                    journal,
                    record,
                    file,
                }))
            }
        };
        let mut tools = Tools::new(Pipe::new(limits::CONSOLE_CHUNK).ok()?).ok()?;
        tools.deadline = Some(deadline);
        let (progress, chosen) = (Progress::More, Vec::new());
        Some(Flow { source, route, tail: None, progress, chosen, tools })
    }
}

/// Copies the remaining output of all flows; their agent and all writers are gone.
pub(crate) fn finish_all(flows: Vec<HandedOver>, deadline: Instant) {
    let mut flows: Vec<Flow> = flows.into_iter().filter_map(|flow| flow.resume(deadline)).collect();
    let lines = |flow: &mut Flow, act: &dyn Fn(&mut Lines, &Tools)| {
        if let Route::Lines(lines) = &mut flow.route {
            act(lines, &flow.tools);
        }
    };
    // The owner of staged lines must be known before they are printed, and a line that was printed
    // in part must be completed before any other output.
    for flow in &mut flows {
        lines(flow, &|lines, tools| lines.settle(tools));
    }
    for flow in &mut flows {
        // Output that cannot be written is lost.
        lines(flow, &|lines, tools| drop(lines.print(tools)));
    }
    for flow in &mut flows {
        // All writers are dead, so an empty pipe stays empty. Errors drop output, so the loop ends,
        // at the latest at the deadline.
        while flow.progress == Progress::More && clock::now_blocking() < deadline {
            let _ = flow.copy_to_file();
            let _ = flow.copy_to_console();
            if flow.progress != Progress::More {
                break;
            }
        }
        if let Route::Lines(lines) = &mut flow.route {
            let _ = lines.copy(Progress::End, &mut flow.tools, None, &mut Vec::new());
        }
    }
}

impl Lines {
    /// Takes the content of the source, unless earlier content is left.
    fn take(&mut self, source: &OwnedFd, tools: &mut Tools, tail: Option<&SharedTail>) -> Progress {
        if self.taken_len == 0 {
            loop {
                let flags = SpliceFFlags::SPLICE_F_NONBLOCK;
                match splice(source, None, &self.taken.write, None, limits::TEE_CHUNK, flags) {
                    Ok(0) => return Progress::End,
                    Ok(len) => {
                        self.taken_len = len;
                        break;
                    }
                    Err(Errno::EINTR) => {}
                    Err(Errno::EAGAIN) => return Progress::Empty,
                    Err(_) => return Progress::End,
                }
            }
        }
        self.peek(tools, tail);
        Progress::More
    }

    fn peek(&mut self, tools: &mut Tools, tail: Option<&SharedTail>) {
        if self.peeked.is_empty() {
            self.peeked = 0..tools.peek(self.taken.read.as_fd(), limits::TEE_CHUNK);
            if let Some(tail) = tail {
                tail.push(&tools.buffer[self.peeked.clone()]);
            }
        }
    }

    /// Copies the taken content to the file, once.
    fn copy_to_file(&mut self, tools: &mut Tools) -> io::Result<()> {
        let Some((file, filed)) = &self.file else { return Ok(()) };
        if self.taken_len > 0 && !self.record.is_filed {
            // Nothing leaves `filed` before the record is written, so content in it was teed
            // already.
            if filed.fill() == 0 {
                let flags = SpliceFFlags::SPLICE_F_NONBLOCK;
                tee(&self.taken.read, &filed.write, self.taken_len, flags)?;
            }
            self.record.is_filed = true;
            self.journal.write(&self.record)?;
        }
        let to = Target { fd: file.as_fd(), is_file: true };
        tools.transfer(filed.read.as_fd(), to, filed.fill())
    }

    /// Copies the taken content to the console; at the end, also a last line without a line break.
    fn copy(
        &mut self,
        progress: Progress,
        tools: &mut Tools,
        tail: Option<&SharedTail>,
        chosen: &mut Vec<u8>,
    ) -> io::Result<()> {
        let mut result = Ok(());
        while self.taken_len > 0 {
            self.peek(tools, tail);
            let mut cut = self.cutter.cut(&self.rest, &tools.buffer[self.peeked.clone()]);
            if cut.used == 0 {
                // The content cannot be read: drop it, or it would block the stream for ever.
                cut.used = self.taken_len;
            }
            chosen.append(&mut cut.chosen);
            let (used, before) = (cut.used, self.taken_len);
            let staged = self.stage(cut, tools);
            if staged.is_err() && self.taken_len == before {
                // Drop it, or it would block the stream for ever.
                let _ = tools.discard(self.taken.read.as_fd(), used);
                self.taken_len = self.taken_len.saturating_sub(used);
                self.peeked.start = (self.peeked.start + used).min(self.peeked.end);
            }
            let printed = self.print(tools);
            result = result.and(staged).and(printed);
            if result.is_err() && tools.deadline.is_some() {
                return result;
            }
        }
        if progress == Progress::End {
            let mut cut = self.cutter.cut_rest(&self.rest);
            chosen.append(&mut cut.chosen);
            if !cut.out.is_empty() {
                let staged = self.stage(cut, tools);
                let printed = self.print(tools);
                result = result.and(staged).and(printed);
            }
        }
        result
    }

    /// Replaces `cut.used` bytes of the taken content by lines in `staged`; atomic for the keeper.
    fn stage(&mut self, cut: Cut, tools: &Tools) -> io::Result<()> {
        self.journal.write_rest(!self.record.slot, &cut.rest)?;
        self.record.pending = Some(Pending {
            taken: self.taken_len as u64,
            used: cut.used as u64,
            rest: cut.rest.len() as u64,
        });
        self.journal.write(&self.record)?;
        if !cut.out.is_empty() {
            // The pipe is empty and large enough, so it takes everything.
            unistd::write(&self.staged.write, &cut.out)?;
        }
        let dropped = tools.discard(self.taken.read.as_fd(), cut.used);
        self.taken_len = self.taken_len.saturating_sub(cut.used);
        self.peeked.start = (self.peeked.start + cut.used).min(self.peeked.end);
        self.commit(cut.rest.len() as u64);
        self.rest = cut.rest;
        self.journal.write(&self.record)?;
        dropped
    }

    fn commit(&mut self, rest: u64) {
        let is_filed = self.record.is_filed && self.taken_len > 0;
        self.record = Record { is_filed, slot: !self.record.slot, rest, pending: None };
    }

    /// Completes an intent of the agent that was begun, or discards it.
    fn settle(&mut self, tools: &Tools) {
        if let Some(Pending { taken, used, rest }) = self.record.pending {
            let dropped = (taken as usize).saturating_sub(self.taken_len);
            let was_begun = dropped > 0 || self.staged.fill() > 0;
            if was_begun {
                let left = (used as usize).saturating_sub(dropped);
                let _ = tools.discard(self.taken.read.as_fd(), left);
                self.taken_len = self.taken_len.saturating_sub(left);
                self.commit(rest);
            } else {
                self.record.pending = None;
            }
        }
        self.rest = self.journal.rest(&self.record);
    }

    /// Prints the staged lines.
    fn print(&self, tools: &Tools) -> io::Result<()> {
        let (staged, len) = (self.staged.read.as_fd(), self.staged.fill());
        let to = Target { fd: self.console.as_fd(), is_file: false };
        tools.transfer(staged, to, len)
    }
}
