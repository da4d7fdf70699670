//! Copies what a worker writes to where it belongs, and keeps the last lines of it.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex, PoisonError},
};

use bytes::{Bytes, BytesMut};
use tokio::{io::AsyncReadExt, net::unix::pipe, sync::oneshot};

use super::{console::Console, tail::Tail};
use crate::{
    job_spec::{LineFilters, Stream},
    limits,
};

/// Asks a capture to read whatever its worker has written so far, and to say when it has.
pub(super) type Drain = oneshot::Sender<oneshot::Sender<()>>;

/// The last lines of a stream that is being copied.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedTail(Arc<Mutex<Tail>>);

impl SharedTail {
    pub(super) fn text(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).text()
    }

    fn push(&self, chunk: &[u8]) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(chunk);
    }
}

/// Where the copies of a stream go.
#[derive(Debug)]
pub(super) struct Copies {
    /// The console.
    pub(super) console: Console,
    /// Which of the console's streams.
    pub(super) stream: Stream,
    /// How it looks there.
    pub(super) shown: Shown,
    /// A file that gets the bytes too.
    pub(super) file: Option<Arc<File>>,
    /// What keeps the last lines.
    pub(super) tail: SharedTail,
}

/// How a stream looks on the console.
#[derive(Debug)]
pub(super) enum Shown {
    /// Not at all.
    Nothing,
    /// Untouched.
    Bytes,
    /// Line by line.
    Lines(Lines),
}

/// A stream that is being copied.
#[derive(Debug)]
pub(super) struct Capture {
    /// The worker's end of the pipe.
    pub(super) fd: OwnedFd,
    /// Asks for what has been written so far.
    pub(super) drain: Drain,
    /// The other end, for whoever outlives this process.
    pub(super) pipe: OwnedFd,
}

/// Makes a pipe for a worker's stream and copies what comes out of it until all writers are gone.
///
/// # Errors
///
/// Returns the system's refusal of a pipe.
pub(super) fn start(copies: Copies) -> io::Result<Capture> {
    let (sender, receiver) = pipe::pipe()?;
    let (drain, drains) = oneshot::channel();
    let pipe = receiver.as_fd().try_clone_to_owned()?;
    tokio::spawn(copy(receiver, copies, drains));
    // A worker expects its streams to block.
    Ok(Capture { fd: sender.into_blocking_fd()?, drain, pipe })
}

async fn copy(
    mut pipe: pipe::Receiver,
    mut copies: Copies,
    mut drains: oneshot::Receiver<oneshot::Sender<()>>,
) {
    let mut buffer = BytesMut::new();
    let mut may_drain = true;
    loop {
        buffer.reserve(limits::CONSOLE_CHUNK);
        tokio::select! {
            // Output first, so that a drain has little left to do.
            biased;
            read = pipe.read_buf(&mut buffer) => match read {
                Ok(0) | Err(_) => break,
                Ok(_) => copies.write(buffer.split().freeze()).await,
            },
            drain = &mut drains, if may_drain => {
                may_drain = false;
                // The runtime may not have heard yet of what is in the pipe, so the pipe is asked.
                while let Some(chunk) = read_now(&pipe) {
                    copies.write(chunk).await;
                }
                if let Ok(drained) = drain {
                    // Whoever asked may have stopped waiting.
                    let _ = drained.send(());
                }
            }
        }
    }
    copies.finish().await;
}

/// What stands in the pipe at this moment; none if nothing does.
fn read_now(pipe: &pipe::Receiver) -> Option<Bytes> {
    let mut chunk = vec![0; limits::CONSOLE_CHUNK];
    let len = nix::unistd::read(pipe.as_fd(), &mut chunk).ok().filter(|len| *len > 0)?;
    chunk.truncate(len);
    Some(chunk.into())
}

impl Copies {
    async fn write(&mut self, chunk: Bytes) {
        self.tail.push(&chunk);
        if let Some(file) = &self.file {
            self.console.write_file(file, chunk.clone()).await;
        }
        match &mut self.shown {
            Shown::Nothing => {}
            Shown::Bytes => self.console.write(self.stream, chunk).await,
            Shown::Lines(lines) => {
                let cut = lines.cut(&chunk);
                self.write_lines(cut).await;
            }
        }
    }

    async fn finish(&mut self) {
        if let Shown::Lines(lines) = &mut self.shown {
            let rest = lines.rest();
            self.write_lines(rest).await;
        }
    }

    async fn write_lines(&self, Cut { console, chosen }: Cut) {
        if !console.is_empty() {
            self.console.write(self.stream, console.into()).await;
        }
        if let Shown::Lines(Lines { choice: Some(choice), .. }) = &self.shown
            && !chosen.is_empty()
        {
            self.console.write_file(&choice.file, chosen.into()).await;
        }
    }
}

/// Which lines are copied to a file of their own.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    pub(super) filters: LineFilters,
    pub(super) file: Arc<File>,
}

/// Cuts output into lines that begin with a prefix; a line is printed when it is whole.
#[derive(Debug, Default)]
pub(super) struct Lines {
    prefix: Vec<u8>,
    choice: Option<Choice>,
    begun: Vec<u8>,
}

/// Whole lines, with their prefix.
#[derive(Debug, Default)]
struct Cut {
    console: Vec<u8>,
    chosen: Vec<u8>,
}

impl Lines {
    pub(super) fn new(prefix: Vec<u8>, choice: Option<Choice>) -> Self {
        Self { prefix, choice, begun: Vec::new() }
    }

    fn cut(&mut self, chunk: &[u8]) -> Cut {
        let mut cut = Cut::default();
        for piece in chunk.split_inclusive(|&byte| byte == b'\n') {
            self.begun.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.begun.len() > limits::MAX_CONSOLE_LINE {
                self.end_line(&mut cut);
            }
        }
        cut
    }

    /// What is left of a last line without an end, with one.
    fn rest(&mut self) -> Cut {
        let mut cut = Cut::default();
        if !self.begun.is_empty() {
            self.begun.push(b'\n');
            self.end_line(&mut cut);
        }
        cut
    }

    fn end_line(&mut self, cut: &mut Cut) {
        let is_chosen =
            self.choice.as_ref().is_some_and(|choice| choice.filters.matches(&self.begun));
        for out in [Some(&mut cut.console), is_chosen.then_some(&mut cut.chosen)] {
            let Some(out) = out else { continue };
            out.extend_from_slice(&self.prefix);
            out.extend_from_slice(&self.begun);
        }
        self.begun.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: &[u8]) -> &str {
        std::str::from_utf8(bytes).unwrap()
    }

    /// Every line gets its prefix once, however the output is cut, and carriage returns stay.
    #[test]
    fn lines_get_one_prefix() {
        let mut lines = Lines::new(b"[a0]:".to_vec(), None);
        assert_eq!(text(&lines.cut(b"one\ntw").console), "[a0]:one\n");
        assert_eq!(text(&lines.cut(b"o\r50%\r").console), "");
        assert_eq!(text(&lines.cut(b"\nthree").console), "[a0]:two\r50%\r\n");
        assert_eq!(text(&lines.rest().console), "[a0]:three\n");
        assert_eq!(text(&lines.rest().console), "");
    }

    /// Chosen lines are copied with their prefix, also a last one without an end.
    #[test]
    fn chosen_lines_are_copied() {
        let file = Arc::new(tempfile::tempfile().unwrap());
        let choice = Choice { filters: LineFilters::of(&["loss"]), file };
        let mut lines = Lines::new(b"[a0]:".to_vec(), Some(choice));
        let cut = lines.cut(b"step 1\nloss 2\nlo");
        assert_eq!(text(&cut.console), "[a0]:step 1\n[a0]:loss 2\n");
        assert_eq!(text(&cut.chosen), "[a0]:loss 2\n");
        assert_eq!(text(&lines.cut(b"ss 3").chosen), "");
        assert_eq!(text(&lines.rest().chosen), "[a0]:loss 3\n");
    }
}
