//! Attacks the stores of a job, by reading and writing.

use crate::{
    attacker::{OTHER, python},
    victim::{ATTACKER, Victim},
};

/// Sends a ping to a store, and returns the result: `pong`, or `refused`.
const PING: &str = "
import socket, struct
def ping(host, port, words=b'\\x0dpong'):
    greeting = b'\\0' + struct.pack('<I', 0x3C85F7CE)
    try:
        # A refused connection may be reset before it is set up on this side.
        stream = socket.create_connection((host, port))
        stream.settimeout(60)
        stream.sendall(greeting + words)
        answer = stream.recv(100)
    except (ConnectionResetError, BrokenPipeError):
        return 'refused'
    return answer.decode() or 'refused'
";

fn ping(victim: &Victim, node: u32, uid: u32, host: &str, port: u16) -> String {
    let script = format!("{PING}\nprint(ping('{host}', {port}))");
    python(&victim.network, node, uid, &script).trim().to_owned()
}

/// 10: another user of the host cannot connect to the round's store, at any of its addresses.
#[test]
fn store_from_another_uid() {
    let Some(mut victim) = Victim::new("uid") else { return };
    let port = victim.store_port;
    for host in ["127.0.0.1", "::1", "10.77.0.1"] {
        assert_eq!(ping(&victim, 1, 0, host, port), "pong", "{host}");
        assert_eq!(ping(&victim, 1, OTHER, host, port), "refused", "{host}");
    }
    let line = victim.host.logs("the store of round 1 refused");
    assert!(line.contains("--store-access any"), "{line}");
    victim.assert_unharmed();
}

/// With `--store-access any` all connections are admitted.
#[test]
fn store_for_all() {
    let Some(mut victim) = Victim::with("any", "--store-access any") else { return };
    let port = victim.store_port;
    assert_eq!(ping(&victim, 1, OTHER, "127.0.0.1", port), "pong");
    assert_eq!(ping(&victim, ATTACKER, 0, "10.77.0.1", port), "pong");
    victim.assert_unharmed();
}

/// 11: a user of a host outside the round cannot connect to the round's store.
#[test]
fn store_from_no_members_address() {
    let Some(mut victim) = Victim::new("addr") else { return };
    let port = victim.store_port;
    assert_eq!(ping(&victim, 2, 0, "10.77.0.1", port), "pong");
    // Another user of a member's host is admitted (docs/security.md).
    assert_eq!(ping(&victim, 2, OTHER, "10.77.0.1", port), "pong");
    assert_eq!(ping(&victim, ATTACKER, 0, "10.77.0.1", port), "refused");
    // Every node logs a warning, and the status has one too.
    victim.host.logs("the store of round 1 refused a connection from 10.77.0.3");
    victim.guest.logs("the store of round 1 refused a connection from 10.77.0.3");
    assert_eq!(victim.status()["refused_clients"], serde_json::json!(["10.77.0.3"]));
    let status = victim.printed_status();
    assert!(status.contains("the store of round 1 refused connections from 10.77.0.3"), "{status}");
    victim.assert_unharmed();
}

/// 12: a connection that is closed before it is accepted has no effect, although the kernel reports user 0 for it.
#[test]
fn closed_connection_has_no_effect() {
    let Some(mut victim) = Victim::new("gone") else { return };
    let port = victim.store_port;
    let script = format!(
        "
import socket, struct
greeting = b'\\0' + struct.pack('<I', 0x3C85F7CE)
key, value = b'planted', b'1'
plant = b'\\x01' + struct.pack('<Q', len(key)) + key + struct.pack('<Q', len(value)) + value
for turn in range(300):
    try:
        # A refused connection may be reset before it is set up on this side.
        with socket.create_connection(('127.0.0.1', {port})) as stream:
            stream.sendall(greeting + plant)
            stream.shutdown(socket.SHUT_WR)
    except OSError:
        pass
"
    );
    python(&victim.network, 1, OTHER, &script);
    // Earlier connections are accepted first, so this is the number of keys after all of them.
    let count = format!("{PING}\nprint(ping('127.0.0.1', {port}, b'\\x07').encode())");
    let count = python(&victim.network, 1, 0, &count);
    assert_eq!(count.trim(), format!("b'{}'", "\\x00".repeat(8)));
    victim.assert_unharmed();
}

/// 13: the endpoint's store, too, admits only the job's nodes and user.
#[test]
fn endpoints_store() {
    let Some(mut victim) = Victim::new("plain") else { return };
    assert_eq!(ping(&victim, 1, 0, "10.77.0.1", 29_400), "pong");
    assert_eq!(ping(&victim, 2, 0, "10.77.0.1", 29_400), "pong");
    assert_eq!(ping(&victim, 1, OTHER, "10.77.0.1", 29_400), "refused");
    assert_eq!(ping(&victim, ATTACKER, 0, "10.77.0.1", 29_400), "refused");
    victim.assert_unharmed();
}
