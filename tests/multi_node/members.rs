//! Tests the ports, log files and reports of agents that join a job.

use std::{
    fs,
    net::{Ipv6Addr, TcpListener},
    time::Duration,
};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::{
    job::{Job, numbers, workers},
    support::{Sandbox, free_port, let_pass, skip},
};

/// A node joins a running job with room. One new round without a charge admits it, and the members keep their ranks. Their earlier output
/// stays in the same log file.
#[test]
fn newcomer_is_taken_in() {
    let sandbox = Sandbox::with_standbys();
    let job = Job::new(&sandbox, "--nnodes 1:2 --rdzv-conf last_call_timeout=1,join_settle=0");
    let mut host = job.host("-t 1 --log-dir logs --no-python stay.sh");
    assert_eq!(host.worker().number("world_size"), 1);
    let mut guest = job.guest("--no-python stay.sh");
    let both = workers([&mut host, &mut guest]);
    assert_eq!(numbers(&both, "world_size"), [2, 2]);
    assert_eq!(numbers(&both, "rank"), [0, 1]);
    assert_eq!(numbers(&both, "restart"), [0, 0]);
    assert_eq!(job.status()["round"], 2);
    let files = sandbox.files_below("logs");
    assert_eq!(files.len(), 1, "{files:?}");
    let text = fs::read_to_string(sandbox.path("logs").join(&files[0])).unwrap();
    let sizes: Vec<bool> = text.lines().map(|line| line.contains(" world_size=2 ")).collect();
    assert_eq!(sizes, [false, true], "{text}");
    // A reader gets each line once, in its own round.
    let words = format!("logs --json --rdzv-endpoint {}", job.endpoint);
    let read = sandbox.ragent(&words).default_lines().run();
    read.assert_code(0);
    let lines: Vec<Value> =
        read.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let rounds: Vec<_> = lines.iter().map(|line| line["round"].as_u64()).collect();
    assert_eq!(rounds, [Some(1), Some(2)], "{}", read.stdout);
}

/// A spare that is not needed ends with the job, and its report shows that it has run nothing.
#[test]
fn spare_succeeds_with_the_job() {
    let sandbox = Sandbox::with_standbys();
    let orders = [0, 1].map(|rank| sandbox.orders(rank));
    let job = Job::new(&sandbox, "--nnodes 2");
    let mut host = job.host("--no-python obey.sh");
    let mut guest = job.guest("--no-python obey.sh");
    workers([&mut host, &mut guest]);
    let mut spare = job.guest("--report spare.json --no-python obey.sh");
    spare.logs("this node is a spare");
    orders.iter().for_each(|orders| orders.give("exit 0"));
    for agent in [host, guest] {
        agent.end().assert_code(0);
    }
    let end = spare.end();
    end.assert_code(0);
    end.assert_stderr(&["has_run=false"]);
    let report = fs::read_to_string(sandbox.path("spare.json")).unwrap();
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!((&report["result"], &report["exit_code"]), (&"not_run".into(), &0.into()));
    sandbox.assert_nothing_left();
}

/// Agents that start at the same moment agree on one of them as the host.
#[test]
fn agents_that_start_together_find_one_coordinator() {
    // With standbys, the gate would delay the other agents until the first one has a standby.
    let sandbox = Sandbox::new();
    let job = Job::new(&sandbox, "--nnodes 3");
    let mut agents = [0, 1, 2].map(|_| job.guest("--no-python fail.sh 0"));
    let mut ranks = agents.each_mut().map(|agent| agent.worker().number("rank"));
    ranks.sort_unstable();
    assert_eq!(ranks, [0, 1, 2]);
    let ends = agents.map(|agent| agent.end());
    assert!(ends.iter().all(|end| end.code == Some(0)), "{ends:?}");
    let hosts = ends.iter().filter(|end| end.stderr.contains("coordinating the job")).count();
    assert_eq!(hosts, 1);
}

/// An endpoint may be an IPv6 address; workers of all nodes reach the store of their round.
#[test]
fn workers_reach_their_store_over_ipv6() {
    if let Err(error) = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)) {
        return skip(&format!("::1 is not there: {error}"));
    }
    let sandbox = Sandbox::with_standbys();
    let job = Job::at(&sandbox, format!("[::1]:{}", free_port()), "--nnodes 2");
    let mut host = job.host("--no-python reach.sh");
    let mut guest = job.guest("--no-python reach.sh");
    host.prints("reached ::1 by rank=0");
    guest.prints("reached ::1 by rank=1");
    host.end().assert_code(0);
    guest.end().assert_code(0);
    sandbox.assert_nothing_left();
}

/// A coordinator does not answer for ten seconds, as while its machine is suspended. It is not taken for another program. A new node warns,
/// and registers when it answers again.
#[test]
fn newcomer_waits_for_a_paused_coordinator() {
    let sandbox = Sandbox::with_standbys();
    let job = Job::new(&sandbox, "--nnodes 1:2 --rdzv-conf last_call_timeout=0.1,join_settle=0.1");
    let mut host = job.host("--no-python stay.sh");
    host.worker();
    host.signal(Signal::SIGSTOP);
    let mut guest = job.guest("--no-python stay.sh");
    guest.logs("the coordinator has not been reached yet");
    let_pass(Duration::from_secs(7));
    host.signal(Signal::SIGCONT);
    guest.logs("nodes=2 world_size=2");
}
