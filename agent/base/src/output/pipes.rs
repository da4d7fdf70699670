//! The pipes for the output of workers: reads their state, and moves their content.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
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
pub struct Pipe {
    pub(super) read: OwnedFd,
    pub(super) write: OwnedFd,
}

impl Pipe {
    /// Creates a pipe of about `size` bytes.
    ///
    /// # Errors
    ///
    /// Returns the system's refusal of a pipe. Its size may differ from `size`.
    pub(crate) fn new(size: usize) -> io::Result<Self> {
        let (read, write) = unistd::pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        enlarge(&write, size);
        Ok(Self { read, write })
    }

    /// Creates pipes of one size, so that each can take the whole content of another.
    pub(super) fn alike<const N: usize>(size: usize) -> io::Result<[Self; N]> {
        let pipes = (0..N).map(|_| Self::new(size)).collect::<io::Result<Vec<_>>>()?;
        let size = pipes.iter().map(Self::size).min().unwrap_or_default();
        for pipe in &pipes {
            let size = i32::try_from(size).unwrap_or(i32::MAX);
            fcntl(&pipe.write, FcntlArg::F_SETPIPE_SZ(size))?;
        }
        pipes.try_into().map_err(|_| io::ErrorKind::InvalidInput.into())
    }

    pub(super) fn size(&self) -> usize {
        fcntl(&self.write, FcntlArg::F_GETPIPE_SZ)
            .ok()
            .and_then(|size| size.try_into().ok())
            .unwrap_or(4096)
    }

    pub(super) fn fill(&self) -> usize {
        unix::pipe_fill(self.read.as_fd())
    }

    pub(super) fn try_clone(&self) -> io::Result<[OwnedFd; 2]> {
        Ok([self.read.try_clone()?, self.write.try_clone()?])
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
    pub(super) buffer: Vec<u8>,
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
        Ok(Self { scratch, buffer, void, deadline: None })
    }

    /// Copies the front of `pipe` into the buffer without removing it; returns its length.
    pub(super) fn peek(&mut self, pipe: BorrowedFd<'_>, max: usize) -> usize {
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
    pub(super) fn transfer(
        &self,
        from: BorrowedFd<'_>,
        to: Target<'_>,
        len: usize,
    ) -> io::Result<()> {
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

    fn transfer_some(&self, from: BorrowedFd<'_>, to: Target<'_>, len: usize) -> io::Result<usize> {
        // A terminal blocks in spite of all flags, so a keeper writes only what it surely accepts.
        let len = match self.deadline {
            Some(_) if !to.is_file => {
                self.wait_until_writable(to.fd)?;
                len.min(limits::SPILLED_CHUNK)
            }
            Some(_) | None => len,
        };
        if to.is_file {
            lseek(to.fd, 0, Whence::SeekEnd)?;
        }
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

    /// Moves some bytes by two calls, if a single one cannot. A kill between them repeats the bytes.
    fn copy_some(&self, from: BorrowedFd<'_>, to: BorrowedFd<'_>, len: usize) -> io::Result<usize> {
        let mut chunk = vec![0; len.min(limits::TEE_CHUNK)];
        let flags = SpliceFFlags::SPLICE_F_NONBLOCK;
        let len = tee(from, &self.scratch.write, len.min(chunk.len()), flags)?;
        let len = unistd::read(&self.scratch.read, &mut chunk[..len])?;
        let written = loop {
            match unistd::write(to, &chunk[..len]) {
                Ok(written) => break written,
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => self.wait_until_writable(to)?,
                Err(errno) => return Err(errno.into()),
            }
        };
        self.discard(from, written)?;
        Ok(written)
    }

    pub(super) fn discard(&self, from: BorrowedFd<'_>, len: usize) -> io::Result<()> {
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
