//! Tests agents and keepers that are killed or stopped: death notices, leases that the kernel's timers end, and streams that break.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::{
    job::{Job, numbers, workers},
    support::{LEASE, Sandbox, is_alive, keeper_of, kill, let_pass},
};

/// The agent of a node is killed. The keeper's death notice makes the node lost before its lease ends, and its workers are dead by then.
/// The other nodes form a new round without it, and nothing is charged.
#[test]
fn killed_agent_is_lost_by_its_death_notice() {
    let sandbox = Sandbox::with_standbys();
    let job =
        Job::new(&sandbox, "--nnodes 1:2 --rdzv-conf shrink_timeout=0,last_call_timeout=3600");
    let mut host = job.host("--no-python stay.sh");
    let mut guest = job.guest("--role other --no-python stubborn.sh");
    let [_, stubborn] = workers([&mut host, &mut guest]);
    guest.signal(Signal::SIGKILL);
    let alone = host.worker();
    assert!(!is_alive(stubborn.pid()));
    assert_eq!(alone.number("world_size"), 1);
    assert_eq!(alone.number("restart"), 0);
    let line = host.logs("round has ended");
    assert!(line.contains("its agent has ended"), "{line}");
    assert_eq!(job.status()["restarts_used"], 0);
}

/// If no process is left to send the death notice, the end of the lease proves the loss.
#[test]
fn node_without_agent_and_keeper_is_lost_by_its_lease() {
    let sandbox = Sandbox::with_standbys();
    let job =
        Job::new(&sandbox, "--nnodes 1:2 --rdzv-conf shrink_timeout=0,last_call_timeout=3600");
    let mut host = job.host("--no-python stay.sh");
    let mut guest = job.guest("--no-python stay.sh");
    let [_, lost] = workers([&mut host, &mut guest]);
    // The agent is stopped, so it starts no other keeper and does not notice the end of this one.
    guest.signal(Signal::SIGSTOP);
    kill(keeper_of(guest.pid()), Signal::SIGKILL);
    guest.signal(Signal::SIGKILL);
    let alone = host.worker();
    assert!(!is_alive(lost.pid()));
    assert_eq!(alone.number("world_size"), 1);
    let line = host.logs("round has ended");
    assert!(line.contains("no message within its lease"), "{line}");
}

/// A frozen node is evicted. Its workers are dead before the next round starts, although its agent cannot kill them. When it resumes, it is
/// admitted again.
#[test]
fn frozen_node_is_evicted_and_comes_back() {
    let sandbox = Sandbox::with_standbys();
    let flags = "--nnodes 1:2 --rdzv-conf shrink_timeout=0,join_settle=0,last_call_timeout=3600";
    let job = Job::new(&sandbox, flags);
    let mut host = job.host("--no-python stay.sh");
    let mut guest = job.guest("--role other --no-python stubborn.sh");
    let [_, frozen] = workers([&mut host, &mut guest]);
    guest.signal(Signal::SIGSTOP);
    let alone = host.worker();
    assert!(!is_alive(frozen.pid()));
    assert_eq!(alone.number("world_size"), 1);
    let line = host.logs("round has ended");
    assert!(line.contains("no message within its lease"), "{line}");
    guest.signal(Signal::SIGCONT);
    let both = workers([&mut host, &mut guest]);
    assert_eq!(numbers(&both, "world_size"), [2, 2]);
    assert_eq!(numbers(&both, "restart"), [0, 0]);
    assert_eq!(numbers(&both, "group_rank"), [0, 1]);
}

/// If an agent is stopped for a second, or a coordinator for a second and a half, no node is lost,
/// and no worker is stopped.
#[test]
fn short_pauses_cost_nothing() {
    let sandbox = Sandbox::with_standbys();
    let job = Job::new(&sandbox, "--nnodes 2 --shutdown-timeout 300");
    let mut host = job.host("--no-python stay.sh");
    let mut guest = job.guest("--no-python stay.sh");
    let both = workers([&mut host, &mut guest]);
    for (agent, millis) in [(&guest, 1000), (&host, 1500), (&guest, 1000)] {
        agent.freeze(Duration::from_millis(millis));
        let_pass(LEASE);
    }
    assert_eq!(job.status()["round"], 1);
    assert!(both.iter().all(|worker| is_alive(worker.pid())));
    for agent in [guest, host] {
        agent.signal(Signal::SIGTERM);
        let stderr = agent.end().stderr;
        assert!(!stderr.contains("lease has ended") && !stderr.contains("node lost"), "{stderr}");
    }
}

/// A keeper that is stopped when the lease of its node ends is killed, and so are its workers. They must not outlive the lease by a minute.
#[test]
fn workers_of_a_frozen_keeper_die_with_the_lease() {
    let sandbox = Sandbox::with_standbys();
    let lifeline = sandbox.lifeline("lifeline");
    let job = Job::new(&sandbox, "--nnodes 2");
    let mut host = job.host("--no-python stay.sh");
    let mut guest = job.agent("--role other --no-python stubborn.sh").hold(&lifeline).start();
    workers([&mut host, &mut guest]);
    kill(keeper_of(guest.pid()), Signal::SIGSTOP);
    host.signal(Signal::SIGSTOP);
    guest.logs("the lease has ended and the keeper does not react; killing the keeper");
    lifeline.wait_until_broken();
    host.signal(Signal::SIGCONT);
    let again = workers([&mut host, &mut guest]);
    assert_eq!(numbers(&again, "restart"), [0, 0]);
}
