//! Shows a stream line by line on the console, and copies it unchanged to a file.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use crate::output::{
    begun_line::BegunLine,
    lines::Cutter,
    pipes::{CopyProgress, Target, Tools},
    streams::Stream,
};

/// The lines of a stream, on their way to the console and to a file.
#[derive(Debug)]
pub(super) struct ShownLines {
    pub(super) console: OwnedFd,
    pub(super) stream: Stream,
    pub(super) cutter: Cutter,
    /// A copy of the line that the cutter has begun.
    pub(super) begun: BegunLine,
    pub(super) file: Option<OwnedFd>,
}

impl ShownLines {
    /// Appends the content in the buffer to the file.
    pub(super) fn copy_to_file(&self, tools: &Tools) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        tools.write(Target { fd: file.as_fd(), is_file: true }, tools.peeked())
    }

    /// Shows the lines that end in the buffer, and then removes its content from the source. At the end of the stream, also shows a
    /// last line without a line break. Selected lines are added to `chosen`.
    pub(super) fn show(
        &mut self,
        progress: CopyProgress,
        source: &OwnedFd,
        tools: &mut Tools,
        chosen: &mut Vec<u8>,
    ) -> io::Result<()> {
        let had_begun = !self.cutter.begun.is_empty();
        let mut cut = self.cutter.cut(tools.peeked());
        // The bytes of the begun line that are still in the source.
        let left = if cut.out.is_empty() { tools.peeked().len() } else { self.cutter.begun.len() };
        if progress == CopyProgress::End {
            let last = self.cutter.end();
            cut.out.extend(last.out);
            cut.chosen.extend(last.chosen);
        }
        chosen.append(&mut cut.chosen);
        let console = Target { fd: self.console.as_fd(), is_file: false };
        // After a kill between two of these steps, the keeper shows a piece again. Errors of the begun line have no other effect.
        let shown = tools.write(console, &cut.out);
        if had_begun && !cut.out.is_empty() {
            let _ = self.begun.write(b"");
        }
        let ended = tools.discard_peeked(source.as_fd(), left);
        if left > 0 {
            let _ = self.begun.write(&self.cutter.begun);
        }
        let begun = tools.discard_peeked(source.as_fd(), 0);
        shown.and(ended).and(begun)
    }
}
