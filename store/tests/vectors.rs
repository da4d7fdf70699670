//! Replays recorded exchanges of torch 2.15's client and server against this server.
//!
//! `data/tcpstore-vectors.json` contains the bytes that real clients sent, the answers of the real
//! server (`answer`), and, where this server deliberately differs, its own answers (`ours`). Cases
//! of one `store` run in order on the same store, each with its own connections. The absence of an
//! answer is checked with a `PING`, whose echo must then be the next bytes.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use ragent_store::wire::{Decoder, GREETING};
use ragent_store::{AdmissionRule, StoreHandle, StoreThread, listen};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
struct Case {
    note: String,
    store: String,
    /// True if its connections begin with a greeting that is not part of the recording.
    greeted: bool,
    /// True if the answer is a list in arbitrary order.
    #[serde(default)]
    unordered: bool,
    steps: Vec<Step>,
}

#[derive(Debug, Deserialize)]
struct Step {
    conn: String,
    /// Bytes in hexadecimal, or `close`, or `shutdown` of the writing side.
    send: String,
    /// Bytes in hexadecimal, or `closed`.
    answer: String,
    /// The answer of this server, if it differs.
    ours: Option<String>,
}

struct Connection {
    stream: TcpStream,
    /// The bytes sent that are not a whole request yet.
    unfinished: Vec<u8>,
    open: bool,
}

/// Every recorded exchange is repeated byte by byte, or differs as documented.
#[test]
fn recordings_are_reproduced() {
    let cases: Vec<Case> =
        serde_json::from_str(include_str!("data/tcpstore-vectors.json")).expect("valid JSON");
    assert!(cases.len() > 100);
    let thread = StoreThread::start("store").expect("a thread");
    let mut stores = BTreeMap::new();
    for case in &cases {
        let (addr, _) = stores.entry(&case.store).or_insert_with(|| open(&thread));
        replay(*addr, case);
    }
}

fn open(thread: &StoreThread) -> (SocketAddr, StoreHandle) {
    let listener = listen("127.0.0.1:0".parse().expect("an address")).expect("a free port");
    let addr = listener.local_addr().expect("a bound listener");
    (addr, thread.open(listener, AdmissionRule::Anybody).expect("a store"))
}

fn replay(addr: SocketAddr, case: &Case) {
    let mut connections = BTreeMap::new();
    for (n, step) in case.steps.iter().enumerate() {
        let place = format!("{}, step {n}", case.note);
        let connection = connections
            .entry(&step.conn)
            .or_insert_with(|| Connection::new(addr, case.greeted || step.conn == "other"));
        connection.send(&step.send);
        let expected = step.ours.as_ref().unwrap_or(&step.answer);
        match &expected[..] {
            "closed" => connection.expect_closed(&place),
            "" => connection.expect_nothing(&place),
            bytes if case.unordered => connection.expect_list(&unhex(bytes), &place),
            bytes => connection.expect(&unhex(bytes), &place),
        }
    }
    for (name, connection) in &mut connections {
        connection.expect_nothing(&format!("{}, after the last step, {name}", case.note));
    }
}

impl Connection {
    fn new(addr: SocketAddr, greeted: bool) -> Self {
        let stream = TcpStream::connect(addr).expect("the server listens");
        stream.set_read_timeout(Some(Duration::from_secs(300))).expect("a time-out");
        stream.set_nodelay(true).expect("a socket");
        let mut connection = Self { stream, unfinished: Vec::new(), open: true };
        if greeted {
            connection.stream.write_all(&GREETING).expect("an open connection");
        }
        // Otherwise the recorded bytes begin with a greeting, or are not requests at all.
        connection
    }

    fn send(&mut self, what: &str) {
        match what {
            "close" => {
                self.stream.shutdown(Shutdown::Both).expect("an open connection");
                self.open = false;
            }
            "shutdown" => {
                self.stream.shutdown(Shutdown::Write).expect("an open connection");
            }
            bytes => {
                let bytes = unhex(bytes);
                // This may fail on a connection that the server has closed.
                let _ = self.stream.write_all(&bytes);
                self.unfinished.extend_from_slice(&bytes);
                let mut rest = &self.unfinished[..];
                let mut decoder = Decoder::default();
                while let Ok(Some(_)) = decoder.decode(&mut rest) {}
                self.unfinished = rest.to_vec();
            }
        }
    }

    fn expect(&mut self, expected: &[u8], place: &str) {
        let mut answer = vec![0; expected.len()];
        self.stream.read_exact(&mut answer).unwrap_or_else(|error| panic!("{place}: {error}"));
        assert_eq!(answer, expected, "{place}");
    }

    /// Expects the strings of `expected`, preceded by their number, in any order.
    fn expect_list(&mut self, expected: &[u8], place: &str) {
        let mut answer = vec![0; expected.len()];
        self.stream.read_exact(&mut answer).unwrap_or_else(|error| panic!("{place}: {error}"));
        assert_eq!(strings(&answer), strings(expected), "{place}");
    }

    fn expect_nothing(&mut self, place: &str) {
        if self.open && self.unfinished.is_empty() {
            self.stream.write_all(b"\x0dping").expect("an open connection");
            self.expect(b"ping", place);
        }
    }

    fn expect_closed(&mut self, place: &str) {
        self.open = false;
        let mut surplus = Vec::new();
        match self.stream.read_to_end(&mut surplus) {
            Ok(_) => assert!(surplus.is_empty(), "{place}: {surplus:?}"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{place}"),
        }
    }
}

fn strings(list: &[u8]) -> Vec<&[u8]> {
    let mut rest = &list[8..];
    let mut strings = Vec::new();
    while let Some((len, tail)) = rest.split_first_chunk() {
        let (string, tail) = tail.split_at(u64::from_le_bytes(*len) as usize);
        strings.push(string);
        rest = tail;
    }
    strings.sort_unstable();
    strings
}

fn unhex(text: &str) -> Vec<u8> {
    text.as_bytes()
        .chunks(2)
        .map(|pair| {
            std::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok())
        })
        .collect::<Option<_>>()
        .unwrap_or_else(|| panic!("`{text}` is not hexadecimal"))
}
