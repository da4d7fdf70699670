//! Tests what a job says about itself when it stands still: real workers on gloo, one of which does not come to a collective.

use std::{fs::Permissions, os::unix::fs::PermissionsExt};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use crate::{
    REPOSITORY,
    support::{Network, Program, Sandbox, Start, may_make_networks},
    venv,
};

/// Rank 2 of it does not come to a collective.
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/stall/train.py");

fn training(start: Start, python: &str) -> Start {
    start
        .env("PYTHON_EXEC", python)
        .env("PYTHONPATH", format!("{REPOSITORY}/packaging/python"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
}

/// Ends a job that stands still.
fn end_all(agents: Vec<Program>) {
    for agent in &agents {
        agent.signal(Signal::SIGTERM);
    }
    for agent in agents {
        agent.end();
    }
}

/// With torch's worker server, the number of its collectives shows which rank did not come, and its stack shows where it is.
#[test]
#[ignore = "`make test-all` runs it: importing torch takes seconds of CPU time"]
fn missing_rank_is_named() {
    let Some(python) = venv("python") else { return };
    let sandbox = Sandbox::new();
    let words = format!(
        "--nnodes 1 --nproc-per-node 4 --rdzv-endpoint 127.0.0.1:0 --log-dir {} {SCRIPT} --observe",
        sandbox.path("logs").display()
    );
    let mut agent =
        training(sandbox.ragent(&words), &python).env("GLOO_SOCKET_IFNAME", "lo").start();
    let endpoint = agent.endpoint();
    let mut events = sandbox.ragent(&format!("events --follow --rdzv-endpoint {endpoint}")).start();
    events.prints("rank 2 has not launched all_reduce 41");
    let explained = sandbox.ragent(&format!("explain stall --rdzv-endpoint {endpoint}")).run();
    assert_eq!(explained.code, Some(0), "{}", explained.stderr);
    for part in [
        "no step after 40",
        "(records of torch; unchanged after 10 s)",
        "in load_batch at train.py:",
    ] {
        assert!(explained.stdout.contains(part), "{}", explained.stdout);
    }
    let stacks = sandbox.ragent("stacks").run();
    assert_eq!(stacks.code, Some(0), "{}", stacks.stderr);
    for part in [
        "rank 2 has not launched all_reduce 41",
        "rank 2: load_batch (train.py:",
        "ranks 0-1, 3: all_reduce (train.py:",
    ] {
        assert!(stacks.stdout.contains(part), "{}", stacks.stdout);
    }
    end_all(vec![agent]);
}

/// Without the server, the stacks of py-spy are compared. A secret lets lines of the script cross the network.
#[test]
#[ignore = "`make test-all` runs it: importing torch takes seconds of CPU time"]
fn other_stack_is_named() {
    let line = on_two_nodes("stacks", true, "");
    assert!(line.is_none_or(|line| line.contains("load_batch (train.py:")));
}

/// Without a secret, the rank is named and the file of its stack, and no line of its script.
#[test]
#[ignore = "`make test-all` runs it: importing torch takes seconds of CPU time"]
fn lines_do_not_cross_the_network_in_the_clear() {
    let line = on_two_nodes("nolines", false, "");
    assert!(line.is_none_or(|line| !line.contains("train.py") && line.contains("/stack.txt")));
}

/// With torch's worker servers on two nodes and a secret, the numbers of both are compared.
#[test]
fn missing_rank_is_named_on_two_nodes() {
    let line = on_two_nodes("numbers", true, "--observe");
    assert!(line.is_none_or(|line| line.contains("has not launched all_reduce 41")));
}

/// With `--hang-timeout auto`, a worker that a signal has stopped is killed while the others wait for it. If it goes on in time, it lives.
#[test]
#[ignore = "`make test-all` runs it: importing torch takes seconds of CPU time"]
fn stopped_worker_is_killed() {
    let Some(python) = venv("python") else { return };
    let sandbox = Sandbox::new();
    let start = |name: &str| {
        let words = format!(
            "--rdzv-id {name} --nnodes 1 --nproc-per-node 2 --hang-timeout auto --rdzv-endpoint 127.0.0.1:0 {SCRIPT} \
             --observe --steps 1000000"
        );
        let mut agent =
            training(sandbox.ragent(&words), &python).env("GLOO_SOCKET_IFNAME", "lo").start();
        let endpoint = agent.endpoint();
        let line = agent.prints("rank=1 pid=");
        agent.prints("step=20");
        let pid: i32 = line.rsplit_once("pid=").expect("it ends so").1.parse().expect("a number");
        let words = format!("events --follow --rdzv-endpoint {endpoint}");
        let events = sandbox.ragent(&words).start();
        (agent, events, Pid::from_raw(pid), endpoint)
    };
    let jobs = [start("goes-on"), start("stays")];
    for (_, _, pid, _) in &jobs {
        kill(*pid, Signal::SIGSTOP).expect("the worker runs");
    }
    let [(goes_on, mut its_events, pid, its_endpoint), (mut stays, mut events, _, _)] = jobs;
    its_events.prints("why the workers are stalled: rank 1 is stopped");
    kill(pid, Signal::SIGCONT).expect("the worker is stopped");
    its_events.prints("the workers make progress again");
    events.prints("why the workers are stalled: rank 1 is stopped");
    stays.logs("it is killed if it stays stopped");
    let line = events.prints("killed because it made no progress");
    assert!(line.contains("rank 1 on"), "{line}");
    let end = stays.end();
    end.assert_code(1);
    assert!(end.report().contains("killed because it made no progress"), "{}", end.report());
    // The other worker was named too. It makes steps.
    let status = sandbox.ragent(&format!("status --json --rdzv-endpoint {its_endpoint}")).run();
    let status: Value = serde_json::from_str(&status.stdout).expect("it is JSON");
    assert_eq!((&status["round"], &status["stall"]), (&json!(1), &Value::Null), "{status}");
    end_all(vec![goes_on]);
}

/// Returns the explanation of a job on two nodes. `None` if a part of it is missing here.
fn on_two_nodes(name: &str, has_secret: bool, options: &str) -> Option<String> {
    let python = venv("python")?;
    if venv("py-spy").is_none() || !may_make_networks() {
        return None;
    }
    let sandbox = Sandbox::new();
    let secret = sandbox.path("secret");
    std::fs::write(&secret, "0123456789abcdef".repeat(4)).expect("the sandbox is writable");
    std::fs::set_permissions(&secret, Permissions::from_mode(0o600)).expect("it is ours");
    let access = match has_secret {
        true => format!("--secret-file {}", secret.display()),
        false => "--auth none".to_owned(),
    };
    let network = Network::new(name, 2);
    let start = |node: u32| {
        let words = format!(
            "--nnodes 2 --nproc-per-node 2 --rdzv-id stalls --rdzv-endpoint 10.77.0.1:29400 --local-addr {} {access} {SCRIPT} {options}",
            Network::address(node)
        );
        let start = network.named_ragent(&sandbox, node, &words);
        training(start, &python).env("GLOO_SOCKET_IFNAME", "eth0").start()
    };
    let mut host = start(1);
    host.endpoint();
    let agents = vec![host, start(2)];
    let words = format!("events --follow --rdzv-endpoint 10.77.0.1:29400 {access}");
    let mut events = network.ragent(&sandbox, 1, &words).start();
    let line = events.prints("rank 2 on node");
    end_all(agents);
    Some(line)
}
