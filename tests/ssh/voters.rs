//! Tests a launch that loses a host or a relay: their connections end, and the others go on.

use nix::sys::signal::Signal;

use crate::{
    cluster::Cluster,
    ending::relay_of,
    support::{Orders, Program, kill},
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
        // A host that is slow to return joins in the round after the next one.
        let is_of_all = |line: String| line.contains(&format!("world_size={workers} "));
        let mut begins = (0..3).map(|_| launch.prints(&format!("worker rank={rank} ")));
        assert!(begins.any(is_of_all), "rank {rank} is in no round of {workers} workers");
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

/// A relay that receives a signal ends its agent. The job goes on without its host.
#[test]
fn signalled_relay_ends_its_agent() {
    let Some(cluster) = Cluster::new("sigrelay", 4) else { return };
    let words = format!("--nnodes 2:4 {ELASTIC} --no-python obey.sh");
    let (mut launch, orders) = running(&cluster, &words, 4);
    kill(relay_of(&cluster, "[node3:"), Signal::SIGTERM);
    launch.logs("host lost");
    succeeds(launch, &orders, 3);
    cluster.wait_until_nothing_left();
}
