//! Tests `ragent coordinator` and `ragent status`, and that `ragent store` is refused.

use std::net::{Ipv4Addr, TcpListener};

use nix::sys::signal::Signal;

use crate::support::{Sandbox, free_port};

/// A list of voters on this machine, the first of which is served first.
fn list() -> String {
    [(); 3].map(|()| format!("127.0.0.1:{}", free_port())).join(",")
}

/// The command that served a store alone is refused, with what to use instead.
#[test]
fn store_is_refused() {
    let end = Sandbox::new().ragent("store --port 0").run();
    end.assert_code(2);
    end.assert_stderr(&["`store` does not exist", "`torch.distributed.TCPStore(HOST, PORT"]);
}

/// A coordinator that is not a voter of a list is refused, with what to use instead.
#[test]
fn coordinator_needs_a_list() {
    let sandbox = Sandbox::new();
    for flags in ["", "--port 0", "--nnodes 2", "--nnodes 2 --rdzv-endpoint a,b,c --host ::"] {
        let end = sandbox.ragent(&format!("coordinator {flags}")).run();
        end.assert_code(2);
        end.assert_stderr(&[
            "`ragent coordinator` needs `--nnodes`",
            "--rdzv-endpoint node0,node1,login",
        ]);
    }
}

/// If a port is in use, the message names it and the reason.
#[test]
fn held_port_is_named() {
    let held = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = held.local_addr().unwrap().port();
    let sandbox = Sandbox::new();
    let mut agent = sandbox.ragent("--rdzv-endpoint 127.0.0.1:0 --no-python stay.sh").start();
    agent.worker();
    let end = sandbox.ragent(&format!("page --port {port}")).run();
    end.assert_code(10);
    end.assert_stderr(&[&format!("failed to listen on 127.0.0.1:{port}"), "in use"]);
}

/// A voter without any agent exits with 0 when it is asked to end.
#[test]
fn lonely_coordinator_serves_until_a_signal() {
    let sandbox = Sandbox::new();
    let words = format!("coordinator --nnodes 2 --rdzv-endpoint {}", list());
    let mut coordinator = sandbox.ragent(&words).start();
    coordinator.prints("127.0.0.1:");
    coordinator.signal(Signal::SIGTERM);
    coordinator.end().assert_code(0);
}

/// `ragent coordinator` is the third voter of a job of two nodes, and ends with it.
#[test]
fn coordinator_is_a_voter_of_the_job_of_others() {
    let sandbox = Sandbox::new();
    let job = format!("--nnodes 2 --rdzv-id j --rdzv-endpoint {}", list());
    let mut coordinator = sandbox.ragent(&format!("coordinator {job}")).start();
    coordinator.prints("127.0.0.1:");
    let words = format!("{job} --no-python fail.sh 0");
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
