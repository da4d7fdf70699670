//! Agents on a network that breaks: real namespaces, real links, real time.

use std::time::Duration;

use network::Network;
use nix::{sys::signal::Signal, unistd::geteuid};
use support::{Program, Sandbox, Stream, is_there, let_pass, skip};

mod network;
#[path = "../support/mod.rs"]
mod support;

/// Whether networks can be made here.
fn may_make_networks() -> bool {
    if !geteuid().is_root() {
        skip("network namespaces want root");
        return false;
    }
    is_there("ip")
}

/// Three agents on three nodes, the first of which hosts, with one worker each.
fn three_agents(network: &Network, sandbox: &Sandbox) -> [Program; 3] {
    let words = format!(
        "--nnodes 2:3 --max-restarts 1 --rdzv-endpoint {}:29400 \
         --rdzv-conf last_call_timeout=600,join_settle=0.1,shrink_timeout=0 --no-python stay.sh",
        Network::address(1)
    );
    let mut agents = [1, 2, 3].map(|node| network.ragent(sandbox, node, &words).start());
    for agent in &mut agents {
        agent.logs("nodes=3 world_size=3 master=10.77.0.1:");
        agent.worker();
    }
    agents
}

/// A node that is cut off has killed its workers by the time that the others go on without it, and
/// takes part again when it is back. None of it is charged.
#[test]
fn cut_off_node_is_left_out_and_taken_back() {
    if !may_make_networks() {
        return;
    }
    let network = Network::new("cut", 3);
    let sandbox = Sandbox::new();
    let [mut host, mut stays, mut cut] = three_agents(&network, &sandbox);
    network.cut(3);
    host.logs("lost a node");
    cut.logs("the keeper kills the workers");
    for agent in [&mut host, &mut stays] {
        agent.logs("nodes=2 world_size=2");
        agent.worker();
    }
    network.heal(3);
    for agent in [&mut host, &mut stays, &mut cut] {
        let line = agent.logs("nodes=3 world_size=3");
        assert!(line.contains("restart_count=0"), "{line}");
        agent.worker();
    }
}

/// A blip of a second costs nothing: nobody is lost, no worker is stopped.
#[test]
fn blip_costs_nothing() {
    if !may_make_networks() {
        return;
    }
    let network = Network::new("blip", 3);
    let sandbox = Sandbox::new();
    let [mut host, mut other, blipping] = three_agents(&network, &sandbox);
    network.cut(3);
    let_pass(Duration::from_secs(1));
    network.heal(3);
    // What happens next on all of them is the next thing that is done to them.
    blipping.signal(Signal::SIGTERM);
    let line = host.logs("round ends");
    assert!(line.contains("node_left"), "{line}");
    other.logs("nodes=2 world_size=2");
    assert!(!host.text(Stream::Stderr).contains("lost a node"), "{:?}", host);
    blipping.end().assert_code(1);
}

/// When the coordinator's node is cut off, nobody trains without it, and everybody trains again when
/// it is back.
#[test]
fn cut_off_host_is_waited_for() {
    if !may_make_networks() {
        return;
    }
    let network = Network::new("host", 3);
    let sandbox = Sandbox::new();
    let [mut host, mut second, mut third] = three_agents(&network, &sandbox);
    network.cut(1);
    for agent in [&mut second, &mut third] {
        agent.logs("the keeper kills the workers");
    }
    network.heal(1);
    for agent in [&mut host, &mut second, &mut third] {
        agent.logs("nodes=3 world_size=3");
        agent.worker();
    }
}

/// A host whose endpoint is an address that it does not have, as behind a forwarded one, attends
/// its own coordinator all the same: it runs, and ends when it is told to.
#[test]
fn host_of_an_address_that_is_not_its_own() {
    if !may_make_networks() {
        return;
    }
    let network = Network::new("nat", 1);
    let sandbox = Sandbox::new();
    let words = "--nnodes 1:2 --shutdown-timeout 3600 --rdzv-endpoint 192.0.2.1:29400 \
                 --rdzv-conf is_host=1,last_call_timeout=0.5,join_timeout=3600 --no-python polite.sh";
    let mut host = network.ragent(&sandbox, 1, words).start();
    host.logs("nodes=1 world_size=1 master=10.77.0.1:");
    host.worker();
    host.signal(Signal::SIGTERM);
    host.says("saved rank=0 on TERM");
    host.end().assert_code(1);
    sandbox.assert_nothing_left();
}
