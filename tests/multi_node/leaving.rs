//! Tests SIGTERM to an agent, as before a preemption: its workers may save, and the others learn of it by their streams.

use nix::sys::signal::Signal;

use crate::{
    job::{Job, workers},
    support::Sandbox,
};

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
