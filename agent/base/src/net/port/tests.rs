//! The clock is paused: it jumps to the next deadline when no task is ready, so that a minute of
//! silence takes no time.

use std::net::Ipv4Addr;

use axum::routing::{get, post};
use ragent_store::{AdmissionRule, Options, StoreThread, wire::GREETING};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::secret::Unsecured;

const SECOND: Duration = Duration::from_secs(1);

struct Fixture {
    address: SocketAddr,
    /// Kept open during the test.
    _stores: StoreThread,
    _registered_nodes: watch::Sender<RegisteredNodes>,
    server: task::JoinHandle<io::Result<()>>,
}

impl Fixture {
    /// Creates a port whose store admits the own user.
    fn new() -> Self {
        let stores = StoreThread::start("stores").unwrap();
        let admission = AdmissionRule::Only {
            addresses: BTreeSet::new(),
            local_uids: [nix::unistd::geteuid().as_raw()].into(),
            silent_max: 8,
        };
        let options = Options { admission, ..Options::default() };
        let store = stores.open_with(None, options).unwrap();
        let listener = crate::net::listen_on((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let address = listener.local_addr().unwrap();
        let (registered_nodes, known) = watch::channel(RegisteredNodes::default());
        let http = Router::new()
            .route("/", get(|| async { "hello" }))
            .route("/slow", get(|| async { clock::until(Some(clock::now() + 30 * SECOND)).await }))
            .route("/", post(|text: String| async { text }));
        let protocols = PortProtocols {
            http: Routers {
                members: http.clone(),
                own_user: http.clone(),
                strangers: http,
                refusals: Arc::default(),
            },
            credentials: Credentials::unsecured(Unsecured::Chosen),
            store: Some(watch::channel(Some(store)).1),
            voters: None,
            memory: None,
            registered_nodes: known,
            nodes_max: 0,
        };
        let server = tokio::spawn(serve_port(listener, protocols, connections_max()));
        Self { address, _stores: stores, _registered_nodes: registered_nodes, server }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }
}

async fn pass(seconds: u32) {
    clock::until(Some(clock::now() + seconds * SECOND)).await;
}

/// Sends `bytes`; returns the time until the connection is closed, and the answer.
async fn closed_after(stream: &mut TcpStream, bytes: &[u8]) -> (u64, Vec<u8>) {
    let begun = clock::now();
    stream.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    // A reset closes it as well.
    let _ = stream.read_to_end(&mut answer).await;
    ((clock::now() - begun).as_secs(), answer)
}

/// A torch client whose resolver does not answer is silent for 12 s and more before its first byte,
/// and is served nevertheless.
#[tokio::test(start_paused = true)]
async fn silent_store_client_is_served() {
    let t = Fixture::new();
    let mut client = t.connect().await;
    pass(15).await;
    client.write_all(&GREETING).await.unwrap();
    client.write_all(b"\x0dping").await.unwrap();
    let mut answer = [0; 4];
    client.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"ping");
    let mut forgotten = t.connect().await;
    assert_eq!(closed_after(&mut forgotten, b"").await, (60, vec![]));
}

/// A connection whose first request stays incomplete is closed.
#[tokio::test(start_paused = true)]
async fn unfinished_requests_are_closed() {
    let t = Fixture::new();
    for beginning in [
        &b"G"[..],
        b"GET / HTTP/1.1\r\nHost: x\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        b"PRI * HTTP/2.0\r\n",
    ] {
        let mut client = t.connect().await;
        let (seconds, _) = closed_after(&mut client, beginning).await;
        assert_eq!(seconds, 5, "{}", beginning.escape_ascii());
    }
    // An HTTP/2 connection that is set up but has no request.
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let mut client = t.connect().await;
    assert_eq!(closed_after(&mut client, preface).await.0, 5);
}

/// A connection without further requests is closed; a connection with a request in progress is not,
/// however long the answer takes.
#[tokio::test(start_paused = true)]
async fn idle_connections_are_closed() {
    let t = Fixture::new();
    let mut client = t.connect().await;
    let (seconds, answer) = closed_after(&mut client, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert!(answer.ends_with(b"hello"), "{}", answer.escape_ascii());
    assert_eq!(seconds, 10);
    let mut client = t.connect().await;
    let slow = b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n";
    let (seconds, answer) = closed_after(&mut client, slow).await;
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", answer.escape_ascii());
    assert_eq!(seconds, 30 + 10);
}

/// A later request whose body does not arrive is abandoned after 10 s.
#[tokio::test(start_paused = true)]
async fn later_requests_have_a_deadline() {
    let t = Fixture::new();
    let mut client = t.connect().await;
    client.write_all(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi").await.unwrap();
    let mut answer = vec![0; 1000];
    let len = client.read(&mut answer).await.unwrap();
    assert!(answer[..len].ends_with(b"hi"));
    let half = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf";
    let (seconds, answer) = closed_after(&mut client, half).await;
    assert!(answer.starts_with(b"HTTP/1.1 408"), "{}", answer.escape_ascii());
    assert_eq!(seconds, 10);
}

/// Closing the port closes its connections.
#[tokio::test(start_paused = true)]
async fn port_closes_its_connections() {
    let t = Fixture::new();
    let mut client = t.connect().await;
    pass(1).await;
    t.server.abort();
    assert_eq!(closed_after(&mut client, b"").await, (0, vec![]));
}
