//! Copies what a worker writes to where it belongs, and keeps the last lines of it.

use std::{
    fs::File,
    io,
    os::fd::AsFd,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::{Bytes, BytesMut};
use tokio::{io::AsyncReadExt, net::unix::pipe, sync::oneshot};

use super::{console::Console, tail::Tail};
use crate::{job_spec::Stream, limits};

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
    /// What every line on the console begins with; none: bytes go there untouched.
    pub(super) prefix: Option<String>,
    /// A file that gets the bytes too.
    pub(super) file: Option<Arc<File>>,
    /// What keeps the last lines.
    pub(super) tail: SharedTail,
}

/// Makes a pipe for a worker's stream and copies what comes out of it until all writers are gone.
///
/// # Errors
///
/// Returns the system's refusal of a pipe.
pub(super) fn start(copies: Copies) -> io::Result<(std::os::fd::OwnedFd, Drain)> {
    let (sender, receiver) = pipe::pipe()?;
    let (drain, drains) = oneshot::channel();
    tokio::spawn(copy(receiver, copies, drains));
    // A worker expects its streams to block.
    Ok((sender.into_blocking_fd()?, drain))
}

async fn copy(
    mut pipe: pipe::Receiver,
    mut copies: Copies,
    mut drains: oneshot::Receiver<oneshot::Sender<()>>,
) {
    let mut buffer = BytesMut::new();
    let mut lines = Lines::default();
    let mut may_drain = true;
    loop {
        buffer.reserve(limits::CONSOLE_CHUNK);
        tokio::select! {
            // Output first, so that a drain has little left to do.
            biased;
            read = pipe.read_buf(&mut buffer) => match read {
                Ok(0) | Err(_) => break,
                Ok(_) => copies.write(&mut lines, buffer.split().freeze()).await,
            },
            drain = &mut drains, if may_drain => {
                may_drain = false;
                // The runtime may not have heard yet of what is in the pipe, so the pipe is asked.
                while let Some(chunk) = read_now(&pipe) {
                    copies.write(&mut lines, chunk).await;
                }
                if let Ok(drained) = drain {
                    // Whoever asked may have stopped waiting.
                    let _ = drained.send(());
                }
            }
        }
    }
    copies.finish(&mut lines).await;
}

/// What stands in the pipe at this moment; none if nothing does.
fn read_now(pipe: &pipe::Receiver) -> Option<Bytes> {
    let mut chunk = vec![0; limits::CONSOLE_CHUNK];
    let len = nix::unistd::read(pipe.as_fd(), &mut chunk).ok().filter(|len| *len > 0)?;
    chunk.truncate(len);
    Some(chunk.into())
}

impl Copies {
    async fn write(&mut self, lines: &mut Lines, chunk: Bytes) {
        self.tail.push(&chunk);
        if let Some(file) = &self.file {
            self.console.write_file(file, chunk.clone()).await;
        }
        let chunk = match &self.prefix {
            None => chunk,
            Some(prefix) => lines.prefixed(prefix, &chunk),
        };
        if !chunk.is_empty() {
            self.console.write(self.stream, chunk).await;
        }
    }

    async fn finish(&mut self, lines: &mut Lines) {
        if let Some(prefix) = &self.prefix {
            let rest = lines.rest(prefix);
            if !rest.is_empty() {
                self.console.write(self.stream, rest).await;
            }
        }
    }
}

/// Cuts output into lines that begin with a prefix; a line is printed when it is whole.
#[derive(Debug, Default)]
struct Lines(Vec<u8>);

impl Lines {
    fn prefixed(&mut self, prefix: &str, chunk: &[u8]) -> Bytes {
        let mut out = Vec::new();
        for piece in chunk.split_inclusive(|&byte| byte == b'\n') {
            self.0.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.0.len() > limits::MAX_CONSOLE_LINE {
                out.extend_from_slice(prefix.as_bytes());
                out.append(&mut self.0);
            }
        }
        out.into()
    }

    /// What is left of a last line without an end, with one.
    fn rest(&mut self, prefix: &str) -> Bytes {
        if self.0.is_empty() {
            return Bytes::new();
        }
        self.0.push(b'\n');
        let mut out = prefix.as_bytes().to_vec();
        out.append(&mut self.0);
        out.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every line gets its prefix once, however the output is cut, and carriage returns stay.
    #[test]
    fn lines_get_one_prefix() {
        let mut lines = Lines::default();
        assert_eq!(lines.prefixed("[a0]:", b"one\ntw"), "[a0]:one\n");
        assert_eq!(lines.prefixed("[a0]:", b"o\r50%\r"), "");
        assert_eq!(lines.prefixed("[a0]:", b"\nthree"), "[a0]:two\r50%\r\n");
        assert_eq!(lines.rest("[a0]:"), "[a0]:three\n");
        assert_eq!(lines.rest("[a0]:"), "");
    }
}
