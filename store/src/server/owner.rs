//! Finds the user that owns the other end of a connection from this machine.
//!
//! `SO_PEERCRED` exists for Unix sockets only. For TCP, the kernel has `NETLINK_SOCK_DIAG`: an
//! exact look-up of one four-tuple, without privileges, that takes the same time with ten sockets
//! as with ten thousand. Kernels without it (gVisor) may still have `/proc/net/tcp`, which lists
//! all sockets and is therefore read at intervals only.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, IoSlice};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::Instant;

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendmsg, socket,
};

use crate::limits::SOCKET_TABLE_INTERVAL;

/// The owner of the other end of a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Owner {
    /// The connection is established, and its other end belongs to this user of this machine.
    User(u32),
    /// No established socket of this machine is the other end.
    Nobody,
    /// Not known before this time; ask again then.
    Later(Instant),
    /// The kernel has no interface for it.
    Unknown,
}

/// Looks up the users that own connections from this machine.
#[derive(Debug)]
pub struct Owners {
    source: OwnerSource,
    /// Differs from request to request, so that outdated answers are recognized.
    sequence: u32,
    /// The users of established connections by their local and remote addresses.
    table: HashMap<(SocketAddr, SocketAddr), u32>,
    /// The time from which on `table` may be read again.
    table_due: Option<Instant>,
}

/// The source of answers.
#[derive(Debug)]
enum OwnerSource {
    /// The kernel; `is_proven` is true if it has found a socket at least once.
    SockDiag { socket: OwnedFd, is_proven: bool },
    /// The table of all sockets.
    Table,
    /// None.
    Nowhere,
}

impl Default for Owners {
    fn default() -> Self {
        Self::new()
    }
}

impl Owners {
    /// Opens the netlink socket; sends no request yet.
    pub fn new() -> Self {
        let opened = socket(
            AddressFamily::Netlink,
            SockType::Datagram,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
            SockProtocol::NetlinkSockDiag,
        );
        let source = match opened {
            Ok(socket) => OwnerSource::SockDiag { socket, is_proven: false },
            Err(_) => OwnerSource::Table,
        };
        Self { source, sequence: 0, table: HashMap::new(), table_due: None }
    }

    /// Returns the owner of the socket at the other end of a connection from `peer` to `local`.
    pub fn of_peer(&mut self, now: Instant, local: SocketAddr, peer: SocketAddr) -> Owner {
        let (local, peer) = (canonical(local), canonical(peer));
        if matches!(self.source, OwnerSource::SockDiag { .. }) {
            match self.ask(peer, local) {
                Ok(Some(socket)) => return socket.owner(),
                Ok(None) if self.can_answer(local, peer) => return Owner::Nobody,
                // The kernel has no module for TCP, both ends are closed, or it is out of memory:
                // the next look-up may succeed.
                Ok(None) | Err(_) => {}
            }
        }
        self.look_up(now, local, peer)
    }

    /// Returns true if the kernel finds sockets at all, which it does not without the module for
    /// TCP. Tested with the own end of the connection.
    fn can_answer(&mut self, local: SocketAddr, peer: SocketAddr) -> bool {
        self.is_proven() || matches!(self.ask(local, peer), Ok(Some(_)))
    }

    fn is_proven(&self) -> bool {
        matches!(self.source, OwnerSource::SockDiag { is_proven: true, .. })
    }

    /// Asks the kernel for the socket with the ends `own` and `other`.
    fn ask(&mut self, own: SocketAddr, other: SocketAddr) -> io::Result<Option<Socket>> {
        let OwnerSource::SockDiag { socket, is_proven } = &mut self.source else { return Ok(None) };
        self.sequence = self.sequence.wrapping_add(1);
        let request = request(self.sequence, own, other);
        let kernel = NetlinkAddr::new(0, 0);
        let slices = [IoSlice::new(&request)];
        sendmsg(socket.as_raw_fd(), &slices, &[], MsgFlags::empty(), Some(&kernel))?;
        let mut answer = [0; ANSWER_LEN_MAX];
        // The kernel answers synchronously. Other messages in the queue are outdated answers.
        for _ in 0..OLD_ANSWERS_MAX {
            let len = recv(socket.as_raw_fd(), &mut answer, MsgFlags::MSG_DONTWAIT)?;
            match parse(&answer[..len], self.sequence) {
                LookupAnswer::Other => {}
                LookupAnswer::Missing => return Ok(None),
                LookupAnswer::Failed(errno) => return Err(io::Error::from_raw_os_error(errno)),
                LookupAnswer::Found(found) => {
                    *is_proven = true;
                    return Ok(Some(found));
                }
            }
        }
        Err(io::ErrorKind::InvalidData.into())
    }

    /// Looks the connection up in the table of all sockets.
    fn look_up(&mut self, now: Instant, local: SocketAddr, peer: SocketAddr) -> Owner {
        if matches!(self.source, OwnerSource::Nowhere) {
            return Owner::Unknown;
        }
        let find = |table: &HashMap<_, _>| table.get(&(peer, local)).copied().map(Owner::User);
        if let Some(due) = self.table_due.filter(|due| now < *due) {
            return find(&self.table).unwrap_or(Owner::Later(due));
        }
        let files: Vec<File> = TABLES.iter().flat_map(File::open).collect();
        if files.is_empty() {
            // The tables may be unreadable for want of descriptors; a kernel that was asked before is
            // asked again.
            if matches!(self.source, OwnerSource::Table) {
                self.source = OwnerSource::Nowhere;
            }
            return Owner::Unknown;
        }
        // The files may have megabytes.
        let lines =
            files.into_iter().flat_map(|file| BufReader::new(file).lines().map_while(Result::ok));
        self.table = lines.filter_map(|line| row(&line)).collect();
        self.table_due = Some(now + SOCKET_TABLE_INTERVAL);
        find(&self.table).unwrap_or(Owner::Nobody)
    }
}

/// Returns an IPv4 address in the same form for both spellings; an IPv6 address may have a scope.
fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), address.port()),
        IpAddr::V6(_) => address,
    }
}

/// A socket that the kernel has found.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Socket {
    state: u8,
    uid: u32,
}

impl Socket {
    /// In other states (`FIN_WAIT2`, `TIME_WAIT`) the kernel always reports user 0.
    fn owner(self) -> Owner {
        if self.state == ESTABLISHED { Owner::User(self.uid) } else { Owner::Nobody }
    }
}

#[derive(Debug, Eq, PartialEq)]
enum LookupAnswer {
    Found(Socket),
    Missing,
    Failed(i32),
    /// An answer to another request, or not an answer.
    Other,
}

/// Returns `struct nlmsghdr` and `struct inet_diag_req_v2`, for one socket.
fn request(sequence: u32, own: SocketAddr, other: SocketAddr) -> [u8; REQUEST_LEN] {
    let mut bytes = [0; REQUEST_LEN];
    let mut at = 0;
    let mut put = |part: &[u8]| {
        bytes[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    };
    put(&(REQUEST_LEN as u32).to_ne_bytes());
    put(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    put(&NLM_F_REQUEST.to_ne_bytes());
    put(&sequence.to_ne_bytes());
    put(&0_u32.to_ne_bytes());
    let family = if own.is_ipv4() { AF_INET } else { AF_INET6 };
    put(&[family, IPPROTO_TCP, 0, 0]);
    put(&u32::MAX.to_ne_bytes());
    put(&own.port().to_be_bytes());
    put(&other.port().to_be_bytes());
    put(&octets(own.ip()));
    put(&octets(other.ip()));
    // A link-local address is valid on its interface only.
    let interface = match own {
        SocketAddr::V6(own) => own.scope_id(),
        SocketAddr::V4(_) => 0,
    };
    put(&interface.to_ne_bytes());
    // Any cookie.
    put(&[0xff; 8]);
    bytes
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => {
            let mut octets = [0; 16];
            octets[..4].copy_from_slice(&v4.octets());
            octets
        }
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Parses one message of the kernel.
fn parse(message: &[u8], sequence: u32) -> LookupAnswer {
    let u16_at = |at: usize| {
        let bytes = message.get(at..at + 2)?.try_into().ok()?;
        Some(u16::from_ne_bytes(bytes))
    };
    let u32_at = |at: usize| {
        let bytes = message.get(at..at + 4)?.try_into().ok()?;
        Some(u32::from_ne_bytes(bytes))
    };
    if u32_at(8) != Some(sequence) {
        return LookupAnswer::Other;
    }
    match u16_at(4) {
        Some(NLMSG_ERROR) => {
            match u32_at(HEADER_LEN).map(|errno| errno.cast_signed().wrapping_neg()) {
                Some(ENOENT) => LookupAnswer::Missing,
                Some(errno) => LookupAnswer::Failed(errno),
                None => LookupAnswer::Other,
            }
        }
        Some(SOCK_DIAG_BY_FAMILY) => match (message.get(HEADER_LEN + 1), u32_at(UID_AT)) {
            (Some(&state), Some(uid)) => LookupAnswer::Found(Socket { state, uid }),
            (_, None) | (None, _) => LookupAnswer::Other,
        },
        Some(_) | None => LookupAnswer::Other,
    }
}

/// Parses a row of `/proc/net/tcp` or `/proc/net/tcp6`: the local and the remote address, and the user. `None` for the
/// heading, or if the connection is not established.
fn row(line: &str) -> Option<((SocketAddr, SocketAddr), u32)> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (local, remote, state) = (fields.next()?, fields.next()?, fields.next()?);
    if u8::from_str_radix(state, 16).ok()? != ESTABLISHED {
        return None;
    }
    let uid = fields.nth(3)?.parse().ok()?;
    Some(((end(local)?, end(remote)?), uid))
}

/// Parses an address as the kernel prints it: words in the machine's byte order, and a port.
fn end(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let word = |at: usize| {
        let digits = address.get(8 * at..8 * (at + 1))?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    let ip: IpAddr = match address.len() {
        8 => Ipv4Addr::from(word(0)?).into(),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            let octets: [u8; 16] = words.concat().try_into().ok()?;
            Ipv6Addr::from(octets).into()
        }
        _ => return None,
    };
    let port = u16::from_str_radix(port, 16).ok()?;
    Some(SocketAddr::new(ip.to_canonical(), port))
}

const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];
const HEADER_LEN: usize = 16;
const REQUEST_LEN: usize = HEADER_LEN + 56;
/// After the header, four bytes, the ends (48 bytes), and three counters of four bytes.
const UID_AT: usize = HEADER_LEN + 4 + 48 + 12;
/// A found socket has 72 bytes and a few attributes; a longer message is truncated.
const ANSWER_LEN_MAX: usize = 512;
const OLD_ANSWERS_MAX: usize = 16;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const IPPROTO_TCP: u8 = 6;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const ESTABLISHED: u8 = 1;
const ENOENT: i32 = 2;

#[cfg(any(test, fuzzing))]
#[path = "../../fuzz/src/sock_diag.rs"]
pub(super) mod fuzzing;
#[cfg(test)]
mod tests;
