//! How datagrams travel: by multicast on each interface, over IPv4 and IPv6, and to hosts by name.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6},
};

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::UdpSocket;
use tracing::debug;

use crate::{
    host::{Interface, ThisHost},
    job_spec::{Endpoint, SearchSpec},
    limits, net,
};

/// Of the block that organisations use as they like, and routers pass no further.
const GROUP_V4: Ipv4Addr = Ipv4Addr::new(239, 255, 82, 71);
/// Of one site, so that what is said comes from an address that more than one link knows.
const GROUP_V6: Ipv6Addr = Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 0x7261, 0x676e);

/// The sockets of one agent.
#[derive(Debug)]
pub struct Sockets {
    v4: Option<UdpSocket>,
    v6: Option<UdpSocket>,
    interfaces: Vec<Interface>,
    port: u16,
    hosts: Vec<Endpoint>,
}

/// Why agents cannot be looked for.
#[derive(Debug, thiserror::Error)]
pub enum SocketsError {
    /// The port cannot be had.
    #[error("failed to listen for datagrams on port {port}")]
    Bind {
        /// Which one.
        port: u16,
        /// The system's word.
        #[source]
        source: io::Error,
    },
    /// There is no way to reach anybody.
    #[error("no interface of this machine takes multicast{}", of(interface))]
    NoInterface {
        /// The one that was asked for.
        interface: Option<String>,
    },
}

fn of(interface: &Option<String>) -> String {
    interface.as_ref().map_or_else(String::new, |name| format!(", of those called `{name}`"))
}

impl Sockets {
    /// Opens what `spec` asks for, and joins the groups on all its interfaces.
    ///
    /// # Errors
    ///
    /// Returns [`SocketsError`] if nobody can be reached so.
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
        Ok(Self { v4: Some(v4), v6, interfaces, port: spec.port, hosts: spec.hosts.clone() })
    }

    /// The names of the interfaces in use.
    pub fn interfaces(&self) -> Vec<&str> {
        self.interfaces.iter().map(|interface| interface.name.as_str()).collect()
    }

    /// Says `bytes` to all; what does not get through is said again later.
    pub async fn say(&self, bytes: &[u8]) {
        for interface in &self.interfaces {
            for address in &interface.v4 {
                self.say_v4(bytes, *address);
            }
            if interface.has_v6 {
                self.say_v6(bytes, interface.index);
            }
        }
        for host in &self.hosts {
            for address in net::resolve(host).await.unwrap_or_default() {
                let socket = if address.is_ipv4() { &self.v4 } else { &self.v6 };
                note(socket.as_ref().map(|socket| socket.try_send_to(bytes, address)));
            }
        }
    }

    fn say_v4(&self, bytes: &[u8], from: Ipv4Addr) {
        let Some(socket) = &self.v4 else { return };
        let chosen = SockRef::from(socket).set_multicast_if_v4(&from);
        let group = SocketAddr::from((GROUP_V4, self.port));
        note(Some(chosen.and_then(|()| socket.try_send_to(bytes, group))));
    }

    fn say_v6(&self, bytes: &[u8], interface: u32) {
        let Some(socket) = &self.v6 else { return };
        let chosen = SockRef::from(socket).set_multicast_if_v6(interface);
        let group = SocketAddrV6::new(GROUP_V6, self.port, 0, interface);
        note(Some(chosen.and_then(|()| socket.try_send_to(bytes, group.into()))));
    }

    /// The next datagram, and where it comes from.
    pub async fn hear(&self) -> io::Result<(Vec<u8>, SocketAddr)> {
        // One byte more than is taken, to tell what is too long.
        let (mut four, mut six) = ([0; limits::MAX_DATAGRAM + 1], [0; limits::MAX_DATAGRAM + 1]);
        tokio::select! {
            heard = receive(&self.v4, &mut four) => {
                heard.map(|(length, peer)| (four[..length].to_vec(), peer))
            }
            heard = receive(&self.v6, &mut six) => {
                heard.map(|(length, peer)| (six[..length].to_vec(), peer))
            }
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
        debug!(%error, "a datagram did not get out");
    }
}

/// A socket of one family for sending and hearing; other agents of this machine may have the port too.
fn socket(domain: Domain, spec: &SearchSpec) -> io::Result<UdpSocket> {
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    let any: SocketAddr = if domain == Domain::IPV4 {
        socket.set_multicast_ttl_v4(spec.ttl)?;
        socket.set_multicast_loop_v4(true)?;
        (Ipv4Addr::UNSPECIFIED, spec.port).into()
    } else {
        socket.set_only_v6(true)?;
        socket.set_multicast_hops_v6(spec.ttl)?;
        socket.set_multicast_loop_v6(true)?;
        (Ipv6Addr::UNSPECIFIED, spec.port).into()
    };
    socket.bind(&any.into())?;
    UdpSocket::from_std(socket.into())
}
