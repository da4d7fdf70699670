//! Tests signals to the agents of voters, their state files, and commands that follow the job to its next leader.

use std::collections::BTreeSet;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::{
    job::{Job, assert_served_everywhere},
    support::{Program, Sandbox, free_port, listening_ports},
};

/// Three free endpoints of this machine.
pub(crate) fn endpoints() -> [String; 3] {
    [(); 3].map(|()| format!("127.0.0.1:{}", free_port()))
}

/// A job whose coordinator is elected among the processes at `list`.
pub(crate) fn elected<'a>(sandbox: &'a Sandbox, list: &[String; 3], flags: &str) -> Job<'a> {
    Job::at(sandbox, list.join(","), flags)
}

/// The endpoint of the voter that leads, by the status of the job.
#[track_caller]
fn leader(job: &Job<'_>) -> String {
    let status = job.status();
    let voters = status["voters"].as_array().expect("the voters are listed");
    let leading: Vec<&Value> =
        voters.iter().filter(|voter| voter["is_leader"] == Value::Bool(true)).collect();
    let [leader] = leading[..] else { panic!("one leader was expected: {status}") };
    leader["endpoint"].as_str().expect("an endpoint is text").to_owned()
}

/// The position of the agent that serves `endpoint`.
#[track_caller]
fn at(agents: &[Program], endpoint: &str) -> usize {
    let port: u16 = endpoint.rsplit(':').next().and_then(|port| port.parse().ok()).unwrap();
    let serves = |agent: &Program| listening_ports(agent.pid()).contains(&port);
    agents.iter().position(serves).expect("an agent serves the endpoint")
}

/// Takes the agent that coordinates the job out of `agents`.
#[track_caller]
fn take_leader(job: &Job<'_>, agents: &mut Vec<Program>) -> Program {
    let at = at(agents, &leader(job));
    agents.remove(at)
}

/// Waits for the next worker of each agent, and asserts the size of the new round.
#[track_caller]
fn assert_round(agents: &mut [Program], world_size: u32) {
    let ranks: BTreeSet<u32> = agents
        .iter_mut()
        .map(|agent| {
            let worker = agent.worker();
            assert_eq!(worker.number("world_size"), world_size);
            worker.number("rank")
        })
        .collect();
    assert_eq!(ranks.len(), agents.len());
}

const FLAGS: &str = "--max-restarts 0 --rdzv-conf shrink_timeout=0,last_call_timeout=3600";

/// A reader of the output goes on in the round after a takeover, with the nodes that are left.
#[test]
fn reader_of_output_goes_on() {
    let sandbox = Sandbox::new();
    let job = elected(&sandbox, &endpoints(), &format!("--nnodes 2:3 --log-dir logs -t 1 {FLAGS}"));
    let mut agents: Vec<Program> = (0..3).map(|_| job.guest("--no-python stay.sh")).collect();
    assert_round(&mut agents, 3);
    let words = format!("logs --follow --raw --grep worker --rdzv-endpoint {}", job.endpoint);
    let mut reader = sandbox.ragent(&words).default_lines().start();
    for rank in 0..3 {
        reader.prints(&format!("{rank}          | worker rank={rank} "));
    }
    let lost = take_leader(&job, &mut agents);
    lost.signal(Signal::SIGKILL);
    assert_round(&mut agents, 2);
    reader.prints("           | (round 2)");
    for rank in 0..2 {
        let line = reader.prints(&format!("{rank}          | worker rank={rank} "));
        assert!(line.contains("world_size=2"), "{line}");
    }
    lost.end();
    for agent in &agents {
        agent.signal(Signal::SIGTERM);
    }
    for agent in agents {
        agent.end().assert_code(8);
    }
    reader.signal(Signal::SIGTERM);
    reader.end();
    sandbox.assert_nothing_left();
}

/// The leader's agent is killed. The others continue without it, and nothing is charged.
///
/// A second loss leaves no majority of the voters. The workers stop, and the agents wait. Another agent at a listed endpoint ends the wait,
/// although it has no state of the job.
#[test]
fn leader_is_killed() {
    let sandbox = Sandbox::with_standbys();
    let job = elected(&sandbox, &endpoints(), &format!("--nnodes 2:4 {FLAGS}"));
    let mut agents: Vec<Program> = (0..3).map(|_| job.guest("--no-python stay.sh")).collect();
    let member = job.guest("--no-python stay.sh");
    agents.push(member);
    assert_round(&mut agents, 4);
    let first = leader(&job);
    let lost = take_leader(&job, &mut agents);
    lost.signal(Signal::SIGKILL);
    assert_round(&mut agents, 3);
    assert_served_everywhere(&job.status());
    for agent in &mut agents {
        let line = agent.logs("round has ended");
        assert!(line.contains("was lost, and another process has taken over"), "{line}");
    }
    assert_eq!(job.status()["restarts_used"], 0);
    let second = leader(&job);
    assert_ne!(second, first);
    take_leader(&job, &mut agents).signal(Signal::SIGKILL);
    for agent in &mut agents {
        agent.logs("killing the workers of this node");
    }
    let voter =
        at(&agents, job.endpoint.split(',').find(|one| **one != first && **one != second).unwrap());
    agents[voter].logs("no coordinator was elected for 10 s: a majority of the 3 voters");
    let end = sandbox.ragent(&format!("status --rdzv-endpoint {}", job.endpoint)).run();
    end.assert_code(1);
    end.assert_stderr(&["knows of no elected coordinator at present"]);
    let mut returned = job.guest("--no-python stay.sh");
    // Two of the three may have a round before the third one joins.
    while returned.worker().number("world_size") != 3 {}
    assert_eq!(job.status()["restarts_used"], 0);
    agents.push(returned);
    for agent in &agents {
        agent.signal(Signal::SIGTERM);
    }
    for agent in agents {
        agent.end().assert_code(8);
    }
    lost.end();
    sandbox.wait_until_nothing_left();
}

/// Another voter takes over from a leader that is stopped (SIGSTOP). The old leader joins again when it continues.
#[test]
fn leader_is_frozen() {
    let sandbox = Sandbox::with_standbys();
    let job = elected(&sandbox, &endpoints(), &format!("--nnodes 2:3 {FLAGS},join_settle=0"));
    let mut agents: Vec<Program> = (0..3).map(|_| job.guest("--no-python stay.sh")).collect();
    assert_round(&mut agents, 3);
    let voter = leader(&job);
    let frozen = agents.remove(at(&agents, &voter));
    frozen.signal(Signal::SIGSTOP);
    assert_round(&mut agents, 2);
    let follow = format!("events --follow --rdzv-endpoint {}", job.endpoint);
    let mut follower = sandbox.ragent(&follow).start();
    follower.prints(&format!("the voter {voter} does not answer"));
    frozen.signal(Signal::SIGCONT);
    agents.push(frozen);
    assert_round(&mut agents, 3);
    follower.prints(&format!("the voter {voter} answers again"));
    assert_eq!(job.status()["restarts_used"], 0);
}

/// A leader's agent that leaves hands over, and ends like any other agent that leaves.
#[test]
fn leader_leaves() {
    let sandbox = Sandbox::with_standbys();
    let flags = format!("--nnodes 2:3 --shutdown-timeout 300 {FLAGS}");
    let job = elected(&sandbox, &endpoints(), &flags);
    let mut agents: Vec<Program> = (0..3).map(|_| job.guest("--no-python polite.sh")).collect();
    assert_round(&mut agents, 3);
    let mut leaver = take_leader(&job, &mut agents);
    leaver.signal(Signal::SIGTERM);
    leaver.prints("on TERM");
    let end = leaver.end();
    end.assert_code(8);
    end.assert_stderr(&["left the job because of SIGTERM"]);
    assert_round(&mut agents, 2);
    assert_eq!(job.status()["restarts_used"], 0);
    for agent in &agents {
        agent.signal(Signal::SIGTERM);
    }
    for agent in agents {
        agent.end().assert_code(8);
    }
    sandbox.assert_nothing_left();
    // The voter that has left was not replaced, so the others may still need it. Its file ages. The others keep theirs if they end before they
    // know that the job is over.
    assert!(!states(&sandbox).is_empty());
}

/// Two names of one host in the list of voters would make one process two voters.
#[test]
fn host_that_is_listed_twice_is_refused() {
    let sandbox = Sandbox::new();
    let port = free_port();
    let list = format!("localhost:{port},127.0.0.1:{port},127.0.0.2:{port}");
    let end = Job::at(&sandbox, list, "--nnodes 2:3").guest("--no-python stay.sh").end();
    end.assert_code(2);
    let same = format!(
        "the endpoints localhost:{port} and 127.0.0.1:{port} of the voters lead to the same address, 127.0.0.1:{port}"
    );
    end.assert_stderr(&[&same, "hint: list each host once"]);
}

/// The same command runs again after each kind of end, with a full budget. After a success or a failure it is another job. If all agents
/// leave, the last ones may keep the state, since they do not know the end of the job. Then it goes on.
#[test]
fn same_command_runs_again_after_each_end() {
    for (order, code) in [(Some("exit 0"), 0), (Some("exit 7"), 1), (None, 8)] {
        let sandbox = Sandbox::with_standbys();
        let orders: Vec<_> = (0..3).map(|rank| sandbox.orders(rank)).collect();
        let job = elected(&sandbox, &endpoints(), &format!("--nnodes 3 {FLAGS}"));
        let start = || job.guest("--no-python obey.sh");
        let mut agents = [(); 3].map(|()| start());
        assert_round(&mut agents, 3);
        let first = job.status();
        for index in 0..3 {
            match order {
                Some(order) => orders[index].give(order),
                None => agents[index].signal(Signal::SIGTERM),
            }
        }
        for agent in agents {
            agent.end().assert_code(code);
        }
        let mut agents = [(); 3].map(|()| start());
        assert_round(&mut agents, 3);
        let second = job.status();
        if order.is_some() {
            assert_ne!(second["job_uid"], first["job_uid"], "{order:?}");
        }
        assert_eq!(second["restarts_used"], 0, "{order:?}");
    }
}

/// A voter with another list is excluded from the election, and the others report that. Its agent takes part in the job.
#[test]
fn voter_with_another_list_is_excluded() {
    let sandbox = Sandbox::new();
    let list = endpoints();
    let job = elected(&sandbox, &list, "--nnodes 3");
    let mut agents: Vec<Program> = (0..2).map(|_| job.guest("--no-python stay.sh")).collect();
    // They have the first two endpoints of both lists.
    for agent in &mut agents {
        agent.logs("voter started");
    }
    let [first, second, _] = &list;
    let other = [first.clone(), second.clone(), format!("127.0.0.1:{}", free_port())];
    agents.push(elected(&sandbox, &other, "--nnodes 3").guest("--no-python stay.sh"));
    assert_round(&mut agents, 3);
    for agent in &mut agents[..2] {
        agent.logs("was refused: its `--rdzv-endpoint` or its `--nnodes` differs");
    }
}

/// Returns the state files of voters.
fn states(sandbox: &Sandbox) -> Vec<String> {
    let files = sandbox.files_below("");
    files.into_iter().filter(|file| file.contains("job-")).collect()
}
