//! Makes every listener and every connection of the program, so that common rules (bounds,
//! authentication and TLS) have one place.
//!
//! `port` serves the protocols of one port, `connection_quota` decides which connections it keeps, and `refusals` which
//! refusals are logged. `secure_stream` is a connection with TLS, and `authentication` selects the secret for it;
//! `http_client` requests a page, and `endpoint` reads the address of a coordinator.

pub mod authentication;
pub mod bounded_connections;
pub mod connection;
pub mod connection_quota;
mod endpoint;
pub mod http;
pub mod http_client;
mod limits;
pub mod port;
pub mod refusals;
pub mod secure_stream;

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener as StdTcpListener, UdpSocket},
};

use tokio::{
    net::{TcpStream, lookup_host},
    time::timeout,
};

pub use self::endpoint::{DEFAULT_PORT, Endpoint, EndpointError, is_host};
use crate::sys::{clock, host::ThisHost};

/// The connections that a listener of this program accepts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reach {
    /// Connections from this machine, at this loopback address.
    Loopback(IpAddr),
    /// Connections from anywhere, over IPv4 and IPv6.
    Everywhere,
}

impl Reach {
    /// Returns the reach of a listener for `endpoint`, which resolves to `address`: a name that is
    /// a loopback address on its own machine has another address on all others.
    pub fn of_endpoint(endpoint: &Endpoint, address: IpAddr) -> Self {
        let is_name = endpoint.host.parse::<IpAddr>().is_err() && endpoint.host != "localhost";
        if is_name { Self::Everywhere } else { Self::of(address) }
    }

    /// Returns the reach of a listener, so that any host that reaches `address` reaches it too.
    pub fn of(address: IpAddr) -> Self {
        if address.is_loopback() { Self::Loopback(address) } else { Self::Everywhere }
    }
}

/// Listens on `port`; zero means a free one.
///
/// # Errors
///
/// Returns the system's error, such as a port that is in use.
pub fn listen(reach: Reach, port: u16) -> io::Result<StdTcpListener> {
    let address: IpAddr = match reach {
        Reach::Loopback(address) => address,
        Reach::Everywhere => Ipv6Addr::UNSPECIFIED.into(),
    };
    listen_on((address, port).into())
}

/// Listens on `address`.
///
/// # Errors
///
/// Returns the system's error, such as a port that is in use.
pub fn listen_on(address: SocketAddr) -> io::Result<StdTcpListener> {
    let listener = ragent_store::listen(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The reason why an endpoint's name has no address.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// The name has no address.
    #[error("`{0}` does not resolve to an address")]
    NoAddress(String),
    /// The resolver has returned an error.
    #[error("`{host}` does not resolve")]
    Resolver {
        /// The name.
        host: String,
        /// The resolver's error.
        #[source]
        source: io::Error,
    },
    /// The resolver does not answer.
    #[error("the resolver did not answer for `{0}`")]
    Silent(String),
}

/// Returns the addresses of an endpoint, lowest first.
///
/// # Errors
///
/// Returns [`ResolveError`] if there is none.
pub async fn resolve(endpoint: &Endpoint) -> Result<Vec<SocketAddr>, ResolveError> {
    let host = endpoint.host.clone();
    let lookup = lookup_host((host.clone(), endpoint.port));
    let found = match timeout(limits::RESOLVE_TIMEOUT, lookup).await {
        Err(_) => return Err(ResolveError::Silent(host)),
        Ok(Err(source)) => return Err(ResolveError::Resolver { host, source }),
        Ok(Ok(found)) => found,
    };
    let canonical =
        |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
    let mut addresses: Vec<SocketAddr> = found.map(canonical).collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses.truncate(limits::MAX_ENDPOINT_ADDRESSES);
    if addresses.is_empty() { Err(ResolveError::NoAddress(host)) } else { Ok(addresses) }
}

/// Returns true if `endpoint` leads to this machine, or its name does not resolve (yet).
pub async fn may_lead_here(endpoint: &Endpoint) -> bool {
    let Ok(addresses) = resolve(endpoint).await else { return true };
    addresses.iter().any(|address| ThisHost.owns(address.ip()))
}

/// Returns the address of this machine that `peer` sees.
pub fn own_address_towards(peer: SocketAddr) -> Option<IpAddr> {
    let any: IpAddr = match peer {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // No packet is sent: the system only selects the route.
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(peer).ok()?;
    socket.local_addr().ok().map(|address| address.ip()).filter(|ip| !ip.is_unspecified())
}

/// Returns the address of this machine on its default route.
pub fn default_address() -> Option<IpAddr> {
    // Addresses reserved for documentation, to which the default route of every machine leads.
    let far = [IpAddr::from([192, 0, 2, 1]), IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1])];
    far.into_iter().find_map(|far| own_address_towards((far, 9).into()))
}

/// Opens a connection; tries again after a second, because the host may have been busy or restarting.
///
/// # Errors
///
/// Returns the error of the second attempt.
pub async fn dial_twice(address: SocketAddr) -> io::Result<TcpStream> {
    if let Ok(stream) = dial(address).await {
        return Ok(stream);
    }
    clock::until(Some(clock::now() + limits::DIAL_PAUSE)).await;
    dial(address).await
}

/// Opens a connection.
///
/// # Errors
///
/// Returns the system's error, or [`io::ErrorKind::TimedOut`] if packets are dropped without an
/// answer.
pub async fn dial(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = timeout(limits::DIAL_TIMEOUT, TcpStream::connect(address))
        .await
        .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "no answer"))??;
    stream.set_nodelay(true)?;
    Ok(stream)
}
