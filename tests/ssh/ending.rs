//! Tests that after any end of a launch, no process is left on any host.

use std::io::Read;

use nix::sys::signal::Signal;

use crate::{
    cluster::Cluster,
    support::{Program, children, command_line, kill},
};

/// A launch whose workers run.
fn running(cluster: &Cluster, words: &str, workers: u32) -> Program {
    let mut launch = cluster.launch(words).start();
    for rank in 0..workers {
        launch.prints(&format!("worker rank={rank} "));
    }
    launch
}

/// Ctrl-C lets the workers of all hosts save their work, and leaves no process.
#[test]
fn interrupt_reaches_all_workers() {
    let Some(cluster) = Cluster::new("int", 4) else { return };
    let mut launch = running(&cluster, "--no-python polite.sh", 4);
    launch.signal_group(Signal::SIGINT);
    for rank in 0..4 {
        // A host may be stopped because of another one's end before the signal reaches it.
        launch.prints(&format!("saved rank={rank} on "));
    }
    let end = launch.end();
    end.assert_code(8);
    end.assert_stderr(&["ended on all hosts because of SIGINT"]);
    cluster.wait_until_nothing_left();
}

/// A second Ctrl-C kills the remaining processes.
#[test]
fn second_interrupt_kills() {
    let Some(cluster) = Cluster::new("int2", 4) else { return };
    let words = "--shutdown-timeout 3600 --no-python stubborn.sh";
    let mut launch = running(&cluster, words, 4);
    launch.signal_group(Signal::SIGINT);
    launch.logs("forwarding it to all hosts");
    launch.signal_group(Signal::SIGINT);
    launch.end().assert_code(8);
    cluster.wait_until_nothing_left();
}

/// With `--notice`, Ctrl-C lets all ranks save, and the job ends as saved. A second Ctrl-C does not wait for them.
#[test]
fn interrupt_is_a_notice() {
    let words = "--notice 300 --no-python steps.py";
    for (name, saves, code) in [("saves", true, 5), ("hurry", false, 8)] {
        let Some(cluster) = Cluster::new(name, 3) else { return };
        let orders = [0, 1, 2].map(|rank| cluster.sandbox.orders(rank));
        let mut launch = running(&cluster, words, 3);
        launch.signal_group(Signal::SIGINT);
        launch.logs("saving, at most 300 s; SIGINT again stops now");
        launch.logs("notice 1: the job ends");
        if saves {
            orders.iter().for_each(|orders| orders.give("notice(1); saved(7, 1)"));
        } else {
            launch.signal_group(Signal::SIGINT);
        }
        let end = launch.end();
        end.assert_code(code);
        if saves {
            end.assert_stderr(&[
                "the job is saved at step 7: start it again, and it goes on from there",
            ]);
        }
        cluster.wait_until_nothing_left();
    }
}

/// While hosts are being reached, Ctrl-C ends the launch at once, with every ssh and its children.
#[test]
fn interrupt_while_hosts_are_reached() {
    let Some(cluster) = Cluster::new("early", 2) else { return };
    cluster.write_client_config("Host node2\nProxyCommand sleep 1000\n");
    let mut launch = cluster.launch("--connect-timeout 600 --no-python stay.sh").start();
    launch.logs("reaching hosts");
    launch.signal_group(Signal::SIGINT);
    let end = launch.end();
    end.assert_code(8);
    assert!(!end.stderr.contains("starting agents"), "{}", end.stderr);
    cluster.wait_until_nothing_left();
}

/// A console that is not read blocks the output of workers, but not their end.
#[test]
fn blocked_console_delays_no_end() {
    let Some(cluster) = Cluster::new("blocked", 2) else { return };
    let (mut console, writer) = std::io::pipe().unwrap();
    let words = "--shutdown-timeout 1 --no-python flood.sh 1000000 0";
    let launch = cluster.launch(words).stdout(writer).start();
    // The flood has begun, and the rest of it is not read.
    console.read_exact(&mut [0; 4096]).unwrap();
    launch.signal_group(Signal::SIGINT);
    launch.end().assert_code(8);
    cluster.wait_until_nothing_left();
}

/// If the launching process is killed, every host ends its processes.
#[test]
fn killed_launch_leaves_nothing() {
    let Some(cluster) = Cluster::new("kill", 4) else { return };
    let words = "--shutdown-timeout 1 --fanout 2 --no-python stubborn.sh";
    let launch = running(&cluster, words, 4);
    launch.signal(Signal::SIGKILL);
    cluster.wait_until_nothing_left();
}

/// If a relay is killed, so is its agent. A job that needs this host is ended everywhere, and the host is named.
#[test]
fn killed_relay_is_a_lost_host() {
    let Some(cluster) = Cluster::new("relay", 4) else { return };
    let launch = running(&cluster, "--no-python stay.sh", 4);
    let relay = relay_of(&cluster, "[node3:");
    kill(relay, Signal::SIGKILL);
    let end = launch.end();
    end.assert_code(1);
    end.assert_stderr(&["host lost", "node3: it was lost"]);
    cluster.wait_until_nothing_left();
}

/// A job that does not need a lost host goes on, and the launch succeeds with it.
#[test]
fn enough_hosts_go_on() {
    let Some(cluster) = Cluster::new("enough", 4) else { return };
    let orders: Vec<_> = (0..4).map(|rank| cluster.sandbox.orders(rank)).collect();
    let words = "--nnodes 2:4 --max-restarts 1 --rdzv-conf shrink_timeout=0 --no-python obey.sh";
    let mut launch = running(&cluster, words, 4);
    kill(relay_of(&cluster, "[node4:"), Signal::SIGKILL);
    for rank in 0..3 {
        let line = launch.prints(&format!("worker rank={rank} "));
        assert!(line.contains("world_size=3"), "{line}");
    }
    for order in &orders[..3] {
        order.give("exit 0");
    }
    launch.end().assert_code(0);
    cluster.wait_until_nothing_left();
}

/// The relay whose agent's command line contains a word.
pub(crate) fn relay_of(cluster: &Cluster, word: &str) -> u32 {
    let relays = cluster.find(" __relay");
    let has_agent =
        |relay: &&u32| children(**relay).into_iter().any(|it| command_line(it).contains(word));
    *relays.iter().find(has_agent).expect("each agent has a relay")
}
