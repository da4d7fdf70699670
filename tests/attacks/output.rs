//! Attacks the output of workers, which may contain secrets.

use crate::{
    attacker::{OTHER, python},
    support::Network,
    victim::{ATTACKER, Victim},
};

/// The first line of the answer to a request for the output, as a user on a node receives it.
fn answer(network: &Network, node: u32, uid: u32) -> String {
    let script = "
import socket
stream = socket.create_connection(('10.77.0.1', 29400))
stream.sendall(b'GET /v1/logs HTTP/1.1\\r\\nHost: 10.77.0.1\\r\\nConnection: close\\r\\n\\r\\n')
answer = b''
while piece := stream.recv(65536):
    answer += piece
print(answer.decode().splitlines()[0])
";
    python(network, node, uid, script).trim().to_owned()
}

/// Other hosts and other users do not get the output of a job, with a secret or without one. The own user on the same machine does.
#[test]
fn strangers_get_no_output() {
    for (name, has_secret) in [("outp", false), ("outs", true)] {
        let victim = if has_secret { Victim::secured(name) } else { Victim::new(name) };
        let Some(victim) = victim else { return };
        let of = |node, uid| answer(&victim.network, node, uid);
        assert_eq!(of(1, 0), "HTTP/1.1 200 OK");
        assert_eq!(of(1, OTHER), "HTTP/1.1 403 Forbidden");
        // Also not for root, nor for a host of the job without its secret.
        for node in [2, ATTACKER] {
            assert_eq!(of(node, 0), "HTTP/1.1 403 Forbidden");
        }
    }
}

/// Without a secret, a reader gets the output of its own machine, and the other hosts are named. With it, it gets that of all.
#[test]
fn only_a_secret_crosses_the_network() {
    for (name, has_secret) in [("readp", false), ("reads", true)] {
        let victim = if has_secret { Victim::secured(name) } else { Victim::new(name) };
        let Some(victim) = victim else { return };
        let end = victim.logs();
        end.assert_code(0);
        match has_secret {
            true => assert!(!end.stderr.contains("no secret"), "{}", end.stderr),
            false => end.assert_stderr(&["not read: the job has no secret (ragent secret --init)"]),
        }
    }
}
