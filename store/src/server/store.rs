//! The task of one store: takes connections in, and turns them away.

use std::future;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::time::Duration;

use tokio::net;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{debug, error, warn};

use super::Admission;
use super::connection;
use super::state::State;
use crate::limits::CONNECTIONS_MAX;

/// What the task of a store is started with.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) listener: Option<TcpListener>,
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
    let listener = match listener.map(net::TcpListener::from_std).transpose() {
        Ok(listener) => listener,
        Err(cause) => {
            error!(%cause, "failed to serve a store on its listener");
            return;
        }
    };
    let state = Rc::new(State::default());
    let mut connections = JoinSet::new();
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
            Some(ended) = connections.join_next(), if !connections.is_empty() => {
                if let Err(cause) = ended {
                    error!(%cause, "a connection to the store failed");
                }
            }
            Some(stream) = taken_over.recv() => match net::TcpStream::from_std(stream) {
                Ok(stream) => take_in(stream, &policy.borrow(), &state, &mut connections),
                Err(cause) => warn!(%cause, "failed to serve a connection handed over"),
            },
            // Who comes before anybody is admitted waits in the backlog, not to be refused a moment
            // too early: a refused client of torch backs off for up to a second.
            accepted = accept(listener.as_ref()), if policy.borrow().admits_some() => match accepted {
                Ok((stream, _)) => take_in(stream, &policy.borrow(), &state, &mut connections),
                Err(cause) => {
                    // Usually the limit on open files. The connection stays in the backlog, so
                    // trying again at once would be a busy loop.
                    warn!(%cause, "failed to accept a connection to the store");
                    pause(ACCEPT_RETRY).await;
                }
            },
        }
    }
    drop(listener);
    connections.shutdown().await;
    // Only now the receiver of `policy` goes, which is what `StoreHandle::close` waits for.
    drop((state, policy));
}

fn take_in(
    stream: net::TcpStream,
    policy: &Policy,
    state: &Rc<State>,
    connections: &mut JoinSet<()>,
) {
    let peer = match prepare(&stream) {
        Ok(peer) => peer,
        // It was reset before it was accepted.
        Err(cause) => return debug!(%cause, "a connection to the store was gone at once"),
    };
    let Policy::Open(admission) = policy else {
        return;
    };
    if !admission.admits(peer.ip()) {
        return warn!(%peer, rule = "not a member of the round", "refused a connection to the store");
    }
    if CONNECTIONS_MAX <= connections.len() {
        return warn!(%peer, rule = "too many connections", "refused a connection to the store");
    }
    connections.spawn_local(connection::serve(stream, peer, Rc::clone(state)));
}

fn prepare(stream: &net::TcpStream) -> io::Result<SocketAddr> {
    stream.set_nodelay(true)?;
    let peer = stream.peer_addr()?;
    Ok(SocketAddr::new(peer.ip().to_canonical(), peer.port()))
}

async fn accept(listener: Option<&net::TcpListener>) -> io::Result<(net::TcpStream, SocketAddr)> {
    match listener {
        Some(listener) => listener.accept().await,
        None => future::pending().await,
    }
}

async fn pause(duration: Duration) {
    // It never completes, hence always times out: the only way to the timer without a clock.
    let _ = timeout(duration, future::pending::<()>()).await;
}

const ACCEPT_RETRY: Duration = Duration::from_millis(50);
