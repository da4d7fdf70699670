//! Tests `ragent coordinator` and `ragent status`, and that `ragent store` is refused.

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
