//! Tests the lines that the agents of several nodes print by default.

use std::fs;

use nix::{sys::stat::Mode, unistd::mkfifo};

use crate::{
    job::Job,
    support::{Sandbox, ScreenTerminal},
};

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
