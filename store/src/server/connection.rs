//! One connection: its socket, and what could not be done at once.

use std::io::{self, IoSlice, Read as _, Write as _};
use std::net::SocketAddr;

use mio::event::Event;
use mio::net::TcpStream;
use tracing::{debug, warn};

use crate::engine::ClientId;
use crate::limits::{OUTPUT_PAUSE_LEN, READ_LEN};
use crate::output::Output;
use crate::session::{Session, Violation};

/// One client, as the server sees it. Small, as there are many and each is looked at for a moment.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: TcpStream,
    pub(super) client: ClientId,
    pub(super) session: Session,
    /// Whether it is known that the client has said `VALIDATE`.
    pub(super) greeted: bool,
    /// Nearly always nothing: who sends whole requests and reads the answers has none.
    pub(super) backlog: Option<Box<Backlog>>,
    /// Whether there may be something to read.
    pub(super) readable: bool,
    /// Whether the peer sends nothing further, so that the end of what it sent can be read.
    pub(super) finished: bool,
    /// Whether it stands in the line of those who are served without an event.
    pub(super) in_line: bool,
    pub(super) peer: SocketAddr,
}

/// What waits for the peer: for the rest of a request, or for answers to be read.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    pub(super) output: Output,
    /// What was read and not executed: an unfinished request, or what back-pressure held up.
    pub(super) unread: Vec<u8>,
    /// Whether `unread` may begin with a whole request.
    pub(super) held_up: bool,
    /// What of this is accounted for in the store.
    pub(super) buffered: usize,
}

/// What the kernel says about a connection, each time that it becomes true.
#[derive(Clone, Copy, Debug)]
pub(super) struct Readiness {
    readable: bool,
    finished: bool,
}

/// Why a connection ended.
#[derive(Debug)]
pub(super) enum End {
    Failed(io::Error),
    HungUp,
    MadeRoom,
    Silent,
    Violation(Violation),
}

/// How much of the output was sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Sent {
    All,
    /// As much as is handed over at once; the socket may take more.
    Some,
    /// The socket takes no more; it says when it does.
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
            in_line: false,
            peer,
        }
    }

    /// Takes note of what the kernel says; tells whether there is something to do now.
    pub(super) fn handle_readiness(&mut self, readiness: Readiness) -> bool {
        self.finished |= readiness.finished;
        self.readable |= readiness.readable || readiness.finished;
        self.readable || self.backlog.is_some()
    }

    /// Reads once into `room`, of which the beginning is returned; `None` if there is nothing.
    pub(super) fn read<'a>(&mut self, room: &'a mut [u8]) -> Result<Option<&'a [u8]>, End> {
        match self.stream.read(room) {
            Ok(0) => Err(End::HungUp),
            Ok(len) => {
                // Whoever sends more after a read that was not filled is announced anew.
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

    /// Reads once behind what is `unread`; tells whether there was something.
    ///
    /// Takes no more than others do, whatever length was announced, so that it is soon their turn.
    pub(super) fn read_on(&mut self, unread: &mut Vec<u8>) -> Result<bool, End> {
        let before = unread.len();
        unread.resize(before + READ_LEN, 0);
        let read = self.read(&mut unread[before..]).map(|read| read.map_or(0, <[u8]>::len));
        unread.truncate(before + *read.as_ref().unwrap_or(&0));
        Ok(read? > 0)
    }

    /// Hands `output` to the socket, in one write.
    pub(super) fn write(&mut self, output: &mut Output) -> Result<Sent, End> {
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

    /// Sends one byte, if the socket takes it now and nothing stands before it.
    pub(super) fn write_byte(&mut self, byte: u8) -> bool {
        self.backlog.is_none() && matches!(self.stream.write(&[byte]), Ok(1))
    }
}

impl Backlog {
    /// Returns how many bytes it occupies that are not the store's.
    pub(super) fn occupied(&self) -> usize {
        self.unread.capacity() + self.output.occupied()
    }

    /// Removes the first `used` bytes of what is unread; what is left of a large buffer moves into a
    /// small one. Cheap: behind a request that was executed, no more than one read is left.
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

/// Tells whether a peer has left so much of `output` unread that it has to wait.
pub(super) fn is_paused(output: &Output) -> bool {
    OUTPUT_PAUSE_LEN <= output.len()
}

impl End {
    /// Says in the log how the connection of `peer` ended.
    pub(super) fn log(self, peer: SocketAddr) {
        match self {
            // How a client says goodbye, in whatever state it is.
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

/// A buffer of this size is kept for the next bytes, and counts as what it is.
pub(super) const UNREAD_CAPACITY: usize = 4 * READ_LEN;
