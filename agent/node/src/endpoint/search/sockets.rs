//! Sends and receives datagrams: multicast on each interface, over IPv4 and IPv6, and unicast to named hosts.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6},
};

use ragent_base::{
    net::{self, Endpoint},
    sys::{
        clock,
        host::{Interface, ThisHost},
    },
};
use ragent_options::spec::SearchSpec;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::{net::UdpSocket, sync::watch, task::JoinSet};
use tracing::debug;

use crate::endpoint::limits;

/// An address for use within an organisation, which routers do not forward further.
const GROUP_V4: Ipv4Addr = Ipv4Addr::new(239, 255, 82, 71);
/// A site-local address, so that the source address of a datagram is valid on more than one link.
const GROUP_V6: Ipv6Addr = Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 0x7261, 0x676e);

/// The sockets of one agent.
#[derive(Debug)]
pub struct Sockets {
    v4: Option<UdpSocket>,
    v6: Option<UdpSocket>,
    interfaces: Vec<Interface>,
    port: u16,
    /// True if the user has named the interface.
    is_named: bool,
    /// True if the user has named hosts.
    has_list: bool,
    /// The addresses of the listed hosts, as of the last lookup.
    hosts: watch::Receiver<Vec<SocketAddr>>,
}

/// The reason why the search for agents failed.
#[derive(Debug, thiserror::Error)]
pub enum SocketsError {
    /// The port cannot be bound.
    #[error("failed to listen for datagrams on port {port}")]
    Bind {
        /// The port.
        port: u16,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// No agent can be reached on any interface.
    #[error("no network interface of this machine supports multicast{}", of(interface))]
    NoInterface {
        /// The interface that the user has named, if any.
        interface: Option<String>,
    },
}

fn of(interface: &Option<String>) -> String {
    interface.as_ref().map_or_else(String::new, |name| format!(" (searched: `{name}`)"))
}

impl Sockets {
    /// Opens the sockets for `spec`, and joins the groups on all its interfaces.
    ///
    /// # Errors
    ///
    /// Returns [`SocketsError`] if no agent can be reached.
    pub fn open(spec: &SearchSpec) -> Result<Self, SocketsError> {
        let bind = |source| SocketsError::Bind { port: spec.port, source };
        let v4 = socket(Domain::IPV4, spec).map_err(bind)?;
        // A machine may have no IPv6.
        let v6 = socket(Domain::IPV6, spec).ok();
        let mut interfaces = ThisHost.multicast_interfaces(spec.interface.as_deref());
        interfaces.retain_mut(|interface| {
            interface.v4.retain(|address| v4.join_multicast_v4(GROUP_V4, *address).is_ok());
            let joined = v6.as_ref().map(|v6| v6.join_multicast_v6(&GROUP_V6, interface.index));
            interface.has_v6 &= joined.is_some_and(|joined| joined.is_ok());
            !interface.v4.is_empty() || interface.has_v6
        });
        if interfaces.is_empty() && spec.hosts.is_empty() {
            return Err(SocketsError::NoInterface { interface: spec.interface.clone() });
        }
        let (sender, hosts) = watch::channel(Vec::new());
        if !spec.hosts.is_empty() {
            tokio::spawn(look_up(spec.hosts.clone(), sender));
        }
        let is_named = spec.interface.is_some();
        let has_list = !spec.hosts.is_empty();
        Ok(Self { v4: Some(v4), v6, interfaces, port: spec.port, is_named, has_list, hosts })
    }

    /// Returns the names of the interfaces in use.
    pub fn interfaces(&self) -> Vec<&str> {
        self.interfaces.iter().map(|interface| interface.name.as_str()).collect()
    }

    /// Returns the address of the interface that the user has named.
    pub(crate) fn named_interface(&self) -> Option<IpAddr> {
        let interface = self.interfaces.first().filter(|_| self.is_named)?;
        interface.v4.first().copied().map(IpAddr::V4)
    }

    /// Sends `bytes` to all agents. If that fails, the choice of a host repeats it later.
    pub fn broadcast(&self, bytes: &[u8]) {
        for interface in &self.interfaces {
            for address in &interface.v4 {
                self.multicast_v4(bytes, *address);
            }
            if interface.has_v6 {
                self.multicast_v6(bytes, interface.index);
            }
        }
        for address in self.hosts.borrow().iter() {
            self.send_to(*address, bytes);
        }
    }

    /// Returns true if a broadcast may not reach `peer`: there is a list of hosts, and `peer` is
    /// not on it. Multicast may not reach it either.
    pub(crate) fn misses(&self, peer: SocketAddr) -> bool {
        self.has_list && !self.hosts.borrow().contains(&peer)
    }

    /// Sends `bytes` to one agent.
    pub fn send_to(&self, peer: SocketAddr, bytes: &[u8]) {
        let socket = if peer.is_ipv4() { &self.v4 } else { &self.v6 };
        note(socket.as_ref().map(|socket| socket.try_send_to(bytes, peer)));
    }

    fn multicast_v4(&self, bytes: &[u8], from: Ipv4Addr) {
        let Some(socket) = &self.v4 else { return };
        let chosen = SockRef::from(socket).set_multicast_if_v4(&from);
        let group = SocketAddr::from((GROUP_V4, self.port));
        note(Some(chosen.and_then(|()| socket.try_send_to(bytes, group))));
    }

    fn multicast_v6(&self, bytes: &[u8], interface: u32) {
        let Some(socket) = &self.v6 else { return };
        let chosen = SockRef::from(socket).set_multicast_if_v6(interface);
        let group = SocketAddrV6::new(GROUP_V6, self.port, 0, interface);
        note(Some(chosen.and_then(|()| socket.try_send_to(bytes, group.into()))));
    }

    /// Returns the next datagram and its source.
    pub async fn receive(&self) -> io::Result<(Vec<u8>, SocketAddr)> {
        // One byte more than the limit, so that longer datagrams are recognised.
        let (mut four, mut six) = ([0; limits::MAX_DATAGRAM + 1], [0; limits::MAX_DATAGRAM + 1]);
        tokio::select! {
            // Each message is sent over both families, so a flood on the first one hides no message.
            biased;
            received = receive(&self.v4, &mut four) => {
                received.map(|(length, peer)| (four[..length].to_vec(), peer))
            }
            received = receive(&self.v6, &mut six) => {
                received.map(|(length, peer)| (six[..length].to_vec(), peer))
            }
        }
    }
}

/// Looks the hosts up repeatedly, while there is a receiver. A host that is down or unknown does not delay the others.
async fn look_up(hosts: Vec<Endpoint>, known: watch::Sender<Vec<SocketAddr>>) {
    loop {
        let mut found = Vec::new();
        for some in hosts.chunks(limits::LOOK_UPS_AT_ONCE) {
            let looked: JoinSet<Vec<SocketAddr>> = some
                .iter()
                .cloned()
                .map(|host| async move { net::resolve(&host).await.unwrap_or_default() })
                .collect();
            found.extend(looked.join_all().await.into_iter().flatten());
            known.send_replace(found.clone());
        }
        tokio::select! {
            () = known.closed() => return,
            () = clock::until(Some(clock::now() + limits::LOOK_UP_INTERVAL)) => {}
        }
    }
}

async fn receive(socket: &Option<UdpSocket>, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
    match socket {
        Some(socket) => socket.recv_from(buffer).await,
        None => std::future::pending().await,
    }
}

fn note(sent: Option<io::Result<usize>>) {
    if let Some(Err(error)) = sent {
        debug!(%error, "failed to send a datagram");
    }
}

/// Opens a socket of one family. Agents of other jobs on this machine may share the port.
fn socket(domain: Domain, spec: &SearchSpec) -> io::Result<UdpSocket> {
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    // Of several sockets on a port, only one receives a unicast datagram. So with a list of hosts,
    // a second job on this machine needs another port.
    socket.set_reuse_address(spec.hosts.is_empty())?;
    socket.set_nonblocking(true)?;
    let any: SocketAddr = if domain == Domain::IPV4 {
        socket.set_multicast_ttl_v4(spec.ttl)?;
        socket.set_multicast_loop_v4(true)?;
        // Receives only from interfaces on which this socket has joined the group.
        socket.set_multicast_all_v4(false)?;
        (Ipv4Addr::UNSPECIFIED, spec.port).into()
    } else {
        socket.set_only_v6(true)?;
        socket.set_multicast_hops_v6(spec.ttl)?;
        socket.set_multicast_loop_v6(true)?;
        socket.set_multicast_all_v6(false)?;
        (Ipv6Addr::UNSPECIFIED, spec.port).into()
    };
    socket.bind(&any.into())?;
    UdpSocket::from_std(socket.into())
}
