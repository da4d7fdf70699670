//! Connects the keeper to its agent: receives lines of JSON with file descriptors, and sends lines of JSON.
//!
//! It never blocks, because a frozen agent must not delay the lease timer.

use std::{
    collections::{BTreeSet, VecDeque},
    io::{self, IoSliceMut},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use nix::{
    cmsg_space,
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, send},
};
use ragent_base::{
    output::flow::{Flow, FlowOrder, HandedOver},
    sys::unix,
};

use super::order::{KeeperReport, Order};
use crate::keeper::limits;

/// A worker's stdin, stdout and stderr.
pub(super) type Streams = [OwnedFd; 3];

/// The socket, with buffers for input and output.
///
/// A stopped agent does not read, so reports wait in `output`. Their number needs no limit of its own:
///
/// - each signal waits at most once,
/// - a standby sends at most [`limits::STANDBY_REPORTS`],
/// - all other reports answer an order, or are about a process that an order has started.
#[derive(Debug)]
pub(super) struct OrderSocket {
    fd: OwnedFd,
    /// The memory for one read.
    chunk: Box<[u8]>,
    input: Vec<u8>,
    streams: VecDeque<OwnedFd>,
    output: VecDeque<u8>,
    /// The signals whose reports may be in `output`.
    unsent_signals: BTreeSet<i32>,
}

impl OrderSocket {
    /// Returns the socket that the agent has passed as stdin.
    pub(super) fn from_stdin() -> io::Result<Self> {
        Self::new(io::stdin().as_fd().try_clone_to_owned()?)
    }

    fn new(fd: OwnedFd) -> io::Result<Self> {
        fcntl(&fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        Ok(Self {
            fd,
            chunk: vec![0; limits::READ].into(),
            input: Vec::new(),
            streams: VecDeque::new(),
            output: VecDeque::new(),
            unsent_signals: BTreeSet::new(),
        })
    }

    pub(super) fn borrow(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(super) fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    /// Takes the streams that arrived with the last [`Order::Spawn`], and the descriptors of `flows`.
    pub(super) fn take_streams(
        &mut self,
        flows: &[FlowOrder],
    ) -> Option<(Streams, Vec<HandedOver>)> {
        let mut fds = std::iter::from_fn(|| self.streams.pop_front());
        let streams: Vec<OwnedFd> = fds.by_ref().take(3).collect();
        let streams = streams.try_into().ok()?;
        let flows = flows.iter().map(|flow| Flow::adopt(flow, &mut fds)).collect::<Option<_>>()?;
        Some((streams, flows))
    }

    /// Takes the next order; `None` if it is not complete yet.
    ///
    /// # Errors
    ///
    /// Returns an error if the agent is gone or has sent an invalid message.
    pub(super) fn receive(&mut self) -> io::Result<Option<Order>> {
        self.flush();
        loop {
            if let Some(end) = self.input.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.input.drain(..=end).collect();
                return Ok(Some(serde_json::from_slice(&line)?));
            }
            if self.input.len() > limits::MAX_KEEPER_FRAME {
                return Err(io::ErrorKind::InvalidData.into());
            }
            match self.read() {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) | Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn read(&mut self) -> Result<usize, Errno> {
        let mut control = cmsg_space!([i32; limits::SPAWN_FDS]);
        let mut slices = [IoSliceMut::new(&mut self.chunk)];
        let message = recvmsg::<()>(
            self.fd.as_raw_fd(),
            &mut slices,
            Some(&mut control),
            MsgFlags::MSG_CMSG_CLOEXEC,
        )?;
        for control in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(fds) = control {
                self.streams.extend(fds.into_iter().map(unix::own));
            }
        }
        let len = message.bytes;
        self.input.extend_from_slice(&self.chunk[..len]);
        Ok(len)
    }

    /// Sends `report` now, or as soon as the agent reads again.
    pub(super) fn send(&mut self, report: &KeeperReport) {
        let mut line = serde_json::to_vec(report).expect("a report has no map with odd keys");
        line.push(b'\n');
        self.output.extend(line);
        self.flush();
    }

    /// Sends the report of a signal, unless a report of the same signal still waits: a process may send signals without pause.
    pub(super) fn send_signal(&mut self, signal: i32) {
        if !self.has_output() {
            self.unsent_signals.clear();
        }
        if self.unsent_signals.insert(signal) {
            self.send(&KeeperReport::Signal { signal });
        }
    }

    fn flush(&mut self) {
        while self.has_output() {
            let (head, _) = self.output.as_slices();
            match send(self.fd.as_raw_fd(), head, MsgFlags::MSG_NOSIGNAL) {
                Ok(len) => drop(self.output.drain(..len)),
                Err(Errno::EAGAIN | Errno::EINTR) => return,
                // The agent is gone. The next read reports it.
                Err(_) => return self.output.clear(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Read, os::unix::net::UnixStream};

    use super::*;

    /// While the agent does not read, further signals of a kind add nothing to the output. The agent receives each kind, and later signals
    /// again.
    #[test]
    fn signals_do_not_pile_up() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut socket = OrderSocket::new(ours.into()).unwrap();
        while !socket.has_output() {
            socket.send(&KeeperReport::Pong);
        }
        let before = socket.output.len();
        for _ in 0..1_000 {
            socket.send_signal(15);
            socket.send_signal(2);
        }
        assert!(socket.output.len() < before + 200, "{}", socket.output.len());
        let mut read = vec![0; 1 << 20];
        let mut text = String::new();
        while socket.has_output() {
            let len = theirs.read(&mut read).unwrap();
            text += str::from_utf8(&read[..len]).unwrap();
            socket.flush();
        }
        socket.send_signal(15);
        drop(socket);
        theirs.read_to_string(&mut text).unwrap();
        let count = |signal| {
            let line = serde_json::to_string(&KeeperReport::Signal { signal }).unwrap();
            text.lines().filter(|report| *report == line).count()
        };
        assert_eq!((count(15), count(2)), (2, 1));
    }
}
