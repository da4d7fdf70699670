//! Tests jobs that survive the loss of hosts: voters on the hosts of a launch, and hosts below a lost relay.

use nix::sys::signal::Signal;

use crate::{
    cluster::Cluster,
    ending::relay_of,
    support::{Orders, Program, children, is_alive, is_there, kill},
};

/// The flags of a job that continues with two nodes, and does not wait for others.
const ELASTIC: &str = "--max-restarts 1 --rdzv-conf shrink_timeout=0,last_call_timeout=600";

/// A launch whose workers run, and their orders.
fn running(cluster: &Cluster, words: &str, workers: u32) -> (Program, Vec<Orders>) {
    let orders = (0..workers).map(|rank| cluster.sandbox.orders(rank)).collect();
    let mut launch = cluster.launch(words).start();
    for rank in 0..workers {
        launch.prints(&format!("worker rank={rank} "));
    }
    (launch, orders)
}

/// Waits until `workers` workers run together, and ends the job.
fn succeeds(mut launch: Program, orders: &[Orders], workers: u32) {
    for rank in 0..workers {
        let line = launch.prints(&format!("worker rank={rank} "));
        assert!(line.contains(&format!("world_size={workers} ")), "{line}");
    }
    for order in &orders[..workers as usize] {
        order.give("exit 0");
    }
    launch.end().assert_code(0);
}

/// With `voters=3`, the launch continues when all processes of the first host are killed, and ends with 0
/// when the job has succeeded on the others.
#[test]
fn first_host_is_lost() {
    let Some(cluster) = Cluster::new("first", 4) else { return };
    let words = format!("--nnodes 2:4 {ELASTIC},voters=3 --no-python obey.sh");
    let (mut launch, orders) = running(&cluster, &words, 4);
    cluster.network.kill_all(1);
    launch.logs("host lost");
    succeeds(launch, &orders, 3);
}

/// The launch ends when a majority of the voters' hosts is lost, although enough hosts for the job are left.
#[test]
fn majority_is_lost() {
    let Some(cluster) = Cluster::new("major", 4) else { return };
    let words = format!("--nnodes 1:4 {ELASTIC},voters=3 --no-python obey.sh");
    let (mut launch, _orders) = running(&cluster, &words, 4);
    launch.logs("the job needs 2 of its 3 voters to begin and to continue");
    // The third host has no voter.
    for node in [1, 2] {
        cluster.network.kill_all(node);
        launch.logs("host lost");
    }
    let end = launch.end();
    end.assert_code(1);
    end.assert_stderr(&["too few hosts are left; stopping the others"]);
    cluster.wait_until_nothing_left();
}

/// Waits until a new worker of this host runs with two others, and ends the job.
fn succeeds_with(mut launch: Program, orders: &[Orders], host: u32) {
    while !launch.prints(&format!("[node{host}:")).contains("world_size=3 ") {}
    for order in &orders[..3] {
        order.give("exit 0");
    }
    launch.end().assert_code(0);
}

/// After the loss of a relay's host, the host below it is reached directly. It takes part again, also as a voter. Without it, no majority
/// would be left.
#[test]
fn voter_below_a_lost_relay_returns() {
    let Some(cluster) = Cluster::new("vbelow", 4) else { return };
    let words = format!("--fanout 2 --nnodes 2:4 {ELASTIC},voters=3 --no-python obey.sh");
    let (mut launch, orders) = running(&cluster, &words, 4);
    // The voters are on the hosts 1, 2 and 4.
    cluster.network.kill_all(1);
    launch.logs("host lost through another host; connecting to it directly host=\"node2\"");
    launch.logs("host reached again; starting its agent host=\"node2\"");
    succeeds_with(launch, &orders, 2);
}

/// If the relay of the host below does not notice the loss, the next one replaces it with its agent.
#[test]
fn relay_that_notices_nothing_is_replaced() {
    let Some(cluster) = Cluster::new("replace", 4) else { return };
    let ssh_config = cluster.sandbox.path("ssh_config");
    let ssh = format!("ssh -o ServerAliveInterval=1 -F {}", ssh_config.display());
    let words = format!("--fanout 2 --nnodes 2:4 {ELASTIC} --no-python obey.sh");
    let orders: Vec<_> = (0..4).map(|rank| cluster.sandbox.orders(rank)).collect();
    let mut launch = cluster.launch_by(&ssh, &words).start();
    for rank in 0..4 {
        launch.prints(&format!("worker rank={rank} "));
    }
    let agents = children(relay_of(&cluster, "[node4:"));
    assert_eq!(agents.len(), 1, "{agents:?}");
    cluster.network.cut(3);
    launch.logs("host reached again; starting its agent host=\"node4\"");
    assert!(!is_alive(agents[0]));
    succeeds_with(launch, &orders, 4);
}

/// A relay that receives a signal ends only its own agent. The host below it is reached directly.
#[test]
fn signalled_relay_leaves_the_others() {
    let Some(cluster) = Cluster::new("sigrelay", 4) else { return };
    let words = format!("--fanout 2 --nnodes 2:4 {ELASTIC} --no-python obey.sh");
    let (mut launch, orders) = running(&cluster, &words, 4);
    kill(relay_of(&cluster, "[node3:"), Signal::SIGTERM);
    launch.logs("host reached again; starting its agent host=\"node4\"");
    succeeds_with(launch, &orders, 4);
    cluster.wait_until_nothing_left();
}

/// Another user of a host cannot end a relay through the socket for its successor.
#[test]
fn strangers_end_no_relay() {
    let Some(cluster) = Cluster::new("stranger", 2) else { return };
    if !is_there("setpriv") || !is_there("python3") {
        return;
    }
    let (launch, orders) = running(&cluster, "--no-python obey.sh", 2);
    let script = "import socket\n\
                  names = [line.split()[-1] for line in open('/proc/net/unix')]\n\
                  [name] = [name for name in names if name.startswith('@ragent-relay-')]\n\
                  stream = socket.socket(socket.AF_UNIX)\n\
                  stream.connect('\\0' + name[1:])\n\
                  print('closed', stream.recv(1))\n";
    let stranger = cluster.network.program(&cluster.sandbox, 1, "setpriv");
    let stranger = stranger.arg("--reuid=65534").arg("--clear-groups").arg("python3");
    let end = stranger.arg("-c").arg(script).run();
    end.assert_code(0);
    assert_eq!(end.stdout, "closed b''\n");
    for order in &orders {
        order.give("exit 0");
    }
    launch.end().assert_code(0);
}
