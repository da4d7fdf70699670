//! The pipes for the output of workers: reads their state, and moves their content.

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
    time::Instant,
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, splice, tee},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    unistd::{self, Whence, lseek},
};

use super::tail::SharedTail;
use crate::{
    output::limits,
    sys::{clock, unix},
};

/// An internal pipe, which is read and written without blocking.
#[derive(Debug)]
pub(super) struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
}

impl Pipe {
    /// Creates a pipe of about `size` bytes.
    ///
    /// # Errors
    ///
    /// Returns the system's refusal of a pipe. Its size may differ from `size`.
    pub(super) fn new(size: usize) -> io::Result<Self> {
        let (read, write) = unistd::pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        enlarge(&write, size);
        Ok(Self { read, write })
    }

    fn size(&self) -> usize {
        fcntl(&self.write, FcntlArg::F_GETPIPE_SZ)
            .ok()
            .and_then(|size| size.try_into().ok())
            .unwrap_or(4096)
    }
}

/// The state of a stream after copying.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum CopyProgress {
    /// The source may have more.
    More,
    /// The source is empty at present.
    Empty,
    /// All writers are gone, and the source is empty.
    End,
}

/// Requests a size for a pipe; the system may refuse it to a user with many pipes.
pub(super) fn enlarge(pipe: &OwnedFd, size: usize) {
    let size = i32::try_from(size).unwrap_or(i32::MAX);
    let _ = fcntl(pipe, FcntlArg::F_SETPIPE_SZ(size));
}

/// Resources for reading a pipe without removing its content, and for emptying it.
#[derive(Debug)]
pub(super) struct Tools {
    scratch: Pipe,
    buffer: Vec<u8>,
    /// The length of the content in the buffer that is still in its source.
    peeked: usize,
    void: std::fs::File,
    pub(super) deadline: Option<Instant>,
}

/// A destination of bytes.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    pub(crate) fd: BorrowedFd<'a>,
    /// True for a file: each write goes to its present end.
    pub(super) is_file: bool,
}

impl Tools {
    pub(super) fn new(scratch: Pipe) -> io::Result<Self> {
        let buffer = vec![0; scratch.size()];
        let void = std::fs::OpenOptions::new().write(true).open("/dev/null")?;
        Ok(Self { scratch, buffer, peeked: 0, void, deadline: None })
    }

    /// Copies the front of `pipe` into the buffer without removing it; returns its length.
    fn peek(&mut self, pipe: BorrowedFd<'_>, max: usize) -> usize {
        let max = max.min(self.buffer.len());
        let flags = SpliceFFlags::SPLICE_F_NONBLOCK;
        let Ok(len) = tee(pipe, &self.scratch.write, max, flags) else { return 0 };
        let mut read = 0;
        while read < len {
            match unistd::read(&self.scratch.read, &mut self.buffer[read..len]) {
                Ok(0) => break,
                Ok(more) => read += more,
                Err(Errno::EINTR) => {}
                Err(_) => break,
            }
        }
        read
    }

    /// Copies the front of `source` into the buffer, where [`Self::peeked`] returns it. Returns the state of the source.
    pub(super) fn look(
        &mut self,
        source: BorrowedFd<'_>,
        tail: Option<&SharedTail>,
    ) -> CopyProgress {
        self.peeked = self.peek(source, limits::TEE_CHUNK);
        if self.peeked == 0 {
            return if has_writers(source) { CopyProgress::Empty } else { CopyProgress::End };
        }
        if let Some(tail) = tail {
            tail.push(self.peeked());
        }
        CopyProgress::More
    }

    /// Returns the content that is in the buffer and still in its source.
    pub(super) fn peeked(&self) -> &[u8] {
        &self.buffer[..self.peeked]
    }

    /// Removes that content from its source, except its last `left` bytes.
    pub(super) fn discard_peeked(&mut self, source: BorrowedFd<'_>, left: usize) -> io::Result<()> {
        let len = std::mem::replace(&mut self.peeked, left).saturating_sub(left);
        self.discard(source, len)
    }

    /// Writes `bytes`. Waits while the destination is full.
    pub(super) fn write(&self, to: Target<'_>, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let len = self.prepare(to, bytes.len())?;
            let written = self.write_some(to.fd, &bytes[..len])?;
            bytes = &bytes[written..];
        }
        Ok(())
    }

    /// Moves the chunks of `source` to its only destination, at most [`limits::COPY_BURST`]. Returns the
    /// state of the source, and the error of the destination, at which it stops.
    pub(super) fn pass_on_burst(
        &mut self,
        source: BorrowedFd<'_>,
        to: Target<'_>,
        tail: Option<&SharedTail>,
    ) -> (CopyProgress, io::Result<()>) {
        for _ in 0..limits::COPY_BURST {
            match self.pass_on(source, to, tail) {
                Ok(CopyProgress::More) => {}
                Ok(progress) => return (progress, Ok(())),
                Err(error) => return (CopyProgress::More, Err(error)),
            }
        }
        (CopyProgress::More, Ok(()))
    }

    /// Moves one chunk of `source` to its only destination.
    fn pass_on(
        &mut self,
        source: BorrowedFd<'_>,
        to: Target<'_>,
        tail: Option<&SharedTail>,
    ) -> io::Result<CopyProgress> {
        let len = unix::pipe_fill(source).min(limits::TEE_CHUNK);
        if len == 0 {
            return Ok(if has_writers(source) { CopyProgress::Empty } else { CopyProgress::End });
        }
        let len = match tail {
            Some(tail) => {
                let unread = tail.leave_out(len);
                self.transfer(source, to, unread)?;
                let len = self.peek(source, len - unread);
                tail.push(&self.buffer[..len]);
                len
            }
            None => len,
        };
        self.transfer(source, to, len).map(|()| CopyProgress::More)
    }

    /// Moves `len` bytes that are in `from`; bytes that are refused are dropped.
    fn transfer(&mut self, from: BorrowedFd<'_>, to: Target<'_>, len: usize) -> io::Result<()> {
        let mut left = len;
        while left > 0 {
            match self.transfer_some(from, to, left) {
                Ok(0) => return Ok(()),
                Ok(moved) => left = left.saturating_sub(moved),
                Err(error) => {
                    let is_late = error.kind() == io::ErrorKind::TimedOut;
                    // After a timeout, the bytes stay in the pipe for a later reader.
                    return if is_late {
                        Err(error)
                    } else {
                        self.discard(from, left).and(Err(error))
                    };
                }
            }
        }
        Ok(())
    }

    fn transfer_some(
        &mut self,
        from: BorrowedFd<'_>,
        to: Target<'_>,
        len: usize,
    ) -> io::Result<usize> {
        let len = self.prepare(to, len)?;
        // `splice` uses the position of a file without its lock, and would overwrite what another process writes at the
        // same time to a console that both have inherited.
        if !to.is_file && unix::is_regular_file(to.fd) {
            return self.copy_some(from, to.fd, len);
        }
        loop {
            match splice(from, None, to.fd, None, len, SpliceFFlags::SPLICE_F_NONBLOCK) {
                Ok(moved) => return Ok(moved),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => self.wait_until_writable(to.fd)?,
                // Not supported for files in append mode, and some devices.
                Err(Errno::EINVAL) => return self.copy_some(from, to.fd, len),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Prepares a write of at most `len` bytes. Returns how many may be written.
    fn prepare(&self, to: Target<'_>, len: usize) -> io::Result<usize> {
        if to.is_file {
            lseek(to.fd, 0, Whence::SeekEnd)?;
        } else if self.deadline.is_some() {
            // A terminal blocks in spite of all flags, so a keeper writes only what it surely accepts.
            self.wait_until_writable(to.fd)?;
            return Ok(len.min(limits::SPILLED_CHUNK));
        }
        Ok(len)
    }

    /// Moves some bytes by two calls, if a single one cannot. A kill between them repeats the bytes.
    fn copy_some(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        len: usize,
    ) -> io::Result<usize> {
        let len = self.peek(from, len);
        let written = self.write_some(to, &self.buffer[..len])?;
        self.discard(from, written)?;
        Ok(written)
    }

    fn write_some(&self, to: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match unistd::write(to, bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => return Ok(written),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => self.wait_until_writable(to)?,
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn discard(&self, from: BorrowedFd<'_>, len: usize) -> io::Result<()> {
        let mut left = len;
        while left > 0 {
            match splice(from, None, &self.void, None, left, SpliceFFlags::SPLICE_F_NONBLOCK) {
                Ok(0) | Err(Errno::EAGAIN) => return Ok(()),
                Ok(dropped) => left = left.saturating_sub(dropped),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    fn wait_until_writable(&self, to: BorrowedFd<'_>) -> io::Result<()> {
        let limit = match self.deadline {
            None => PollTimeout::NONE,
            Some(deadline) => {
                let left = deadline.saturating_duration_since(clock::now_blocking());
                PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO)
            }
        };
        let mut fds = [PollFd::new(to, PollFlags::POLLOUT)];
        match poll(&mut fds, limit) {
            Ok(0) => Err(io::ErrorKind::TimedOut.into()),
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

fn has_writers(pipe: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(pipe, PollFlags::POLLIN)];
    let polled = poll(&mut fds, PollTimeout::ZERO);
    let events = fds[0].revents().unwrap_or(PollFlags::empty());
    // A pipe without writers may still have content, which is read first.
    polled.is_ok() && (events.contains(PollFlags::POLLIN) || !events.contains(PollFlags::POLLHUP))
}
