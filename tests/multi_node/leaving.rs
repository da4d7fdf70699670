//! Tests agents that leave on a signal, as before a preemption.

use nix::sys::signal::Signal;

use crate::{
    job::{Job, workers},
    support::Sandbox,
};

/// A node that leaves lets its workers save, and ends with 1. The other nodes run until then. They continue without it at once, although
/// they would wait an hour for a lost node.
#[test]
fn node_leaves_in_order() {
    let sandbox = Sandbox::with_standbys();
    let flags = "--nnodes 1:2 --shutdown-timeout 300 --rdzv-conf \
                 shrink_timeout=3600,join_timeout=7200,last_call_timeout=3600";
    let job = Job::new(&sandbox, flags);
    let mut host = job.host("--no-python stay.sh");
    let mut guest = job.guest("--role other --no-python polite.sh");
    workers([&mut host, &mut guest]);
    guest.signal(Signal::SIGTERM);
    guest.prints("saved rank=1 on TERM");
    let end = guest.end();
    end.assert_code(8);
    end.assert_stderr(&["left the job because of SIGTERM"]);
    let alone = host.worker();
    assert_eq!(alone.number("world_size"), 1);
    assert_eq!(alone.number("restart"), 0);
    let line = host.logs("round has ended");
    assert!(line.contains("has left"), "{line}");
}

/// While a node is leaving, the other nodes run on. Their workers are stopped only after its own workers have ended.
#[test]
fn others_run_on_while_a_node_saves() {
    let sandbox = Sandbox::with_standbys();
    let orders = sandbox.orders(1);
    let flags = "--nnodes 1:2 --shutdown-timeout 300 --rdzv-conf last_call_timeout=3600";
    let job = Job::new(&sandbox, flags);
    let lifeline = sandbox.lifeline("lifeline");
    let mut host = job.agent("--no-python stay.sh").hold(&lifeline).start();
    host.endpoint();
    let mut guest = job.guest("--role other --no-python obey.sh");
    workers([&mut host, &mut guest]);
    orders.give("trap 'echo saving' TERM; echo armed");
    guest.prints("armed");
    guest.signal(Signal::SIGTERM);
    guest.prints("saving");
    let leaving = job.status();
    assert_eq!(leaving["phase"], "running", "{leaving}");
    assert_eq!(leaving["nodes"][1]["state"], "leaving", "{leaving}");
    assert!(lifeline.is_held());
    orders.give("exit 0");
    lifeline.wait_until_broken();
    assert_eq!(host.worker().number("world_size"), 1);
    guest.end().assert_code(8);
}

/// If all nodes leave, all end, and no process is left.
#[test]
fn all_nodes_leave() {
    let sandbox = Sandbox::with_standbys();
    let job = Job::new(&sandbox, "--nnodes 2 --shutdown-timeout 300");
    let mut host = job.host("--no-python polite.sh");
    let mut guest = job.guest("--no-python polite.sh");
    workers([&mut host, &mut guest]);
    host.signal(Signal::SIGTERM);
    guest.signal(Signal::SIGTERM);
    host.end().assert_code(8);
    guest.end().assert_code(8);
    sandbox.assert_nothing_left();
}

/// A host that leaves reports it to the other nodes. They stay, and go on after its return.
#[test]
fn host_that_leaves_reports_it_and_may_return() {
    let sandbox = Sandbox::with_standbys();
    let job = Job::new(&sandbox, "--nnodes 2 --shutdown-timeout 300");
    let mut host = job.host("--no-python polite.sh");
    let mut guest = job.guest("--no-python polite.sh");
    workers([&mut host, &mut guest]);
    host.signal(Signal::SIGTERM);
    guest.logs("the coordinator's host is leaving");
    host.prints("saved rank=0 on TERM");
    host.end().assert_code(8);
    let mut host = job.host("--no-python polite.sh");
    let both = workers([&mut host, &mut guest]);
    assert_eq!(both[0].number("world_size"), 2);
    assert_eq!(both[0].number("restart"), 0);
}

/// A node that waits for a round leaves at once.
#[test]
fn waiting_node_leaves_at_once() {
    // No worker is started.
    let sandbox = Sandbox::new();
    let job = Job::new(&sandbox, "--nnodes 3");
    let _host = job.host("--no-python stay.sh");
    let mut guest = job.guest("--no-python stay.sh");
    guest.logs("waiting");
    guest.signal(Signal::SIGTERM);
    guest.end().assert_code(8);
}
