//! Copies a stream line by line: cuts the content of its pipe, writes the lines to a pipe for the console,
//! and records each step in the journal.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use nix::{
    errno::Errno,
    fcntl::{SpliceFFlags, splice, tee},
    unistd,
};

use crate::{
    output::limits,
    output::{
        journal::{LineJournal, LineRecord, PendingLines},
        lines::{Cut, Cutter},
        pipes::{CopyProgress, Pipe, Target, Tools},
        tail::SharedTail,
    },
};

/// The lines of a stream, on their way to the console and to a file.
#[derive(Debug)]
pub(super) struct StagedLines {
    pub(super) console: OwnedFd,
    pub(super) staged: Arc<Pipe>,
    pub(super) cutter: Cutter,
    /// Content that was taken from the source and is not in `staged` yet.
    pub(super) taken: Pipe,
    /// The length of that content.
    pub(super) taken_len: usize,
    /// The range of `buffer` with the front of `taken`.
    pub(super) peeked: std::ops::Range<usize>,
    pub(super) journal: LineJournal,
    pub(super) record: LineRecord,
    /// The start of the next line; a copy of that in the journal.
    pub(super) rest: Vec<u8>,
    /// A file, and the pipe to it.
    pub(super) file: Option<(OwnedFd, Pipe)>,
}

impl StagedLines {
    /// Takes the content of the source, unless earlier content is left.
    pub(super) fn take(
        &mut self,
        source: &OwnedFd,
        tools: &mut Tools,
        tail: Option<&SharedTail>,
    ) -> CopyProgress {
        if self.taken_len == 0 {
            loop {
                let flags = SpliceFFlags::SPLICE_F_NONBLOCK;
                match splice(source, None, &self.taken.write, None, limits::TEE_CHUNK, flags) {
                    Ok(0) => return CopyProgress::End,
                    Ok(len) => {
                        self.taken_len = len;
                        break;
                    }
                    Err(Errno::EINTR) => {}
                    Err(Errno::EAGAIN) => return CopyProgress::Empty,
                    Err(_) => return CopyProgress::End,
                }
            }
        }
        self.peek(tools, tail);
        CopyProgress::More
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
    pub(super) fn copy_to_file(&mut self, tools: &mut Tools) -> io::Result<()> {
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
    pub(super) fn copy(
        &mut self,
        progress: CopyProgress,
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
        if progress == CopyProgress::End {
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
        self.record.pending = Some(PendingLines {
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
        self.record = LineRecord { is_filed, slot: !self.record.slot, rest, pending: None };
    }

    /// Completes an intent of the agent that was begun, or discards it.
    pub(super) fn settle(&mut self, tools: &Tools) {
        if let Some(PendingLines { taken, used, rest }) = self.record.pending {
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
    pub(super) fn print(&self, tools: &Tools) -> io::Result<()> {
        let (staged, len) = (self.staged.read.as_fd(), self.staged.fill());
        let to = Target { fd: self.console.as_fd(), is_file: false };
        tools.transfer(staged, to, len)
    }
}
