//! One connection on a port: its source, and the progress that its protocol reports to the port.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::mpsc;

use super::connection_quota::ConnectionId;

/// The source of a request, stored among its extensions.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PeerAddress {
    /// The address.
    pub ip: IpAddr,
    /// True if it is an address of this machine.
    pub is_here: bool,
    /// True if it is known to be a socket of this user, or of root, on this machine.
    pub is_own_user: bool,
}

impl PeerAddress {
    /// Returns the source of a connection with these addresses.
    pub(super) fn new(local: SocketAddr, peer: SocketAddr) -> Self {
        let ip = peer.ip().to_canonical();
        let is_here = ip.is_loopback() || ip == local.ip().to_canonical();
        Self { ip, is_here, is_own_user: false }
    }
}

/// The progress of a connection.
#[derive(Clone, Copy, Debug)]
pub enum ConnectionStep {
    /// The first byte has arrived, from an unknown connection.
    Begun,
    /// The peer has proven that it belongs to the job.
    Authenticated(PeerAddress),
    /// The first byte shows that the client is not one of a TCPStore.
    NotStoreClient,
    /// The first request is complete.
    Served,
}

/// Reports the progress of one connection.
#[derive(Clone, Debug)]
pub struct ConnectionProgress {
    connection: ConnectionId,
    is_served: Arc<AtomicBool>,
    steps: mpsc::Sender<(ConnectionId, ConnectionStep)>,
}

impl ConnectionProgress {
    /// Creates the reports of one connection, to `steps`.
    pub fn new(
        connection: ConnectionId,
        steps: mpsc::Sender<(ConnectionId, ConnectionStep)>,
    ) -> Self {
        Self { connection, is_served: Arc::default(), steps }
    }

    /// Reports that the first request is complete; later requests are not reported.
    pub(super) async fn served(&self) {
        if !self.is_served.swap(true, Ordering::Relaxed) {
            self.report(ConnectionStep::Served).await;
        }
    }

    /// Reports a step.
    pub(super) async fn report(&self, step: ConnectionStep) {
        // The port may be closed already.
        let _ = self.steps.send((self.connection, step)).await;
    }
}
