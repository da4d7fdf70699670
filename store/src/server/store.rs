//! The task of one store: takes connections in, and turns them away.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::rc::Rc;

use socket2::{SockRef, TcpKeepalive};
use tokio::net;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tracing::{debug, error, warn};

use super::Admission;
use super::connection;
use super::entrance::Entrance;
use super::state::State;
use crate::limits::{
    CONNECTIONS_MAX, KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES, REFUSED_LOGGED_MAX,
};

/// What the task of a store is started with.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) listener: Option<net::TcpListener>,
    pub(super) policy: watch::Receiver<Policy>,
    pub(super) taken_over: mpsc::Receiver<TcpStream>,
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

/// Serves a store until its handle says so, or is gone.
pub(super) async fn serve(opened: Opened) {
    let Opened { listener, mut policy, mut taken_over } = opened;
    let mut entrance = Entrance::new(listener);
    let mut served = Served::default();
    loop {
        tokio::select! {
            // In this order, so that a flood of connections delays neither the end nor a change of
            // who is admitted.
            biased;
            changed = policy.changed() => {
                if changed.is_err() || *policy.borrow_and_update() == Policy::Closed {
                    break;
                }
            }
            Some(ended) = served.connections.join_next(), if !served.connections.is_empty() => {
                if let Err(cause) = ended {
                    error!(%cause, "a connection to the store failed");
                }
            }
            Some(stream) = taken_over.recv() => match net::TcpStream::from_std(stream) {
                Ok(stream) => served.take_in(stream, &policy.borrow()),
                Err(cause) => warn!(%cause, "failed to serve a connection handed over"),
            },
            // Who comes before anybody is admitted waits in the backlog, not to be refused a moment
            // too early: a refused client of torch backs off for up to a second.
            stream = entrance.accept(), if policy.borrow().admits_some() => {
                served.take_in(stream, &policy.borrow());
            }
        }
    }
    drop(entrance);
    served.connections.shutdown().await;
    // Only now the receiver of `policy` goes, which is what `StoreHandle::close` waits for.
    drop((served, policy));
}

/// The connections of a store, and who was refused.
#[derive(Debug, Default)]
struct Served {
    state: Rc<State>,
    connections: JoinSet<()>,
    refused: Refused,
}

impl Served {
    fn take_in(&mut self, stream: net::TcpStream, policy: &Policy) {
        let peer = match prepare(&stream) {
            Ok(peer) => peer,
            // It was reset before it was accepted.
            Err(cause) => return debug!(%cause, "a connection to the store was gone at once"),
        };
        let Policy::Open(admission) = policy else {
            return;
        };
        if !admission.admits(peer.ip()) {
            return self.refuse(peer, "not a member of the round");
        }
        if CONNECTIONS_MAX <= self.connections.len() {
            return self.refuse(peer, "too many connections");
        }
        self.connections.spawn_local(connection::serve(stream, peer, Rc::clone(&self.state)));
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

/// Sets up a connection and returns whose it is.
fn prepare(stream: &net::TcpStream) -> io::Result<SocketAddr> {
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_PROBES);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)?;
    let peer = stream.peer_addr()?;
    Ok(SocketAddr::new(peer.ip().to_canonical(), peer.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A peer that vanished without a word is noticed.
    #[tokio::test]
    async fn connections_are_kept_alive() {
        let listener = net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        prepare(&stream).unwrap();
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), KEEPALIVE_IDLE);
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), KEEPALIVE_INTERVAL);
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), KEEPALIVE_PROBES);
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
