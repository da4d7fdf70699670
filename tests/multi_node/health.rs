//! Tests jobs in which a machine is unhealthy, or a host is excluded.

use std::fs;

use crate::{
    job::{Job, hosting, workers},
    support::{Gpus, Sandbox},
};

/// A worker fails on a node whose GPU reports XID 79, and a spare takes its place. Nothing is charged, although no restart is left. The
/// node is shown as unhealthy.
#[test]
fn spare_takes_the_place_of_a_bad_machine() {
    let sandbox = Sandbox::new();
    let Some(mut gpus) = Gpus::new(&sandbox) else { return };
    let orders = [0, 1].map(|rank| sandbox.orders(rank));
    let job = Job::new(&sandbox, "--nnodes 2 --max-restarts 0");
    let mut host = job.host("--no-python obey.sh");
    let mut bad = gpus.belong_to(job.agent("--no-python obey.sh")).start();
    workers([&mut host, &mut bad]);
    let mut spare = job.guest("--no-python obey.sh");
    spare.logs("the round is full; this node is a spare");
    gpus.fail(1, 79);
    bad.logs("GPU 1 reported XID 79");
    orders[1].give("exit 7");
    workers([&mut host, &mut spare]);
    bad.logs("this machine is unhealthy");
    let status = job.status();
    assert_eq!(status["restarts_used"], 0, "{status}");
    let nodes = status["nodes"].as_array().unwrap();
    let unhealthy: Vec<_> = nodes.iter().filter(|node| node["state"] == "unhealthy").collect();
    assert_eq!(unhealthy.len(), 1, "{status}");
    let reason = unhealthy[0]["unhealthy"].as_str().unwrap();
    assert!(reason.contains("XID 79"), "{status}");
    let words = format!("events --rdzv-endpoint {}", job.endpoint);
    let events = sandbox.ragent(&words).run().stdout;
    for text in [
        "the failure is not charged: the machine is unhealthy",
        "is unhealthy (replace): GPU 1",
        "it gets no place",
    ] {
        assert!(events.contains(text), "no `{text}` in:\n{events}");
    }
    orders.iter().for_each(|orders| orders.give("exit 0"));
    for agent in [host, spare, bad] {
        agent.end().assert_code(0);
    }
    sandbox.assert_nothing_left();
}

/// A node that `--exclude-command` names gets no place. The program runs on the node that coordinates.
#[test]
fn excluded_host_gets_no_place() {
    let sandbox = Sandbox::new();
    let list = sandbox.path("list.txt");
    fs::write(&list, "rack2 drained by root\n").unwrap();
    let orders = [0, 1].map(|rank| sandbox.orders(rank));
    let job = Job::new(&sandbox, "--nnodes 2:3 --rdzv-conf last_call_timeout=0.1,join_settle=0");
    let host = job
        .agent("--failure-domain rack0 --no-python obey.sh")
        .env("PET_EXCLUDE_COMMAND", format!("cat {}", list.display()));
    let mut host = hosting(host);
    let mut excluded = job.guest("--failure-domain rack2 --no-python obey.sh");
    excluded.logs("this host is excluded");
    let mut guest = job.guest("--failure-domain rack1 --no-python obey.sh");
    workers([&mut host, &mut guest]);
    let status = job.status();
    let nodes = status["nodes"].as_array().unwrap();
    let shown: Vec<_> = nodes.iter().filter(|node| node["state"] == "excluded").collect();
    assert_eq!(shown.len(), 1, "{status}");
    assert_eq!(shown[0]["excluded"], "drained by root", "{status}");
    orders.iter().for_each(|orders| orders.give("exit 0"));
    for agent in [host, guest, excluded] {
        agent.end().assert_code(0);
    }
}

/// A program that does not exist is an error at the start, and so is the flag in a job with fixed ranks.
#[test]
fn wrong_exclude_commands_are_refused() {
    let sandbox = Sandbox::new();
    for (words, part) in [
        (
            "--exclude-command /nowhere/list --no-python obey.sh",
            "names a program that does not exist",
        ),
        (
            "--rdzv-backend static --nnodes 2 --rdzv-endpoint 127.0.0.1:9 --exclude-command true --no-python obey.sh",
            "fixed ranks",
        ),
    ] {
        let end = sandbox.ragent(words).run();
        end.assert_code(2);
        assert!(end.stderr.contains(part) && end.stderr.contains("hint"), "{}", end.stderr);
    }
}
