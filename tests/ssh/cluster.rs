//! Runs hosts with an sshd each, and another host from which jobs are launched.

use std::{fs, path::Path, process::Command};

use ragent_base::sys::{
    clock,
    host::{Host, ThisHost},
};

use crate::support::{
    Network, PATIENCE, Program, Sandbox, Start, command_line, is_there, may_make_networks, skip,
};

/// Hosts `node1`, `node2`, …, with entries in the ssh configuration. Dropping it ends all of its
/// processes.
#[derive(Debug)]
pub(crate) struct Cluster {
    servers: Vec<Program>,
    pub(crate) network: Network,
    pub(crate) sandbox: Sandbox,
    hosts: u32,
}

const SSHD: &str = "/usr/sbin/sshd";

impl Cluster {
    /// Starts a cluster. If that is impossible, prints why and returns `None`.
    pub(crate) fn new(name: &str, hosts: u32) -> Option<Self> {
        if !may_make_networks() || !is_there("ssh") || !is_there("ssh-keygen") {
            return None;
        }
        if !Path::new(SSHD).exists() {
            skip(&format!("there is no {SSHD}"));
            return None;
        }
        // sshd needs this folder, which its service would create.
        fs::create_dir_all("/run/sshd").unwrap();
        let sandbox = Sandbox::new();
        make_key(&sandbox, "host_key");
        make_key(&sandbox, "user_key");
        fs::copy(sandbox.path("user_key.pub"), sandbox.path("authorized_keys")).unwrap();
        let public = fs::read_to_string(sandbox.path("host_key.pub")).unwrap();
        fs::write(sandbox.path("known_hosts"), format!("10.77.0.* {public}")).unwrap();
        let network = Network::new(name, hosts + 1);
        let mut cluster = Self { servers: Vec::new(), network, sandbox, hosts };
        cluster.write_client_config("");
        for node in 1..=hosts {
            cluster.serve(node, 22, "");
        }
        let lines: String = (1..=hosts).map(|node| format!("node{node}\n")).collect();
        cluster.write("hosts", &lines);
        Some(cluster)
    }

    /// Writes a file that programs of this test find by its name.
    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.sandbox.path(name), text).unwrap();
    }

    /// Writes the configuration of ssh. `first` takes precedence.
    pub(crate) fn write_client_config(&self, first: &str) {
        let path = |name| self.sandbox.path(name).display().to_string();
        let hosts: String = (1..=9)
            .map(|node| format!("Host node{node}\nHostName {}\n", Network::address(node)))
            .collect();
        let text = format!(
            "{first}\nHost *\nUser root\nIdentityFile {}\nIdentitiesOnly yes\n\
             UserKnownHostsFile {}\nGlobalKnownHostsFile /dev/null\n\
             StrictHostKeyChecking yes\nCheckHostIP no\n{hosts}",
            path("user_key"),
            path("known_hosts"),
        );
        self.write("ssh_config", &text);
    }

    /// Starts an sshd on a host. In its configuration, `first` takes precedence.
    pub(crate) fn serve(&mut self, node: u32, port: u16, first: &str) {
        let path = |name| self.sandbox.path(name).display().to_string();
        let environment: Vec<String> = self
            .sandbox
            .environment()
            .into_iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let text = format!(
            "{first}\nListenAddress {}\nPort {port}\nHostKey {}\nAuthorizedKeysFile {}\n\
             PidFile none\nUsePAM no\nStrictModes no\nPermitRootLogin yes\nMaxStartups 100\n\
             PrintMotd no\nSetEnv {}\n",
            Network::address(node),
            path("host_key"),
            path("authorized_keys"),
            environment.join(" "),
        );
        let name = format!("sshd_config.{node}.{port}");
        self.write(&name, &text);
        let start = self.network.program(&self.sandbox, node, SSHD);
        let mut server = start.arg("-D").arg("-e").arg("-f").arg(path(&name)).start();
        server.logs("Server listening on");
        self.servers.push(server);
    }

    /// Returns `ragent launch` with these arguments, on the launching host.
    pub(crate) fn launch(&self, words: &str) -> Start {
        let ssh = format!("ssh -F {}", self.sandbox.path("ssh_config").display());
        self.launch_by(&ssh, words)
    }

    /// The same with another command for ssh.
    pub(crate) fn launch_by(&self, ssh: &str, words: &str) -> Start {
        let ragent = env!("CARGO_BIN_EXE_ragent");
        let start = self.network.program(&self.sandbox, self.hosts + 1, ragent);
        let start = start.arg("launch").arg("--ssh").arg(ssh);
        let start =
            if words.contains("--hostfile") { start } else { start.arg("--hostfile").arg("hosts") };
        words.split_ascii_whitespace().fold(start, Start::arg)
    }

    /// The processes of this test other than the servers, with their command lines.
    pub(crate) fn left(&self) -> Vec<String> {
        let lines = self.sandbox.processes().into_iter().map(|pid| (pid, command_line(pid)));
        let own = lines.filter(|(_, line)| !line.contains("sshd"));
        own.map(|(pid, line)| format!("{pid} {line}")).collect()
    }

    /// The processes of this test whose command line contains `part`.
    pub(crate) fn find(&self, part: &str) -> Vec<u32> {
        let processes = self.sandbox.processes().into_iter();
        processes.filter(|pid| command_line(*pid).contains(part)).collect()
    }

    /// Waits until no process of this test is left but the servers.
    #[track_caller]
    pub(crate) fn wait_until_nothing_left(&self) {
        let deadline = clock::now_blocking() + PATIENCE;
        loop {
            let left = self.left();
            if left.is_empty() {
                return;
            }
            assert!(clock::now_blocking() < deadline, "left behind: {left:?}");
            std::thread::yield_now();
        }
    }
}

fn make_key(sandbox: &Sandbox, name: &str) {
    let keygen = ThisHost.find_program("ssh-keygen".as_ref()).unwrap();
    let mut command = Command::new(keygen);
    command.args(["-q", "-t", "ed25519", "-N", "", "-C", "", "-f"]).arg(sandbox.path(name));
    assert!(command.status().unwrap().success());
}
