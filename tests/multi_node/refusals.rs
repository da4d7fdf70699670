//! Tests nodes that do not belong to the job. They are refused at once, with the reason, and the job is not disturbed.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
};

use nix::sys::signal::Signal;
use ragent_base::sys::host::ThisHost;

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

/// Every difference is named, not only the first.
#[test]
fn several_differences() {
    let sandbox = Sandbox::new();
    let job = Job::new(&sandbox, "--nnodes 2");
    let _host = job.host("--no-python stay.sh");
    let guest = job.guest("--max-restarts 3 --rdzv-conf join_timeout=60 --no-python stay.sh");
    let end = guest.end();
    end.assert_code(9);
    let differences =
        ["--max-restarts is 3 here and 0 there", "join_timeout is 60 s here and 600 s"];
    end.assert_stderr(&differences);
}

/// An agent of another job is refused with the name of the job at the endpoint.
#[test]
fn other_run_id() {
    let sandbox = Sandbox::new();
    let job = Job::new(&sandbox, "--nnodes 2");
    let _host = job.host("--no-python stay.sh");
    let words =
        format!("--nnodes 2 --rdzv-id other --rdzv-endpoint {} --no-python stay.sh", job.endpoint);
    let end = sandbox.ragent(&words).run();
    end.assert_code(9);
    end.assert_stderr(&["the job at this endpoint is `j`", "--rdzv-id"]);
    assert_eq!(end.stdout, "");
}

/// Two scripts at one endpoint are two jobs. The second one is refused, and both sides name both scripts. A node with its own role may run
/// another script.
#[test]
fn other_script() {
    let sandbox = Sandbox::new();
    let script = sandbox.path("other.sh");
    fs::write(&script, "#!/bin/sh\nexec stay.sh\n").unwrap();
    fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
    let job = Job::new(&sandbox, "--nnodes 2");
    let mut host = job.host("--no-python stay.sh");
    let end = job.guest("--no-python ./other.sh").end();
    end.assert_code(9);
    let name = ThisHost.name();
    let why = format!("its script is `./other.sh`, but {name} runs `stay.sh` in this job");
    end.assert_stderr(&["refuses this node", &why, "hint: give each job an endpoint of its own"]);
    host.logs(&format!("its script is `other.sh`, but {name} runs `stay.sh` in this job"));
    let mut guest = job.guest("--role reader --no-python ./other.sh");
    workers([&mut host, &mut guest]);
}

/// An agent that has outlived its job is refused by the next job of the same name, once that has formed a round. The agent's workers belong
/// to another run.
#[test]
fn agent_of_an_earlier_run() {
    let sandbox = Sandbox::new();
    let job = Job::new(&sandbox, "--nnodes 2 --shutdown-timeout 1");
    let mut host = job.host("--no-python stay.sh");
    let mut guest = job.guest("--no-python stay.sh");
    workers([&mut host, &mut guest]);
    guest.signal(Signal::SIGSTOP);
    host.signal(Signal::SIGKILL);
    host.wait_until_silent();
    // The next host knows nothing of the previous run.
    for entry in fs::read_dir(sandbox.path("run/ragent")).unwrap() {
        let path = entry.unwrap().path();
        // The folders have the sockets of workers.
        if path.is_file() {
            fs::remove_file(path).unwrap();
        }
    }
    let mut host = job.host("--no-python stay.sh");
    let mut other = job.guest("--no-python stay.sh");
    workers([&mut host, &mut other]);
    guest.signal(Signal::SIGCONT);
    let end = guest.end();
    end.assert_code(9);
    end.assert_stderr(&["it belongs to an earlier run of the job", "hint: "]);
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
