//! Finds ports for tests that have to name one.

use std::{
    iter,
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::AsRawFd,
    sync::atomic::{AtomicU16, Ordering},
    time::Duration,
};

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, bind, listen, setsockopt, socket,
    sockopt::ReuseAddr,
};

/// Returns a port on which no process listens. It is below the range from which the kernel picks ports for others.
///
/// The socket that tries the port never listens. A process that another thread forks holds a copy of that socket until it executes its
/// program. A copy that listens would keep the port in use.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = u16::try_from(std::process::id() % 1000).expect("less than 1000") * 10;
    loop {
        let offset = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % 12_000;
        let port = 20_000 + offset;
        let flags = SockFlag::SOCK_CLOEXEC;
        let fd = socket(AddressFamily::Inet, SockType::Stream, flags, None).expect("a socket");
        setsockopt(&fd, ReuseAddr, &true).expect("a new socket has options");
        if bind(fd.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, port)).is_ok() {
            return port;
        }
    }
}

/// Returns a listener at which connections hang as if packets were lost. Its queue is full, so the kernel drops further requests. Keep the
/// streams, because they fill the queue.
pub fn swallowing_listener() -> (TcpListener, Vec<TcpStream>, SocketAddr) {
    let listener = one_place_listener();
    let address = listener.local_addr().expect("a listener has an address");
    let patience = Duration::from_millis(500);
    let connect = || TcpStream::connect_timeout(&address, patience).ok();
    let places = iter::from_fn(connect).take(16).collect();
    (listener, places, address)
}

fn one_place_listener() -> TcpListener {
    let flags = SockFlag::SOCK_CLOEXEC;
    let fd = socket(AddressFamily::Inet, SockType::Stream, flags, None).expect("a socket");
    let any = SockaddrIn::new(127, 0, 0, 1, 0);
    bind(fd.as_raw_fd(), &any).expect("a free port");
    listen(&fd, Backlog::new(0).expect("zero is a backlog")).expect("a listener");
    TcpListener::from(fd)
}
