//! Datagrams of agents with another secret, or of other programs.

use std::path::PathBuf;

use nix::sys::signal::Signal;
use ragent::secret::{Secret, file};

use crate::{
    agent,
    support::{Network, Sandbox, Stream, may_make_networks},
};

/// Makes a file with a secret; returns the flag and the id.
fn secret_file(sandbox: &Sandbox, name: &str) -> (String, String) {
    let (path, secret): (PathBuf, Secret) =
        (sandbox.path(name), Secret::random().expect("the system has random bytes"));
    file::create(&path, &secret).expect("the sandbox is writable");
    (format!("--secret-file {}", path.display()), secret.id().to_string())
}

/// Agents with one secret find each other. Agents with another one or without any do not find them, and each side learns why.
#[test]
fn agents_with_one_secret_find_each_other() {
    if !may_make_networks() {
        return;
    }
    let (network, sandbox) = (Network::new("secret", 4), Sandbox::new());
    let (a, id_a) = secret_file(&sandbox, "a");
    let (b, _) = secret_file(&sandbox, "b");
    let start = |node, auth: &str, conf: &str| {
        let words = format!("{auth} --nnodes 2:4 --rdzv-conf last_call_timeout=0.1,{conf}");
        agent(&network, &sandbox, node, "job", &words).default_lines().start()
    };
    let mut first = start(1, &a, "is_host=0");
    first.logs("waiting for the host of job job");
    let mut other = start(2, &b, "is_host=0");
    let line = other.logs("waiting for the host of job job");
    assert!(line.contains("an agent at 10.77.0.1 searches with the secret"), "{line}");
    assert!(line.contains(&id_a), "{line}");
    let _open = start(3, "--auth none", "is_host=1");
    let mut third = start(4, &a, "is_host=1");
    let line = third.logs("of this job at 10.77.0.3 searches without the secret of this one");
    assert!(line.contains("--auth none"), "{line}");
    first.worker();
    third.worker();
    let text = third.text(Stream::Stderr);
    assert!(!text.contains("no other agent of job"), "{text}");
}

/// 20: forged datagrams of a candidate that comes before all others keep agents without a secret from starting; with a secret
/// they have no effect.
#[test]
fn forged_datagrams_have_no_effect_with_a_secret() {
    if !may_make_networks() {
        return;
    }
    let (network, sandbox) = (Network::new("forge", 3), Sandbox::new());
    let (secret, _) = secret_file(&sandbox, "a");
    let flood = "
import hashlib, json, socket, time
job = hashlib.sha256(b'ragent job job').hexdigest()[:32]
lowest = {'rank': 0, 'number': 0}
looking = {'by': lowest, 'may_host': True, 'lowest': lowest}
text = json.dumps({'ragent': 2, 'job': job, 'message': {'looking': looking}}).encode()
stream = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
stream.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton('10.77.0.3'))
print('begins', flush=True)
for _ in range(20_000):
    stream.sendto(text, ('239.255.82.71', 29400))
    time.sleep(0.03)
";
    let attacker = network.program(&sandbox, 3, "/usr/bin/python3").arg("-c").arg(flood);
    let mut attacker = attacker.start();
    attacker.prints("begins");
    let start = |auth: &str| {
        let start = |node| agent(&network, &sandbox, node, "job", &format!("{auth} --nnodes 2"));
        [1, 2].map(|node| start(node).default_lines().start())
    };
    for mut victim in start("--auth none") {
        let line = victim.logs("waiting for the host of job job");
        assert!(line.contains("none of the agents found hosts it yet"), "{line}");
        victim.signal(Signal::SIGKILL);
        victim.end();
    }
    for mut agent in start(&secret) {
        agent.worker();
    }
}
