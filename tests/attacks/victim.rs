//! Runs the target of an attack: a job of two agents on two nodes of a network, with a third node for the attacker.

use std::{io::Read, net::TcpStream, path::PathBuf};

use ragent_base::secret::{Secret, file};
use serde_json::Value;

use crate::{
    attacker::{here, http},
    support::{
        Authority, End, Issue, Network, Program, Sandbox, Worker, may_make_networks, tls_flags,
        write_certificates,
    },
};

/// The address of the coordinator.
pub(crate) const ENDPOINT: &str = "10.77.0.1:29400";

/// A job with running workers.
pub(crate) struct Victim {
    sandbox: Sandbox,
    pub(crate) network: Network,
    pub(crate) host: Program,
    pub(crate) guest: Program,
    pub(crate) workers: [Worker; 2],
    /// The port of the round's store.
    pub(crate) store_port: u16,
}

/// The name in the certificates of a job.
pub(crate) const NAME: &str = "job.example";

/// The attacker's node.
pub(crate) const ATTACKER: u32 = 3;

/// The flags that all nodes share.
const SHARED: &str = "--nnodes 2 --max-restarts 3 --rdzv-id job --rdzv-endpoint 10.77.0.1:29400 \
                      --rdzv-conf last_call_timeout=600,join_settle=0.1,shrink_timeout=0";

/// Makes a file with a secret.
pub(crate) fn make_secret(sandbox: &Sandbox) -> PathBuf {
    let path = sandbox.path("secret");
    file::create(&path, &Secret::random().unwrap()).unwrap();
    path
}

impl Victim {
    /// Starts a job. Returns `None` if networks cannot be made.
    pub(crate) fn new(name: &str) -> Option<Self> {
        Self::with(name, "")
    }

    /// Starts a job with further flags on all nodes.
    pub(crate) fn with(name: &str, flags: &str) -> Option<Self> {
        may_make_networks().then(|| Self::start(Sandbox::new(), name, flags))
    }

    /// Starts a job whose nodes share a secret. Returns `None` if networks cannot be made.
    pub(crate) fn secured(name: &str) -> Option<Self> {
        let sandbox = Sandbox::new();
        let flags = format!("--secret-file {}", make_secret(&sandbox).display());
        may_make_networks().then(|| Self::start(sandbox, name, &flags))
    }

    /// Starts a job whose nodes share a secret and have a port for the metrics. Returns `None` if networks cannot be made.
    pub(crate) fn scraped(name: &str) -> Option<Self> {
        let sandbox = Sandbox::new();
        let secret = make_secret(&sandbox);
        let flags = format!("--metrics-listen 0.0.0.0:9400 --secret-file {}", secret.display());
        may_make_networks().then(|| Self::start(sandbox, name, &flags))
    }

    /// Starts a job whose nodes have certificates, and returns their authority too. Returns `None` if networks cannot be made.
    pub(crate) fn certified(name: &str) -> Option<(Self, Authority)> {
        let sandbox = Sandbox::new();
        let authority = Authority::new("ca");
        let issued = authority.issue(&Issue::with_names(&[NAME]));
        let flags = tls_flags(&write_certificates(&sandbox.path("tls"), &[&authority], &issued));
        may_make_networks().then(|| (Self::start(sandbox, name, &flags), authority))
    }

    /// A path for files of the attacker.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.sandbox.path(name)
    }

    /// Runs another agent of the job on a node.
    pub(crate) fn register(&self, node: u32, flags: &str) -> End {
        let words = format!("{SHARED} {flags} --no-python stay.sh");
        self.network.ragent(&self.sandbox, node, &words).run()
    }

    fn start(sandbox: Sandbox, name: &str, flags: &str) -> Self {
        let network = Network::new(name, 3);
        let words = format!("{SHARED} {flags} --no-python stay.sh");
        let mut host = network.ragent(&sandbox, 1, &words).start();
        let mut guest = network.ragent(&sandbox, 2, &words).start();
        let line = host.logs("nodes=2 world_size=2 master=10.77.0.1:");
        let (_, port) = line.split_once("master=10.77.0.1:").unwrap();
        let digits: String = port.chars().take_while(char::is_ascii_digit).collect();
        let workers = [host.worker(), guest.worker()];
        let store_port = digits.parse().unwrap();
        Self { sandbox, network, host, guest, workers, store_port }
    }

    /// The status of the job over HTTP.
    pub(crate) fn status(&self) -> Value {
        let answer = here(&self.network, 1, || {
            let mut stream = TcpStream::connect(ENDPOINT).unwrap();
            http(
                &mut stream,
                "GET /status HTTP/1.1\r\nHost: 10.77.0.1\r\nConnection: close\r\n\r\n",
            );
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer
        });
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        serde_json::from_str(body).unwrap()
    }

    /// Prints the job's status, as a user on the node of the host.
    pub(crate) fn printed_status(&self) -> String {
        let words = format!("status --rdzv-endpoint {ENDPOINT}");
        let end = self.network.ragent(&self.sandbox, 1, &words).run();
        end.assert_code(0);
        end.stdout
    }

    /// Reads the output of the workers, as a user on the node of the host.
    pub(crate) fn logs(&self) -> End {
        let words = format!("logs --rdzv-endpoint {ENDPOINT}");
        self.network.ragent(&self.sandbox, 1, &words).default_lines().run()
    }

    /// Asks for the status at another endpoint, as a user on the node of the host, with the job's secret.
    pub(crate) fn ask_status_of(&self, endpoint: &str) -> End {
        let secret = self.sandbox.path("secret");
        let words = format!("status --rdzv-endpoint {endpoint} --secret-file {}", secret.display());
        self.network.ragent(&self.sandbox, 1, &words).run()
    }

    /// Asks for the job's status from a node, with further flags.
    pub(crate) fn ask_status(&self, node: u32, flags: &str) -> End {
        let words = format!("status --rdzv-endpoint {ENDPOINT} {flags}");
        self.network.ragent(&self.sandbox, node, &words).run()
    }

    /// Starts `ragent page` on the node of the host, with the job's secret.
    pub(crate) fn open_page(&self) -> Program {
        let secret = self.sandbox.path("secret");
        let words = format!("page --rdzv-endpoint {ENDPOINT} --secret-file {}", secret.display());
        self.network.ragent(&self.sandbox, 1, &words).start()
    }

    /// The id of the guest's agent.
    pub(crate) fn guest_id(&self) -> String {
        let status = self.status();
        let nodes = status["nodes"].as_array().unwrap();
        let guest = nodes.iter().find(|node| node["address"] == "10.77.0.2").unwrap();
        guest["node_id"].as_str().unwrap().to_owned()
    }

    /// Fails if the attack had any effect on the job.
    #[track_caller]
    pub(crate) fn assert_unharmed(&mut self) {
        let status = self.status();
        assert_eq!(
            (&status["round"], &status["phase"]),
            (&1.into(), &"running".into()),
            "{status}"
        );
        assert_eq!(status["restarts_used"], 0, "{status}");
        let running = |node: &&Value| node["state"] == "running";
        assert_eq!(
            status["nodes"].as_array().unwrap().iter().filter(running).count(),
            2,
            "{status}"
        );
        for worker in &self.workers {
            assert!(crate::support::is_alive(worker.pid()), "a worker was killed");
        }
        let (host, guest) = (&self.host, &self.guest);
        for agent in [host, guest] {
            let text = agent.text(crate::support::Stream::Stderr);
            assert!(!text.contains("round ended") && !text.contains("node lost"), "{text}");
        }
    }
}
