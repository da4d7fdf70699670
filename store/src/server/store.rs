//! One store: admits or refuses connections.

use std::collections::BTreeSet;
use std::net::{self, IpAddr, SocketAddr};
use std::time::{Duration, Instant};
use std::{io, mem};

use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry};
use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use socket2::{SockRef, TcpKeepalive};
use tokio::sync::{mpsc, watch};
use tracing::{debug, warn};

use super::acceptor::Acceptor;
use super::admission::{Access, AdmissionRule};
use super::clients::Clients;
use super::connection::Readiness;
use super::owner::{Owner, Owners};
use super::source::{PollSource, StoreId};
use crate::limits::{
    CONNECTIONS_MAX, KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES, REFUSED_LOGGED_MAX,
};

/// The parameters of a new store.
#[derive(Debug)]
pub(super) struct NewStore {
    pub(super) id: StoreId,
    pub(super) listener: Option<TcpListener>,
    pub(super) policy: watch::Receiver<Policy>,
    pub(super) taken_over: mpsc::Receiver<net::TcpStream>,
    pub(super) memory_max: usize,
    pub(super) refusals: Option<mpsc::Sender<IpAddr>>,
}

/// The policy that the holder of a store has set; only the latest counts.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Policy {
    Open(AdmissionRule),
    Closed,
}

impl Policy {
    /// Returns true if some peers may be accepted.
    fn admits_some(&self) -> bool {
        matches!(self, Self::Open(AdmissionRule::Anybody | AdmissionRule::Only { .. }))
    }
}

/// The state of a store after an event.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum StoreState {
    Open,
    Closed,
}

/// A store, its connections, and the addresses that were refused.
#[derive(Debug)]
pub(super) struct Store {
    id: StoreId,
    acceptor: Acceptor,
    clients: Clients,
    taken_over: mpsc::Receiver<net::TcpStream>,
    /// True if there may be connections in `taken_over`.
    has_arrivals: bool,
    refused: RefusedAddresses,
    /// Receives the first refusal of each address; if `None`, they are logged.
    refusals: Option<mpsc::Sender<IpAddr>>,
    /// Created for the first connection whose admission depends on its owner.
    owners: Option<Owners>,
    /// A connection whose owner is unknown until that time; no other is accepted meanwhile.
    held: Option<(Instant, TcpStream, SocketAddr)>,
    /// True if the warning that the kernel does not report owners was logged.
    has_warned_of_unknown_owner: bool,
    /// Read for each connection, so that the latest admission applies. Must be the last field: it
    /// is dropped after all others, which is what `StoreHandle::close` waits for.
    policy: watch::Receiver<Policy>,
}

impl Store {
    pub(super) fn new(opened: NewStore) -> Self {
        let NewStore { id, listener, policy, taken_over, memory_max, refusals } = opened;
        Self {
            id,
            acceptor: Acceptor::new(listener),
            clients: Clients::with_memory_max(memory_max),
            taken_over,
            has_arrivals: false,
            refused: RefusedAddresses::default(),
            refusals,
            owners: None,
            held: None,
            has_warned_of_unknown_owner: false,
            policy,
        }
    }

    /// Returns the number of connections, and of the requests that were executed since the last call.
    pub(super) fn take_counts(&mut self) -> (usize, u64) {
        (self.clients.len(), self.clients.take_requests())
    }

    /// Returns true if there is work without an event.
    pub(super) fn is_busy(&self) -> bool {
        self.clients.is_busy() || self.held.is_none() && (self.has_arrivals || self.may_accept())
    }

    /// Returns the time at which there is work without an event.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let held = self.held.as_ref().map(|(until, ..)| *until);
        let deadlines = [self.acceptor.poll_timeout(), self.clients.poll_timeout(), held];
        deadlines.into_iter().flatten().min()
    }

    /// Handles deadlines that have passed.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        self.acceptor.handle_timeout(now);
        self.clients.handle_timeout(now);
    }

    /// Handles a connection to the listener.
    pub(super) fn handle_arrival(&mut self) {
        self.acceptor.handle_arrival();
    }

    /// Handles an event of the connection in `slot`.
    pub(super) fn handle_readiness(&mut self, slot: usize, readiness: Readiness) {
        self.clients.handle_readiness(slot, readiness);
    }

    /// Handles a change that the handle made.
    pub(super) fn on_policy_changed(&mut self) -> StoreState {
        self.has_arrivals = true;
        match &*self.policy.borrow() {
            Policy::Open(_) => StoreState::Open,
            Policy::Closed => StoreState::Closed,
        }
    }

    /// Serves the connections in line.
    pub(super) fn run_ready(&mut self) {
        self.clients.run_ready();
    }

    /// Accepts at most `most` connections from the listener, and as many that were handed over.
    pub(super) fn accept(&mut self, registry: &Registry, now: Instant, most: usize) {
        if let Some((_, stream, peer)) = self.held.take_if(|(until, ..)| *until <= now) {
            self.admit_or_refuse(registry, now, stream, peer);
        }
        for _ in 0..most {
            if self.held.is_some() {
                return;
            }
            let Ok(stream) = self.taken_over.try_recv() else {
                self.has_arrivals = false;
                break;
            };
            match take_over(&stream) {
                Ok(peer) => self.admit_or_refuse(registry, now, TcpStream::from_std(stream), peer),
                // The connection was reset meanwhile.
                Err(cause) => debug!(
                    %cause,
                    "a connection to the store ended before it was served"
                ),
            }
        }
        for _ in 0..most {
            if self.held.is_some() || !self.may_accept() {
                break;
            }
            if let Some((stream, peer)) = self.acceptor.accept(now) {
                self.admit_or_refuse(registry, now, stream, peer);
            }
        }
    }

    /// Returns true if a connection may be accepted. Before any peer is admitted, connections wait
    /// in the backlog, as a refused client of torch backs off for up to a second.
    fn may_accept(&self) -> bool {
        self.acceptor.is_ready() && self.policy.borrow().admits_some()
    }

    fn admit_or_refuse(
        &mut self,
        registry: &Registry,
        now: Instant,
        stream: TcpStream,
        peer: SocketAddr,
    ) {
        match self.decide(now, &stream, peer) {
            None => {}
            Some(Decision::Admit) => self.enter(registry, now, stream, peer),
            Some(Decision::Refuse) => self.refuse_client(&stream, peer),
            Some(Decision::Hold(until)) => self.held = Some((until, stream, peer)),
        }
    }

    /// Decides on a connection; returns `None` if the store is being closed.
    fn decide(&mut self, now: Instant, stream: &TcpStream, peer: SocketAddr) -> Option<Decision> {
        let policy = self.policy.borrow();
        let Policy::Open(admission) = &*policy else { return None };
        let ip = peer.ip().to_canonical();
        let is_admitted = match admission.of_address(ip) {
            Access::Admitted => true,
            Access::Refused => false,
            Access::DependsOnOwner => {
                // A connection that was reset meanwhile has no address.
                let Ok(local) = stream.local_addr() else { return Some(Decision::Refuse) };
                let owners = self.owners.get_or_insert_with(Owners::new);
                match owners.of_peer(now, local, peer) {
                    Owner::User(uid) => admission.of_user(uid),
                    Owner::Nobody => false,
                    Owner::Later(until) => return Some(Decision::Hold(until)),
                    Owner::Unknown => {
                        if !mem::replace(&mut self.has_warned_of_unknown_owner, true) {
                            warn!(
                                "this kernel does not report the owner of a connection (neither \
                                 NETLINK_SOCK_DIAG nor /proc/net/tcp): every user of this host may \
                                 connect to the store"
                            );
                        }
                        is_own_address(ip)
                    }
                }
            }
        };
        Some(if is_admitted { Decision::Admit } else { Decision::Refuse })
    }

    fn enter(
        &mut self,
        registry: &Registry,
        now: Instant,
        mut stream: TcpStream,
        peer: SocketAddr,
    ) {
        let peer = canonical(peer);
        if CONNECTIONS_MAX <= self.clients.len() {
            return self.refuse(&stream, peer, "too many connections");
        }
        let token = PollSource::Connection(self.id, self.clients.next_slot()).into();
        match registry.register(&mut stream, token, Interest::READABLE | Interest::WRITABLE) {
            Ok(()) => self.clients.enter(now, stream, peer),
            Err(cause) => warn!(%peer, %cause, "failed to serve a connection to the store"),
        }
        let silent_max = match &*self.policy.borrow() {
            Policy::Open(admission) => admission.silent_max(),
            Policy::Closed => usize::MAX,
        };
        self.clients.make_room(silent_max);
    }

    fn refuse_client(&mut self, stream: &TcpStream, peer: SocketAddr) {
        let peer = canonical(peer);
        let Some(refusals) = &self.refusals else {
            return self.refuse(stream, peer, "neither a member's address nor a user of the job");
        };
        reset(stream);
        if self.refused.is_new(peer.ip()) {
            // The receiver may be gone, or its queue full with other addresses.
            let _ = refusals.try_send(peer.ip());
        }
        debug!(%peer, "refused a connection to the store");
    }

    fn refuse(&mut self, stream: &TcpStream, peer: SocketAddr, rule: &'static str) {
        reset(stream);
        if self.refused.is_new(peer.ip()) {
            warn!(%peer, rule, "refused a connection to the store");
        } else {
            debug!(%peer, rule, "refused a connection to the store");
        }
    }
}

/// The decision on a connection.
enum Decision {
    Admit,
    Refuse,
    Hold(Instant),
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Closes a connection with a reset, which clients report as such.
fn reset(stream: &TcpStream) {
    // If this fails, the connection is closed without a reset.
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

/// Returns true if `ip` is an address of this host.
fn is_own_address(ip: IpAddr) -> bool {
    let has_it = |interface: InterfaceAddress| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
        let own = v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))?;
        (own == ip).then_some(())
    };
    ip.is_loopback() || getifaddrs().is_ok_and(|mut all| all.any(|one| has_it(one).is_some()))
}

/// The first addresses that were refused, so that repeated attempts do not fill the log.
#[derive(Debug, Default)]
struct RefusedAddresses(BTreeSet<IpAddr>);

impl RefusedAddresses {
    fn is_new(&mut self, peer: IpAddr) -> bool {
        self.0.len() < REFUSED_LOGGED_MAX && self.0.insert(peer)
    }
}

/// Configures a connection that was accepted elsewhere and returns its peer.
fn take_over(stream: &net::TcpStream) -> io::Result<SocketAddr> {
    prepare(&SockRef::from(stream))?;
    stream.peer_addr()
}

/// Configures a connection, or a listener, whose connections inherit the options: that saves five
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

    /// A peer that vanished is noticed, for accepted and handed-over connections; and no answer
    /// waits for the acknowledgement of the one before.
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

    /// Each refused address is new once, and only a limited number is.
    #[test]
    fn refusals_are_logged_once() {
        let mut refused = RefusedAddresses::default();
        for n in 0..2 * REFUSED_LOGGED_MAX as u32 {
            let peer = IpAddr::from(n.to_be_bytes());
            assert_eq!(refused.is_new(peer), n < REFUSED_LOGGED_MAX as u32);
            assert!(!refused.is_new(peer));
        }
    }
}
