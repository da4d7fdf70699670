//! Floods a process without having the secret. It costs the coordinator little memory, and no member its lease.

use std::fs;

use crate::{
    attacker::python,
    victim::{ATTACKER, Victim},
};

/// The memory that a flood may cost.
const MEMORY_MAX: u64 = 64 << 20;

/// Sends as many bytes as the port takes, for some seconds, in each way that keeps them in memory:
///
/// - heads and bodies that never end, over HTTP/1.1 and HTTP/2, as first request and after an answer
/// - messages of gRPC of the maximum length
/// - beginnings of TLS
const FLOOD: &str = "
import resource, selectors, socket, struct, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))
def frame(kind, flags, stream, body=b''):
    return struct.pack('>I', len(body))[1:] + bytes([kind, flags]) + struct.pack('>I', stream) + body
host = b'Host: 10.77.0.1\\r\\n'
preface = b'PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n' + frame(4, 0, 0)
def literal(name, value):
    return b'\\x00' + bytes([len(name)]) + name + bytes([len(value)]) + value
def post(path, kind=b'text/plain'):
    return (literal(b':method', b'POST') + literal(b':scheme', b'http') + literal(b':path', path) +
            literal(b':authority', b'10.77.0.1') + literal(b'content-type', kind))
get = b'\\x82\\x86' + literal(b':path', b'/v1/identity') + literal(b':authority', b'10.77.0.1')
data = b'x' * 16384
def bodies(path, kind, first):
    streams = range(first, first + 32, 2)
    heads = b''.join(frame(1, 4, one, post(path, kind)) for one in streams)
    begin = b''.join(frame(0, 0, one, b'\\0' + struct.pack('>I', 4000000)) for one in streams) if kind[:4] == b'appl' else b''
    return heads + begin, b''.join(frame(0, 0, one, data) for one in streams)
notice, grpc = (b'/v1/death-notice', b'text/plain'), (b'/ragent.v1.Coordination/Attend', b'application/grpc')
head, body = bodies(*notice, 1)
later, _ = bodies(*notice, 3)
message, parts = bodies(*grpc, 1)
ways = [
    (preface + head, body),
    (preface + frame(1, 5, 1, get) + later, b''.join(frame(0, 0, one, data) for one in range(3, 35, 2))),
    (preface + message, parts),
    (preface + frame(1, 0, 1, post(b'/v1/death-notice')), frame(9, 0, 1, literal(b'name', b'v' * 120) * 100)),
    (b'POST /v1/death-notice HTTP/1.1\\r\\n' + host, b'X-Filler: ' + b'y' * 8000 + b'\\r\\n'),
    (b'POST /v1/death-notice HTTP/1.1\\r\\n' + host + b'Content-Length: 2000000\\r\\n\\r\\n', data),
    (b'GET /v1/identity HTTP/1.1\\r\\n' + host + b'\\r\\nPOST /v1/death-notice HTTP/1.1\\r\\n' + host +
     b'Transfer-Encoding: chunked\\r\\n\\r\\n', b'4000\\r\\n' + data + b'\\r\\n'),
    (b'\\x16\\x03\\x01\\x40\\x00\\x01\\x00\\xff\\xff', data),
    (b'\\xee', data),
    (b'\\x00', b''),
]
sources = [source.encode().decode() for source in sys.argv[1].split(',')]
selector = selectors.DefaultSelector()
opened = served = sent = 0
def open_one():
    global opened
    stream = socket.socket()
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    stream.bind((sources[opened % len(sources)], 0))
    stream.setblocking(False)
    stream.connect_ex(('10.77.0.1', 29400))
    selector.register(stream, selectors.EVENT_READ | selectors.EVENT_WRITE, [b'', *ways[opened // len(sources) % len(ways)]])
    opened += 1
begin = time.monotonic()
def goes_on():
    age = time.monotonic() - begin
    return age < 8 or age < 200 and not (opened > 500 and served > 0 and sent > 64 << 20)
while goes_on():
    for _ in range(200):
        if len(selector.get_map()) < 2000: open_one()
    for key, events in selector.select(0.1):
        stream, state = key.fileobj, key.data
        try:
            if events & selectors.EVENT_READ:
                answer = stream.recv(65536)
                if not answer: raise ConnectionError
                served += 1
            if events & selectors.EVENT_WRITE:
                if not state[0]: state[0], state[1] = state[1] or state[2], b''
                if not state[0]:
                    selector.modify(stream, selectors.EVENT_READ, state)
                    continue
                count = stream.send(state[0])
                sent += count
                state[0] = state[0][count:]
        except BlockingIOError: pass
        except OSError:
            selector.unregister(stream)
            stream.close()
print(opened, served, sent)
";

/// The most memory that a process has used, and what it uses now.
fn memory(pid: u32) -> (u64, u64) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let value = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    };
    (value("VmHWM:"), value("VmRSS:"))
}

/// Floods the port from one address, and then from 200.
fn flood(mut victim: Victim) {
    let mut sources = vec!["10.77.0.3".to_owned()];
    let before = memory(victim.host.pid()).1;
    // Resets the maximum to the present value.
    fs::write(format!("/proc/{}/clear_refs", victim.host.pid()), "5").unwrap();
    for addresses in [1_u32, 200] {
        while sources.len() < addresses as usize {
            let source = format!("10.77.0.{}", 20 + sources.len());
            victim.network.ip(ATTACKER, &format!("addr add {source}/24 dev eth0"));
            sources.push(source);
        }
        let script = format!("import sys\nsys.argv = ['', '{}']\n{FLOOD}", sources.join(","));
        let printed = python(&victim.network, ATTACKER, 0, &script);
        let counts: Vec<u64> =
            printed.split_whitespace().map(|count| count.parse().unwrap()).collect();
        let most = memory(victim.host.pid()).0;
        assert!(counts[0] > 500 && counts[1] > 0 && counts[2] > MEMORY_MAX, "a flood: {counts:?}");
        assert!(most < before + MEMORY_MAX, "{before} bytes before, at most {most}");
        victim.assert_unharmed();
    }
}

/// Without a secret.
#[test]
fn of_a_job_without_a_secret() {
    if let Some(victim) = Victim::new("flood") {
        flood(victim);
    }
}

/// With a secret.
#[test]
fn of_a_job_with_a_secret() {
    if let Some(victim) = Victim::secured("sflood") {
        flood(victim);
    }
}

/// With certificates.
#[test]
fn of_a_job_with_certificates() {
    if let Some((victim, _)) = Victim::certified("cflood") {
        flood(victim);
    }
}
