use std::io::{Read, Write};
use std::net::{self, Shutdown};
use std::thread;
use std::time::Duration;

use mio::{Events, Interest, Poll, Token, Waker};
use socket2::{Domain, Socket, Type};

use super::super::connection::UNREAD_CAPACITY;
use super::super::driver::now;
use super::*;
use crate::wire::{GREETING, Query};

/// The clients of a store, and their event queue.
struct Fixture {
    poll: Poll,
    waker: Waker,
    clients: Clients,
}

impl Fixture {
    fn new() -> Self {
        let poll = Poll::new().unwrap();
        let waker = Waker::new(poll.registry(), WAKER).unwrap();
        Self { poll, waker, clients: Clients::default() }
    }

    /// Adds a client, and returns its end of the connection.
    fn enter(&mut self) -> net::TcpStream {
        let listener = net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        // Keeps the kernel from buffering unread answers.
        client.set_recv_buffer_size(64 << 10).unwrap();
        client.connect(&listener.local_addr().unwrap().into()).unwrap();
        client.set_tcp_nodelay(true).unwrap();
        client.set_read_timeout(Some(DEADLINE)).unwrap();
        let (stream, peer) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        let mut stream = TcpStream::from_std(stream);
        let slot = Token(self.clients.next_slot());
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.poll.registry().register(&mut stream, slot, interest).unwrap();
        self.clients.enter(now(), stream, peer);
        client.into()
    }

    /// Serves while `client` runs, and until no work is left.
    fn while_served<T: Send>(&mut self, client: impl FnOnce() -> T + Send) -> T {
        let Self { poll, waker, clients } = self;
        thread::scope(|scope| {
            let client = scope.spawn(|| {
                let _end = WakeAtEnd(waker);
                client()
            });
            let mut events = Events::with_capacity(16);
            let mut ended = false;
            while !ended || clients.is_busy() {
                let limit = if clients.is_busy() { Duration::ZERO } else { DEADLINE };
                poll.poll(&mut events, Some(limit)).unwrap();
                assert!(clients.is_busy() || !events.is_empty(), "nothing happens");
                for event in &events {
                    match event.token() {
                        WAKER => ended = true,
                        Token(slot) => clients.handle_readiness(slot, event.into()),
                    }
                }
                clients.run_ready();
            }
            client.join().unwrap()
        })
    }

    fn backlog(&self, slot: usize) -> Option<&Backlog> {
        self.clients.connections[slot].backlog.as_deref()
    }
}

struct WakeAtEnd<'a>(&'a Waker);

impl Drop for WakeAtEnd<'_> {
    fn drop(&mut self) {
        self.0.wake().unwrap();
    }
}

fn encode(queries: &[Query<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for query in queries {
        query.encode(&mut bytes).unwrap();
    }
    bytes
}

fn read(mut client: &net::TcpStream, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    client.read_exact(&mut bytes).unwrap();
    bytes
}

fn write(mut client: &net::TcpStream, words: &[u8]) {
    client.write_all(words).unwrap();
}

/// A client that does not complete VALIDATE in time is closed; afterwards it may be silent.
#[test]
fn only_the_greeting_has_a_deadline() {
    let mut fixture = Fixture::new();
    for words in [&b""[..], &GREETING[..4], &GREETING] {
        let client = fixture.enter();
        write(&client, words);
        fixture.while_served(|| ());
        let is_open = words.len() == GREETING.len();
        assert_eq!(fixture.clients.poll_timeout().is_none(), is_open);
        let deadline = now() + GREETING_TIMEOUT;
        fixture.clients.handle_timeout(deadline - GREETING_TIMEOUT / 2);
        assert_eq!(fixture.clients.len(), 1);
        fixture.clients.handle_timeout(deadline);
        assert_eq!(fixture.clients.len(), usize::from(is_open));
        assert_eq!(fixture.clients.poll_timeout(), None);
    }
}

/// Hanging up does not count as breaking a rule, even in the middle of a request.
#[test]
fn hanging_up_is_no_violation() {
    for words in [&b""[..], &GREETING[..2], b"\0\xce\xf7\x85\x3c", b"\0\xce\xf7\x85\x3c\x01\x05\0"]
    {
        let mut fixture = Fixture::new();
        let client = fixture.enter();
        write(&client, words);
        client.shutdown(Shutdown::Write).unwrap();
        fixture.clients.connections[0].readable = true;
        let end = loop {
            if let Err(end) = fixture.clients.turn(0) {
                break end;
            }
            fixture.clients.connections[0].readable = true;
        };
        assert!(matches!(end, End::HungUp), "{end:?}");
    }
}

/// All whole requests of a read are answered by one write, also if they release other clients.
#[test]
fn a_read_is_answered_by_one_write() {
    let mut fixture = Fixture::new();
    let (client, waiter) = (fixture.enter(), fixture.enter());
    let wait = encode(&[Query::Wait { keys: vec![b"k"] }]);
    fixture.while_served(|| {
        write(&waiter, &[&GREETING[..], &wait, b"\x0dping"].concat());
        read(&waiter, 4);
        write(&client, &GREETING);
    });
    let requests =
        encode(&[Query::Set { key: b"k", value: b"v" }, Query::Get { key: b"k" }]).repeat(10);
    write(&client, &[&wait[..], &requests, b"\x0dping"].concat());
    fixture.clients.turn(0).unwrap();
    client.set_nonblocking(true).unwrap();
    let mut answer = [0; 1000];
    let len = (&client).read(&mut answer).unwrap();
    assert_eq!(len, 1 + 10 * 9 + 4);
    assert_eq!(read(&waiter, 1), [STOP_WAITING]);
    assert_eq!(answer[0], STOP_WAITING);
    assert_eq!(fixture.clients.connections[0].backlog.as_deref().map(Backlog::occupied), None);
}

/// A client that is released while it has unread answers receives its release after them.
#[test]
fn releases_are_sent_in_order() {
    const LEN: usize = 8 << 20;
    let mut fixture = Fixture::new();
    let (waiter, setter) = (fixture.enter(), fixture.enter());
    let large = encode(&[Query::Set { key: b"large", value: &[7; LEN] }]);
    let ask = encode(&[Query::Wait { keys: vec![b"k"] }, Query::Get { key: b"large" }]);
    fixture.while_served(|| {
        write(&setter, &[&GREETING[..], &large, b"\x0dping"].concat());
        read(&setter, 4);
        write(&waiter, &[&GREETING[..], &ask].concat());
        read(&waiter, 8);
        write(&setter, &encode(&[Query::Set { key: b"k", value: b"v" }, Query::Ping { nonce: 7 }]));
        read(&setter, 4);
    });
    assert!(fixture.backlog(0).is_some());
    fixture.while_served(|| {
        read(&waiter, LEN);
        assert_eq!(read(&waiter, 1), [STOP_WAITING]);
    });
    assert!(fixture.backlog(0).is_none());
}

/// The next client in a slot is not served, nor answered, for the previous one.
#[test]
fn slots_are_reused() {
    let mut fixture = Fixture::new();
    let (first, setter) = (fixture.enter(), fixture.enter());
    let wait = encode(&[Query::Wait { keys: vec![b"k"] }]);
    fixture.while_served(|| {
        write(&first, &[&GREETING[..], &wait, b"\x0dping"].concat());
        read(&first, 4);
        write(&setter, &GREETING);
    });
    drop(first);
    fixture.while_served(|| ());
    assert_eq!(fixture.clients.len(), 1);
    let second = fixture.enter();
    fixture.while_served(|| {
        write(
            &setter,
            &[&encode(&[Query::Set { key: b"k", value: b"v" }]), &b"\x0dping"[..]].concat(),
        );
        read(&setter, 4);
        write(&second, &[&GREETING[..], b"\x0dpong"].concat());
        assert_eq!(read(&second, 4), b"pong");
    });
    assert_eq!(fixture.clients.len(), 2);
}

/// A client that has read its answers holds nothing, even if it sends no further request.
#[test]
fn answers_that_were_read_do_not_count() {
    const LEN: usize = 8000;
    let mut fixture = Fixture::new();
    let client = fixture.enter();
    let keys = vec![&b"k"[..]; 1000];
    let ask = [Query::Set { key: b"k", value: &[7; LEN] }, Query::MultiGet { keys }];
    fixture.while_served(|| {
        write(&client, &[&GREETING[..], &encode(&ask)].concat());
        read(&client, 1000 * (8 + LEN));
    });
    assert_eq!(fixture.clients.buffered, 0);
    assert!(fixture.backlog(0).is_none());
}

/// The bytes after a large request do not keep the memory that the request took; and all memory
/// that is held counts.
#[test]
fn buffers_count_as_what_they_occupy() {
    let mut fixture = Fixture::new();
    let client = fixture.enter();
    let key = [b'k'; 8000];
    let large = encode(&[Query::Check { keys: vec![&key; 500] }]);
    fixture.while_served(|| {
        write(&client, &[&GREETING[..], &large, b"\x0dpi"].concat());
        read(&client, 1);
    });
    let unread = &fixture.backlog(0).unwrap().unread;
    assert_eq!(fixture.clients.buffered, unread.capacity());
    assert!(unread.capacity() <= UNREAD_CAPACITY);
    fixture.while_served(|| {
        write(&client, b"ng");
        read(&client, 4);
    });
    assert_eq!(fixture.clients.buffered, 0);
    assert!(fixture.backlog(0).is_none());
}

/// A value that was replaced while it was read is freed when it was sent, or when its reader
/// leaves; a popped value counts as its reader's.
#[test]
fn sent_values_are_let_go() {
    const VALUE: &[u8] = &[7; 8 << 20];
    let mut fixture = Fixture::new();
    let client = fixture.enter();
    let begin_to_read = |fixture: &mut Fixture| {
        let ask = [Query::Set { key: b"x", value: VALUE }, Query::Get { key: b"x" }];
        fixture.while_served(|| {
            write(&client, &encode(&ask));
            read(&client, 8);
        });
        fixture.clients.engine.set(b"x", b"").unwrap();
        assert_eq!(fixture.clients.engine.lingering_len(), 1);
    };
    write(&client, &GREETING);
    begin_to_read(&mut fixture);
    fixture.while_served(|| read(&client, VALUE.len()));
    assert_eq!(fixture.clients.engine.lingering_len(), 0);
    let push = Query::QueuePush { queue: b"q", value: VALUE };
    let ask = [push, Query::QueuePop { queue: b"q" }];
    fixture.while_served(|| {
        write(&client, &encode(&ask));
        read(&client, 16);
    });
    assert!(VALUE.len() / 4 < fixture.clients.buffered);
    fixture.while_served(|| read(&client, VALUE.len()));
    assert_eq!(fixture.clients.buffered, 0);
    begin_to_read(&mut fixture);
    drop(client);
    fixture.while_served(|| ());
    assert_eq!((fixture.clients.len(), fixture.clients.buffered), (0, 0));
    assert_eq!(fixture.clients.engine.lingering_len(), 0);
}

/// A client with small requests is served even if others hold all buffers.
#[test]
fn full_buffers_do_not_concern_the_small() {
    let mut fixture = Fixture::new();
    let client = fixture.enter();
    fixture.clients.buffered = BUFFERS_LEN_MAX;
    fixture.while_served(|| {
        write(&client, &[&GREETING[..], b"\x0dping\x0dpo"].concat());
        read(&client, 4);
        write(&client, b"ng");
        read(&client, 4);
    });
}

/// A client that takes the last room for buffers is closed; a shrinking or small one is not.
#[test]
fn buffers_are_limited_together() {
    const MUCH: usize = BUFFER_LEN_FREE + 2;
    let mut clients = Clients::default();
    assert_eq!(clients.rebuffer(0, BUFFERS_LEN_MAX), Ok(()));
    assert_eq!(clients.rebuffer(0, BUFFER_LEN_FREE), Ok(()));
    assert_eq!(clients.rebuffer(0, MUCH), Err(Violation::BuffersFull));
    assert_eq!(clients.rebuffer(MUCH, MUCH - 1), Ok(()));
}

const WAKER: Token = Token(usize::MAX);

/// A timeout that only a failing test reaches.
const DEADLINE: Duration = Duration::from_secs(20);
