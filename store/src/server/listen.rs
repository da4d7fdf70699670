//! Binds listeners with the options that workers expect.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};

use crate::limits::LISTEN_BACKLOG;

/// Listens on `addr`; on `[::]` also for IPv4, and on `0.0.0.0` instead if there is no IPv6.
///
/// A port in use is an error: it is never shared with another process (`SO_REUSEPORT`). Connections
/// of an earlier process in `TIME_WAIT` do not count as use (`SO_REUSEADDR`).
///
/// # Errors
///
/// Returns the operating system's error if the address cannot be bound.
pub fn listen(addr: SocketAddr) -> io::Result<TcpListener> {
    match bind(addr) {
        Err(error) if addr.is_ipv6() && addr.ip().is_unspecified() && has_no_ipv6(&error) => {
            bind((Ipv4Addr::UNSPECIFIED, addr.port()).into())
        }
        result => result,
    }
}

fn bind(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    if addr.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(true)?;
    socket.bind(&addr.into())?;
    socket.listen(LISTEN_BACKLOG)?;
    Ok(socket.into())
}

/// Returns true if `error` is the answer of a kernel without IPv6, or with it disabled.
fn has_no_ipv6(error: &io::Error) -> bool {
    const EAFNOSUPPORT: i32 = 97;
    error.kind() == io::ErrorKind::AddrNotAvailable || error.raw_os_error() == Some(EAFNOSUPPORT)
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    /// One listener on `[::]` accepts clients of both families.
    #[test]
    fn unspecified_serves_both_families() {
        let listener = listen("[::]:0".parse().unwrap()).unwrap();
        let port = listener.local_addr().unwrap().port();
        TcpStream::connect(("127.0.0.1", port)).unwrap();
        if listener.local_addr().unwrap().is_ipv6() {
            TcpStream::connect(("::1", port)).unwrap();
        }
    }

    /// A second listener on the same port is refused.
    #[test]
    fn ports_are_not_shared() {
        let first = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let second = listen(first.local_addr().unwrap());
        assert_eq!(second.unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }
}
