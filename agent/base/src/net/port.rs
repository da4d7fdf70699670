//! Serves the protocols that share one port: distinguishes them by their first byte, and carries
//! out the decisions of `ConnectionQuota`.
//!
//! | first byte | protocol |
//! |---|---|
//! | 0 | a client of a TCPStore (`VALIDATE`) |
//! | a capital letter | HTTP/1.1, or HTTP/2 with gRPC |
//! | [`TLS`] | TLS with HTTP inside |
//! | [`VOTER_PROTOCOL`] | another voter; with a secret, TLS follows |
//! | [`MEMORY_PROTOCOL`] | another agent, for checkpoints in memory; TLS follows |
//!
//! A connection with another first byte is closed.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    net::{IpAddr, SocketAddr, TcpListener as StdTcpListener, TcpStream as StdTcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

use axum::Router;
use nix::{
    libc,
    sys::resource::{Resource, getrlimit},
};
use ragent_store::{
    StoreHandle,
    server::{Owner, Owners},
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{mpsc, oneshot, watch},
    task::{self, AbortHandle, JoinSet},
    time::timeout,
};
use tracing::{debug, warn};

use super::{
    connection::{ConnectionProgress, ConnectionStep, PeerAddress},
    connection_quota::{Bounds, ConnectionId, ConnectionOrigin, ConnectionQuota},
    http,
    refusals::Refusals,
    secure_stream::{self, AcceptError, MEMORY_PROTOCOL},
};
use crate::{
    net::limits,
    secret::{ALPN_MEMORY, ALPN_VOTER, Credentials, Unsecured},
    sys::{clock, users},
};

/// The store for new connections; while there is none, they wait.
pub type PortStore = watch::Receiver<Option<StoreHandle>>;

/// The registered nodes, as known to a coordinator's port.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct RegisteredNodes {
    /// The source addresses of the job's agents, without those of this machine, which all its users
    /// have.
    pub addresses: BTreeSet<IpAddr>,
    /// Workers of the newest round.
    pub world_size: u32,
}

/// The first byte of TLS: a handshake message.
pub const TLS: u8 = 0x16;

/// The first byte of a connection between voters; with a secret, TLS follows.
pub const VOTER_PROTOCOL: u8 = 0xee;

/// A connection that another part of this process serves; nothing of it has been read.
#[derive(Debug)]
pub struct PassedConnection {
    /// The socket.
    pub stream: StdTcpStream,
    /// Its source.
    pub peer: PeerAddress,
    /// The processes that the port has refused.
    pub refusals: Arc<Refusals>,
    /// The port counts the connection until this is used, once the peer has authenticated itself, or dropped. If the port has closed the
    /// connection, this is closed.
    pub authenticated: oneshot::Sender<()>,
}

/// gRPC and HTTP, for each kind of client.
#[derive(Debug)]
pub struct Routers {
    /// For processes of the job, which know its secret; without a secret, for all.
    pub members: Router,
    /// For this user on this machine, without TLS.
    pub own_user: Router,
    /// For all others.
    pub strangers: Router,
    /// The refused clients.
    pub refusals: Arc<Refusals>,
}

/// The services for the protocols that share one port.
#[derive(Debug)]
pub struct PortProtocols {
    /// gRPC and HTTP.
    pub http: Routers,
    /// The credentials of the job.
    pub credentials: Credentials,
    /// `TCPStore`; `None`: such connections are closed.
    pub store: Option<PortStore>,
    /// Connections of other voters; `None`: they are closed.
    pub voters: Option<mpsc::Sender<PassedConnection>>,
    /// Connections of other agents for checkpoints in memory; `None`: they are closed.
    pub memory: Option<mpsc::Sender<PassedConnection>>,
    /// The registered nodes.
    pub registered_nodes: watch::Receiver<RegisteredNodes>,
    /// The nodes of the job, whose first registrations may wait here at the same time.
    pub nodes_max: usize,
}

impl PortProtocols {
    /// Returns the protocols of a port that serves these pages to every client, and nothing else.
    pub fn public(pages: Router) -> Self {
        Self {
            http: Routers {
                members: pages.clone(),
                own_user: pages.clone(),
                strangers: pages,
                refusals: Arc::default(),
            },
            credentials: Credentials::unsecured(Unsecured::Chosen),
            store: None,
            voters: None,
            memory: None,
            // No address is known.
            registered_nodes: watch::channel(RegisteredNodes::default()).1,
            nodes_max: 0,
        }
    }

    /// Returns the number of unknown connections that may belong to nodes of the job. Without a secret, nodes are unknown
    /// until they are registered.
    fn unregistered_max(&self) -> usize {
        if self.credentials.is_secured() { 0 } else { self.nodes_max }
    }

    /// Returns the protocols of a port that serves these pages to this user, and `strangers` to all other users.
    pub fn private(pages: Router, strangers: Router) -> Self {
        let mut protocols = Self::public(pages);
        protocols.http.strangers = strangers;
        protocols.credentials =
            Credentials::unsecured(Unsecured::NotFound { searched: Vec::new() });
        protocols
    }

    /// Returns the pages for a client without TLS. `is_private`: the port serves this user only.
    fn router(&self, own_user: OwnUser, is_private: bool) -> &Router {
        let Routers { members, own_user: of_own_user, strangers, .. } = &self.http;
        match own_user {
            OwnUser::Yes if self.credentials.is_secured() => of_own_user,
            OwnUser::No | OwnUser::Unknown if self.credentials.is_secured() => strangers,
            OwnUser::No if is_private => strangers,
            OwnUser::Yes | OwnUser::No | OwnUser::Unknown => members,
        }
    }

    /// Returns a connection for another part of this process, and the end of its authentication; `None` if the system refuses it.
    fn passed(
        &self,
        stream: TcpStream,
        peer: PeerAddress,
    ) -> Option<(PassedConnection, oneshot::Receiver<()>)> {
        let (authenticated, end) = oneshot::channel();
        let stream = stream.into_std().ok()?;
        let refusals = Arc::clone(&self.http.refusals);
        Some((PassedConnection { stream, peer, refusals, authenticated }, end))
    }

    /// Returns true if agents of the job are registered from this address.
    fn knows(&self, ip: IpAddr) -> bool {
        self.registered_nodes.borrow().addresses.contains(&ip)
    }
}

/// Serves one port until it is cancelled, with at most this many connections.
///
/// # Errors
///
/// Returns the system's error if the listener cannot be polled.
pub async fn serve_port(
    listener: StdTcpListener,
    protocols: PortProtocols,
    connections_max: usize,
) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    // Without a secret, a port that only this machine can reach serves this user only.
    let is_private =
        listener.local_addr()?.ip().is_loopback() && !protocols.credentials.is_declined();
    let (progress, mut progressed) = mpsc::channel(limits::PROGRESS_QUEUE);
    let nodes = protocols.unregistered_max();
    let served = limits::MAX_SERVED_UNKNOWN.saturating_add(nodes);
    let served_per_address = limits::MAX_UNKNOWN_PER_ADDRESS.saturating_add(nodes);
    let connections = connections_max;
    let bounds = Bounds { connections, served, served_per_address, ..Bounds::default() };
    let mut port = Port {
        quota: ConnectionQuota::new(bounds),
        owners: Owners::new(),
        protocols: Arc::new(protocols),
        tasks: JoinSet::new(),
        connections: HashMap::new(),
        handles: BTreeMap::new(),
        members: BTreeSet::new(),
        is_private,
        progress,
        rest_until: None,
        is_failing: false,
    };
    loop {
        port.close_all();
        port.read_all();
        let may_accept = port.rest_until.is_none() && port.quota.has_room();
        tokio::select! {
            // Ended connections and progress first, then deadlines, then new connections.
            biased;
            Some(ended) = port.tasks.join_next_with_id() => {
                port.handle_ended(ended.map_or_else(|error| error.id(), |(id, ())| id));
            }
            Some((connection, step)) = progressed.recv() => port.handle_step(connection, step),
            () = clock::until(port.quota.poll_timeout()) => port.quota.handle_timeout(clock::now()),
            () = clock::until(port.rest_until) => port.rest_until = None,
            accepted = listener.accept(), if may_accept => port.handle_accepted(accepted).await,
        }
    }
}

/// Returns the number of connections that this process has descriptors for, with some to spare.
pub fn connections_max() -> usize {
    let files = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft);
    let files = usize::try_from(files).unwrap_or(usize::MAX);
    limits::MAX_CONNECTIONS.min(files - (files / 4).min(limits::SPARE_FILES))
}

/// The task of a connection.
struct Handle {
    task: AbortHandle,
    /// Lets the task read; `None` if it may read at once.
    read: Option<oneshot::Sender<()>>,
}

struct Port {
    quota: ConnectionQuota,
    owners: Owners,
    protocols: Arc<PortProtocols>,
    tasks: JoinSet<()>,
    connections: HashMap<task::Id, ConnectionId>,
    handles: BTreeMap<ConnectionId, Handle>,
    /// The addresses from which processes have proven that they belong to the job.
    members: BTreeSet<IpAddr>,
    /// True if the port serves this user only.
    is_private: bool,
    progress: mpsc::Sender<(ConnectionId, ConnectionStep)>,
    /// The time until which no connection is accepted, after a failure.
    rest_until: Option<Instant>,
    is_failing: bool,
}

impl Port {
    fn close_all(&mut self) {
        while let Some(connection) = self.quota.poll_closing() {
            if let Some(handle) = self.handles.get(&connection) {
                debug!(
                    ?connection,
                    "connection closed: no request in time, or too many connections without a \
                     request"
                );
                handle.task.abort();
            }
        }
    }

    fn read_all(&mut self) {
        while let Some(connection) = self.quota.poll_read(clock::now()) {
            let handle = self.handles.get_mut(&connection);
            if let Some(read) = handle.and_then(|handle| handle.read.take()) {
                // The task may have ended.
                let _ = read.send(());
            }
        }
    }

    fn handle_ended(&mut self, id: task::Id) {
        if let Some(connection) = self.connections.remove(&id) {
            self.handles.remove(&connection);
            self.quota.handle_ended(connection);
        }
    }

    fn handle_step(&mut self, connection: ConnectionId, step: ConnectionStep) {
        match step {
            ConnectionStep::Begun => self.quota.handle_begun(connection),
            ConnectionStep::Authenticated(peer) => {
                self.quota.handle_authenticated(connection);
                if !peer.is_here && self.members.len() < limits::MAX_CONNECTIONS {
                    self.members.insert(peer.ip);
                }
            }
            ConnectionStep::NotStoreClient => {
                self.quota.handle_not_store_client(clock::now(), connection);
            }
            ConnectionStep::Served => {
                let protocols = Arc::clone(&self.protocols);
                self.quota.handle_served(connection, |ip| protocols.knows(ip));
            }
        }
    }

    async fn handle_accepted(&mut self, accepted: io::Result<(TcpStream, SocketAddr)>) {
        match accepted {
            Ok((stream, peer)) => {
                self.is_failing = false;
                self.start(stream, peer).await;
            }
            Err(error) => {
                let is_exhausted = matches!(
                    error.raw_os_error(),
                    Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM)
                );
                if !is_exhausted {
                    // For example, the peer has closed the connection before it was accepted.
                    debug!(%error, "failed to accept a connection");
                    self.rest_until = Some(clock::now() + ROOM_REST);
                    return;
                }
                if !std::mem::replace(&mut self.is_failing, true) {
                    warn!(
                        %error,
                        "failed to accept a connection: out of descriptors or memory; retrying"
                    );
                }
                // Out of descriptors or memory: known connections continue, unknown connections are
                // closed, and the next connection waits.
                let protocols = Arc::clone(&self.protocols);
                let has_some = (0..limits::MAX_UNKNOWN_PER_ADDRESS)
                    .all(|_| self.quota.make_room(|ip| protocols.knows(ip)));
                let rest = if has_some { ROOM_REST } else { limits::RETRY_INTERVAL };
                self.rest_until = Some(clock::now() + rest);
            }
        }
    }

    async fn start(&mut self, stream: TcpStream, peer: SocketAddr) {
        // The connection was reset meanwhile.
        let Ok(local) = stream.local_addr() else { return };
        let address = PeerAddress::new(local, peer);
        let own_user = self.own_user(local, peer, address).await;
        let address = PeerAddress { is_own_user: own_user == OwnUser::Yes, ..address };
        let origin = self.origin(own_user, address);
        let now = clock::now();
        let store_clients_max = match self.protocols.store {
            Some(_) => {
                let world_size = self.protocols.registered_nodes.borrow().world_size;
                limits::silent_store_clients(world_size)
            }
            None => 0,
        };
        let protocols = Arc::clone(&self.protocols);
        let is_known = |ip| protocols.knows(ip);
        let connection =
            self.quota.handle_accepted(now, address.ip, origin, store_clients_max, is_known);
        let progress = ConnectionProgress::new(connection, self.progress.clone());
        let (read, may_read) = oneshot::channel();
        let (read, may_read) = match origin {
            ConnectionOrigin::Known => (None, None),
            ConnectionOrigin::Unknown => (Some(read), Some(may_read)),
        };
        let client = PortClient { peer: address, own_user, is_private: self.is_private, may_read };
        let handle = self.tasks.spawn(async move {
            serve_connection(stream, client, &protocols, &progress).await;
        });
        self.connections.insert(handle.id(), connection);
        self.handles.insert(connection, Handle { task: handle, read });
    }

    /// Returns whether a connection is a socket of this user on this machine.
    async fn own_user(
        &mut self,
        local: SocketAddr,
        peer: SocketAddr,
        address: PeerAddress,
    ) -> OwnUser {
        if !address.is_here {
            return OwnUser::No;
        }
        let mut owner = self.owners.of_peer(clock::now(), local, peer);
        if let Owner::Later(due) = owner {
            // Only where the kernel has no other interface than a table, which is read again at that time.
            clock::until(Some(due)).await;
            owner = self.owners.of_peer(clock::now(), local, peer);
        }
        match owner {
            Owner::User(uid) if users::is_trusted(uid) => OwnUser::Yes,
            Owner::User(_) | Owner::Nobody => OwnUser::No,
            Owner::Later(_) | Owner::Unknown => OwnUser::Unknown,
        }
    }

    /// Returns the origin of a connection.
    fn origin(&self, own_user: OwnUser, address: PeerAddress) -> ConnectionOrigin {
        let is_known = match own_user {
            OwnUser::Yes => true,
            // If the kernel does not answer, the machine is assumed to have one user. That is too weak an
            // assumption for a voter, and for pages that need the secret otherwise.
            OwnUser::Unknown => true,
            OwnUser::No => {
                let ip = address.ip;
                !address.is_here && (self.members.contains(&ip) || self.protocols.knows(ip))
            }
        };
        if is_known { ConnectionOrigin::Known } else { ConnectionOrigin::Unknown }
    }
}

/// The owner of a connection: this user or root on this machine, or another process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OwnUser {
    /// It is.
    Yes,
    /// It is not.
    No,
    /// The kernel does not answer.
    Unknown,
}

/// The client of a connection.
pub struct PortClient {
    /// Its address.
    pub peer: PeerAddress,
    /// The answer of the kernel about its owner.
    pub own_user: OwnUser,
    /// True if the port serves this user only.
    pub is_private: bool,
    /// Ready when an unknown connection may be read; `None` if it is known.
    pub may_read: Option<oneshot::Receiver<()>>,
}

/// The pause before the next accept, while connections are closed to make room.
const ROOM_REST: Duration = Duration::from_millis(10);

/// Serves a connection until it ends.
pub async fn serve_connection(
    stream: TcpStream,
    client: PortClient,
    protocols: &PortProtocols,
    progress: &ConnectionProgress,
) {
    let PortClient { peer, own_user, is_private, may_read } = client;
    let mut first = [0];
    // The quota has the deadline.
    let first = match stream.peek(&mut first).await {
        Ok(1) => first[0],
        Ok(_) | Err(_) => return,
    };
    let is_counted = matches!(first, b'A'..=b'Z' | TLS | MEMORY_PROTOCOL);
    if is_counted {
        progress.report(ConnectionStep::NotStoreClient).await;
    }
    let origin =
        if may_read.is_none() { ConnectionOrigin::Known } else { ConnectionOrigin::Unknown };
    if is_counted && let Some(may_read) = may_read {
        progress.report(ConnectionStep::Begun).await;
        if may_read.await.is_err() {
            return;
        }
    }
    match first {
        // The first message of a `TCPStore` client is VALIDATE, code zero.
        0 => match &protocols.store {
            Some(store) => serve_store(stream, peer, store.clone()).await,
            None => debug!(peer = %peer.ip, "connection closed: this port serves no store"),
        },
        b'A'..=b'Z' => {
            let router = protocols.router(own_user, is_private).clone();
            // Otherwise answers wait for the peer's delayed acknowledgement.
            let _ = stream.set_nodelay(true);
            // In a box, so that connections that are not read yet stay small.
            Box::pin(http::serve(stream, peer, router, origin, progress)).await;
        }
        TLS => Box::pin(serve_tls(stream, peer, protocols, progress)).await,
        VOTER_PROTOCOL => {
            // It has limits of its own. If the queue is full or the voter has ended, the connection is closed.
            let passed = protocols.passed(stream, peer).zip(protocols.voters.as_ref());
            if let Some(((connection, _), voters)) = passed {
                let _ = voters.try_send(connection);
            }
        }
        MEMORY_PROTOCOL => {
            let passed = protocols.passed(stream, peer).zip(protocols.memory.as_ref());
            if let Some(((connection, authenticated), memory)) = passed
                && memory.send(connection).await.is_ok()
                && authenticated.await.is_ok()
            {
                progress.report(ConnectionStep::Authenticated(peer)).await;
            }
        }
        byte => {
            debug!(peer = %peer.ip, byte, "connection closed: unknown protocol");
        }
    }
}

/// Serves a client that knows the secret, or has a certificate that is accepted.
async fn serve_tls(
    stream: TcpStream,
    peer: PeerAddress,
    protocols: &PortProtocols,
    progress: &ConnectionProgress,
) {
    if !protocols.credentials.is_secured() {
        return protocols.http.refusals.handle_refused(
            peer.ip,
            "it uses TLS; this port needs neither a secret nor a certificate",
        );
    }
    let _ = stream.set_nodelay(true);
    // The quota has the deadline.
    match secure_stream::accept(stream, &protocols.credentials).await {
        Ok(stream)
            if matches!(stream.get_ref().1.alpn_protocol(), Some(ALPN_VOTER | ALPN_MEMORY)) =>
        {
            debug!(peer = %peer.ip, "connection closed: its protocol has a byte before TLS");
        }
        Ok(stream) => {
            progress.report(ConnectionStep::Authenticated(peer)).await;
            let router = protocols.http.members.clone();
            http::serve(stream, peer, router, ConnectionOrigin::Known, progress).await;
        }
        Err(AcceptError::Incomplete) => {
            debug!(peer = %peer.ip, "connection closed: the handshake was not completed");
        }
        Err(error) => protocols.http.refusals.handle_refused(peer.ip, &error.to_string()),
    }
}

async fn serve_store(stream: TcpStream, peer: PeerAddress, mut port_store: PortStore) {
    let Ok(Ok(store)) =
        timeout(limits::PORT_STORE_TIMEOUT, port_store.wait_for(Option::is_some)).await
    else {
        return debug!(peer = %peer.ip, "connection closed: no store is open");
    };
    let served = stream.into_std().map(|stream| store.as_ref().map(|store| store.serve(stream)));
    if let Ok(Some(Ok(()))) = served {
        return;
    }
    debug!(peer = %peer.ip, ?served, "connection closed: the store has refused it");
}

#[cfg(test)]
mod tests;
