//! Runs many clients on one thread, with a minimal epoll loop. If it cost more than the server, it would measure itself.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockProtocol, SockType, SockaddrStorage, connect, setsockopt, socket,
    sockopt,
};

use crate::now;

/// Connections, each with at most one exchange in progress.
#[derive(Debug)]
pub struct LoadClients {
    epoll: Epoll,
    streams: Vec<TcpStream>,
    /// The bytes of its answer that each connection has received.
    had: Vec<usize>,
    /// The read buffer of all connections.
    room: Box<[u8]>,
}

impl LoadClients {
    /// Opens `count` connections at once and sends `words` on each. Returns once each has received `answer_len` bytes.
    ///
    /// # Errors
    ///
    /// Returns an error if a connection cannot be made or is closed.
    pub fn connect(
        address: SocketAddr,
        count: usize,
        words: &[u8],
        answer_len: usize,
    ) -> Result<Self> {
        let mut clients = Self {
            epoll: Epoll::new(EpollCreateFlags::empty())?,
            streams: Vec::with_capacity(count),
            had: vec![0; count],
            room: vec![0; 16 << 10].into(),
        };
        let mut silent = Vec::new();
        for n in 0..count {
            let (stream, connected) = begin(address).context("failed to connect")?;
            let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLET;
            clients.epoll.add(&stream, EpollEvent::new(flags, n as u64))?;
            if connected {
                (&stream).write_all(words)?;
            }
            silent.push(!connected);
            clients.streams.push(stream);
        }
        let mut left = count;
        clients.each_event(LIMIT, |clients, n| {
            if silent[n] {
                silent[n] = false;
                (&clients.streams[n]).write_all(words).context("failed to connect")?;
            }
            left -= usize::from(clients.receive(n, answer_len)?);
            Ok(left > 0)
        })?;
        Ok(clients)
    }

    /// Returns the number of connections.
    pub fn len(&self) -> usize {
        self.streams.len()
    }

    /// Returns true if there are no connections.
    pub fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    /// Sends `request` on connection `n`.
    ///
    /// # Errors
    ///
    /// Returns an error if the socket does not take it at once.
    pub fn send(&self, n: usize, request: &[u8]) -> io::Result<()> {
        (&self.streams[n]).write_all(request)
    }

    /// Sends `request` on every connection and returns once each has been answered.
    ///
    /// # Errors
    ///
    /// Returns an error if a connection is closed.
    pub fn exchange(&mut self, request: &[u8], answer_len: usize) -> Result<()> {
        for n in 0..self.len() {
            self.send(n, request)?;
        }
        self.await_answers(answer_len)
    }

    /// Returns once each connection has been answered.
    ///
    /// # Errors
    ///
    /// Returns an error if a connection is closed.
    pub fn await_answers(&mut self, answer_len: usize) -> Result<()> {
        let mut left = self.len();
        self.each_answer(answer_len, |_, _| {
            left -= 1;
            Ok(left > 0)
        })
    }

    /// Calls `answered` with the number of a connection for each complete answer, until it returns
    /// false.
    ///
    /// # Errors
    ///
    /// Returns the error of `answered`, or an error if a connection is closed.
    pub fn each_answer(
        &mut self,
        answer_len: usize,
        mut answered: impl FnMut(&Self, usize) -> Result<bool>,
    ) -> Result<()> {
        self.each_event(LIMIT, |clients, n| {
            Ok(!clients.receive(n, answer_len)? || answered(clients, n)?)
        })
    }

    fn each_event(
        &mut self,
        limit: Duration,
        mut happened: impl FnMut(&mut Self, usize) -> Result<bool>,
    ) -> Result<()> {
        let end = now() + limit;
        let mut events = [EpollEvent::empty(); 1024];
        while now() < end {
            let count = match self.epoll.wait(&mut events, EpollTimeout::from(100u8)) {
                Err(Errno::EINTR) => continue,
                result => result?,
            };
            for event in &events[..count] {
                if !happened(self, event.data() as usize)? {
                    return Ok(());
                }
            }
        }
        bail!("no answer within {limit:?}")
    }

    /// Reads once. Returns true if the answer is complete.
    fn receive(&mut self, n: usize, answer_len: usize) -> Result<bool> {
        match (&self.streams[n]).read(&mut self.room) {
            Ok(0) => bail!("the server closed a connection"),
            Ok(len) => self.had[n] += len,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        ensure!(self.had[n] <= answer_len, "an answer is longer than expected");
        let complete = self.had[n] == answer_len;
        self.had[n] = if complete { 0 } else { self.had[n] };
        Ok(complete)
    }
}

/// Begins to connect. Returns true if that completed at once, as it usually does on loopback.
fn begin(address: SocketAddr) -> Result<(TcpStream, bool)> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let socket = socket(family, SockType::Stream, SockFlag::SOCK_NONBLOCK, SockProtocol::Tcp)?;
    setsockopt(&socket, sockopt::TcpNoDelay, &true)?;
    // Closing by reset leaves no port in TIME_WAIT. Otherwise, after some rounds, the search for a free port would be measured.
    let linger = nix::libc::linger { l_onoff: 1, l_linger: 0 };
    setsockopt(&socket, sockopt::Linger, &linger)?;
    let connected = match connect(socket.as_raw_fd(), &SockaddrStorage::from(address)) {
        Ok(()) => true,
        Err(Errno::EINPROGRESS) => false,
        Err(errno) => return Err(errno.into()),
    };
    Ok((socket.into(), connected))
}

/// A timeout that only a failed server reaches.
const LIMIT: Duration = Duration::from_secs(60);
