//! Runs an etcd cluster of one or three members, on free ports of the loopback interface.

use std::path::PathBuf;

use nix::sys::signal::Signal;

use crate::support::{Program, Sandbox, Start, free_port, is_there};

/// A running cluster. Its processes end with the sandbox, and its data is in there.
#[derive(Debug)]
pub(crate) struct Cluster<'a> {
    sandbox: &'a Sandbox,
    members: Vec<Member>,
    /// True if clients connect by TLS.
    has_tls: bool,
    /// The user and the password of `etcdctl`, if users are authenticated.
    login: Option<String>,
}

#[derive(Debug)]
struct Member {
    port: u16,
    peer_port: u16,
    program: Option<Program>,
}

/// The key of the job `j`.
pub(crate) const KEY: &str = "/ragent/j/leader";

/// The names of the files that [`Cluster::with_tls`] makes.
pub(crate) const AUTHORITY: &str = "ca.pem";

impl<'a> Cluster<'a> {
    /// Starts a cluster. Returns `None` if etcd is not installed.
    pub(crate) fn start(sandbox: &'a Sandbox, members: usize) -> Option<Self> {
        Self::of(sandbox, members, false)
    }

    /// Starts a cluster of one member that requires certificates from its clients. Returns `None` if etcd or openssl are not installed.
    pub(crate) fn with_tls(sandbox: &'a Sandbox) -> Option<Self> {
        if !is_there("openssl") {
            return None;
        }
        make_certificates(sandbox);
        Self::of(sandbox, 1, true)
    }

    fn of(sandbox: &'a Sandbox, members: usize, has_tls: bool) -> Option<Self> {
        if !is_there("etcd") || !is_there("etcdctl") {
            return None;
        }
        let member = || Member { port: free_port(), peer_port: free_port(), program: None };
        let members = (0..members).map(|_| member()).collect();
        let mut cluster = Self { sandbox, members, has_tls, login: None };
        for index in 0..cluster.members.len() {
            let program = cluster.member(index).start();
            cluster.members[index].program = Some(program);
        }
        for member in &mut cluster.members {
            member.program.as_mut().unwrap().logs("ready to serve client requests");
        }
        Some(cluster)
    }

    /// The members, in the form of `--rdzv-endpoint`.
    pub(crate) fn endpoints(&self) -> String {
        let endpoint = |member: &Member| format!("127.0.0.1:{}", member.port);
        self.members.iter().map(endpoint).collect::<Vec<_>>().join(",")
    }

    /// The words of an agent of the job `j`, which has two nodes, with these in addition.
    pub(crate) fn words(&self, words: &str) -> String {
        let endpoints = self.endpoints();
        format!("--nnodes 2 --rdzv-backend etcd --rdzv-id j --rdzv-endpoint {endpoints} {words}")
    }

    /// Kills a member.
    pub(crate) fn kill(&mut self, index: usize) {
        let program = self.members[index].program.take().unwrap();
        program.signal(Signal::SIGKILL);
        program.end();
    }

    /// Starts a member that was killed, with its data, and waits until it serves clients.
    pub(crate) fn restart(&mut self, index: usize) {
        let mut program = self.member(index).start();
        program.logs("ready to serve client requests");
        self.members[index].program = Some(program);
    }

    /// Removes the data of a member that was killed.
    pub(crate) fn empty(&self, index: usize) {
        std::fs::remove_dir_all(self.data_of(index)).unwrap();
    }

    /// Signals all members.
    pub(crate) fn signal(&self, signal: Signal) {
        for member in &self.members {
            member.program.as_ref().unwrap().signal(signal);
        }
    }

    /// Requires users to log in from now on. They are `root` and `trainer`, who may use the keys of ragent. Their passwords are their
    /// names.
    pub(crate) fn authenticate(&mut self) {
        for words in [
            "user add root:root",
            "user grant-role root root",
            "user add trainer:trainer",
            "role add trainer",
            "role grant-permission trainer --prefix=true readwrite /ragent/",
            "user grant-role trainer trainer",
            "auth enable",
        ] {
            self.control(words);
        }
        self.login = Some("root:root".to_owned());
    }

    /// Runs `etcdctl`, and returns its output.
    #[track_caller]
    pub(crate) fn control(&self, words: &str) -> String {
        let end = self.controller(words).run();
        end.assert_code(0);
        end.stdout
    }

    /// Writes a value that is too large for an argument to the key of the job `j`.
    #[track_caller]
    pub(crate) fn put_file(&self, value: &[u8]) {
        let path = self.sandbox.path("value");
        std::fs::write(&path, value).unwrap();
        let endpoints = self.endpoints();
        let command = format!("etcdctl put {KEY} --endpoints={endpoints} < {}", path.display());
        let start = self.sandbox.program("sh").env("ETCDCTL_API", "3");
        start.arg("-c").arg(command).run().assert_code(0);
    }

    /// Waits until the record of the job `j` was written `times` times.
    #[track_caller]
    pub(crate) fn wait_for_writes(&self, times: usize) {
        let mut watch = self.controller(&format!("watch {KEY}")).start();
        for _ in 0..times {
            watch.prints("PUT");
        }
    }

    fn controller(&self, words: &str) -> Start {
        let scheme = if self.has_tls { "https" } else { "http" };
        let endpoint = |member: &Member| format!("{scheme}://127.0.0.1:{}", member.port);
        let endpoints: Vec<_> = self.members.iter().map(endpoint).collect();
        let mut start = self.sandbox.program("etcdctl").env("ETCDCTL_API", "3");
        for word in words.split_ascii_whitespace() {
            start = start.arg(word);
        }
        start = start.arg(format!("--endpoints={}", endpoints.join(",")));
        // A login takes seconds on a busy machine: a password is compared slowly on purpose.
        start = start.arg("--command-timeout=60s");
        if let Some(login) = &self.login {
            start = start.arg(format!("--user={login}"));
        }
        if self.has_tls {
            for (flag, file) in
                [("cacert", AUTHORITY), ("cert", "client.pem"), ("key", "client-key.pem")]
            {
                start = start.arg(format!("--{flag}={}", self.sandbox.path(file).display()));
            }
        }
        start
    }

    fn data_of(&self, index: usize) -> PathBuf {
        self.sandbox.path(&format!("m{index}.etcd"))
    }

    fn member(&self, index: usize) -> Start {
        let Member { port, peer_port, .. } = self.members[index];
        let scheme = if self.has_tls { "https" } else { "http" };
        let own_client = format!("{scheme}://127.0.0.1:{port}");
        let own_peer = format!("http://127.0.0.1:{peer_port}");
        let of_cluster = |(index, member): (usize, &Member)| {
            format!("m{index}=http://127.0.0.1:{}", member.peer_port)
        };
        let cluster: Vec<_> = self.members.iter().enumerate().map(of_cluster).collect();
        let mut start = self.sandbox.program("etcd");
        for (flag, value) in [
            ("name", format!("m{index}")),
            ("data-dir", text_of(self.data_of(index))),
            ("listen-client-urls", own_client.clone()),
            ("advertise-client-urls", own_client),
            ("listen-peer-urls", own_peer.clone()),
            ("initial-advertise-peer-urls", own_peer),
            ("initial-cluster", cluster.join(",")),
        ] {
            start = start.arg(format!("--{flag}={value}"));
        }
        if self.has_tls {
            let path = |name: &str| self.sandbox.path(name).display().to_string();
            for (flag, value) in [
                ("client-cert-auth", "true".to_owned()),
                ("trusted-ca-file", path(AUTHORITY)),
                ("cert-file", path("server.pem")),
                ("key-file", path("server-key.pem")),
            ] {
                start = start.arg(format!("--{flag}={value}"));
            }
        }
        start
    }
}

/// Makes two authorities. The first has signed certificates for a server on the loopback interface and for a client, the second has signed
/// none.
fn make_certificates(sandbox: &Sandbox) {
    for name in ["ca", "other-ca"] {
        openssl(
            sandbox,
            &format!(
                "req -x509 {NEW_KEY} -days 2 -subj /CN={name} -keyout {name}-key.pem -out {name}.pem"
            ),
        );
    }
    std::fs::write(sandbox.path("names"), "subjectAltName=IP:127.0.0.1,DNS:localhost\n").unwrap();
    for name in ["server", "client"] {
        openssl(
            sandbox,
            &format!("req {NEW_KEY} -subj /CN={name} -keyout {name}-key.pem -out {name}.csr"),
        );
        openssl(
            sandbox,
            &format!(
                "x509 -req -in {name}.csr -CA ca.pem -CAkey ca-key.pem -CAcreateserial -days 2 -extfile names \
                 -out {name}.pem"
            ),
        );
    }
}

const NEW_KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";

#[track_caller]
fn openssl(sandbox: &Sandbox, words: &str) {
    let mut start = sandbox.program("openssl");
    for word in words.split_ascii_whitespace() {
        start = start.arg(word);
    }
    start.run().assert_code(0);
}

/// The path of a file in a sandbox, as text.
pub(crate) fn text_of(path: PathBuf) -> String {
    path.display().to_string()
}
