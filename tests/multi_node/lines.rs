//! Tests the lines that the agents of several nodes print by default.

use std::fs;

use nix::{sys::stat::Mode, unistd::mkfifo};

use crate::{
    job::Job,
    support::{Sandbox, ScreenTerminal},
};

/// The lines of an agent without their times. Leaves out warnings, workers' lines, and lines about a wait, which depend on the load of the
/// machine.
fn lines(stderr: &str) -> Vec<&str> {
    let own = stderr.lines().filter_map(|line| line.split_once("Z ragent: "));
    let is_other = |line: &&str| !line.starts_with("warning: ") && !line.contains(WAITS);
    own.map(|(_, line)| line).filter(is_other).collect()
}

/// The end of a line about a wait, without the endpoint.
const WAITS: &str = ", run id j)";

/// A node that waits for others prints the reason after a while, with the endpoint and the run id. So does a node whose workers have
/// succeeded before the workers of another one.
#[test]
fn long_wait_has_a_line() {
    let sandbox = Sandbox::new();
    let job = Job::new(&sandbox, "--nnodes 2");
    let go = sandbox.path("go");
    mkfifo(&go, Mode::S_IRWXU).unwrap();
    let script = format!("[ $RANK = 0 ] || cat {}", go.display());
    let start = || job.agent("--no-python bash -c").arg(&script).default_lines().start();
    let mut host = start();
    let line = host.logs("the next round is not complete: ");
    let text = "waiting for 1 more node (1 of at least 2 are ready), join timeout in ";
    assert!(line.contains(text), "{line}");
    let names = format!(" (endpoint {}, run id j)", job.endpoint);
    assert!(line.trim_end().ends_with(&names), "{line}");
    let guest = start();
    let line = host.logs("all workers of this node have succeeded; waiting for the workers of ");
    assert!(line.trim_end().ends_with(&names), "{line}");
    fs::write(&go, "").unwrap();
    for agent in [host, guest] {
        agent.end().assert_code(0);
    }
}

/// On a terminal a wait has the same line, with the local time of day.
#[test]
fn long_wait_has_a_line_on_a_terminal() {
    let sandbox = Sandbox::new();
    let job = Job::new(&sandbox, "--nnodes 2");
    let mut terminal = ScreenTerminal::new(200, 24);
    let host = job.agent("--no-python true").default_lines().env("TERM", "xterm");
    let host = host.stdout(terminal.stdio()).stderr(terminal.stdio()).start();
    let text = terminal.shows("the next round is not complete: ");
    let line = text.lines().find(|line| line.contains("not complete")).unwrap_or_default();
    assert_eq!(line.find(" ragent: the next round "), Some("03:27:39".len()), "{text}");
    job.agent("--no-python true").run().assert_code(0);
    host.end().assert_code(0);
}

/// Each node prints at most three lines a round: its registration or the start of the round, the reason for
/// its end, and the outcome.
#[test]
fn rounds_have_few_lines() {
    let sandbox = Sandbox::new();
    let job = Job::new(&sandbox, "--nnodes 2 --max-restarts 3");
    let script =
        "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit; [ $RANK = 0 ] && exec sleep 600; exit 7";
    let start = || job.agent("--no-python bash -c").arg(script).default_lines().start();
    let mut host = start();
    host.logs("ragent: registered at ");
    let guest = start();
    let (host, guest) = (host.end(), guest.end());
    for end in [&host, &guest] {
        end.assert_code(0);
    }
    let of_host = lines(&host.stderr);
    let expected = [
        format!("registered at {} (job of 2 nodes)", job.endpoint),
        "round 1: 2 nodes, 2 workers, master 127.0.0.1:".to_owned(),
        "round 1 ended: rank 1 on ".to_owned(),
        "round 2: 2 nodes, 2 workers, master 127.0.0.1:".to_owned(),
        "the job has succeeded".to_owned(),
    ];
    assert_eq!(of_host.len(), expected.len(), "{}", host.stderr);
    for (line, expected) in of_host.iter().zip(&expected) {
        assert!(line.starts_with(expected), "{line}\n{expected}");
    }
    assert!(of_host[2].ends_with(" exited with code 7"), "{}", of_host[2]);
    assert!(of_host[3].contains(", restart 1 of 3 (rank 1 on "), "{}", of_host[3]);
    let of_guest = lines(&guest.stderr);
    assert!(
        of_guest[2]
            .starts_with("error: rank 1 failed in round 1: exited with code 7 (local rank 0, "),
        "{}",
        guest.stderr
    );
    assert_eq!(of_guest.len(), expected.len(), "{}", guest.stderr);
}
