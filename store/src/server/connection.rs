//! The task of one connection: reads, lets the session execute, writes.
//!
//! All whole requests of a read are executed one after the other and answered by one write. While
//! a peer leaves too much of its answers unread, nothing more is read from it, nor executed.

use std::future::{self, Future as _};
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::BufMut as _;
use tokio::io::{AsyncRead as _, AsyncReadExt as _, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;
use tokio::time::timeout;
use tracing::{debug, warn};

use super::peer::Peer;
use super::state::State;
use crate::engine::ClientId;
use crate::limits::{GREETING_TIMEOUT, OUTPUT_PAUSE_LEN, READ_LEN};
use crate::session::{Session, Step, Violation};

/// Serves one connection until either side ends it.
pub(super) async fn serve(stream: TcpStream, peer: SocketAddr, state: Rc<State>) {
    let end = Connection::new(stream, state).run().await;
    match end {
        // How a client says goodbye, in whatever state it is.
        End::HungUp => debug!(%peer, "a client left the store"),
        End::Failed(cause) => debug!(%peer, %cause, "a client's connection to the store broke"),
        End::Silent => {
            warn!(%peer, rule = "no VALIDATE in time", "closed a connection to the store");
        }
        End::Violation(rule) => warn!(%peer, %rule, "closed a connection to the store"),
    }
}

/// Why a connection ended.
#[derive(Debug)]
enum End {
    Failed(io::Error),
    HungUp,
    Silent,
    Violation(Violation),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

impl From<Violation> for End {
    fn from(violation: Violation) -> Self {
        Self::Violation(violation)
    }
}

#[derive(Debug)]
struct Connection {
    state: Rc<State>,
    client: ClientId,
    session: Session,
    reader: OwnedReadHalf,
    peer: Rc<Peer>,
    /// What was read and not executed: an unfinished request, or what back-pressure held up.
    unread: Vec<u8>,
    /// Whether `unread` may begin with a whole request.
    held_up: bool,
    /// What of its buffers is accounted for in `state`.
    buffered: usize,
}

impl Connection {
    fn new(stream: TcpStream, state: Rc<State>) -> Self {
        let (reader, writer) = stream.into_split();
        let peer = Rc::new(Peer::new(writer));
        let client = state.enter(Rc::clone(&peer));
        let session = Session::new(client);
        let unread = Vec::new();
        Self { state, client, session, reader, peer, unread, held_up: false, buffered: 0 }
    }

    async fn run(mut self) -> End {
        let greeted = timeout(GREETING_TIMEOUT, future::poll_fn(|cx| self.poll_greeted(cx))).await;
        let end = match greeted {
            Ok(Ok(())) => future::poll_fn(|cx| self.poll_end(cx)).await,
            Ok(Err(end)) => end,
            Err(_) => End::Silent,
        };
        self.peer.flush_last();
        end
    }

    /// Serves until the client has said `VALIDATE`.
    fn poll_greeted(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), End>> {
        while !self.session.is_open() {
            ready!(self.poll_turn(cx))?;
        }
        Poll::Ready(Ok(()))
    }

    /// Serves until the connection has to be closed.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        loop {
            if let Err(end) = ready!(self.poll_turn(cx)) {
                return Poll::Ready(end);
            }
        }
    }

    /// Writes what is to be written, then reads and executes once.
    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), End>> {
        self.peer.register(cx);
        let flushed = self.peer.poll_flush(cx)?;
        if self.peer.output.borrow_mut().take_released() {
            self.state.engine.borrow_mut().released();
        }
        // What was executed last is counted here, less what could be sent at once.
        self.account()?;
        if flushed.is_pending() && self.is_paused() {
            return Poll::Pending;
        }
        if self.held_up {
            self.execute_unread()?;
        } else if self.unread.is_empty() {
            ready!(self.poll_read_afresh(cx))?;
        } else {
            ready!(self.poll_read_on(cx))?;
        }
        Poll::Ready(Ok(()))
    }

    /// Reads into the room that all share, where nearly every request is whole at once: so an
    /// idle connection has no buffer.
    fn poll_read_afresh(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), End>> {
        let state = Rc::clone(&self.state);
        let scratch = &mut *state.scratch.borrow_mut();
        let mut read = ReadBuf::new(scratch);
        ready!(Pin::new(&mut self.reader).poll_read(cx, &mut read))?;
        let mut input = read.filled();
        if input.is_empty() {
            return Poll::Ready(Err(End::HungUp));
        }
        self.execute(&mut input)?;
        self.unread.extend_from_slice(input);
        Poll::Ready(Ok(()))
    }

    /// Reads behind an unfinished request.
    fn poll_read_on(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), End>> {
        // Grows as bytes arrive, whatever length was announced; and takes no more than the others
        // do, though there may be room, so that it is soon their turn.
        self.unread.reserve(READ_LEN);
        // Before it is known whether anything comes.
        self.account()?;
        let mut room = (&mut self.unread).limit(READ_LEN);
        let read = pin!(self.reader.read_buf(&mut room));
        if ready!(read.poll(cx))? == 0 {
            return Poll::Ready(Err(End::HungUp));
        }
        Poll::Ready(Ok(self.execute_unread()?))
    }

    fn execute_unread(&mut self) -> Result<(), Violation> {
        let unread = mem::take(&mut self.unread);
        let mut input = &unread[..];
        let result = self.execute(&mut input);
        let used = unread.len() - input.len();
        self.unread = rest(unread, used);
        result
    }

    /// Executes the whole requests of `input`, and leaves the rest.
    fn execute(&mut self, input: &mut &[u8]) -> Result<(), Violation> {
        self.held_up = false;
        while !self.is_paused() {
            let step = self.session.step(
                &mut self.state.engine.borrow_mut(),
                input,
                &mut self.peer.output.borrow_mut(),
            );
            // Also behind a broken rule: what came before it in the request may have released
            // someone.
            self.state.answer_woken();
            if step? == Step::NeedMore {
                return Ok(());
            }
        }
        self.held_up = !input.is_empty();
        Ok(())
    }

    /// Tells whether the peer has left so much unread that it has to wait.
    fn is_paused(&self) -> bool {
        OUTPUT_PAUSE_LEN <= self.peer.output.borrow().len()
    }

    fn account(&mut self) -> Result<(), Violation> {
        let now = self.unread.capacity() + self.peer.output.borrow().occupied();
        let before = mem::replace(&mut self.buffered, now);
        self.state.rebuffer(before, now)
    }
}

/// Returns `bytes` without the first `used` of them; what is left of a large buffer moves into a
/// small one. Cheap: behind a request that was executed, no more than one read is left.
fn rest(mut bytes: Vec<u8>, used: usize) -> Vec<u8> {
    let left = bytes.len() - used;
    let fits = left > 0 && bytes.capacity() <= UNREAD_CAPACITY.max(2 * left);
    if used == 0 || fits {
        bytes.drain(..used);
        return bytes;
    }
    bytes[used..].to_vec()
}

/// A buffer of this size is kept for the next bytes, and counts as what it is.
const UNREAD_CAPACITY: usize = 4 * READ_LEN;

impl Drop for Connection {
    fn drop(&mut self) {
        // Before the engine looks who still reads its values.
        drop(self.peer.output.take());
        self.state.leave(self.client, self.buffered);
    }
}

#[cfg(test)]
mod tests;
