//! Tests the program of `--exclude-command`, which the coordinating agent runs.

use std::fs;

use crate::{
    job::{Job, hosting, workers},
    support::Sandbox,
};

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
