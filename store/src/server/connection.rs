//! One connection: its socket, and the work that could not be completed at once.

use std::io::{self, IoSlice, Read as _, Write as _};
use std::net::SocketAddr;

use mio::event::Event;
use mio::net::TcpStream;
use tracing::{debug, warn};

use crate::engine::ClientId;
use crate::limits::{OUTPUT_PAUSE_LEN, READ_LEN};
use crate::output::SendBuffer;
use crate::session::{Session, Violation};

/// One client of the server. Small, as there are many and each is accessed briefly.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: TcpStream,
    pub(super) client: ClientId,
    pub(super) session: Session,
    /// True once the client is known to have sent `VALIDATE`.
    pub(super) greeted: bool,
    /// Nearly always `None`: a client that sends whole requests and reads the answers has no
    /// backlog.
    pub(super) backlog: Option<Box<Backlog>>,
    /// True if there may be something to read.
    pub(super) readable: bool,
    /// True if the peer will send nothing further, so that the end of its stream can be read.
    pub(super) finished: bool,
    /// True if it is in the line of connections that are served without an event.
    pub(super) is_queued: bool,
    pub(super) peer: SocketAddr,
}

/// Work that waits for the peer: the rest of a request, or answers that it has to read.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    pub(super) output: SendBuffer,
    /// Bytes that were read and not executed: an unfinished request, or held up by back-pressure.
    pub(super) unread: Vec<u8>,
    /// True if `unread` may begin with a whole request.
    pub(super) held_up: bool,
    /// The bytes of this backlog that the store has accounted for.
    pub(super) buffered: usize,
}

/// An event of the kernel for a connection; each condition is reported when it becomes true.
#[derive(Clone, Copy, Debug)]
pub(super) struct Readiness {
    readable: bool,
    finished: bool,
}

/// The reason why a connection ended.
#[derive(Debug)]
pub(super) enum End {
    Failed(io::Error),
    HungUp,
    MadeRoom,
    Silent,
    Violation(Violation),
}

/// The part of the output that was sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Sent {
    All,
    /// As much as is written at once; the socket may take more.
    Some,
    /// As much as the socket takes; an event reports when it takes more.
    UntilFull,
}

impl Connection {
    pub(super) fn new(stream: TcpStream, peer: SocketAddr, client: ClientId) -> Self {
        Self {
            stream,
            client,
            session: Session::new(client),
            greeted: false,
            backlog: None,
            readable: false,
            finished: false,
            is_queued: false,
            peer,
        }
    }

    /// Records an event; returns true if there is something to do now.
    pub(super) fn handle_readiness(&mut self, readiness: Readiness) -> bool {
        self.finished |= readiness.finished;
        self.readable |= readiness.readable || readiness.finished;
        self.readable || self.backlog.is_some()
    }

    /// Reads once into `room` and returns the part that was filled; `None` if there is nothing.
    pub(super) fn read<'a>(&mut self, room: &'a mut [u8]) -> Result<Option<&'a [u8]>, End> {
        match self.stream.read(room) {
            Ok(0) => Err(End::HungUp),
            Ok(len) => {
                // After a read that did not fill `room`, further bytes cause a new event.
                self.readable = len == room.len() || self.finished;
                Ok(Some(&room[..len]))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.readable = false;
                Ok(None)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            Err(error) => Err(End::Failed(error)),
        }
    }

    /// Reads once and appends to `unread`; returns true if there was something.
    ///
    /// Reads no more than for other connections, for any announced length, so that their turn comes
    /// soon.
    pub(super) fn read_on(&mut self, unread: &mut Vec<u8>) -> Result<bool, End> {
        let before = unread.len();
        unread.resize(before + READ_LEN, 0);
        let read = self.read(&mut unread[before..]).map(|read| read.map_or(0, <[u8]>::len));
        unread.truncate(before + *read.as_ref().unwrap_or(&0));
        Ok(read? > 0)
    }

    /// Writes `output` to the socket, in one write.
    pub(super) fn write(&mut self, output: &mut SendBuffer) -> Result<Sent, End> {
        if output.is_empty() {
            return Ok(Sent::All);
        }
        let mut slices = [IoSlice::new(&[]); SLICES];
        let used = output.next(&mut slices);
        let (sent, offered) = match &slices[..used] {
            [slice] => (self.stream.write(slice), slice.len()),
            slices => {
                (self.stream.write_vectored(slices), slices.iter().map(|slice| slice.len()).sum())
            }
        };
        let sent = match sent {
            Ok(sent) => sent,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(Sent::Some),
            Err(error) => return Err(End::Failed(error)),
        };
        output.advance(sent);
        Ok(match sent {
            _ if output.is_empty() => Sent::All,
            _ if sent == offered => Sent::Some,
            _ => Sent::UntilFull,
        })
    }

    /// Sends one byte, if the socket takes it now and no output precedes it. Returns true if sent.
    pub(super) fn write_byte(&mut self, byte: u8) -> bool {
        self.backlog.is_none() && matches!(self.stream.write(&[byte]), Ok(1))
    }
}

impl Backlog {
    /// Returns the bytes that the backlog occupies, without those shared with the store.
    pub(super) fn occupied(&self) -> usize {
        self.unread.capacity() + self.output.occupied()
    }

    /// Removes the first `used` bytes of `unread`; the rest of a large buffer moves into a small
    /// one. Cheap: after an executed request, at most the bytes of one read are left.
    pub(super) fn consume(&mut self, used: usize) {
        let left = self.unread.len() - used;
        let fits = left > 0 && self.unread.capacity() <= UNREAD_CAPACITY.max(2 * left);
        if used == 0 || fits {
            self.unread.drain(..used);
        } else {
            self.unread = self.unread[used..].to_vec();
        }
    }
}

/// Returns true if a peer has left so much of `output` unread that it has to wait.
pub(super) fn is_paused(output: &SendBuffer) -> bool {
    OUTPUT_PAUSE_LEN <= output.len()
}

impl End {
    /// Logs how the connection of `peer` ended.
    pub(super) fn log(self, peer: SocketAddr) {
        match self {
            // The regular way for a client to leave, in any state.
            Self::HungUp => debug!(%peer, "a client left the store"),
            Self::Failed(cause) => {
                debug!(%peer, %cause, "a client's connection to the store broke")
            }
            Self::Silent => {
                warn!(%peer, rule = "no VALIDATE in time", "closed a connection to the store");
            }
            // A client that repeatedly connects and stays silent must not fill the log.
            Self::MadeRoom => {
                let rule = "too many connections without VALIDATE";
                debug!(%peer, rule, "closed a connection to the store");
            }
            Self::Violation(rule) => warn!(%peer, %rule, "closed a connection to the store"),
        }
    }
}

impl From<Violation> for End {
    fn from(violation: Violation) -> Self {
        Self::Violation(violation)
    }
}

impl From<&Event> for Readiness {
    fn from(event: &Event) -> Self {
        Self {
            readable: event.is_readable(),
            finished: event.is_read_closed() || event.is_write_closed() || event.is_error(),
        }
    }
}

/// Pieces handed to the kernel at once.
const SLICES: usize = 16;

/// A buffer of up to this size is kept for the next bytes, and counts with its capacity.
pub(super) const UNREAD_CAPACITY: usize = 4 * READ_LEN;
