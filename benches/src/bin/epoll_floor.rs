//! Shows the least cost of a store: a minimal epoll loop that answers the requests of `store_load` with as many bytes as a store would. It
//! neither decodes nor stores them.
//!
//! It has one read per event, one write per answer and one event queue. Fewer system calls are impossible. Its first line is the address
//! that it is bound to, and it serves until it is killed.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use anyhow::Result;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{Backlog, listen};
use ragent_store::wire::QueryType;

fn main() -> Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    listen(&listener, Backlog::new(4096)?)?;
    listener.set_nonblocking(true)?;
    writeln!(std::io::stdout(), "{}", listener.local_addr()?)?;
    let epoll = Epoll::new(EpollCreateFlags::empty())?;
    epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))?;
    let mut floor = Floor { epoll, streams: HashMap::new(), next: 0, waiting: Vec::new() };
    let mut events = [EpollEvent::empty(); 1024];
    let mut bytes = vec![0; 64 << 10];
    loop {
        let count = match floor.epoll.wait(&mut events, EpollTimeout::NONE) {
            Err(Errno::EINTR) => continue,
            result => result?,
        };
        for event in &events[..count] {
            match event.data() {
                LISTENER => floor.accept(&listener)?,
                n => floor.serve(n, &mut bytes),
            }
        }
    }
}

struct Floor {
    epoll: Epoll,
    streams: HashMap<u64, TcpStream>,
    next: u64,
    waiting: Vec<u64>,
}

impl Floor {
    fn accept(&mut self, listener: &TcpListener) -> Result<()> {
        for _ in 0..ACCEPTED_AT_ONCE {
            let Ok((stream, _)) = listener.accept() else { break };
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
            self.epoll.add(&stream, EpollEvent::new(flags, self.next))?;
            self.streams.insert(self.next, stream);
            self.next += 1;
        }
        Ok(())
    }

    fn serve(&mut self, n: u64, bytes: &mut [u8]) {
        let Some(mut stream) = self.streams.get(&n) else { return };
        let request = match stream.read(bytes) {
            Ok(len) if len > 0 => &bytes[..len],
            _ => return drop(self.streams.remove(&n)),
        };
        let echo = &request[request.len() - 4..];
        // The first byte suffices: `store_load` sends no other requests.
        let answer = match QueryType::from_code(request[0]) {
            Some(QueryType::Get) => &VALUE[..],
            Some(QueryType::Add) => &VALUE[..8],
            Some(QueryType::Check) => &VALUE[..1],
            Some(QueryType::Wait) => {
                self.waiting.push(n);
                echo
            }
            _ => echo,
        };
        // A closed connection is detected by the next read.
        let _ = stream.write(answer);
        if request[0] == QueryType::Set.code() {
            for n in self.waiting.drain(..) {
                let _ = self.streams.get(&n).map(|mut stream| stream.write(&VALUE[..1]));
            }
        }
    }
}

const LISTENER: u64 = u64::MAX;
const ACCEPTED_AT_ONCE: usize = 16;

/// A length and that many bytes, as the answer to a `GET`.
const VALUE: [u8; 72] = {
    let mut value = [0; 72];
    value[0] = 64;
    value
};
