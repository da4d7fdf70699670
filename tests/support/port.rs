//! Finds ports for tests that have to name one.

use std::{
    env,
    fs::File,
    iter, mem,
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::AsRawFd,
    sync::{
        LazyLock,
        atomic::{AtomicU16, Ordering},
    },
    time::Duration,
};

use nix::{
    fcntl::{Flock, FlockArg},
    sys::socket::{
        AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, bind, listen, setsockopt, socket,
        sockopt::ReuseAddr,
    },
    unistd::geteuid,
};

/// Returns a port on which no process listens. It is below the range from which the kernel picks ports for others.
///
/// The socket that tries the port never listens. A process that another thread forks holds a copy of that socket until it executes its
/// program. A copy that listens would keep the port in use.
///
/// Programs that run side by side have ports of their own, because a port is often used a while after it is chosen.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    static FIRST: LazyLock<u16> = LazyLock::new(|| take_share() * PORTS);
    loop {
        let port = 20_000 + *FIRST + NEXT.fetch_add(1, Ordering::Relaxed) % PORTS;
        let flags = SockFlag::SOCK_CLOEXEC;
        let fd = socket(AddressFamily::Inet, SockType::Stream, flags, None).expect("a socket");
        setsockopt(&fd, ReuseAddr, &true).expect("a new socket has options");
        if bind(fd.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, port)).is_ok() {
            return port;
        }
    }
}

/// The number of ports of a program.
const PORTS: u16 = 750;

/// Returns the number of a share of the ports, which no other program has until this one ends.
fn take_share() -> u16 {
    // A user cannot lock the files of another one.
    let user = geteuid();
    let take = |share: &u16| {
        let path = env::temp_dir().join(format!("ragent-test-ports.{user}.{share}"));
        let file = File::options().write(true).create(true).truncate(false).open(path).ok()?;
        // Ends with the process.
        Flock::lock(file, FlockArg::LockExclusiveNonblock).map(mem::forget).ok()
    };
    (0..16).find(|share| take(share).is_some()).expect("at most 16 programs run side by side")
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
