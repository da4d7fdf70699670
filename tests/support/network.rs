//! Makes a network of nodes for one test: a namespace for each, with a link to one bridge.

use std::{
    fs,
    process::{Command, Stdio},
};

use nix::{sys::signal::Signal, unistd::geteuid};
use ragent_base::sys::host::{Host, ThisHost};

use super::{Sandbox, Start, is_there, kill, skip};

/// Returns true if networks can be made here. Otherwise prints the reason.
pub fn may_make_networks() -> bool {
    if !geteuid().is_root() {
        skip("network namespaces want root");
        return false;
    }
    is_there("ip")
}

/// Nodes that reach each other at `10.77.0.1`, `10.77.0.2`, … Dropping it removes them.
#[derive(Debug)]
pub struct Network {
    prefix: String,
    nodes: u32,
}

impl Network {
    /// Creates a network of `nodes`. Its namespaces are named after `name` and this process.
    pub fn new(name: &str, nodes: u32) -> Self {
        let prefix = format!("ragent-{name}-{}", std::process::id());
        let network = Self { prefix, nodes };
        let hub = network.hub();
        ip(&format!("netns add {hub}"));
        ip(&format!("-n {hub} link add br0 type bridge"));
        ip(&format!("-n {hub} link set br0 up"));
        for node in 1..=nodes {
            let name = network.namespace(node);
            ip(&format!("netns add {name}"));
            let ends = format!("type veth peer name port{node} netns {hub}");
            ip(&format!("link add eth0 netns {name} {ends}"));
            ip(&format!("-n {name} addr add {}/24 dev eth0", Self::address(node)));
            ip(&format!("-n {name} link set eth0 up"));
            ip(&format!("-n {name} link set lo up"));
            ip(&format!("-n {hub} link set port{node} master br0"));
            ip(&format!("-n {hub} link set port{node} up"));
        }
        network
    }

    /// The address of a node, counted from one.
    pub fn address(node: u32) -> String {
        format!("10.77.0.{node}")
    }

    /// Returns `ragent` with these arguments on a node. Each node has its own runtime folder, like a machine of its own.
    pub fn ragent(&self, sandbox: &Sandbox, node: u32, words: &str) -> Start {
        self.ragent_after(sandbox, node, "true", words)
    }

    /// The same, after a shell has carried out `mounts` in the runtime folder of the node. No other process notices these mounts. They end
    /// with the agent and its children.
    pub fn ragent_after(&self, sandbox: &Sandbox, node: u32, mounts: &str, words: &str) -> Start {
        let runtime_dir = sandbox.path(&format!("run{node}"));
        fs::create_dir_all(&runtime_dir).expect("the sandbox is writable");
        let script = format!("{mounts} && exec \"$0\" \"$@\"");
        let start = self.program(sandbox, node, "bash").arg("-c").arg(script);
        let (words, gate) = sandbox.job(words);
        let start = start.arg(env!("CARGO_BIN_EXE_ragent"));
        let start = start.env("XDG_RUNTIME_DIR", runtime_dir).gated_by(gate);
        words.split_ascii_whitespace().fold(start, Start::arg)
    }

    /// Like [`Self::ragent`], on a node with a host name of its own, which no other process notices.
    pub fn named_ragent(&self, sandbox: &Sandbox, node: u32, words: &str) -> Start {
        let name = format!("hostname node{node} && exec \"$0\" \"$@\"");
        let first = format!("exec unshare -u bash -c '{name}' \"$0\" \"$@\"");
        self.ragent_after(sandbox, node, &first, words)
    }

    /// Returns a program that is to run on a node.
    pub fn program(&self, sandbox: &Sandbox, node: u32, path: &str) -> Start {
        let ip = ThisHost.find_program("ip".as_ref()).expect("tests without it are skipped");
        let start = sandbox.program(&ip.to_string_lossy());
        start.arg("netns").arg("exec").arg(self.namespace(node)).arg(path)
    }

    /// Takes the node's link down.
    pub fn cut(&self, node: u32) {
        ip(&format!("-n {} link set port{node} down", self.hub()));
    }

    /// Brings the node's link up again.
    pub fn heal(&self, node: u32) {
        ip(&format!("-n {} link set port{node} up", self.hub()));
    }

    /// Makes the switch drop all traffic of a node although its link is up. A real switch does so for half a minute after a link comes up.
    pub fn block(&self, node: u32) {
        ip(&format!("-n {} link set port{node} nomaster", self.hub()));
    }

    /// Undoes [`Self::block`].
    pub fn unblock(&self, node: u32) {
        ip(&format!("-n {} link set port{node} master br0", self.hub()));
    }

    /// Drops packets from one node to another, but not those in the other direction.
    pub fn cut_one_way(&self, from: u32, to: u32) {
        ip(&format!("-n {} route add blackhole {}", self.namespace(from), Self::address(to)));
    }

    /// Undoes [`Self::cut_one_way`].
    pub fn heal_one_way(&self, from: u32, to: u32) {
        ip(&format!("-n {} route del blackhole {}", self.namespace(from), Self::address(to)));
    }

    /// Drops new TCP connections to all ports of a node but one. Needs `nft`.
    pub fn open_only(&self, node: u32, port: u16) {
        let hook = "{ type filter hook input priority 0 ; }";
        let rule = format!("tcp dport != {port} tcp flags & (syn | ack) == syn drop");
        for command in [
            "add table inet firewall".to_owned(),
            format!("add chain inet firewall input {hook}"),
            format!("add rule inet firewall input iifname eth0 {rule}"),
        ] {
            ip(&format!("netns exec {} nft {command}", self.namespace(node)));
        }
    }

    /// Moves nodes to a switch of their own, so that they reach each other and no other node.
    pub fn split(&self, nodes: &[u32]) {
        let hub = self.hub();
        ip(&format!("-n {hub} link add br1 type bridge"));
        ip(&format!("-n {hub} link set br1 up"));
        for node in nodes {
            ip(&format!("-n {hub} link set port{node} master br1"));
        }
    }

    /// Undoes [`Self::split`].
    pub fn unite(&self, nodes: &[u32]) {
        for node in nodes {
            self.unblock(*node);
        }
        ip(&format!("-n {} link del br1", self.hub()));
    }

    /// Drops all packets that a node sends, at their receivers. The senders notice nothing.
    pub fn mute(&self, node: u32) {
        for other in self.others(node) {
            self.drop_received(other, &Self::address(node));
        }
    }

    /// Undoes [`Self::mute`].
    pub fn unmute(&self, node: u32) {
        for other in self.others(node) {
            self.accept_received(other);
        }
    }

    fn others(&self, node: u32) -> impl Iterator<Item = u32> {
        (1..=self.nodes).filter(move |other| *other != node)
    }

    fn drop_received(&self, node: u32, from: &str) {
        // The rule for local addresses is always first, so it has to move before another rule can be.
        self.ip(node, "rule add pref 2 table local");
        self.ip(node, "rule del pref 0");
        self.ip(node, &format!("rule add pref 1 iif eth0 from {from} blackhole"));
    }

    fn accept_received(&self, node: u32) {
        self.ip(node, "rule del pref 1");
        self.ip(node, "rule add pref 0 table local");
        self.ip(node, "rule del pref 2");
    }

    /// The processes on a node.
    pub fn processes(&self, node: u32) -> Vec<u32> {
        let output = Command::new("ip").args(["netns", "pids", &self.namespace(node)]).output();
        let output = output.expect("tests without `ip` are skipped").stdout;
        String::from_utf8_lossy(&output).lines().filter_map(|pid| pid.trim().parse().ok()).collect()
    }

    /// Kills all processes on a node, as a loss of power does.
    pub fn kill_all(&self, node: u32) {
        // Stopped first, so that none of them reports the end of another one.
        for signal in [Signal::SIGSTOP, Signal::SIGKILL] {
            for pid in self.processes(node) {
                kill(pid, signal);
            }
        }
    }

    /// Runs `ip` with these arguments in a node's namespace.
    pub fn ip(&self, node: u32, words: &str) {
        ip(&format!("-n {} {words}", self.namespace(node)));
    }

    fn hub(&self) -> String {
        format!("{}-hub", self.prefix)
    }

    /// The name of a node's namespace.
    pub fn namespace(&self, node: u32) -> String {
        format!("{}-{node}", self.prefix)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in (1..=self.nodes).map(|node| self.namespace(node)).chain([self.hub()]) {
            // The namespace may not exist.
            let _ = Command::new("ip").args(["netns", "del", &name]).stderr(Stdio::null()).status();
        }
    }
}

#[track_caller]
fn ip(words: &str) {
    let status = Command::new("ip").args(words.split_ascii_whitespace()).status();
    assert!(status.is_ok_and(|status| status.success()), "`ip {words}` failed");
}
