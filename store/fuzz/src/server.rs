//! A whole server over loopback, compared with the model.
//!
//! One thread serves all inputs, each with its own store. The bytes of one connection are executed
//! before another sends any: a witness pings in between.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::LazyLock;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use ragent_store::limits::{OUTPUT_PAUSE_LEN, STORE_MEMORY_MAX};
use ragent_store::wire::GREETING;
use ragent_store::{AdmissionRule, StoreThread, listen};
use socket2::{Domain, SockRef, Socket, Type};

use super::model::{Model, Outcome};
use super::script::{CLIENTS, Deed, Script};
use super::world::encode;

/// Runs the script `input` on a server.
pub fn server(input: &[u8]) {
    let listener = listen(([127, 0, 0, 1], 0).into()).expect("a port");
    // Inherited by its connections, so that unread answers soon remain in the store.
    SockRef::from(&listener).set_send_buffer_size(KERNEL_LEN).expect("a socket");
    let addr = listener.local_addr().expect("a bound listener");
    let store = THREAD.open(listener, AdmissionRule::Anybody).expect("a store");
    let mut script = Script::new(input);
    // Other targets select the memory limit by this byte; unused here, so that one corpus serves
    // all.
    script.byte();
    let mut visit = Visit::new(addr);
    while let Some((client, deed)) = script.next_any() {
        visit.act(client, deed);
    }
    visit.end();
    drop(store);
}

static THREAD: LazyLock<StoreThread> = LazyLock::new(|| {
    // As in every program with Rust's `main`; that of a fuzzer differs. Threads inherit the mask.
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGPIPE);
    signals.thread_block().expect("a signal");
    StoreThread::start("store").expect("a thread")
});

/// A timeout that only a failure reaches.
const DEADLINE: Duration = Duration::from_secs(10);

/// Most bytes that the kernel is asked to buffer on each side.
const KERNEL_LEN: usize = 64 << 10;

/// Less than one read of the server takes.
const PIECE_LEN: usize = 16 << 10;

struct Visit {
    addr: SocketAddr,
    witness: TcpStream,
    peers: [Option<Peer>; CLIENTS],
    model: Model,
}

struct Peer {
    stream: TcpStream,
    /// The rest of a request, sent before the next bytes.
    pending: Vec<u8>,
}

impl Visit {
    fn new(addr: SocketAddr) -> Self {
        let mut witness = connect(addr);
        witness.write_all(&GREETING).expect("an open connection");
        let model = Model::new(STORE_MEMORY_MAX);
        Self { addr, witness, peers: Default::default(), model }
    }

    fn act(&mut self, client: usize, deed: Deed<'_>) {
        if self.peers[client].is_none() {
            self.enter(client, !matches!(deed, Deed::Leave { greeted: false }));
        }
        match deed {
            Deed::Ask(query) => self.send(client, &encode(&query)),
            Deed::Begin(query, len) => {
                let request = encode(&query);
                let (head, tail) = request.split_at(len.min(request.len()));
                self.send(client, head);
                if let Some(peer) = &mut self.peers[client] {
                    peer.pending = tail.to_vec();
                }
            }
            Deed::Send(bytes) => self.send(client, bytes),
            Deed::Read(len) => self.read(client, len),
            Deed::Leave { greeted } => self.leave(client, greeted),
        }
    }

    fn enter(&mut self, client: usize, greeted: bool) {
        let stream = connect(self.addr);
        self.peers[client] = Some(Peer { stream, pending: Vec::new() });
        if greeted {
            self.send(client, &GREETING);
        }
    }

    /// Disconnects `client`, by a half-close if `politely`, otherwise by a reset.
    fn leave(&mut self, client: usize, politely: bool) {
        self.model.leave(client);
        if let Some(Peer { mut stream, .. }) = self.peers[client].take() {
            if politely {
                stream.shutdown(Shutdown::Write).expect("an open connection");
                read_to_end(&mut stream);
            }
            drop(stream);
            self.ping();
        }
    }

    fn send(&mut self, client: usize, bytes: &[u8]) {
        let Some(peer) = &mut self.peers[client] else { return };
        let bytes = [&std::mem::take(&mut peer.pending), bytes].concat();
        for piece in bytes.chunks(PIECE_LEN) {
            // It fails if the store closed the connection meanwhile, which is detected below.
            let peer = self.peers[client].as_mut().expect("it speaks");
            let _ = peer.stream.write_all(piece);
            self.ping();
        }
        self.model.sent(client, &bytes);
        let outcome = loop {
            match self.model.step(client) {
                Outcome::Taken => {}
                outcome => break outcome,
            }
        };
        if outcome == Outcome::Broken {
            return self.expect_closed(client);
        }
        for client in 0..CLIENTS {
            // Otherwise the store would hold up the next requests of this client.
            if OUTPUT_PAUSE_LEN / 2 <= self.model.expected_len(client) {
                self.read(client, usize::MAX);
                self.ping();
            }
        }
    }

    fn read(&mut self, client: usize, len: usize) {
        let Some(peer) = &mut self.peers[client] else { return };
        let mut bytes = vec![0; len.min(self.model.expected_len(client))];
        peer.stream.read_exact(&mut bytes).expect("an answer");
        self.model.received(client, &bytes);
    }

    /// Expects the end of the connection. A part of the expected answers may precede it.
    fn expect_closed(&mut self, client: usize) {
        if let Some(mut peer) = self.peers[client].take() {
            let bytes = read_to_end(&mut peer.stream);
            self.model.received(client, &bytes);
        }
        self.model.leave(client);
    }

    /// Waits until everything sent before is executed.
    fn ping(&mut self) {
        self.witness.write_all(b"\x0dping").expect("an open connection");
        let mut answer = [0; 4];
        self.witness.read_exact(&mut answer).expect("an answer");
        assert_eq!(&answer, b"ping");
    }

    /// Checks that all clients receive their answers, and that store and model have as many keys.
    fn end(mut self) {
        for client in 0..CLIENTS {
            self.read(client, usize::MAX);
        }
        self.witness.write_all(b"\x07").expect("an open connection");
        let mut answer = [0; 8];
        self.witness.read_exact(&mut answer).expect("an answer");
        assert_eq!(u64::from_le_bytes(answer), self.model.keys().len() as u64);
        for client in 0..CLIENTS {
            if self.peers[client].is_some() && !self.model.is_amid(client) {
                self.send(client, b"\x0dlast");
                self.read(client, usize::MAX);
            }
        }
    }
}

fn connect(addr: SocketAddr) -> TcpStream {
    let stream = loop {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.set_recv_buffer_size(KERNEL_LEN).expect("a socket");
        match socket.connect(&addr.into()) {
            Ok(()) => break TcpStream::from(socket),
            // Interrupted by the fuzzer's alarm.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => panic!("the store listens: {error}"),
        }
    };
    stream.set_nodelay(true).expect("a socket");
    stream.set_read_timeout(Some(DEADLINE)).expect("a time-out");
    stream.set_write_timeout(Some(DEADLINE)).expect("a time-out");
    // Thousands of connections are made per second: their ports must not remain in use for a
    // minute.
    SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("a socket");
    stream
}

fn read_to_end(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
    }
    bytes
}
