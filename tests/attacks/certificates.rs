//! Attacks a job whose nodes have certificates. The attacker has no certificate, or a wrong one.

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use ragent_rendezvous::message::PROTOCOL_VERSION;

use crate::{
    attacker::python,
    coordinator::{serve_as, short_lease},
    support::{Authority, Issue, Sandbox, tls_flags, write_certificates},
    victim::{ATTACKER, NAME, Victim},
};

const PATHS: [&str; 6] =
    ["/status", "/v1/reach", "/", "/v1/watch", "/metrics", "/ragent.v1.Coordination/Attend"];

/// Sends requests with TLS. The answer is the code, or `refused`.
const ASK: &str = "
import socket, ssl
def request(stream, path):
    lines = ['GET ' + path + ' HTTP/1.1', 'Host: 10.77.0.1', 'Connection: close', '', '']
    stream.sendall('\\r\\n'.join(lines).encode())
    return stream.recv(100)[9:12].decode() or 'closed'
def secure(path, files=None):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if files: context.load_cert_chain(*files)
    stream = socket.create_connection(('10.77.0.1', 29400))
    stream.settimeout(60)
    try:
        return request(context.wrap_socket(stream), path)
    except (ssl.SSLError, ConnectionError): return 'refused'
";

/// 2: a client with an accepted certificate gets a page. A client without one, or with one of another authority or another name, gets none,
/// not even as this user on the host.
#[test]
fn clients_whose_certificate_is_not_accepted() {
    let Some((mut victim, authority)) = Victim::certified("cert") else { return };
    let foreign = Authority::new("foreign");
    let put = |name: &str, by: &Authority, issue: &Issue| {
        let folder = victim.path(name);
        let [_, certificate, key] = write_certificates(&folder, &[by], &by.issue(issue));
        format!("('{}', '{}')", certificate.display(), key.display())
    };
    let own = Issue::with_names(&[NAME]);
    let accepted = put("accepted", &authority, &own);
    let expired = Issue { last: 1_000_000_000, ..own.clone() };
    let attackers = [
        "None".to_owned(),
        put("foreign", &foreign, &own),
        put("namesake", &Authority::new("ca"), &own),
        put("expired", &authority, &expired),
        put("other", &authority, &Issue::with_names(&["other.example"])),
        put("subject", &authority, &Issue { subject: NAME.to_owned(), ..Issue::with_names(&[]) }),
        put("below", &authority, &Issue::with_names(&["x.job.example", "*.example"])),
    ];
    let asked = |files: &str| PATHS.map(|path| format!("secure('{path}', {files})")).join(",");
    for node in [ATTACKER, 1] {
        for files in &attackers {
            let answers =
                python(&victim.network, node, 0, &format!("{ASK}\nprint({})", asked(files)));
            assert_eq!(answers.trim(), ["refused"; 6].join(" "), "{files}");
        }
    }
    let script = format!("{ASK}\nprint(secure('/status', {accepted}))");
    assert_eq!(python(&victim.network, ATTACKER, 0, &script).trim(), "200");
    victim.assert_unharmed();
    let line = victim.host.logs("its certificate is not accepted");
    assert!(line.contains("10.77.0.3"), "{line}");
}

/// 2: no node registers without a certificate of the job's authority. It exits, and the job is unharmed.
#[test]
fn registration_without_a_certificate() {
    let Some((mut victim, authority)) = Victim::certified("cregister") else { return };
    let foreign = Authority::new("foreign");
    let issued = foreign.issue(&Issue::with_names(&[NAME]));
    let files = write_certificates(&victim.path("attacker"), &[&foreign, &authority], &issued);
    for (flags, part) in [
        (tls_flags(&files), "does not accept the certificate of this one"),
        ("--auth none".to_owned(), "requires a certificate"),
    ] {
        let end = victim.register(ATTACKER, &flags);
        end.assert_code(9);
        end.assert_stderr(&[part]);
    }
    crate::secret::register_without_tls(&victim, "--tls-cert");
    victim.assert_unharmed();
}

/// A process that has taken the endpoint. It names certificates in its identity, and has one itself.
struct Impostor {
    process: Child,
    address: SocketAddr,
}

impl Impostor {
    fn start([_, certificate, key]: &[PathBuf; 3]) -> Self {
        let identity = serde_json::json!({
            "ragent": env!("CARGO_PKG_VERSION"), "protocol": PROTOCOL_VERSION, "run_id": "job",
            "auth": "tls",
        });
        let script = format!(
            "
import socket, ssl, threading
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain('{}', '{}')
identity = '''{identity}'''
listener = socket.create_server(('127.0.0.1', 0))
print(listener.getsockname()[1], flush=True)
def serve(stream):
    try:
        if stream.recv(1, socket.MSG_PEEK) == b'\\x16': stream = context.wrap_socket(stream, server_side=True)
        stream.recv(65536)
        lines = ['HTTP/1.1 200 OK', 'Content-Length: ' + str(len(identity)), '', identity]
        stream.sendall('\\r\\n'.join(lines).encode())
        stream.close()
    except OSError: pass
while True: threading.Thread(target=serve, args=listener.accept()[:1]).start()
",
            certificate.display(),
            key.display()
        );
        let python =
            Command::new("/usr/bin/python3").args(["-c", &script]).stdout(Stdio::piped()).spawn();
        let mut process = python.unwrap();
        let mut port = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut port).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], port.trim().parse().unwrap()));
        Self { process, address }
    }
}

impl Drop for Impostor {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// 6, 7, 8: a process that has taken the endpoint starts no worker on a node with certificates. It may deny that there are certificates, or
/// have no TLS. Its certificate may be of another authority, of another name, or have expired.
#[test]
fn impostor_without_a_certificate() {
    let sandbox = Sandbox::new();
    let authority = Authority::new("ca");
    let issue = Issue::with_names(&[NAME]);
    let put = |name: &str, by: &Authority, issue: &Issue| {
        write_certificates(&sandbox.path(name), &[by], &by.issue(issue))
    };
    let flags = tls_flags(&put("own", &authority, &issue));
    let run = |address: SocketAddr, part: &str| {
        let words = format!(
            "--nnodes 2 --rdzv-id job --rdzv-endpoint {address} --rdzv-conf is_host=0,join_timeout=3 \
             {flags} --no-python stay.sh"
        );
        let end = sandbox.ragent(&words).run();
        assert!(matches!(end.code, Some(1 | 9)), "{:?}", end.code);
        assert_eq!(end.stdout, "", "a worker was started");
        end.assert_stderr(&[part]);
    };
    let denied = serve_as(short_lease(), serde_json::json!({ "auth": "none" }));
    run(denied, "has no certificate; this one has one");
    let stripped = serve_as(short_lease(), serde_json::json!({ "auth": "tls" }));
    run(stripped, "has not authenticated itself");
    let expired = Issue { last: 1_000_000_000, ..issue.clone() };
    for (name, by, issue, part) in [
        ("foreign", &Authority::new("foreign"), &issue, "has signed it"),
        ("namesake", &Authority::new("ca"), &issue, "has signed it"),
        ("expired", &authority, &expired, "it has expired at"),
        (
            "other",
            &authority,
            &Issue::with_names(&["127.0.0.1.example"]),
            "required name `job.example`",
        ),
    ] {
        let impostor = Impostor::start(&put(name, by, issue));
        run(impostor.address, part);
    }
}
