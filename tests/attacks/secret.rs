//! Attacks a job whose nodes share a secret. The attacker does not have it.

use std::{
    collections::BTreeMap,
    fs::{self, File, Permissions},
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    os::unix::fs::{PermissionsExt, chown},
    path::Path,
    sync::{Arc, Mutex},
    thread,
};

use nix::{
    sys::stat::Mode,
    unistd::{geteuid, mkfifo},
};
use ragent_base::secret::{Secret, file};
use ragent_proto::v1::{
    AgentMessage, agent_message::Message, coordination_client::CoordinationClient,
};
use tonic::Code;

use crate::{
    attacker::{OTHER, here, python, registration},
    support::{Sandbox, free_port, skip},
    victim::{ATTACKER, ENDPOINT, Victim, make_secret},
};

const ASK: &str = "
import socket
def code(request, host='10.77.0.1'):
    stream = socket.create_connection((host, 29400))
    lines = [request + ' HTTP/1.1', 'Host: ' + host, 'Connection: close', '', '']
    stream.sendall('\\r\\n'.join(lines).encode())
    return stream.recv(100)[9:12].decode()
";

/// 1: without the secret, no client reads the job's state or uses its nodes. Only this user on a host of the job may read the page, the
/// state and the metrics.
#[test]
fn pages_for_strangers() {
    let Some(mut victim) = Victim::secured("pages") else { return };
    let paths =
        ["/status", "/v1/reach", "/", "/v1/watch", "/metrics", "/ragent.v1.Coordination/Attend"];
    let codes = |node, uid, host: &str| {
        let asked = paths.map(|path| format!("code('GET {path}', '{host}')")).join(",");
        let script = format!("{ASK}\nprint(code('GET /v1/identity', '{host}'), {asked})");
        python(&victim.network, node, uid, &script).trim().to_owned()
    };
    assert_eq!(codes(ATTACKER, 0, "10.77.0.1"), "200 403 403 403 403 403 403");
    for host in ["127.0.0.1", "10.77.0.1"] {
        assert_eq!(codes(1, OTHER, host), "200 403 403 403 403 403 403");
        assert_eq!(codes(1, 0, host), "200 200 403 200 200 200 403");
    }
    // The user of a member's host is not this user.
    assert_eq!(codes(2, 0, "10.77.0.1"), "200 403 403 403 403 403 403");
    victim.assert_unharmed();
}

/// The port of the metrics serves strangers that page and nothing else. A flood of connections to it disturbs neither the job nor other
/// clients of the page, and does not use up the agent's descriptors.
#[test]
fn port_of_the_metrics() {
    let Some(mut victim) = Victim::scraped("scrape") else { return };
    let script = "
import resource, socket
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
def ask(path, port=9400, host='job.example'):
    stream = socket.create_connection(('10.77.0.1', port))
    stream.sendall(f'GET {path} HTTP/1.0\\r\\nHost: {host}\\r\\n\\r\\n'.encode())
    text = b''
    while part := stream.recv(65536):
        text += part
    return text[9:12].decode(), text.decode()
pages = ['/metrics', '/status', '/v1/identity', '/v1/reach', '/']
print(*[ask(path)[0] for path in pages], ask('/metrics', 29400, '10.77.0.1')[0])
flood = [socket.create_connection(('10.77.0.1', 9400)) for _ in range(2000)]
code, text = ask('/metrics')
files = [line.split()[1] for line in text.splitlines() if line.startswith('process_open_fds ')]
print(code, int(files[0]) < 200)
";
    for (node, uid) in [(ATTACKER, 0), (1, OTHER)] {
        let printed = python(&victim.network, node, uid, script);
        assert_eq!(printed, "200 404 404 404 404 403\n200 True\n", "on node {node}");
    }
    victim.assert_unharmed();
}

/// 2: without the secret, no node registers.
#[test]
fn registration_without_the_secret() {
    let Some(mut victim) = Victim::secured("regist") else { return };
    register_without_tls(&victim, "--secret-file");
    victim.assert_unharmed();
    let line = victim.host.logs("connection refused");
    assert!(line.contains("10.77.0.3"), "{line}");
    let status = victim.printed_status();
    let row = "refused: 1 from 10.77.0.3 (it has not proven that it knows the secret)";
    assert!(status.lines().any(|line| line == row), "{status}");
}

/// Registers without TLS. The refusal must contain `hint`.
pub(crate) fn register_without_tls(victim: &Victim, hint: &str) {
    for node in [ATTACKER, 1] {
        here(&victim.network, node, || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let channel = tonic::transport::Endpoint::from_shared(format!("http://{ENDPOINT}"));
                let channel = channel.unwrap().connect().await.unwrap();
                let mut client = CoordinationClient::new(channel);
                let first = Message::Registration(registration("evil_1", "10.77.0.3", 1));
                let first = AgentMessage { message: Some(first) };
                let refused = client.attend(tokio_stream::once(first)).await.unwrap_err();
                assert_eq!(refused.code(), Code::Unauthenticated, "{refused}");
                assert!(refused.message().contains(hint), "{refused}");
            });
        });
    }
}

/// 2, 15: a flood of handshakes with another secret fails, and does not disturb the job. A process with the secret is served meanwhile.
#[test]
fn handshakes_with_another_secret() {
    let Some(mut victim) = Victim::secured("shake") else { return };
    let script = "
import socket, ssl
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname = False
context.verify_mode = ssl.CERT_NONE
def shake(name):
    stream = socket.create_connection(('10.77.0.1', 29400))
    try:
        context.wrap_socket(stream, server_hostname=name)
        return 'accepted'
    except (ssl.SSLError, OSError) as error:
        return 'refused'
names = ['0' * 32 + '.ragent.invalid', 'localhost', '10.77.0.1']
print({shake(names[number % 3]) for number in range(3000)})
";
    let network = &victim.network;
    let attacker = thread::scope(|scope| {
        let attacker = scope.spawn(|| python(network, ATTACKER, 0, script));
        while !attacker.is_finished() {
            assert!(victim.printed_status().contains("running"));
        }
        attacker.join().unwrap()
    });
    assert_eq!(attacker.trim(), "{'refused'}");
    victim.assert_unharmed();
}

/// 13: the store on the endpoint's port is closed, because it cannot authenticate its clients.
#[test]
fn plain_store_is_closed() {
    let script = "
import socket, struct
stream = socket.create_connection(('10.77.0.1', 29400))
stream.settimeout(60)
try:
    stream.sendall(b'\\0' + struct.pack('<I', 0x3C85F7CE) + b'\\x0dpong')
    print(stream.recv(100).decode() or 'closed')
except OSError:
    print('closed')
";
    for (secured, expected) in [(true, "closed"), (false, "pong")] {
        let victim = if secured { Victim::secured("shut") } else { Victim::new("open") };
        let Some(mut victim) = victim else { return };
        assert_eq!(python(&victim.network, 1, 0, script).trim(), expected);
        victim.assert_unharmed();
    }
}

/// Without a secret, another user of the machine cannot read the state of a job at a loopback address, or register in it, unless the job is
/// for all users.
#[test]
fn loopback_endpoint_is_of_its_user() {
    if !geteuid().is_root() {
        return skip("another uid needs root");
    }
    for (auth, codes) in [("auto", ["403", "200"]), ("none", ["200", "200"])] {
        let sandbox = Sandbox::new();
        let words = format!(
            "--auth {auth} --nnodes 1 --rdzv-endpoint 127.0.0.1:{} --no-python stay.sh",
            free_port()
        );
        let mut host = sandbox.ragent(&words).start();
        let endpoint = host.endpoint();
        let script = format!(
            "
import urllib.request, urllib.error
try:
    print(urllib.request.urlopen('http://{endpoint}/status').status)
except urllib.error.HTTPError as error:
    print(error.code)
"
        );
        for (uid, code) in [OTHER, 0].into_iter().zip(codes) {
            let uid = format!("--reuid={uid}");
            let ask = sandbox.program("setpriv").arg(uid).arg("--clear-groups");
            let asked = ask.arg("/usr/bin/python3").arg("-c").arg(&script).run();
            assert_eq!(asked.stdout.trim(), code, "{auth}: {}", asked.stderr);
        }
        if auth == "none" {
            continue;
        }
        let ragent = env!("CARGO_BIN_EXE_ragent");
        let registration = sandbox.program("setpriv").arg(format!("--reuid={OTHER}"));
        let registration =
            registration.arg("--clear-groups").arg(ragent).env("XDG_RUNTIME_DIR", "/nowhere");
        let words = format!("status --rdzv-endpoint {endpoint}");
        let refused = words.split(' ').fold(registration, |start, word| start.arg(word)).run();
        refused.assert_code(1);
        refused.assert_stderr(&["serves uid 0 of this machine only", "--auth none"]);
    }
}

/// Passes connections on to `to`, and records all bytes in both directions.
fn relay(to: String) -> (String, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let recorded = Arc::new(Mutex::new(Vec::new()));
    let record = Arc::clone(&recorded);
    thread::spawn(move || {
        for client in listener.incoming() {
            let (client, server) = (client.unwrap(), TcpStream::connect(&to).unwrap());
            let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
            for (mut from, mut to) in [(client, server), back] {
                let record = Arc::clone(&record);
                thread::spawn(move || {
                    let mut bytes = [0; 4096];
                    while let Ok(len @ 1..) = from.read(&mut bytes) {
                        record.lock().unwrap().extend_from_slice(&bytes[..len]);
                        if to.write_all(&bytes[..len]).is_err() {
                            break;
                        }
                    }
                    let _ = to.shutdown(Shutdown::Write);
                });
            }
        }
    });
    (address, recorded)
}

/// 7: a process that relays the connections of a member reads neither the job's name nor its nodes' roles. Without a secret, it could read
/// both.
#[test]
fn relayed_connections_are_unreadable() {
    const NAMES: [&str; 2] = ["relayed-job", "relayed-role"];
    for secured in [true, false] {
        let sandbox = Sandbox::new();
        let auth = match secured {
            true => format!("--secret-file {}", make_secret(&sandbox).display()),
            false => "--auth none".to_owned(),
        };
        let agent = |endpoint: &str| {
            let [job, role] = NAMES;
            let words = format!(
                "--nnodes 2 {auth} --rdzv-id {job} --role {role} --rdzv-endpoint {endpoint} \
                 --no-python stay.sh"
            );
            sandbox.ragent(&words).start()
        };
        let mut host = agent(&format!("127.0.0.1:{}", free_port()));
        let (relayed, recorded) = relay(host.endpoint());
        let mut guest = agent(&relayed);
        host.worker();
        guest.worker();
        let recorded = recorded.lock().unwrap();
        for name in NAMES {
            let is_read = recorded.windows(name.len()).any(|part| part == name.as_bytes());
            assert_eq!(is_read, !secured, "{name}");
        }
    }
}

/// The bytes of all files below a folder, by path. Pipes and sockets are left out.
fn files_below(folder: &Path, files: &mut BTreeMap<String, Vec<u8>>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => files_below(&entry.path(), files),
            kind if kind.is_file() => {
                let name = entry.path().display().to_string();
                files.insert(name, fs::read(entry.path()).unwrap());
            }
            _ => {}
        }
    }
}

/// Another user of the host cannot use the cookie of `ragent page`, which a browser sends to every port of 127.0.0.1.
#[test]
fn cookie_of_the_page_is_for_its_user() {
    let Some(mut victim) = Victim::secured("cookie") else { return };
    let mut page = victim.open_page();
    let line = page.prints("http://");
    let (address, token) =
        line.split_once("http://").unwrap().1.trim().split_once("/?token=").unwrap();
    let ask = |uid, path: &str, cookie: &str| {
        let script = format!(
            "
import http.client
host = http.client.HTTPConnection('{address}', timeout=60)
host.request('GET', '{path}', headers={{'Cookie': '{cookie}'}})
answer = host.getresponse()
print(answer.status, (answer.getheader('Set-Cookie') or '').split(';')[0])"
        );
        python(&victim.network, 1, uid, &script).trim().to_owned()
    };
    let open = format!("/?token={token}");
    assert_eq!(ask(OTHER, &open, ""), "403");
    let entered = ask(0, &open, "");
    let cookie = entered.strip_prefix("303 ").unwrap();
    assert_eq!(ask(0, "/status", cookie), "200");
    for path in ["/status", "/", "/v1/watch", &open] {
        assert_eq!(ask(OTHER, path, cookie), "403", "{path}");
    }
    victim.assert_unharmed();
}

/// 23: the secret is in its file or, without a file, in the registration of the agent. It is not in an argument, a variable, another file,
/// a log line or the status.
#[test]
fn secret_is_nowhere_else() {
    let sandbox = Sandbox::new();
    let path = make_secret(&sandbox);
    let secret = fs::read_to_string(&path).unwrap().trim().to_owned();
    let holds = |bytes: &[u8]| bytes.windows(secret.len()).any(|part| part == secret.as_bytes());
    let port = free_port();
    let agent = |flags: &str, stdin: Option<File>| {
        let words = format!(
            "--nnodes 2 --rdzv-id j --rdzv-endpoint 127.0.0.1:{} {flags} --log-dir logs --redirects 3 \
             --report report.json --no-python stay.sh",
            port
        );
        let start = sandbox.ragent(&words).env("RAGENT_LOG", "trace");
        match stdin {
            Some(file) => start.stdin(file).start(),
            None => start.env("PET_SECRET_FILE", &path).start(),
        }
    };
    let mut host = agent("", None);
    host.endpoint();
    let mut guest = agent("--secret-file -", Some(File::open(&path).unwrap()));
    for agent in [&mut host, &mut guest] {
        agent.logs("worker started");
    }
    let status = sandbox.ragent("status --json").run();
    status.assert_code(0);
    assert!(!holds(status.stdout.as_bytes()));
    for pid in sandbox.processes() {
        for part in ["cmdline", "environ"] {
            let bytes = fs::read(format!("/proc/{pid}/{part}")).unwrap_or_default();
            assert!(!holds(&bytes), "{part} of {}", crate::support::command_line(pid));
        }
    }
    let mut files = BTreeMap::new();
    files_below(&sandbox.path(""), &mut files);
    let registration = format!("agent-{}-", guest.pid());
    let holding: Vec<_> =
        files.iter().filter(|(_, bytes)| holds(bytes)).map(|(name, _)| name).collect();
    let expected = [sandbox.path("run/ragent").join(registration), path.clone()];
    let expected = expected.map(|path| path.display().to_string());
    let is_expected = |(name, start): (&&String, &String)| name.starts_with(start);
    assert_eq!(holding.len(), 2, "{holding:?}");
    assert!(holding.iter().zip(&expected).all(is_expected), "{holding:?}");
    for agent in [&mut host, &mut guest] {
        agent.signal(nix::sys::signal::Signal::SIGTERM);
    }
    let ends = [host.end(), guest.end()];
    for end in &ends {
        assert!(end.stderr.contains("TRACE") || end.stderr.contains("DEBUG"), "{}", end.stderr);
        assert!(!holds(end.stderr.as_bytes()) && !holds(end.stdout.as_bytes()));
    }
    let mut files = BTreeMap::new();
    files_below(&sandbox.path(""), &mut files);
    let holding: Vec<_> = files.into_iter().filter(|(_, bytes)| holds(bytes)).collect();
    assert_eq!(holding.len(), 1, "only its file is left");
}

/// 24: while a job runs, its secret file becomes accessible to others, a pipe, huge or binary. The job goes on with the secret that it has.
/// Processes with that secret are served, those with another one are refused, and no reading of the file blocks the port.
#[test]
fn secret_file_becomes_unsound() {
    let Some(mut victim) = Victim::secured("unsound") else { return };
    let [path, copy, other] = ["secret", "copy", "other"].map(|name| victim.path(name));
    fs::copy(&path, &copy).unwrap();
    file::create(&other, &Secret::random().unwrap()).unwrap();
    for (plant, problem) in [
        ("mode", "is not private: its mode is 0666"),
        ("pipe", "is not a regular file"),
        ("huge", "is larger than 64 KiB"),
        ("binary", "is invalid in line 1"),
    ] {
        fs::remove_file(&path).unwrap();
        match plant {
            "mode" => fs::copy(&other, &path).map(drop).unwrap(),
            "pipe" => mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR).unwrap(),
            "huge" => File::create(&path).unwrap().set_len(1 << 30).unwrap(),
            _ => fs::write(&path, b"\x7fELF\x02\x01\0\xff".repeat(500)).unwrap(),
        }
        let mode = if plant == "mode" { 0o666 } else { 0o600 };
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        // Asks for the identity of the host, which reads its file before it answers.
        let refused = victim.register(ATTACKER, &format!("--secret-file {}", other.display()));
        refused.assert_code(9);
        refused.assert_stderr(&["has another secret"]);
        let line = victim.host.logs("the present ones stay in use");
        assert!(line.contains(problem), "{plant}: {line}");
        let served = victim.ask_status(ATTACKER, &format!("--secret-file {}", copy.display()));
        served.assert_code(0);
        assert!(served.stdout.contains("running"), "{plant}: {}", served.stdout);
    }
    victim.assert_unharmed();
}

/// 25: another user has taken the loopback endpoint of a job first, with an agent that accepts all users. An agent does not join it, and
/// starts no worker.
#[test]
fn loopback_endpoint_of_another_user() {
    if !geteuid().is_root() {
        return skip("another uid needs root");
    }
    let sandbox = Sandbox::new();
    let port = free_port();
    let words = |auth| {
        format!("--auth {auth} --nnodes 2 --rdzv-endpoint 127.0.0.1:{port} --no-python true")
    };
    let folder = sandbox.path("other");
    fs::create_dir(&folder).unwrap();
    chown(&folder, Some(OTHER), Some(OTHER)).unwrap();
    fs::set_permissions(sandbox.path(""), Permissions::from_mode(0o711)).unwrap();
    let squatter = sandbox.program("setpriv").arg(format!("--reuid={OTHER}"));
    let squatter = squatter.arg("--clear-groups").arg(env!("CARGO_BIN_EXE_ragent"));
    let squatter = squatter.env("XDG_RUNTIME_DIR", &folder).env("TMPDIR", &folder);
    let squatter = words("none").split(' ').fold(squatter, |start, word| start.arg(word));
    let mut squatter = squatter.start();
    squatter.endpoint();
    let refused = sandbox.ragent(&words("auto")).run();
    refused.assert_code(9);
    refused.assert_stderr(&[
        &format!("belongs to uid {OTHER} of this machine, not to this user or to root"),
        "hint: choose another port",
    ]);
    assert!(!refused.stderr.contains("worker started"), "{}", refused.stderr);
    // Without this check, the agent joins the job.
    let joined = sandbox.ragent(&words("none")).run();
    joined.assert_code(0);
    squatter.end().assert_code(0);
}
