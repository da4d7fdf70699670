//! One store: takes connections in, and turns them away.

use std::collections::BTreeSet;
use std::io;
use std::net::{self, IpAddr, SocketAddr};
use std::time::Instant;

use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry};
use socket2::{SockRef, TcpKeepalive};
use tokio::sync::{mpsc, watch};
use tracing::{debug, warn};

use super::Admission;
use super::clients::Clients;
use super::connection::Readiness;
use super::driver::{Source, StoreId};
use super::entrance::Entrance;
use crate::limits::{
    CONNECTIONS_MAX, KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES, REFUSED_LOGGED_MAX,
};

/// What a store is opened with.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) id: StoreId,
    pub(super) listener: Option<TcpListener>,
    pub(super) policy: watch::Receiver<Policy>,
    pub(super) taken_over: mpsc::Receiver<net::TcpStream>,
}

/// What the holder of a store wants; only the latest counts.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Policy {
    Open(Admission),
    Closed,
}

impl Policy {
    /// Tells whether there may be a peer to accept.
    fn admits_some(&self) -> bool {
        matches!(self, Self::Open(Admission::Anybody | Admission::Only(_)))
    }
}

/// Whether a store is to be served further.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum State {
    Open,
    Closed,
}

/// A store, its connections, and who was refused.
#[derive(Debug)]
pub(super) struct Store {
    id: StoreId,
    entrance: Entrance,
    clients: Clients,
    taken_over: mpsc::Receiver<net::TcpStream>,
    /// Whether there may be something in `taken_over`.
    hears: bool,
    refused: Refused,
    /// Looked at for each who comes: what was said before it came counts. The last field, hence
    /// dropped when all others are, which is what `StoreHandle::close` waits for.
    policy: watch::Receiver<Policy>,
}

impl Store {
    pub(super) fn new(opened: Opened) -> Self {
        let Opened { id, listener, policy, taken_over } = opened;
        Self {
            id,
            entrance: Entrance::new(listener),
            clients: Clients::default(),
            taken_over,
            hears: false,
            refused: Refused::default(),
            policy,
        }
    }

    /// Tells whether there is something to do without an event.
    pub(super) fn is_busy(&self) -> bool {
        self.clients.is_busy() || self.hears || self.may_accept()
    }

    /// Returns when there is something to do without an event.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.entrance.poll_timeout().into_iter().chain(self.clients.poll_timeout()).min()
    }

    /// Takes note that deadlines have passed.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        self.entrance.handle_timeout(now);
        self.clients.handle_timeout(now);
    }

    /// Takes note that somebody came to the listener.
    pub(super) fn handle_arrival(&mut self) {
        self.entrance.handle_arrival();
    }

    /// Takes note of what the kernel says about the connection in `place`.
    pub(super) fn handle_readiness(&mut self, place: usize, readiness: Readiness) {
        self.clients.handle_readiness(place, readiness);
    }

    /// Finds out what the handle wants.
    pub(super) fn hear(&mut self) -> State {
        self.hears = true;
        match &*self.policy.borrow() {
            Policy::Open(_) => State::Open,
            Policy::Closed => State::Closed,
        }
    }

    /// Goes on with what stands in line.
    pub(super) fn go_on(&mut self) {
        self.clients.go_on();
    }

    /// Takes in `most` of those who wait at the listener, and of those that were handed over.
    pub(super) fn accept(&mut self, registry: &Registry, now: Instant, most: usize) {
        for _ in 0..most {
            let Ok(stream) = self.taken_over.try_recv() else {
                self.hears = false;
                break;
            };
            match take_over(&stream) {
                Ok(peer) => self.take_in(registry, now, TcpStream::from_std(stream), peer),
                // It was reset meanwhile.
                Err(cause) => debug!(%cause, "a connection to the store was gone at once"),
            }
        }
        for _ in 0..most {
            if !self.may_accept() {
                break;
            }
            if let Some((stream, peer)) = self.entrance.accept(now) {
                self.take_in(registry, now, stream, peer);
            }
        }
    }

    /// Who comes before anybody is admitted waits in the backlog, not to be refused a moment too
    /// early: a refused client of torch backs off for up to a second.
    fn may_accept(&self) -> bool {
        self.entrance.is_ready() && self.policy.borrow().admits_some()
    }

    fn take_in(
        &mut self,
        registry: &Registry,
        now: Instant,
        mut stream: TcpStream,
        peer: SocketAddr,
    ) {
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        let is_member = match &*self.policy.borrow() {
            Policy::Open(admission) => admission.admits(peer.ip()),
            Policy::Closed => return,
        };
        if !is_member {
            return self.refuse(peer, "not a member of the round");
        }
        if CONNECTIONS_MAX <= self.clients.len() {
            return self.refuse(peer, "too many connections");
        }
        let token = Source::Connection(self.id, self.clients.next_place()).into();
        match registry.register(&mut stream, token, Interest::READABLE | Interest::WRITABLE) {
            Ok(()) => self.clients.enter(now, stream, peer),
            Err(cause) => warn!(%peer, %cause, "failed to serve a connection to the store"),
        }
    }

    fn refuse(&mut self, peer: SocketAddr, rule: &'static str) {
        if self.refused.is_new(peer.ip()) {
            warn!(%peer, rule, "refused a connection to the store");
        } else {
            debug!(%peer, rule, "refused a connection to the store");
        }
    }
}

/// The first addresses that were refused: whoever tries again and again fills no log.
#[derive(Debug, Default)]
struct Refused(BTreeSet<IpAddr>);

impl Refused {
    fn is_new(&mut self, peer: IpAddr) -> bool {
        self.0.len() < REFUSED_LOGGED_MAX && self.0.insert(peer)
    }
}

/// Sets up a connection that was accepted elsewhere and returns whose it is.
fn take_over(stream: &net::TcpStream) -> io::Result<SocketAddr> {
    prepare(&SockRef::from(stream))?;
    stream.peer_addr()
}

/// Sets up a connection, or a listener, from which its connections inherit it: that saves five
/// system calls for each.
pub(super) fn prepare(socket: &SockRef<'_>) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_PROBES);
    socket.set_tcp_keepalive(&keepalive)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_prepared(stream: &net::TcpStream) {
        let socket = SockRef::from(stream);
        assert!(socket.tcp_nodelay().unwrap() && socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), KEEPALIVE_IDLE);
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), KEEPALIVE_INTERVAL);
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), KEEPALIVE_PROBES);
    }

    /// A peer that vanished without a word is noticed, whichever way it came; and no answer waits
    /// for the acknowledgement of the one before.
    #[test]
    fn connections_are_kept_alive() {
        let listener = net::TcpListener::bind("127.0.0.1:0").unwrap();
        let elsewhere = net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        take_over(&elsewhere).unwrap();
        assert_prepared(&elsewhere);
        let (early, _) = listener.accept().unwrap();
        assert!(!SockRef::from(&early).keepalive().unwrap());
        prepare(&SockRef::from(&listener)).unwrap();
        let _peer = net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_prepared(&listener.accept().unwrap().0);
    }

    /// Each refused address is news once, and only so many are.
    #[test]
    fn refusals_are_logged_once() {
        let mut refused = Refused::default();
        for n in 0..2 * REFUSED_LOGGED_MAX as u32 {
            let peer = IpAddr::from(n.to_be_bytes());
            assert_eq!(refused.is_new(peer), n < REFUSED_LOGGED_MAX as u32);
            assert!(!refused.is_new(peer));
        }
    }
}
