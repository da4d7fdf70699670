use std::io::Read as _;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use super::super::driver::now;
use super::*;

/// Returns both ends of a new connection: the accepted one, and the connecting one.
fn connection(listen: &str, host: &str) -> (TcpStream, TcpStream) {
    let listener = crate::listen(listen.parse().unwrap()).unwrap();
    let port = listener.local_addr().unwrap().port();
    let there = TcpStream::connect((host, port)).unwrap();
    (accept(&listener), there)
}

fn accept(listener: &TcpListener) -> TcpStream {
    listener.set_nonblocking(false).unwrap();
    listener.accept().unwrap().0
}

fn owner(owners: &mut Owners, accepted: &TcpStream) -> Owner {
    owners.of_peer(now(), accepted.local_addr().unwrap(), accepted.peer_addr().unwrap())
}

fn own() -> Owner {
    Owner::User(nix::unistd::geteuid().as_raw())
}

fn table_only() -> Owners {
    Owners { source: OwnerSource::Table, ..Owners::new() }
}

/// The own user is found with either source, for both families, and via a listener for both.
#[test]
fn own_sockets_are_found() {
    for make in [Owners::new, table_only] {
        let mut owners = make();
        for (listen, host) in [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "::1")] {
            let (here, _there) = connection(listen, host);
            assert_eq!(owner(&mut owners, &here), own(), "{listen}");
            owners.table_due = None;
        }
        let (here, _there) = connection("[::]:0", "127.0.0.1");
        assert!(here.peer_addr().unwrap().is_ipv6(), "an IPv4 address in the spelling of IPv6");
        assert_eq!(owner(&mut owners, &here), own());
    }
}

/// A peer that has closed its end has no owner, although the kernel reports user 0 for it.
#[test]
fn closed_sockets_are_nobodys() {
    for make in [Owners::new, table_only] {
        let (here, there) = connection("127.0.0.1:0", "127.0.0.1");
        let (local, peer) = (here.local_addr().unwrap(), here.peer_addr().unwrap());
        drop(there);
        // The end of the stream was read, so the socket has left the state ESTABLISHED.
        assert_eq!((&here).read(&mut [0]).unwrap(), 0);
        assert_eq!(make().of_peer(now(), local, peer), Owner::Nobody);
        drop(here);
        assert_eq!(make().of_peer(now(), local, peer), Owner::Nobody);
    }
}

/// If the kernel does not find the own end of a connection, the table is read. The next look-up
/// asks the kernel again: the connection may have ended before the look-up.
#[test]
fn table_is_read_where_the_kernel_finds_nothing() {
    let mut owners = Owners::new();
    let nowhere: SocketAddr = "127.0.0.1:9".parse().unwrap();
    assert_eq!(owners.of_peer(now(), nowhere, nowhere), Owner::Nobody);
    assert!(owners.table_due.is_some());
    let (here, _there) = connection("127.0.0.1:0", "127.0.0.1");
    assert_eq!(owner(&mut owners, &here), own());
    assert!(matches!(owners.source, OwnerSource::SockDiag { is_proven: true, .. }));
    owners.table_due = None;
    assert_eq!(owners.of_peer(now(), nowhere, nowhere), Owner::Nobody);
    assert_eq!(owners.table_due, None, "a kernel that has found sockets is believed");
}

/// The table is read at intervals: a missing entry is looked up again later, a present one at once.
#[test]
fn table_is_read_rarely() {
    let (mut owners, start) = (table_only(), now());
    let ask = |owners: &mut Owners, at: Instant, here: &TcpStream| {
        owners.of_peer(at, here.local_addr().unwrap(), here.peer_addr().unwrap())
    };
    let (early, _there) = connection("127.0.0.1:0", "127.0.0.1");
    assert_eq!(ask(&mut owners, start, &early), own());
    let (late, _there) = connection("127.0.0.1:0", "127.0.0.1");
    let due = start + SOCKET_TABLE_INTERVAL;
    assert_eq!(ask(&mut owners, start + Duration::from_millis(1), &late), Owner::Later(due));
    assert_eq!(ask(&mut owners, start + Duration::from_millis(2), &early), own());
    assert_eq!(ask(&mut owners, due, &late), own());
}

/// Rows of both files are parsed; the heading, other states and garbage are skipped.
#[test]
fn rows_are_read() {
    let v4 = "   1: 0100007F:C350 0100007F:1F90 01 00000000:00000000 02:000A7214 00000000  1000        0 1";
    let found = row(v4);
    if cfg!(target_endian = "little") {
        let local = "127.0.0.1:50000".parse().unwrap();
        let remote = "127.0.0.1:8080".parse().unwrap();
        assert_eq!(found, Some(((local, remote), 1000)));
        let mapped = v4.replace("0100007F", "0000000000000000FFFF00000100007F");
        assert_eq!(row(&mapped), found);
    }
    let heading =
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid";
    let waiting = v4.replace(" 01 ", " 06 ");
    for text in [heading, &waiting, "", "1:", "1: 0100007F 0100007F 01", "1: :1 :2 01 0 0 0 5"] {
        assert_eq!(row(text), None, "{text}");
    }
}

/// Parsing a message never panics, and an answer to another request is ignored.
#[test]
fn messages_are_read_with_care() {
    for len in 0..ANSWER_LEN_MAX {
        for byte in [0, 1, 2, 20, 255] {
            let _ = parse(&vec![byte; len], 0);
        }
    }
    let mut message = [0; UID_AT + 4];
    message[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    message[8..12].copy_from_slice(&7_u32.to_ne_bytes());
    message[HEADER_LEN + 1] = ESTABLISHED;
    message[UID_AT..].copy_from_slice(&5_u32.to_ne_bytes());
    assert_eq!(parse(&message, 7), LookupAnswer::Found(Socket { state: ESTABLISHED, uid: 5 }));
    assert_eq!(parse(&message, 8), LookupAnswer::Other);
    assert_eq!(parse(&message[..UID_AT], 7), LookupAnswer::Other);
}

#[path = "../../../../tests/support/replay.rs"]
mod replay;

const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus");
const TARGET: replay::Target = ("sock_diag", fuzzing::sock_diag, 1);

/// No input of the fuzzer's corpus breaks a rule.
#[test]
fn corpus_is_replayed() {
    replay::run_corpus(std::path::Path::new(CORPUS), &[TARGET]);
}

/// No random input derived from the corpus breaks a rule.
#[test]
fn made_up_inputs_hold() {
    replay::run_made_up(std::path::Path::new(CORPUS), &[TARGET]);
}
