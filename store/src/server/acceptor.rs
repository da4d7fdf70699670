//! Accepts the connections to a store's listener.

use std::io::ErrorKind;
use std::mem;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream};
use tracing::warn;

/// The listener of a store, if it has one, which pauses after a failure.
#[derive(Debug)]
pub(super) struct Acceptor {
    listener: Option<TcpListener>,
    /// True if connections may be waiting. One event of the kernel may announce several.
    somebody: bool,
    /// True if the last attempt failed; only the first failure in a row is logged.
    is_failing: bool,
    rest_until: Option<Instant>,
}

impl Acceptor {
    pub(super) fn new(listener: Option<TcpListener>) -> Self {
        let somebody = listener.is_some();
        Self { listener, somebody, is_failing: false, rest_until: None }
    }

    /// Records that a connection has arrived.
    pub(super) fn handle_arrival(&mut self) {
        self.somebody = true;
    }

    /// Returns true if an attempt to accept may succeed.
    pub(super) fn is_ready(&self) -> bool {
        self.somebody && self.rest_until.is_none()
    }

    /// Returns the end of the pause, if there is one.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.rest_until
    }

    /// Ends the pause once its time is over.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        self.rest_until = self.rest_until.filter(|until| now < *until);
    }

    /// Returns the next connection, if there is one.
    pub(super) fn accept(&mut self, now: Instant) -> Option<(TcpStream, SocketAddr)> {
        let listener = self.listener.as_ref().filter(|_| self.rest_until.is_none())?;
        match listener.accept() {
            Ok(accepted) => {
                self.is_failing = false;
                Some(accepted)
            }
            Err(cause) if cause.kind() == ErrorKind::WouldBlock => {
                self.somebody = false;
                None
            }
            Err(cause) => {
                if !mem::replace(&mut self.is_failing, true) {
                    warn!(%cause, "failed to accept connections to the store; retrying");
                }
                // Usually the limit on open files. The connection stays in the backlog, so
                // trying again at once would be a busy loop.
                self.rest_until = Some(now + ACCEPT_RETRY);
                None
            }
        }
    }
}

const ACCEPT_RETRY: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use socket2::{Domain, Socket, Type};

    use super::super::driver::now;
    use super::*;

    /// There is a pause between two attempts that fail.
    #[test]
    fn failures_are_spaced() {
        let broken = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        broken.set_nonblocking(true).unwrap();
        let mut acceptor = Acceptor::new(Some(TcpListener::from_std(broken.into())));
        let mut time = now();
        for _ in 0..3 {
            assert!(acceptor.is_ready());
            assert!(acceptor.accept(time).is_none());
            assert!(acceptor.is_failing && !acceptor.is_ready());
            assert_eq!(acceptor.poll_timeout(), Some(time + ACCEPT_RETRY));
            acceptor.handle_timeout(time + ACCEPT_RETRY / 2);
            assert!(!acceptor.is_ready() && acceptor.accept(time).is_none());
            time += ACCEPT_RETRY;
            acceptor.handle_timeout(time);
        }
    }

    /// A connection that arrives after the last was accepted is announced by a new event.
    #[test]
    fn empty_is_not_ready() {
        let listener = TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let _client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut acceptor = Acceptor::new(Some(listener));
        assert!(acceptor.accept(now()).is_some() && acceptor.is_ready());
        assert!(acceptor.accept(now()).is_none() && !acceptor.is_ready());
        acceptor.handle_arrival();
        assert!(acceptor.is_ready());
    }
}
