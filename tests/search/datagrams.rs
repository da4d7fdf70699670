//! Tests datagrams of agents with another secret, or of other programs.

use std::path::PathBuf;

use nix::sys::signal::Signal;
use ragent_base::secret::{Secret, file};

use crate::{
    agent,
    support::{Network, Program, Sandbox, may_make_networks},
};

/// Makes a file with a secret. Returns the flag.
fn secret_file(sandbox: &Sandbox, name: &str) -> String {
    let (path, secret): (PathBuf, Secret) =
        (sandbox.path(name), Secret::random().expect("the system has random bytes"));
    file::create(&path, &secret).expect("the sandbox is writable");
    format!("--secret-file {}", path.display())
}

/// Agents with one secret find each other. Agents with another secret, or without any, do not find them, and print that there are other jobs.
#[test]
fn agents_with_one_secret_find_each_other() {
    if !may_make_networks() {
        return;
    }
    let (network, sandbox) = (Network::new("secret", 4), Sandbox::new());
    let (a, b) = (secret_file(&sandbox, "a"), secret_file(&sandbox, "b"));
    let start = |node, auth: &str, conf: &str| {
        let words = format!("{auth} --nnodes 2:4 --rdzv-conf last_call_timeout=0.1,{conf}");
        agent(&network, &sandbox, node, "job", &words).default_lines().start()
    };
    let mut first = start(1, &a, "is_host=0");
    first.logs("waiting for the host of job job");
    let mut other = start(2, &b, "is_host=0");
    let line = other.logs("waiting for the host of job job");
    assert!(line.contains("but agents of other jobs search on this port"), "{line}");
    let mut open = start(3, "--auth none", "is_host=1");
    open.logs("no other agent of this job was found, but agents of other jobs");
    let mut third = start(4, &a, "is_host=1");
    first.worker();
    third.worker();
}

/// A process that sends datagrams of others again, every 30 ms until it is ended. Its TCP port accepts connections without an answer.
const REPEATS: &str = "
import hashlib, json, socket, time
GROUP, PORT, OWN = '239.255.82.71', 29400, '10.77.0.3'
stream = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
stream.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
stream.bind(('', PORT))
stream.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(GROUP) + socket.inet_aton(OWN))
stream.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(OWN))
silent = socket.create_server((OWN, PORT))
def forged(number, **fields):
    job = hashlib.sha256(b'ragent job job').hexdigest()[:32]
    by = {'rank': 0, 'number': number}
    base = {'ragent': 3, 'job': job, 'by': by, 'may_host': True, 'searches': False, 'port': PORT, 'home': None}
    return json.dumps(base | fields).encode()
def recorded(searches):
    while True:
        datagram = stream.recv(2000)
        if b'searches\":' + searches in datagram:
            return datagram
def repeat(*datagrams):
    print('has them', flush=True)
    for _ in range(20_000):
        for datagram in datagrams:
            stream.sendto(datagram, (GROUP, PORT))
        time.sleep(0.03)
";

/// Starts the attacker of [`REPEATS`] on the third node.
fn attacker(network: &Network, sandbox: &Sandbox, lines: &str) -> Program {
    let script = format!("{REPEATS}\n{lines}");
    network.program(sandbox, 3, "/usr/bin/python3").arg("-c").arg(&script).start()
}

/// Records a datagram of an agent that is killed after that. The attacker sends it from then on.
fn recorded(network: &Network, sandbox: &Sandbox, flags: &str, searches: &str) -> Program {
    let mut attacker = attacker(network, sandbox, &format!("repeat(recorded(b'{searches}'))"));
    let words = format!("{flags} --nnodes 2 --node-rank 0");
    let killed = agent(network, sandbox, 4, "job", &words).start();
    attacker.prints("has them");
    killed.signal(Signal::SIGKILL);
    killed.end();
    network.kill_all(4);
    attacker
}

/// 20: a candidate that comes before all others has its datagrams repeated. They do not keep agents from starting, with and without a
/// secret.
#[test]
fn repeated_candidates_do_not_delay_the_start() {
    if !may_make_networks() {
        return;
    }
    for (name, is_secured) in [("rcopen", false), ("rcsec", true)] {
        let (network, sandbox) = (Network::new(name, 4), Sandbox::new());
        let flags = if is_secured { secret_file(&sandbox, "a") } else { "--auth none".to_owned() };
        let _attacker = recorded(&network, &sandbox, &flags, "true");
        let words = format!("{flags} --nnodes 2");
        let mut agents = [1, 2].map(|node| agent(&network, &sandbox, node, "job", &words).start());
        for agent in &mut agents {
            agent.worker();
        }
    }
}

/// 20: datagrams that name a host which does not answer are repeated. They do not keep agents from starting, or from finding the real host
/// within three seconds, with and without a secret.
#[test]
fn repeated_hosts_do_not_delay_the_search() {
    if !may_make_networks() {
        return;
    }
    for (name, is_secured) in [("rhopen", false), ("rhsec", true)] {
        let (network, sandbox) = (Network::new(name, 4), Sandbox::new());
        let flags = if is_secured { secret_file(&sandbox, "a") } else { "--auth none".to_owned() };
        let _attacker = recorded(&network, &sandbox, &flags, "false");
        assert_found(&network, &sandbox, &flags);
    }
}

/// 20: forged datagrams come from a lower candidate, and from hosts at addresses that accept no connection or do not answer. They do not
/// keep agents from starting, with and without a secret.
#[test]
fn forged_datagrams_do_not_delay_the_search() {
    if !may_make_networks() {
        return;
    }
    let lines = "
hosts = ['10.77.0.3:29400', '10.77.0.250:29400', '10.77.0.3:9']
repeat(forged(0, searches=True), *[forged(1 + n, home=at) for n, at in enumerate(hosts)])
";
    for (name, is_secured) in [("fopen", false), ("fsec", true)] {
        let (network, sandbox) = (Network::new(name, 3), Sandbox::new());
        let flags = if is_secured { secret_file(&sandbox, "a") } else { "--auth none".to_owned() };
        let mut attacker = attacker(&network, &sandbox, lines);
        attacker.prints("has them");
        assert_found(&network, &sandbox, &flags);
    }
}

/// Fails unless an agent that searches finds the host and runs a round with it.
fn assert_found(network: &Network, sandbox: &Sandbox, flags: &str) {
    let start = |node, conf: &str| {
        let words = format!("{flags} --nnodes 2 --rdzv-conf {conf}");
        agent(network, sandbox, node, "job", &words).start()
    };
    let mut guest = start(2, "is_host=0");
    guest.logs("searching for the job's other agents");
    let mut host = start(1, "is_host=1");
    host.logs("coordinating the job");
    guest.logs("registered endpoint=\"10.77.0.1:");
    guest.worker();
    host.worker();
}
