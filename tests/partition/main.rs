//! Tests agents on a network with failures: real namespaces, real links, real time.

use nix::sys::signal::Signal;
use support::{Network, Program, READY, Sandbox, is_there, may_make_networks};

mod elected_job;
mod records;
mod state_files;
#[path = "../support/mod.rs"]
mod support;
mod takeovers;
mod voters;

/// Three agents with running workers.
fn three_agents(network: &Network, sandbox: &Sandbox) -> [Program; 3] {
    let mut agents = agents::<3>(network, sandbox, "2:3");
    for agent in &mut agents {
        agent.worker();
    }
    agents
}

/// Starts agents with one worker each on `N` nodes, and waits until all are admitted. The first node hosts. With standbys, the host is
/// started when the other nodes have theirs.
fn agents<const N: usize>(network: &Network, sandbox: &Sandbox, nodes: &str) -> [Program; N] {
    let words = format!(
        "--nnodes {nodes} --max-restarts 1 --rdzv-endpoint {}:29400 \
         --rdzv-conf last_call_timeout=600,join_settle=0.1,shrink_timeout=0 --no-python stay.sh",
        Network::address(1)
    );
    let start = |node| network.ragent(sandbox, node, &words).start();
    let mut agents: Vec<Program> = (2..=N as u32).map(start).collect();
    if sandbox.has_standbys() {
        for agent in &mut agents {
            agent.logs(READY);
        }
    }
    agents.insert(0, start(1));
    let mut agents: [Program; N] = agents.try_into().expect("one agent for each node");
    for agent in &mut agents {
        agent.logs(&format!("nodes={N} world_size={N} master=10.77.0.1:"));
    }
    agents
}

/// A node that is unreachable has killed its workers before the other nodes go on without it. It is admitted again when it is back. Nothing
/// is charged.
#[test]
fn unreachable_node_is_left_out_and_taken_back() {
    if !may_make_networks() {
        return;
    }
    let network = Network::new("cut", 3);
    let sandbox = Sandbox::with_standbys();
    let [mut host, mut stays, mut cut] = three_agents(&network, &sandbox);
    network.cut(3);
    host.logs("node lost");
    cut.logs("the lease has ended");
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

/// A link that is cut in one direction counts as cut. A node that receives no answer kills its workers although its messages arrive. A node
/// whose messages do not arrive is lost although it receives. In both cases the other nodes go on, and admit it again after the repair.
#[test]
fn link_that_is_cut_one_way() {
    if !may_make_networks() {
        return;
    }
    for (name, from, to) in [("deaf", 1, 3), ("mute", 3, 1)] {
        let network = Network::new(name, 3);
        let sandbox = Sandbox::with_standbys();
        let [mut host, mut stays, mut cut] = three_agents(&network, &sandbox);
        network.cut_one_way(from, to);
        cut.logs("the lease has ended");
        host.logs("node lost");
        for agent in [&mut host, &mut stays] {
            agent.logs("nodes=2 world_size=2");
            agent.worker();
        }
        network.heal_one_way(from, to);
        for agent in [&mut host, &mut stays, &mut cut] {
            let line = agent.logs("nodes=3 world_size=3");
            assert!(line.contains("restart_count=0"), "{line}");
            agent.worker();
        }
    }
}

/// The store of a round accepts only its members. A worker of an older round, on a node that is not a member, cannot use it even if it
/// knows the port.
#[test]
fn stale_worker_reaches_no_newer_store() {
    if !may_make_networks() {
        return;
    }
    let network = Network::new("stale", 3);
    let sandbox = Sandbox::with_standbys();
    let [mut host, mut stays, lost] = three_agents(&network, &sandbox);
    lost.signal(Signal::SIGKILL);
    stays.logs("nodes=2 world_size=2");
    let line = host.logs("nodes=2 world_size=2");
    let port = line.split_once("master=10.77.0.1:").unwrap().1;
    let port = port.split(' ').next().unwrap();
    // A member gets an answer, another node does not.
    for (node, answer) in [(2, "echo"), (3, "")] {
        let ask = format!(
            "exec 3<>/dev/tcp/10.77.0.1/{port} && printf '\\x00\\xce\\xf7\\x85\\x3c\\x0decho' >&3; head -c 4 <&3"
        );
        let end = network.program(&sandbox, node, "bash").arg("-c").arg(ask).run();
        assert_eq!(end.stdout.trim_end(), answer, "node {node}: {}", end.stderr);
    }
}

/// A host whose endpoint is not its own address, such as a forwarded one, registers with its own coordinator anyway. It runs, and ends when
/// it is asked to.
#[test]
fn host_of_an_address_that_is_not_its_own() {
    if !may_make_networks() {
        return;
    }
    let network = Network::new("nat", 1);
    // The only node starts its round before it has a standby.
    let sandbox = Sandbox::new();
    let words = "--nnodes 1:2 --shutdown-timeout 3600 --rdzv-endpoint 192.0.2.1:29400 \
                 --rdzv-conf is_host=1,last_call_timeout=0.5,join_timeout=3600 --no-python polite.sh";
    let mut host = network.ragent(&sandbox, 1, words).start();
    host.logs("nodes=1 world_size=1 master=10.77.0.1:");
    host.worker();
    host.signal(Signal::SIGTERM);
    host.prints("saved rank=0 on TERM");
    host.end().assert_code(8);
    sandbox.assert_nothing_left();
}

/// Nodes of a running job are asked how they reach each other. Both ends name a broken connection, although the job itself does not need
/// it.
#[test]
fn doctor_names_the_broken_way() {
    if !may_make_networks() {
        return;
    }
    let network = Network::new("doctor", 4);
    // The test ends before its workers have started.
    let sandbox = Sandbox::new();
    let _agents = agents::<4>(&network, &sandbox, "4");
    let doctor =
        || network.ragent(&sandbox, 1, "doctor --peers --rdzv-endpoint 10.77.0.1:29400").run();
    let end = doctor();
    end.assert_code(0);
    assert!(end.stdout.contains("4 nodes reach each other"), "{}", end.stdout);
    network.cut_one_way(2, 3);
    let end = doctor();
    end.assert_code(1);
    let line = end.stdout.lines().find(|line| line.contains("does not reach"));
    assert!(line.is_some_and(|line| line.contains("10.77.0.3")), "{}", end.stdout);
}

/// A firewall that lets only the endpoint's port pass is named in the first round: by the logs of both nodes, `status` and
/// `explain`.
#[test]
fn blocked_ports_are_named() {
    if !may_make_networks() || !is_there("nft") {
        return;
    }
    let network = Network::new("blocked", 2);
    for node in [1, 2] {
        network.open_only(node, 29400);
    }
    let sandbox = Sandbox::with_standbys();
    let [mut host, mut other] = agents::<2>(&network, &sandbox, "2");
    let of_node = host.logs("this host does not reach");
    assert!(of_node.contains("(10.77.0.2:"), "{of_node}");
    assert!(of_node.contains("no answer") && of_node.contains("firewall"), "{of_node}");
    other.logs("this node does not reach the workers' store at 10.77.0.1:");
    let of_other = host.logs("does not reach the workers' store at 10.77.0.1:");
    assert!(of_other.contains("firewall"), "{of_other}");
    for command in ["status", "explain"] {
        let words = format!("{command} --rdzv-endpoint 10.77.0.1:29400");
        let end = network.ragent(&sandbox, 1, &words).run();
        for part in ["does not reach the workers' store (10.77.0.1:", "(10.77.0.2:"] {
            assert!(end.stdout.contains(part), "{command}: {}", end.stdout);
        }
    }
    // The second agent reaches the endpoint's port, and tries a free port as well.
    let end = network.ragent(&sandbox, 2, "doctor --peers --rdzv-endpoint 10.77.0.1:29400").run();
    end.assert_code(1);
    let line = end.stdout.lines().find(|line| line.contains("a free port")).unwrap_or_default();
    assert!(line.contains(" does not reach ") && line.contains("(10.77.0.1:"), "{}", end.stdout);
}

/// A machine whose own name does not lead to its address on the network gives gloo the interface of the agent, unless the user has set
/// one.
#[test]
fn gloo_uses_the_interface_of_the_agent() {
    if !may_make_networks() {
        return;
    }
    // In the namespaces, the name of this machine has no address of theirs.
    let network = Network::new("gloo", 2);
    let sandbox = Sandbox::new();
    let words = "--nnodes 2 --rdzv-endpoint 10.77.0.1:29400 --no-python bash -c";
    let worker = "echo gloo=$GLOO_SOCKET_IFNAME.";
    let start = |node| network.ragent(&sandbox, node, words).arg(worker);
    let (host, other) = (start(1).start(), start(2).env("GLOO_SOCKET_IFNAME", "lo").start());
    let (host, other) = (host.end(), other.end());
    assert!(host.stdout.contains("gloo=eth0."), "{}", host.stdout);
    host.assert_stderr(&["workers get GLOO_SOCKET_IFNAME=eth0, the interface of 10.77.0.1"]);
    assert!(other.stdout.contains("gloo=lo."), "{}", other.stdout);
}

/// If a node gets another address while it is registered, and its system prefers that address from then on, the store of the next round
/// accepts it.
#[test]
fn new_address_is_known_in_the_next_round() {
    if !may_make_networks() {
        return;
    }
    let network = Network::new("renew", 2);
    // Both nodes start at once, before they have standbys.
    let sandbox = Sandbox::new();
    let words = format!(
        "--nnodes 2 --max-restarts 1 --rdzv-endpoint {}:29400 --no-python bash -c",
        Network::address(1)
    );
    let worker = "if [ $TORCHELASTIC_RESTART_COUNT = 1 ]; then exec reach.sh; fi; exec stay.sh";
    let [mut host, mut other] =
        [1, 2].map(|node| network.ragent(&sandbox, node, &words).arg(worker).start());
    let first = host.worker();
    other.worker();
    network.ip(2, "addr add 10.77.0.102/24 dev eth0");
    network.ip(2, "route change 10.77.0.0/24 dev eth0 src 10.77.0.102");
    first.signal(Signal::SIGKILL);
    for agent in [host, other] {
        let end = agent.end();
        end.assert_code(0);
        assert!(end.stdout.contains("reached 10.77.0.1"), "{}", end.stdout);
    }
}

/// A host whose endpoint is the address of a container bridge warns that only its own machine
/// reaches it.
#[test]
fn endpoint_on_a_container_bridge_is_warned_about() {
    if !may_make_networks() {
        return;
    }
    let network = Network::new("bridge", 1);
    network.ip(1, "link add docker0 type bridge");
    network.ip(1, "addr add 172.17.0.1/16 dev docker0");
    network.ip(1, "link set docker0 up");
    // The only node starts its round before it has a standby.
    let sandbox = Sandbox::new();
    for (address, warned) in [("172.17.0.1", true), ("10.77.0.1", false)] {
        let words = format!(
            "--nnodes 1:2 --rdzv-endpoint {address}:29400 --rdzv-conf last_call_timeout=0.1 --no-python true"
        );
        let end = network.ragent(&sandbox, 1, &words).run();
        end.assert_code(0);
        assert_eq!(
            end.stderr.contains("of the container bridge docker0: "),
            warned,
            "{}",
            end.stderr
        );
    }
}

/// A job of several machines without a secret warns on the host when it runs for the first time, and not again. `--auth none` states that
/// this is intended. The host prints the endpoint that was given.
#[test]
fn open_job_warns_once() {
    if !may_make_networks() {
        return;
    }
    let network = Network::new("open", 2);
    let sandbox = Sandbox::new();
    for (flags, warnings) in
        [("--rdzv-id a", 1), ("--rdzv-id a", 0), ("--rdzv-id b --auth none", 0), ("--rdzv-id b", 1)]
    {
        let words = format!("--nnodes 2 {flags} --rdzv-endpoint 10.77.0.1 --no-python true");
        let start = |node| network.ragent(&sandbox, node, &words).default_lines().start();
        let [host, other] = [start(1), start(2)].map(Program::end);
        let count = |end: &support::End| {
            end.stderr.matches("every process that reaches port 29400").count()
        };
        for end in [&host, &other] {
            end.assert_code(0);
            end.assert_stderr(&["registered at 10.77.0.1:29400 "]);
        }
        assert_eq!([count(&host), count(&other)], [warnings, 0], "{flags}: {}", host.stderr);
    }
}
