//! Tests `ragent store`, `ragent coordinator` and `ragent status`.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use nix::sys::signal::Signal;

use crate::support::{Program, Sandbox, free_port, kill};

/// The address that a serving program prints first.
fn address(program: &mut Program) -> SocketAddr {
    program.prints("127.0.0.1:").parse().unwrap()
}

/// A store prints its address, and exits with 0 when it is asked to end.
#[test]
fn store_serves_until_a_signal() {
    let sandbox = Sandbox::new();
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut store = sandbox.ragent("store --host 127.0.0.1 --port 0").start();
        TcpStream::connect(address(&mut store)).unwrap();
        store.signal(signal);
        store.end().assert_code(0);
    }
}

/// Without `--host`, a store listens only on loopback, because it admits all connections.
#[test]
fn store_listens_on_loopback_by_default() {
    let sandbox = Sandbox::new();
    let mut store = sandbox.ragent("store --port 0").start();
    let address: SocketAddr = store.prints(":").parse().unwrap();
    assert!(address.ip().is_loopback(), "{address}");
    TcpStream::connect(address).unwrap();
}

/// A store with `--exit-with-parent` ends with its parent, even if that was killed.
#[test]
fn store_ends_with_its_parent() {
    let sandbox = Sandbox::new();
    let ragent = env!("CARGO_BIN_EXE_ragent");
    let script =
        format!("{ragent} store --host 127.0.0.1 --port 0 --exit-with-parent & echo parent; wait");
    let mut parent = sandbox.program("/bin/bash").arg("-c").arg(script).start();
    TcpStream::connect(address(&mut parent)).unwrap();
    kill(parent.pid(), Signal::SIGKILL);
    parent.wait_until_silent();
    sandbox.assert_nothing_left();
}

/// If a port is in use, the message names it and the reason.
#[test]
fn held_port_is_named() {
    let held = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = held.local_addr().unwrap().port();
    let sandbox = Sandbox::new();
    for command in ["store", "coordinator"] {
        let end = sandbox.ragent(&format!("{command} --host 127.0.0.1 --port {port}")).run();
        end.assert_code(10);
        end.assert_stderr(&[&format!("failed to listen on 127.0.0.1:{port}"), "in use"]);
    }
}

/// A coordinator without any agent exits with 0 when it is asked to end.
#[test]
fn lonely_coordinator_serves_until_a_signal() {
    let sandbox = Sandbox::new();
    let mut coordinator = sandbox.ragent("coordinator --host 127.0.0.1 --port 0").start();
    address(&mut coordinator);
    coordinator.signal(Signal::SIGTERM);
    coordinator.end().assert_code(0);
}

/// `ragent coordinator` hosts the job of other agents, and ends with it.
#[test]
fn coordinator_hosts_the_job_of_others() {
    let sandbox = Sandbox::new();
    let words = "coordinator --host 127.0.0.1 --port 0 --rdzv-id j";
    let mut coordinator = sandbox.ragent(words).start();
    let endpoint = address(&mut coordinator);
    let words = format!("--nnodes 2 --rdzv-id j --rdzv-endpoint {endpoint} --no-python fail.sh 0");
    let mut agents = [sandbox.ragent(&words).start(), sandbox.ragent(&words).start()];
    let mut ranks = agents.each_mut().map(|agent| agent.worker().number("rank"));
    ranks.sort_unstable();
    assert_eq!(ranks, [0, 1]);
    for agent in agents {
        agent.end().assert_code(0);
    }
    coordinator.end().assert_code(0);
    sandbox.assert_nothing_left();
}

/// `ragent status` finds the only job of this user by itself, and prints its state.
#[test]
fn status_finds_the_job() {
    let sandbox = Sandbox::new();
    let words = "--nproc-per-node 2 --max-restarts 3 --rdzv-id j --rdzv-endpoint 127.0.0.1:0 --no-python stay.sh";
    let mut agent = sandbox.ragent(words).start();
    agent.workers(2);
    let status = sandbox.ragent("status --nodes").run();
    status.assert_code(0);
    let mut lines = status.stdout.lines();
    let head = "job j  round 1  running  nodes 1  workers 2  restarts 0/3";
    assert_eq!(lines.next(), Some(head));
    assert!(lines.next().is_some_and(|line| line.starts_with("time: ")), "{}", status.stdout);
    let title: Vec<&str> = lines.next().unwrap().split_ascii_whitespace().collect();
    assert_eq!(title, ["rank", "host", "address", "workers", "state", "seen"]);
    let row: Vec<&str> = lines.next().unwrap().split_ascii_whitespace().collect();
    assert_eq!([row[0], row[2], row[3], row[4]], ["0", "127.0.0.1", "0-1", "running"]);
    assert_eq!(lines.next(), None);
    assert_eq!(status.stderr, "");
}

/// `ragent status --json` is one object on one line, for programs.
#[test]
fn status_for_programs() {
    let sandbox = Sandbox::new();
    let words = "--nproc-per-node 2 --rdzv-id j --rdzv-endpoint 127.0.0.1:0 --no-python stay.sh";
    let mut agent = sandbox.ragent(words).start();
    agent.workers(2);
    let status = sandbox.ragent("status --json").run();
    status.assert_code(0);
    assert_eq!(status.stdout.lines().count(), 1);
    let status: serde_json::Value = serde_json::from_str(&status.stdout).unwrap();
    assert_eq!(status["run_id"], "j");
    assert_eq!(status["round"], 1);
    assert_eq!(status["phase"], "running");
    assert_eq!(status["world_size"], 2);
    assert_eq!(status["nodes"][0]["group_rank"], 0);
    assert_eq!(status["nodes"][0]["state"], "running");
}

/// A job that has ended is not found, and neither is a job that was killed.
#[test]
fn status_finds_no_job_that_has_ended() {
    let sandbox = Sandbox::new();
    let mut agent = sandbox.ragent("--no-python stay.sh").start();
    agent.worker();
    agent.signal(Signal::SIGKILL);
    agent.end();
    sandbox.ragent("--no-python true").run().assert_code(0);
    let status = sandbox.ragent("status").run();
    status.assert_code(1);
    status.assert_stderr(&["no job of this user is running", "hint: ", "--rdzv-endpoint"]);
}

/// If several jobs run, they are listed and you must name one. Several agents of a job count as one.
#[test]
fn status_asks_which_job() {
    let sandbox = Sandbox::new();
    let endpoint = format!("127.0.0.1:{}", free_port());
    let words = format!("--rdzv-id a --nnodes 2 --rdzv-endpoint {endpoint} --no-python stay.sh");
    let mut first = sandbox.ragent(&words).start();
    first.endpoint();
    let mut other =
        sandbox.ragent("--rdzv-id b --rdzv-endpoint 127.0.0.1:0 --no-python stay.sh").start();
    other.worker();
    let mut second = sandbox.ragent(&words).start();
    first.worker();
    second.worker();
    let status = sandbox.ragent("status").run();
    status.assert_code(1);
    status.assert_stderr(&[
        "2 jobs are running on this machine",
        "stay.sh",
        &format!("\n  run id a, endpoint {endpoint}, process "),
        "\n  run id b, endpoint 127.0.0.1:",
    ]);
    let named = sandbox.ragent(&format!("status --rdzv-endpoint {endpoint}")).run();
    named.assert_code(0);
    assert!(named.stdout.starts_with("job a "), "{}", named.stdout);
}
