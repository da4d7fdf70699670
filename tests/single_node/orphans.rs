//! Tests processes that are hard to kill, and losses of the processes that should kill them.

use nix::sys::signal::Signal;

use crate::support::{
    Cgroup, Sandbox, command_line, is_alive, is_there, keeper_of, kill, session_of,
};

/// Workers whose descendants fork and exit again and again, and workers that only SIGKILL can
/// interrupt, die when the round is over and when their agent is killed.
#[test]
fn hopping_and_uninterruptible_processes_die() {
    if !is_there("python3") {
        return;
    }
    for worker in ["hop.py", "vfork.py"] {
        for signal in [Signal::SIGTERM, Signal::SIGKILL] {
            let sandbox = Sandbox::with_standbys();
            let lifeline = sandbox.lifeline("lifeline");
            let words = format!("--nproc-per-node 2 --shutdown-timeout 1 --no-python {worker}");
            let mut agent = sandbox.ragent(&words).hold(&lifeline).start();
            agent.workers(2);
            agent.signal(signal);
            lifeline.wait_until_broken();
            agent.wait_until_silent();
            sandbox.assert_nothing_left();
        }
    }
}

/// In a delegated cgroup, workers run in a cgroup of their own, which is removed at the end.
#[test]
fn delegated_cgroup_is_used() {
    let Some(cgroup) = Cgroup::delegated("used") else { return };
    let sandbox = Sandbox::with_standbys();
    let mut agent = cgroup.ragent(&sandbox, "--no-python litter.sh stay.sh").start();
    agent.worker();
    let worker = agent.worker().pid();
    let own = std::fs::read_to_string(format!("/proc/{worker}/cgroup")).unwrap();
    let below = cgroup.below();
    assert_eq!(below.len(), 1, "{below:?}");
    assert!(own.contains(&below[0]), "{own}");
    agent.signal(Signal::SIGTERM);
    agent.end().assert_code(8);
    assert_eq!(cgroup.below(), Vec::<String>::new());
    sandbox.assert_nothing_left();
}

/// If agent and keeper are killed at the same instant, the next agent in that cgroup ends the
/// remaining processes before its own workers start.
#[test]
fn next_agent_ends_what_is_left() {
    let Some(cgroup) = Cgroup::delegated("left") else { return };
    if !is_there("setsid") {
        return;
    }
    let sandbox = Sandbox::with_standbys();
    let lifeline = sandbox.lifeline("lifeline");
    let words = "--no-python litter.sh stay.sh";
    let mut agent = cgroup.ragent(&sandbox, words).hold(&lifeline).start();
    agent.worker();
    let worker = agent.worker().pid();
    let keeper = keeper_of(agent.pid());
    // Both are stopped first, so that neither sees the other's end.
    for signal in [Signal::SIGSTOP, Signal::SIGKILL] {
        kill(keeper, signal);
        agent.signal(signal);
    }
    let left: Vec<u32> =
        cgroup.members().into_iter().filter(|pid| session_of(*pid) != Some(worker)).collect();
    assert!(left.iter().any(|pid| command_line(*pid).contains("sleep")), "nothing is left");
    let mut next = cgroup.ragent(&sandbox, "--no-python stay.sh").start();
    next.worker();
    assert!(!left.iter().any(|pid| is_alive(*pid)), "it lives beside the next round");
    lifeline.wait_until_broken();
    agent.wait_until_silent();
    next.signal(Signal::SIGTERM);
    next.end().assert_code(8);
    sandbox.assert_nothing_left();
}

/// Workers can save and no process is left, whether a service manager signals every process of its
/// unit or only the main one.
#[test]
fn service_manager_stops_its_unit() {
    for is_mixed in [false, true] {
        let Some(cgroup) = Cgroup::delegated("unit") else { return };
        let sandbox = Sandbox::with_standbys();
        let words = "--nproc-per-node 2 --no-python litter.sh polite.sh";
        let mut agent = cgroup.ragent(&sandbox, words).start();
        agent.workers(2);
        agent.workers(2);
        if is_mixed {
            agent.signal(Signal::SIGTERM);
        } else {
            cgroup.signal(Signal::SIGTERM);
        }
        agent.prints("saved rank=0 on TERM");
        agent.prints("saved rank=1 on TERM");
        let code = agent.end().code;
        // If the manager signals all processes, a worker may end before the agent has its own signal.
        assert!(code == Some(8) || !is_mixed && code == Some(1), "{code:?}");
        assert_eq!(cgroup.members(), Vec::<u32>::new());
        sandbox.assert_nothing_left();
    }
}
