//! Tests how a refused agent ends, and an agent whose port is in use.

use crate::{
    job::{Job, workers},
    support::{Sandbox, free_port},
};

/// Two agents have different `--nnodes`. The second is refused with both values, and the host and the status of the job name it.
#[test]
fn different_numbers_of_nodes() {
    let sandbox = Sandbox::new();
    let job = Job::new(&sandbox, "");
    let mut host = job.host("--nnodes 2 --no-python stay.sh");
    let end = job.guest("--nnodes 2:3 --no-python stay.sh").end();
    end.assert_code(9);
    end.assert_stderr(&["refuses this node", "--nnodes is 2:3 here and 2 there", "hint: "]);
    assert_eq!(end.stdout, "");
    host.logs(
        "an agent at 127.0.0.1 was refused as a node of this job: --nnodes is 2 here and 2:3 there",
    );
    let status = sandbox.ragent("status").run();
    assert!(status.stdout.contains("--nnodes is 2 here and 2:3 there"), "{}", status.stdout);
    // The job goes on with a matching node.
    let mut guest = job.guest("--nnodes 2 --no-python stay.sh");
    workers([&mut host, &mut guest]);
}

/// Agents of one machine need different ports for their workers' stores. An agent whose port is taken ends at once, and names the port and
/// its setting.
#[test]
fn store_port_that_another_agent_has() {
    let sandbox = Sandbox::new();
    let port = free_port();
    let job = Job::new(&sandbox, &format!("--nnodes 2 --rdzv-conf store_port={port}"));
    let mut host = job.host("--no-python stay.sh");
    host.logs("waiting");
    let end = job.guest("--no-python stay.sh").end();
    end.assert_code(10);
    end.assert_stderr(&[&format!("on port {port}"), "in use", "hint: ", "`store_port`"]);
    assert_eq!(end.stdout, "");
}
