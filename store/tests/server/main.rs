//! The server over loopback: clients do not affect each other.

mod client;

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use ragent_store::limits::{KEYS_MAX, VALUE_LEN_MAX};
use ragent_store::server::OpenError;
use ragent_store::wire::{GREETING, Query};
use ragent_store::{AdmissionRule, Options, StoreHandle, StoreThread, listen};
use tokio::sync::mpsc;

use self::client::{Client, ConnectError, RequestError, WaitError};

/// A timeout that only a failing test reaches.
const DEADLINE: Duration = Duration::from_secs(300);

struct Fixture {
    thread: StoreThread,
    store: StoreHandle,
    addr: SocketAddr,
}

impl Fixture {
    fn new() -> Self {
        Self::with(AdmissionRule::Anybody)
    }

    fn with(admission: AdmissionRule) -> Self {
        let thread = StoreThread::start("store").expect("a thread");
        let listener = listen("127.0.0.1:0".parse().expect("an address")).expect("a port");
        let addr = listener.local_addr().expect("a bound listener");
        let store = thread.open(listener, admission).expect("a store");
        Self { thread, store, addr }
    }

    async fn client(&self) -> Client {
        Client::connect(self.addr, DEADLINE).await.expect("a client is admitted")
    }

    /// Returns a connection on which nothing was sent yet.
    fn raw(&self) -> TcpStream {
        let stream = TcpStream::connect(self.addr).expect("the store listens");
        stream.set_nodelay(true).expect("a socket");
        stream.set_read_timeout(Some(DEADLINE)).expect("a time-out");
        stream.set_write_timeout(Some(DEADLINE)).expect("a time-out");
        stream
    }

    fn greeted(&self) -> TcpStream {
        let mut stream = self.raw();
        stream.write_all(&GREETING).expect("an open connection");
        ping(&mut stream);
        stream
    }
}

/// Returns the rule that admits these addresses, and these users of this host.
fn only(addresses: &[&str], uids: &[u32]) -> AdmissionRule {
    AdmissionRule::Only {
        addresses: addresses.iter().map(|text| text.parse().expect("an address")).collect(),
        local_uids: uids.iter().copied().collect(),
        silent_max: 4,
    }
}

fn own_uid() -> u32 {
    nix::unistd::geteuid().as_raw()
}

/// Waits until the store has handled earlier events: a connection that is handed over after them is
/// refused.
fn settle(store: &StoreHandle) {
    let listener = listen("127.0.0.1:0".parse().expect("an address")).expect("a port");
    let addr = listener.local_addr().expect("a bound listener");
    let mut there = TcpStream::connect(addr).expect("a listener");
    there.set_read_timeout(Some(DEADLINE)).expect("a time-out");
    let (here, _) = listener.accept().expect("a connection");
    store.serve(here).expect("an open store");
    assert_closed(&mut there);
}

fn ping(stream: &mut TcpStream) {
    stream.write_all(b"\x0dping").expect("an open connection");
    assert_eq!(read(stream, 4), b"ping");
}

fn read(stream: &mut TcpStream, len: usize) -> Vec<u8> {
    let mut answer = vec![0; len];
    stream.read_exact(&mut answer).expect("an answer");
    answer
}

fn encode(query: &Query<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    query.encode(&mut bytes).expect("a request within limits");
    bytes
}

fn assert_closed(stream: &mut TcpStream) {
    let mut surplus = Vec::new();
    match stream.read_to_end(&mut surplus) {
        Ok(_) => assert!(surplus.is_empty(), "{surplus:?}"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
}

/// A client that breaks a rule is disconnected; all others, and the data, stay.
#[tokio::test]
async fn violation_closes_only_its_connection() {
    let fixture = Fixture::new();
    let mut witness = fixture.client().await;
    witness.set(b"word", b"hello").await.unwrap();
    for broken in [
        &b"\x63"[..],
        &GREETING,
        b"\x03\x01\x20\0\0\0\0\0\0",
        b"\x05\x01\0\x02\0\0\0\0\0",
        b"\x01\x01\0\0\0\0\0\0\0k\x01\0\x80\0\0\0\0\0",
        b"\x04\x04\0\0\0\0\0\0\0word\x01\0\0\0\0\0\0\0",
    ] {
        let mut offender = fixture.greeted();
        offender.write_all(broken).unwrap();
        assert_closed(&mut offender);
    }
    assert_eq!(witness.get(b"word").await.unwrap(), "hello");
}

/// Only VALIDATE is accepted first.
#[test]
fn clients_without_a_greeting_are_closed() {
    let fixture = Fixture::new();
    for greeting in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], b"\x0dping", b"\x03\x05\0\0\0\0\0\0\0init/", b"\0\0\0\0\0"]
    {
        let mut stream = fixture.raw();
        stream.write_all(greeting).unwrap();
        assert_closed(&mut stream);
    }
}

/// A greeting and a request may arrive byte by byte.
#[test]
fn bytes_may_come_one_by_one() {
    let fixture = Fixture::new();
    let mut stream = fixture.raw();
    let pair = (&b"key"[..], &b"value"[..]);
    let requests = [
        GREETING.to_vec(),
        encode(&Query::MultiSet { pairs: vec![pair, pair] }),
        encode(&Query::Get { key: b"key" }),
    ];
    for byte in requests.concat() {
        stream.write_all(&[byte]).unwrap();
    }
    assert_eq!(read(&mut stream, 13), b"\x05\0\0\0\0\0\0\0value");
}

/// All operations of the client work as documented.
#[tokio::test]
async fn client_speaks_every_operation() {
    let fixture = Fixture::new();
    let mut client = fixture.client().await;
    assert_eq!(client.ping(7).await.unwrap(), 7);
    client.set(b"a", b"1").await.unwrap();
    assert_eq!(client.get(b"a").await.unwrap(), "1");
    assert_eq!(client.get(b"none").await.unwrap(), "");
    assert_eq!(client.add(b"a", 41).await.unwrap(), 42);
    assert_eq!(client.compare_set(b"a", b"42", b"x").await.unwrap(), "x");
    assert_eq!(client.compare_set(b"a", b"42", b"y").await.unwrap(), "x");
    assert_eq!(client.compare_set(b"none", b"42", b"y").await.unwrap(), "42");
    assert!(client.check(&[b"a"]).await.unwrap());
    assert!(!client.check(&[b"a", b"none"]).await.unwrap());
    client.append(b"a", b"yz").await.unwrap();
    client.multi_set(&[(b"b", b"2"), (b"c", b"3")]).await.unwrap();
    assert_eq!(client.multi_get(&[b"a", b"b", b"none"]).await.unwrap(), ["xyz", "2", ""]);
    assert_eq!(client.num_keys().await.unwrap(), 3);
    let mut keys = client.list_keys().await.unwrap();
    keys.sort_unstable();
    assert_eq!(keys, ["a", "b", "c"]);
    assert!(client.delete_key(b"c").await.unwrap());
    assert!(!client.delete_key(b"c").await.unwrap());
    client.queue_push(b"q", b"one").await.unwrap();
    assert_eq!(client.queue_len(b"q").await.unwrap(), 1);
    assert_eq!(client.queue_pop(b"q").await.unwrap().unwrap(), "one");
    assert_eq!(client.queue_pop(b"q").await.unwrap(), None);
    client.wait(&[b"a", b"b"], DEADLINE).await.unwrap();
    client.barrier(b"bar", 1, DEADLINE).await.unwrap();
}

/// A canceled wait leaves the client usable, and is not answered later.
#[tokio::test]
async fn wait_can_be_given_up() {
    let fixture = Fixture::new();
    let (mut client, mut other) = (fixture.client().await, fixture.client().await);
    let limit = Duration::from_millis(20);
    let result = client.wait(&[b"late"], limit).await;
    assert!(matches!(result, Err(WaitError::TimedOut(_))), "{result:?}");
    let result = client.barrier(b"bar", 2, limit).await;
    assert!(matches!(result, Err(WaitError::TimedOut(_))), "{result:?}");
    other.set(b"late", b"1").await.unwrap();
    assert_eq!(other.ping(1).await.unwrap(), 1);
    assert_eq!(client.ping(2).await.unwrap(), 2);
}

/// After a method was dropped, the client returns an error instead of mixing up answers.
#[tokio::test]
async fn interrupted_client_reports_that() {
    let fixture = Fixture::new();
    let mut client = fixture.client().await;
    tokio::select! {
        biased;
        _ = client.wait(&[b"never"], DEADLINE) => unreachable!("nobody sets it"),
        () = tokio::task::yield_now() => {}
    }
    let result = client.ping(1).await;
    assert!(matches!(result, Err(RequestError::Interrupted)), "{result:?}");
}

/// A client's futures may be spawned on any runtime.
#[test]
fn client_is_send() {
    fn assert_send<T: Send>(_: T) {}
    fn all(client: &mut Client) {
        assert_send(client.get(b""));
    }
    fn waits(client: &mut Client) {
        assert_send(client.wait(&[b""], DEADLINE));
    }
    let _ = (all, waits);
}

/// A client that leaves its answers unread does not delay others, and receives them all once it
/// reads.
#[tokio::test]
async fn slow_reader_stalls_nobody() {
    const GETS: usize = 40;
    let fixture = Fixture::new();
    let mut witness = fixture.client().await;
    witness.set(b"big", &vec![7; VALUE_LEN_MAX]).await.unwrap();
    // Only the answer to a later request confirms that it was executed.
    witness.ping(0).await.unwrap();
    let mut slow = fixture.greeted();
    slow.write_all(&encode(&Query::Get { key: b"big" }).repeat(GETS)).unwrap();
    for n in 0..100 {
        assert_eq!(witness.ping(n).await.unwrap(), n);
    }
    witness.set(b"big", b"replaced").await.unwrap();
    assert_eq!(witness.get(b"big").await.unwrap(), "replaced");
    // Requests that were not executed yet return the new value, which shows that execution paused.
    let mut old = 0;
    for _ in 0..GETS {
        let len = read(&mut slow, 8).try_into().map(u64::from_le_bytes).unwrap();
        let value = read(&mut slow, len as usize);
        old += usize::from(value.len() == VALUE_LEN_MAX);
    }
    assert!((1..GETS).contains(&old), "{old} answers were made in advance");
    ping(&mut slow);
}

/// The longest key, value and list are accepted, and an appended value may be longer still.
#[tokio::test]
async fn limits_are_inclusive() {
    let fixture = Fixture::new();
    let mut client = fixture.client().await;
    let key = vec![b'k'; 8192];
    client.set(&key, b"1").await.unwrap();
    assert_eq!(client.get(&key).await.unwrap(), "1");
    assert!(client.check(&vec![&key[..3]; KEYS_MAX]).await.is_ok());
    let value = vec![5; VALUE_LEN_MAX];
    client.append(b"big", &value).await.unwrap();
    client.append(b"big", &value).await.unwrap();
    assert_eq!(client.get(b"big").await.unwrap().len(), 2 * VALUE_LEN_MAX);
    let result = client.get(&[key, b"k".to_vec()].concat()).await;
    assert!(matches!(result, Err(RequestError::Limit(_))), "{result:?}");
}

/// A client that closes its sending side has left: its wait is removed, its connection closed.
#[tokio::test]
async fn half_close_drops_the_wait() {
    let fixture = Fixture::new();
    let mut leaver = fixture.greeted();
    leaver.write_all(&encode(&Query::Wait { keys: vec![b"x"] })).unwrap();
    leaver.shutdown(std::net::Shutdown::Write).unwrap();
    assert_closed(&mut leaver);
    let mut witness = fixture.client().await;
    witness.set(b"x", b"1").await.unwrap();
    assert_eq!(witness.num_keys().await.unwrap(), 1);
}

/// One SET releases hundreds of waiters: as many as the usual limit on open files permits.
#[tokio::test]
async fn hundreds_of_waiters_are_woken() {
    let fixture = Fixture::new();
    let mut waiters: Vec<TcpStream> = (0..400).map(|_| fixture.greeted()).collect();
    for waiter in &mut waiters {
        waiter.write_all(&encode(&Query::Wait { keys: vec![b"go"] })).unwrap();
        ping(waiter);
    }
    fixture.client().await.set(b"go", b"1").await.unwrap();
    for waiter in &mut waiters {
        assert_eq!(read(waiter, 1), [0]);
    }
}

/// Only admitted peers are served; a change applies to later connections. On this host the user
/// decides, independent of the listed addresses.
#[tokio::test]
async fn only_members_are_admitted() {
    let others_user = || only(&["10.0.0.1", "127.0.0.1"], &[own_uid() + 1]);
    let fixture = Fixture::with(others_user());
    let refused = async || {
        let result = Client::connect(fixture.addr, DEADLINE).await;
        // The reset may arrive before the connection is set up on this side.
        let is_reset =
            matches!(result, Err(ConnectError::Greeting { .. } | ConnectError::Connect { .. }));
        assert!(is_reset, "{result:?}");
    };
    refused().await;
    fixture.store.admit(only(&[], &[own_uid()]));
    let mut member = fixture.client().await;
    fixture.store.admit(others_user());
    refused().await;
    assert_eq!(member.ping(1).await.unwrap(), 1);
}

/// A connection that was closed before it was accepted has no owner, and its requests are not
/// executed: the kernel would report user 0 for it.
#[tokio::test]
async fn closed_connections_are_refused() {
    let fixture = Fixture::with(AdmissionRule::Nobody);
    let mut gone = fixture.raw();
    gone.write_all(&GREETING).unwrap();
    gone.write_all(&encode(&Query::Set { key: b"planted", value: b"1" })).unwrap();
    gone.shutdown(std::net::Shutdown::Write).unwrap();
    settle(&fixture.store);
    fixture.store.admit(only(&[], &[0, own_uid()]));
    assert_closed(&mut gone);
    assert_eq!(fixture.client().await.num_keys().await.unwrap(), 0);
}

/// A refused connection is reset at once, and its address is reported once.
#[tokio::test]
async fn refusals_are_reported() {
    let thread = StoreThread::start("store").unwrap();
    let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let addr = listener.local_addr().unwrap();
    let (refusals, mut refused) = mpsc::channel(8);
    let options = Options {
        admission: only(&[], &[own_uid() + 1]),
        refusals: Some(refusals),
        ..Options::default()
    };
    let store = thread.open_with(Some(listener), options).unwrap();
    for _ in 0..2 {
        // The reset may arrive before the connection is set up on this side.
        let error = TcpStream::connect(addr).and_then(|mut stream| {
            stream.set_read_timeout(Some(DEADLINE))?;
            stream.read(&mut [0])
        });
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
    assert_eq!(refused.recv().await, Some(addr.ip()));
    store.close().await;
    assert_eq!(refused.recv().await, None);
}

/// The number of silent connections is bounded: the oldest is closed for a further one.
#[test]
fn silent_connections_are_bounded() {
    let fixture = Fixture::with(only(&[], &[own_uid()]));
    let mut greeted = fixture.greeted();
    let mut silent: Vec<TcpStream> = (0..5).map(|_| fixture.raw()).collect();
    assert_closed(&mut silent[0]);
    for stream in &mut silent[1..] {
        stream.write_all(&GREETING).unwrap();
        ping(stream);
    }
    ping(&mut greeted);
}

/// The memory bound of a store holds for all requests.
#[tokio::test]
async fn memory_is_bounded() {
    const MAX: usize = 64 << 20;
    let fixture = Fixture::new();
    let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let addr = listener.local_addr().unwrap();
    let admission = AdmissionRule::Anybody;
    let options = Options { admission, memory_max: MAX, ..Options::default() };
    let _store = fixture.thread.open_with(Some(listener), options).unwrap();
    let value = vec![7; VALUE_LEN_MAX];
    let mut stored = 0;
    for n in 0..2 * MAX / VALUE_LEN_MAX {
        let mut client = Client::connect(addr, DEADLINE).await.unwrap();
        let set = client.set(format!("{n}").as_bytes(), &value).await;
        stored += usize::from(set.is_ok() && client.ping(1).await.is_ok());
    }
    assert_eq!(stored, MAX * 3 / 4 / VALUE_LEN_MAX - 1, "three quarters are for values");
}

/// Connections made before any peer is admitted are neither served nor refused, but wait until they
/// are admitted, or closed with the store.
#[tokio::test]
async fn early_comers_wait_for_admission() {
    let fixture = Fixture::with(AdmissionRule::Nobody);
    for admission in [only(&[], &[own_uid()]), AdmissionRule::Anybody] {
        let mut early = fixture.raw();
        early.write_all(&GREETING).unwrap();
        early.write_all(b"\x0dping").unwrap();
        settle(&fixture.store);
        fixture.store.admit(admission);
        assert_eq!(read(&mut early, 4), b"ping");
        fixture.store.admit(AdmissionRule::Nobody);
        ping(&mut early);
    }
    settle(&fixture.store);
    let mut early = fixture.raw();
    fixture.store.close().await;
    assert_closed(&mut early);
}

/// A connection that is handed over before any peer is admitted is refused.
#[test]
fn handed_over_too_early_is_refused() {
    let fixture = Fixture::with(AdmissionRule::Nobody);
    let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let mut there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    there.set_read_timeout(Some(DEADLINE)).unwrap();
    fixture.store.serve(listener.accept().unwrap().0).unwrap();
    assert_closed(&mut there);
}

/// A connection accepted elsewhere is served, also by a store without a listener.
#[tokio::test]
async fn connections_can_be_handed_over() {
    let fixture = Fixture::new();
    let options = Options { admission: AdmissionRule::Anybody, ..Options::default() };
    let store = fixture.thread.open_with(None, options).unwrap();
    let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let addr = listener.local_addr().unwrap();
    let mut there = TcpStream::connect(addr).unwrap();
    let (here, _) = listener.accept().unwrap();
    there.write_all(&GREETING).unwrap();
    assert_eq!(here.peek(&mut [0]).unwrap(), 1);
    store.serve(here).unwrap();
    ping(&mut there);
    // Stores are independent.
    let mut other = fixture.client().await;
    there.write_all(&encode(&Query::Set { key: b"x", value: b"1" })).unwrap();
    ping(&mut there);
    assert_eq!(other.num_keys().await.unwrap(), 0);
}

/// A store is closed completely: its port and connections; other stores of the thread stay.
#[tokio::test]
async fn close_frees_everything() {
    let fixture = Fixture::new();
    let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let addr = listener.local_addr().unwrap();
    let other = fixture.thread.open(listener, AdmissionRule::Anybody).unwrap();
    let mut client = Client::connect(addr, DEADLINE).await.unwrap();
    other.close().await;
    let result = client.ping(1).await;
    assert!(matches!(result, Err(RequestError::Closed | RequestError::Io(_))), "{result:?}");
    listen(addr).expect("the port is free again");
    assert_eq!(fixture.client().await.ping(1).await.unwrap(), 1);
}

/// Dropping a handle closes its store as well, and dropping the thread closes all.
#[tokio::test]
async fn drop_closes() {
    let Fixture { thread, store, addr } = Fixture::new();
    let mut client = Client::connect(addr, DEADLINE).await.unwrap();
    drop(store);
    assert!(client.barrier(b"x", 2, DEADLINE).await.is_err());

    let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let addr = listener.local_addr().unwrap();
    let _store = thread.open(listener, AdmissionRule::Anybody).unwrap();
    let mut client = Client::connect(addr, DEADLINE).await.unwrap();
    drop(thread);
    assert!(client.ping(1).await.is_err());
}

/// A listener that cannot accept delays neither the end of its store nor other stores.
#[tokio::test]
async fn failures_delay_nothing() {
    let fixture = Fixture::new();
    let deaf = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let store = fixture.thread.open(deaf.into(), AdmissionRule::Anybody).unwrap();
    settle(&fixture.thread.open_with(None, Options::default()).unwrap());
    assert_eq!(fixture.client().await.ping(1).await.unwrap(), 1);
    store.close().await;
}

/// An unusable listener is refused at once, and the thread continues to serve.
#[tokio::test]
async fn useless_listeners_are_refused() {
    let fixture = Fixture::new();
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let result = fixture.thread.open(OwnedFd::from(file).into(), AdmissionRule::Anybody);
    assert!(matches!(result, Err(OpenError::Listener(_))), "{result:?}");
    assert_eq!(fixture.client().await.ping(1).await.unwrap(), 1);
}

/// IPv6 is served, and on `[::]` IPv4 too.
#[tokio::test]
async fn both_families_are_served() {
    let fixture = Fixture::new();
    let listener = listen("[::]:0".parse().unwrap()).unwrap();
    let addr = listener.local_addr().unwrap();
    let _store = fixture.thread.open(listener, only(&[], &[own_uid()])).unwrap();
    for host in ["127.0.0.1", "::1"] {
        if addr.is_ipv4() && host == "::1" {
            continue;
        }
        let addr = SocketAddr::new(host.parse().unwrap(), addr.port());
        Client::connect(addr, DEADLINE).await.unwrap();
    }
}

/// The numbers of connections and requests of all stores of a thread are published.
#[tokio::test]
async fn connections_and_requests_are_counted() {
    let fixture = Fixture::new();
    let counters = fixture.thread.counters();
    assert_eq!((counters.connections(), counters.requests()), (0, 0));
    let mut first = fixture.client().await;
    let second = fixture.client().await;
    for _ in 0..10 {
        first.set(b"key", b"value").await.expect("an open connection");
        first.get(b"key").await.expect("an open connection");
    }
    // The numbers of a turn follow at its end.
    let mut until = async |expected: u64| {
        for nonce in 0..10_000 {
            first.ping(nonce).await.expect("an open connection");
            if counters.connections() == expected {
                return;
            }
        }
        panic!("{} connections, not {expected}", counters.connections());
    };
    until(2).await;
    drop(second);
    until(1).await;
    assert!(counters.requests() >= 20, "{}", counters.requests());
}
