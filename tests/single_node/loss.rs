//! Tests that the processes of a node do not outlive its agent or keeper.

use nix::sys::signal::Signal;

use crate::support::{LEASE, Sandbox, is_alive, is_there, keeper_of, kill, let_pass};

/// If the agent is killed, all of its descendants die, including processes that ignore signals or
/// have left its session.
#[test]
fn nothing_outlives_a_killed_agent() {
    if !is_there("setsid") {
        return;
    }
    let sandbox = Sandbox::new();
    let lifeline = sandbox.lifeline("lifeline");
    let words = "--nproc-per-node 2 --shutdown-timeout 300 --no-python litter.sh stubborn.sh";
    let mut agent = sandbox.ragent(words).hold(&lifeline).start();
    agent.workers(2);
    agent.workers(2);
    agent.signal(Signal::SIGKILL);
    lifeline.wait_until_broken();
    agent.wait_until_silent();
    sandbox.assert_nothing_left();
}

/// If the keeper is killed, the kernel kills the workers and the agent kills the rest. The report names the cause.
#[test]
fn nothing_outlives_a_killed_keeper() {
    if !is_there("setsid") {
        return;
    }
    let sandbox = Sandbox::new();
    let lifeline = sandbox.lifeline("lifeline");
    let words = "--nproc-per-node 2 --no-python litter.sh sleep infinity";
    let mut agent = sandbox.ragent(words).hold(&lifeline).start();
    agent.workers(2);
    kill(keeper_of(agent.pid()), Signal::SIGKILL);
    lifeline.wait_until_broken();
    let end = agent.end();
    end.assert_code(1);
    assert!(end.report().contains("its keeper process has ended"), "{}", end.report());
    sandbox.assert_nothing_left();
}

/// A keeper that was killed is replaced. The new keeper has the lease, so the job continues with exactly one further round.
#[test]
fn killed_keeper_is_replaced() {
    let sandbox = Sandbox::new();
    let mut agent = sandbox.ragent("--max-restarts 1 --no-python polite.sh").start();
    agent.worker();
    let first = keeper_of(agent.pid());
    kill(first, Signal::SIGKILL);
    assert_eq!(agent.worker().number("restart"), 1);
    assert_ne!(keeper_of(agent.pid()), first);
    let_pass(LEASE);
    agent.signal(Signal::SIGTERM);
    agent.prints("saved rank=0 on TERM");
    let end = agent.end();
    end.assert_code(8);
    assert_eq!(end.stderr.matches("admitted; starting workers").count(), 2, "{}", end.stderr);
    sandbox.assert_nothing_left();
}

/// If agent and keeper are killed at the same instant, the kernel kills the workers.
#[test]
fn workers_do_not_outlive_agent_and_keeper() {
    let sandbox = Sandbox::new();
    let lifeline = sandbox.lifeline("lifeline");
    let words = "--nproc-per-node 2 --no-python stubborn.sh";
    let mut agent = sandbox.ragent(words).hold(&lifeline).start();
    agent.workers(2);
    let keeper = keeper_of(agent.pid());
    // Both are stopped first, so that neither sees the other's end.
    for signal in [Signal::SIGSTOP, Signal::SIGKILL] {
        agent.signal(signal);
        kill(keeper, signal);
    }
    lifeline.wait_until_broken();
    agent.wait_until_silent();
    sandbox.assert_nothing_left();
}

/// A single-node job has no lease. While its agent is stopped, no other process can start a second group, so its workers keep running.
#[test]
fn frozen_agent_of_a_single_node_keeps_its_workers() {
    let sandbox = Sandbox::new();
    let orders = sandbox.orders(0);
    let mut agent = sandbox.ragent("--no-python obey.sh").start();
    let worker = agent.worker();
    agent.freeze(2 * LEASE);
    // The agent has resumed once it has handled this.
    orders.give("echo still here");
    agent.prints("still here");
    assert!(is_alive(worker.pid()));
    orders.give("exit 0");
    let end = agent.end();
    end.assert_code(0);
    assert_eq!(end.stdout.matches("worker rank=").count(), 1, "{}", end.stdout);
}

/// A stopped keeper is reported within seconds, and so is its return.
#[test]
fn keeper_that_does_not_answer_is_reported() {
    let sandbox = Sandbox::new();
    let mut agent = sandbox.ragent("--no-python stay.sh").start();
    agent.worker();
    let keeper = keeper_of(agent.pid());
    kill(keeper, Signal::SIGSTOP);
    agent.logs("the keeper of the workers does not answer");
    kill(keeper, Signal::SIGCONT);
    agent.logs("the keeper of the workers answers again");
    agent.signal(Signal::SIGTERM);
    agent.end().assert_code(8);
    sandbox.assert_nothing_left();
}
