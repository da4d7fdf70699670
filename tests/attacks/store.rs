//! Attacks the stores of a job, by reading and writing.

use std::{fs, os::unix::fs::PermissionsExt, thread};

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
    assert_eq!(ping(&victim, ATTACKER, 0, "10.77.0.1", port), "refused");
    // Every node logs a warning, and the status has one too.
    victim.host.logs("the store of round 1 refused a connection from 10.77.0.3");
    victim.guest.logs("the store of round 1 refused a connection from 10.77.0.3");
    assert_eq!(victim.status()["refused_clients"], serde_json::json!(["10.77.0.3"]));
    let status = victim.printed_status();
    assert!(status.contains("the store of round 1 refused connections from 10.77.0.3"), "{status}");
    victim.assert_unharmed();
}

/// With `--store-access user`, another user of a member's host cannot connect to the round's store, which
/// `members` admits.
#[test]
fn store_from_another_uid_of_a_member() {
    let Some(victim) = Victim::new("member") else { return };
    assert_eq!(ping(&victim, 2, OTHER, "10.77.0.1", victim.store_port), "pong");
    drop(victim);
    let secret = [false, true];
    for has_secret in secret {
        let name = if has_secret { "users" } else { "user" };
        let Some(mut victim) = Victim::with_user_check(name, has_secret) else { return };
        let port = victim.store_port;
        for _ in 0..3 {
            assert_eq!(ping(&victim, 2, 0, "10.77.0.1", port), "pong");
        }
        assert_eq!(ping(&victim, 1, 0, "10.77.0.1", port), "pong");
        for (node, host) in [(1, "127.0.0.1"), (1, "10.77.0.1"), (2, "10.77.0.1")] {
            assert_eq!(ping(&victim, node, OTHER, host, port), "refused", "{node} {host}");
        }
        assert_eq!(ping(&victim, ATTACKER, 0, "10.77.0.1", port), "refused");
        victim.host.logs("the store of round 1 refused a connection from 10.77.0.2");
        victim.guest.logs("the store of round 1 refused a connection from 10.77.0.2");
        victim.assert_unharmed();
    }
}

/// With `--store-access user`, a user of a member's host opens connections as fast as it can. That does not keep the host's workers from
/// the store.
#[test]
fn check_is_not_blocked() {
    let Some(mut victim) = Victim::with_user_check("flood", false) else { return };
    let port = victim.store_port;
    let started = victim.path("flooding");
    let script = format!(
        "
import pathlib, resource, socket
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
refused = 0
while refused < 20000:
    streams = []
    for _ in range(100):
        try:
            streams.append(socket.create_connection(('10.77.0.1', {port})))
        except OSError:
            refused += 1
    for stream in streams:
        try:
            refused += stream.recv(1) == b''
        except OSError:
            refused += 1
    pathlib.Path('{}').touch()
",
        started.display()
    );
    fs::write(&started, "").unwrap();
    fs::set_permissions(&started, fs::Permissions::from_mode(0o666)).unwrap();
    let begun = fs::metadata(&started).unwrap().modified().unwrap();
    let network = &victim.network;
    let answers = thread::scope(|scope| {
        let flood = scope.spawn(|| python(network, 2, OTHER, &script));
        let is_flooding = || fs::metadata(&started).unwrap().modified().unwrap() > begun;
        let mut answers = Vec::new();
        while !flood.is_finished() {
            if is_flooding() {
                answers.push(ping(&victim, 2, 0, "10.77.0.1", port));
            }
        }
        flood.join().unwrap();
        answers
    });
    assert!(!answers.is_empty() && answers.iter().all(|answer| answer == "pong"), "{answers:?}");
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
