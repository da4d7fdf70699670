//! Tests the loss of a node: its proof, and a round of the other nodes without a charge.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::{
    job::{Job, numbers, workers},
    support::{LEASE, Sandbox, is_alive, keeper_of, kill, let_pass},
    takeover::{elected, endpoints},
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

/// If a lost node is not replaced in time, the error of every other node names it with the reason.
#[test]
fn lost_node_is_named_when_the_job_ends() {
    let sandbox = Sandbox::with_standbys();
    let job = Job::new(&sandbox, "--nnodes 3 --rdzv-conf join_timeout=2");
    let mut host = job.host("--no-python stay.sh");
    let mut guest = job.guest("--no-python stay.sh");
    let mut lost = job.guest("--no-python stay.sh");
    workers([&mut host, &mut guest, &mut lost]);
    lost.signal(Signal::SIGKILL);
    for agent in [host, guest] {
        let end = agent.end();
        end.assert_code(1);
        end.assert_stderr(&[
            "only 2 of at least 3 nodes had joined 2 s after the end of round 1 or the last loss of a \
             node; 1 missing",
            "nodes that were lost or have left: ",
            " (its agent ended ",
        ]);
    }
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

/// A lost node can be replaced within the shrink timeout by an agent that is started again. One round follows, not two.
#[test]
fn restarted_agent_takes_its_place_again() {
    let sandbox = Sandbox::with_standbys();
    let job = Job::new(
        &sandbox,
        "--nnodes 1:2 --rdzv-conf shrink_timeout=3600,join_settle=0,last_call_timeout=3600",
    );
    let mut host = job.host("--no-python stay.sh");
    let mut guest = job.guest("--no-python stay.sh");
    workers([&mut host, &mut guest]);
    guest.signal(Signal::SIGKILL);
    host.logs("round has ended");
    let mut again = job.guest("--no-python stay.sh");
    let both = workers([&mut host, &mut again]);
    assert_eq!(numbers(&both, "world_size"), [2, 2]);
    assert_eq!(numbers(&both, "restart"), [0, 0]);
    assert_eq!(job.status()["round"], 2);
}

/// A killed keeper is a failure of its node. It is charged, and one round of all nodes follows.
#[test]
fn killed_keeper_is_a_failure_of_the_job() {
    let sandbox = Sandbox::with_standbys();
    let job = Job::new(&sandbox, "--nnodes 2 --max-restarts 1");
    let mut host = job.host("--no-python stay.sh");
    let mut guest = job.guest("--no-python stay.sh");
    workers([&mut host, &mut guest]);
    kill(keeper_of(guest.pid()), Signal::SIGKILL);
    let again = workers([&mut host, &mut guest]);
    assert_eq!(numbers(&again, "restart"), [1, 1]);
    let_pass(LEASE);
    let status = job.status();
    assert_eq!(status["round"], 2, "{status}");
    assert_eq!(status["restarts_used"], 1, "{status}");
    assert!(again.iter().all(|worker| is_alive(worker.pid())));
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

/// If the node with rank 0 is lost, a survivor gets that rank in the next round, never the replacement. The replacement has no checkpoint
/// to give to the others.
#[test]
fn rank_zero_is_a_survivor() {
    // `ragent coordinator` serves the endpoints, so no gate delays the first round until standbys are ready.
    let sandbox = Sandbox::new();
    let job = elected(&sandbox, &endpoints(), "--nnodes 3 --rdzv-conf shrink_timeout=3600");
    let _voters = job.coordinators("3");
    let mut agents = [0, 1, 2].map(|_| job.guest("--no-python stay.sh"));
    let [first, second, third] = &mut agents;
    let before = workers([first, second, third]);
    assert_eq!(numbers(&before, "group_rank"), [0, 1, 2]);
    agents[0].signal(Signal::SIGKILL);
    agents[1].logs("round has ended");
    // The newcomer asks for rank 0, but it is only the first among newcomers.
    let mut newcomer = job.agent("--node-rank 0 --no-python stay.sh").start();
    let [_, second, third] = &mut agents;
    let after = workers([&mut newcomer, second, third]);
    let ranks = numbers(&after, "group_rank");
    assert_ne!(ranks[0], 0, "{ranks:?}");
    assert_eq!(ranks[2], 2, "{ranks:?}");
    assert_eq!(numbers(&after, "restart"), [0, 0, 0]);
}

/// A newcomer whose worker fails at once, as on a broken GPU, is quarantined. The other nodes go on without it. Nothing is charged,
/// although no restart is left.
#[test]
fn broken_newcomer_is_quarantined() {
    let sandbox = Sandbox::with_standbys();
    let flags = "--nnodes 1:2 --max-restarts 0 \
                 --rdzv-conf last_call_timeout=0.1,join_settle=0,shrink_timeout=0";
    let job = Job::new(&sandbox, flags);
    let mut host = job.host("--no-python stay.sh");
    host.logs("nodes=1 world_size=1");
    let mut broken = job.guest("--role other --no-python fail.sh 1");
    // The host's worker of that round may be stopped before it prints anything.
    host.logs("nodes=2 world_size=2");
    broken.logs("this node failed soon after it joined, or repeatedly, and is quarantined");
    let alone = host.logs("nodes=1 world_size=1");
    assert!(alone.contains("restart_count=0"), "{alone}");
    let status = job.status();
    assert_eq!(status["nodes"][1]["state"], "quarantined", "{status}");
}

/// The workers of a frozen agent are killed at the end of its lease, while it is still frozen. When it resumes, the job goes on with a new
/// round, and nothing is charged.
#[test]
fn workers_do_not_outlive_the_lease_of_a_frozen_agent() {
    let sandbox = Sandbox::with_standbys();
    let lifeline = sandbox.lifeline("lifeline");
    let job = Job::new(&sandbox, "--nnodes 1:2 --rdzv-conf last_call_timeout=1");
    let words = "--nproc-per-node 2 --shutdown-timeout 300 --no-python stubborn.sh";
    let mut agent = job.agent(words).hold(&lifeline).start();
    let first = agent.workers(2);
    agent.signal(Signal::SIGSTOP);
    lifeline.wait_until_broken();
    agent.signal(Signal::SIGCONT);
    let second = agent.workers(2);
    assert_eq!(second[0].number("restart"), 0);
    assert_ne!(first[0].pid(), second[0].pid());
    // The first two are dead, so these two are the only workers.
    agent.signal(Signal::SIGKILL);
    agent.wait_until_silent();
    sandbox.assert_nothing_left();
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
