//! Attacks the port by floods and odd requests.

use crate::{
    attacker::{OTHER, python},
    support::{Network, Sandbox, Start, Stream, is_there, may_make_networks},
    victim::{ATTACKER, Victim, make_secret},
};

const ANSWER: &str = "
import socket
def ask(words):
    stream = socket.create_connection(('10.77.0.1', 29400))
    stream.settimeout(60)
    answer = b''
    try:
        stream.sendall(words)
        while piece := stream.recv(65536):
            answer += piece
    except OSError:
        pass
    return answer
";

/// 14: thousands of connections without a request, or with half of one, do not keep members or newcomers out, even if the agent may open
/// few files.
#[test]
fn idle_connections() {
    if !may_make_networks() {
        return;
    }
    let network = Network::new("idle", 3);
    let sandbox = Sandbox::new();
    let words = "--nnodes 1:2 --rdzv-id job --rdzv-endpoint 10.77.0.1:29400 \
                 --rdzv-conf last_call_timeout=0.1,join_settle=0.1 --no-python stay.sh";
    let ragent = env!("CARGO_BIN_EXE_ragent");
    let few_files = format!("ulimit -n 4096; exec {ragent} {words}");
    let start = network.program(&sandbox, 1, "/bin/bash").arg("-c").arg(few_files);
    let mut host = start.env("XDG_RUNTIME_DIR", sandbox.path("run")).start();
    host.worker();
    let flood = "
import resource, socket, time
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
words = [b'', b'PRI * HTTP/2.0', b'PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n\\0\\0\\0\\x04\\0\\0\\0\\0\\0',
         b'POST /v1/death-notice HTTP/1.1\\r\\nHost: 10.77.0.1\\r\\nContent-Length: 99\\r\\n\\r\\n', b'\\0']
streams = []
while len(streams) < min(20000, hard - 50):
    stream = socket.socket()
    stream.settimeout(5)
    try:
        stream.connect(('10.77.0.1', 29400))
        stream.sendall(words[len(streams) % len(words)])
    except OSError:
        pass
    streams.append(stream)
    # More than files and the kernel's queue have room for, but for the last of them.
    if len(streams) == 7500: print('full', flush=True)
time.sleep(1000)
";
    let attacker = network.program(&sandbox, ATTACKER, "/usr/bin/python3");
    let mut attacker = attacker.arg("-c").arg(flood).start();
    attacker.prints("full");
    let mut newcomer = network.ragent(&sandbox, 2, words).start();
    newcomer.logs("nodes=2 world_size=2");
    newcomer.worker();
    let text = host.text(Stream::Stderr);
    assert!(!text.contains("lease has ended") && !text.contains("node lost"), "{text}");
    // A member that has lost its connection reconnects during the flood.
    network.cut(2);
    crate::support::let_pass(std::time::Duration::from_millis(1000));
    network.heal(2);
    crate::support::let_pass(crate::support::LEASE);
    let text = host.text(Stream::Stderr);
    assert!(!text.contains("node lost"), "{text}");
}

/// 16: ambiguous requests and floods of frames do not desynchronize a connection, and do not affect others.
#[test]
fn smuggling_and_floods() {
    let Some(mut victim) = Victim::new("smug") else { return };
    let script = format!(
        "{ANSWER}
import struct
head = b'POST /v1/death-notice HTTP/1.1\\r\\nHost: 10.77.0.1\\r\\n'
hidden = b'GET /v1/identity HTTP/1.1\\r\\nHost: 10.77.0.1\\r\\n\\r\\n'
for odd in [b'Content-Length: 4\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\n',
            b'Content-Length: 0\\r\\nContent-Length: 9\\r\\n\\r\\n',
            b'Transfer-Encoding: xchunked\\r\\n\\r\\n0\\r\\n\\r\\n',
            b'X: 1\\r\\n folded\\r\\nContent-Length: 0\\r\\n\\r\\n']:
    answer = ask(head + odd + hidden)
    assert b'run_id' not in answer, answer
assert ask(b'GET / HTTP/1.1\\r\\n' + b'X: ' + b'y' * 2000000 + b'\\r\\n\\r\\n')[:12] in (b'HTTP/1.1 431', b'')
def frame(kind, flags, stream, body=b''):
    return struct.pack('>I', len(body))[1:] + bytes([kind, flags]) + struct.pack('>I', stream) + body
preface = b'PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n' + frame(4, 0, 0)
get = b'\\x82\\x86\\x84\\x41\\x09' + b'10.77.0.1'
resets = b''.join(frame(1, 5, n, get) + frame(3, 0, n, struct.pack('>I', 8)) for n in range(1, 20001, 2))
floods = [resets, frame(1, 1, 1, get) + frame(9, 0, 1, b'\\x40\\x01a\\x01b' * 100) * 5000,
          frame(4, 0, 0) * 50000, frame(6, 0, 0, b'12345678') * 50000,
          frame(1, 5, 1, b'\\x40\\x01a\\x7f\\x81\\x1f' + b'x' * 4000 + b'\\xbe' * 60000)]
import threading
def pour(flood):
    stream = socket.create_connection(('10.77.0.1', 29400))
    stream.settimeout(3)
    try:
        stream.sendall(preface + flood)
    except OSError:
        pass
    stream.close()
threads = [threading.Thread(target=pour, args=(flood,)) for flood in floods * 4]
for thread in threads: thread.start()
for thread in threads: thread.join()
"
    );
    python(&victim.network, ATTACKER, 0, &script);
    victim.assert_unharmed();
}

/// 22: requests with a foreign host name, from a web page or for an unknown path are refused.
#[test]
fn foreign_pages() {
    let Some(mut victim) = Victim::new("page") else { return };
    let script = format!(
        "{ANSWER}
def code(request, *headers):
    lines = [request + ' HTTP/1.1', *headers, 'Connection: close', '', '']
    return ask('\\r\\n'.join(lines).encode())[9:12].decode()
own = 'Host: 10.77.0.1:29400'
print(code('GET /status', own), code('GET /status', 'Host: evil.example'),
      code('GET /metrics', own), code('GET /metrics', 'Host: evil.example'),
      code('GET /v1/identity', 'Host: 10.77.0.1.evil.example'),
      code('POST /v1/death-notice', own, 'Origin: http://evil.example', 'Content-Length: 0'),
      code('POST /v1/death-notice', own, 'Sec-Fetch-Site: cross-site', 'Content-Length: 0'),
      code('GET /', own), code('GET /', 'Host: evil.example'), code('GET /v1/watch', 'Host: evil.example'),
      code('GET /unknown', own), code('CONNECT 10.77.0.1:22', own))
"
    );
    let codes = python(&victim.network, ATTACKER, 0, &script);
    assert_eq!(codes.trim(), "200 421 200 421 421 403 403 200 421 421 404 404");
    victim.assert_unharmed();
}

/// In a user namespace, the agent may have the uid of all unknown users. Other users do not count as its own even then.
#[test]
fn other_user_has_the_overflow_uid() {
    if !may_make_networks() || !is_there("unshare") {
        return;
    }
    let sandbox = Sandbox::new();
    let network = Network::new("overflow", 1);
    let map = ["--user", "--map-user=65534", env!("CARGO_BIN_EXE_ragent")];
    // Without a secret, the agent would refuse its own connection.
    let words = format!(
        "--nnodes 1 --rdzv-id job --rdzv-endpoint 10.77.0.1:29400 --secret-file {} --no-python stay.sh",
        make_secret(&sandbox).display()
    );
    let start = map.into_iter().chain(words.split(' '));
    let start = start.fold(network.program(&sandbox, 1, "unshare"), Start::arg);
    let mut agent = start.start();
    agent.worker();
    let script = "
import http.client
host = http.client.HTTPConnection('10.77.0.1', 29400, timeout=60)
host.request('GET', '/status')
print(host.getresponse().status)";
    assert_eq!(python(&network, 1, OTHER, script).trim(), "403");
    assert!(agent.text(Stream::Stderr).contains("counts as this user's own"));
}
