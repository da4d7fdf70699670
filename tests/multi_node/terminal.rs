//! Tests the lines that an agent on a terminal shows while a job starts.

use std::fs;

use nix::{
    sys::{signal::Signal, stat::Mode},
    unistd::mkfifo,
};

use crate::{
    job::Job,
    support::{Sandbox, Start, Terminal},
};

const ESCAPE: u8 = 0x1b;

/// The end of a line about a wait. Such lines depend on the load of the machine.
const WAITS: &str = ", run id j)";

/// The lines without their times. Leaves out warnings and lines about a wait.
fn lines(text: &str) -> Vec<&str> {
    let plain = |line| match str::split_once(line, " ragent: ") {
        Some((_, line)) => line,
        None => line,
    };
    let is_other = |line: &&str| !line.starts_with("warning: ") && !line.ends_with(WAITS);
    text.lines().map(plain).filter(is_other).collect()
}

/// Starts an agent on the terminal.
fn on(terminal: &Terminal, agent: Start, term: &str) -> Start {
    let agent = agent.default_lines().env("TERM", term);
    agent.stdout(terminal.stdio()).stderr(terminal.stdio())
}

/// While a node waits for another one, its terminal shows the number of missing nodes and the reason. When the workers run, the terminal
/// has the same lines as an agent without one. The output without a terminal has no escape sequences.
#[test]
fn wait_is_shown_and_removed() {
    let sandbox = Sandbox::new();
    let job = Job::new(&sandbox, "--nnodes 2");
    let mut terminal = Terminal::new(120, 24);
    let script = "echo output";
    let agent = || job.agent("--no-python bash -c").arg(script);
    let host = on(&terminal, agent(), "xterm").start();
    terminal.shows("  missing     1 of 2 nodes");
    let text = terminal.text();
    let last: Vec<&str> = text.lines().rev().take(4).collect();
    assert!(last[3].starts_with("ragent: job j waits for round 1 for "), "{text}");
    assert!(last[2].starts_with("  ready       1 node: "), "{text}");
    let reason =
        "  reason      waiting for 1 more node (1 of at least 2 are ready), join timeout in ";
    assert!(last[0].starts_with(reason), "{text}");
    // Its times are up to date.
    let first = terminal.text();
    let times = |text: &str| text.lines().rev().take(4).map(str::to_owned).collect::<Vec<_>>();
    terminal.shows_until(|text| times(text) != times(&first));
    let guest = agent().default_lines().start().end();
    host.end().assert_code(0);
    guest.assert_code(0);
    let (text, _) = terminal.end();
    let expected = [
        format!("registered at {} (job of 2 nodes)", job.endpoint),
        "round 1: 2 nodes, 2 workers, master 127.0.0.1:".to_owned(),
        "output".to_owned(),
        "the job has succeeded".to_owned(),
    ];
    let shown = lines(&text);
    assert_eq!(shown.len(), expected.len(), "{text}");
    for (line, expected) in shown.iter().zip(&expected) {
        assert!(line.starts_with(expected), "{line}\n{expected}");
    }
    assert!(!guest.stderr.as_bytes().contains(&ESCAPE), "{}", guest.stderr);
    let of_guest = lines(&guest.stderr);
    assert_eq!(of_guest, [shown[0], shown[1], shown[3]], "{}", guest.stderr);
}

/// The block appears again when the job has lost a node, and names the node. It damages neither an unfinished line of a worker nor the
/// output of the next workers.
#[test]
fn wait_after_a_loss_is_shown() {
    let sandbox = Sandbox::new();
    let job = Job::new(&sandbox, "--nnodes 2 --max-restarts 3");
    let mut terminal = Terminal::new(60, 24);
    let go = sandbox.path("go");
    mkfifo(&go, Mode::S_IRWXU).unwrap();
    let script = format!(
        "if [ -e $SCRATCH/second ]; then [ $RANK = 0 ] && cat {}; exit 0; fi; \
         [ $RANK = 0 ] && printf unfinished; exec sleep 600",
        go.display()
    );
    let agent = || job.agent("--no-python bash -c").arg(&script);
    let host = on(&terminal, agent(), "xterm").start();
    terminal.shows("  missing     1 of 2 nodes");
    let guest = agent().default_lines().start();
    terminal.shows("unfinished");
    assert!(!terminal.text().contains("missing"), "{}", terminal.text());
    fs::write(sandbox.path("second"), "").unwrap();
    guest.signal(Signal::SIGKILL);
    terminal.shows("ragent: job j waits for round 2 for ");
    terminal.shows("  missing     1 of 2 nodes");
    terminal.shows("  lost        1 node: ");
    let next = agent().default_lines().start();
    terminal.hides("missing");
    fs::write(&go, "output\n").unwrap();
    for agent in [host, next] {
        agent.end().assert_code(0);
    }
    let (text, _) = terminal.end();
    assert!(text.contains("unfinished"), "{text}");
    assert!(lines(&text).contains(&"output"), "{text}");
    assert!(!text.contains("waits for") && !text.contains("missing"), "{text}");
}

/// An agent that is stopped while it waits leaves no block on the terminal.
#[test]
fn signal_removes_the_block() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let sandbox = Sandbox::new();
        let job = Job::new(&sandbox, "--nnodes 2");
        let mut terminal = Terminal::new(200, 24);
        let host = on(&terminal, job.agent("--no-python true"), "xterm").start();
        terminal.shows("  missing     1 of 2 nodes");
        host.signal(signal);
        host.end();
        let (text, _) = terminal.end();
        assert!(lines(&text)[0].starts_with("registered at "), "{text}");
        assert!(!text.contains("missing") && !text.contains("waits for"), "{text}");
    }
}

/// A node that does not find its coordinator shows the cause and the time after which it gives up, and then its error.
#[test]
fn search_is_shown() {
    let sandbox = Sandbox::new();
    let job = Job::new(&sandbox, "--nnodes 2 --rdzv-conf is_host=false,join_timeout=4");
    let mut terminal = Terminal::new(200, 24);
    let guest = on(&terminal, job.agent("--no-python true"), "xterm").start();
    terminal.shows(&format!("ragent: job j waits for its coordinator at {} for ", job.endpoint));
    terminal.shows("  gives up    in ");
    terminal.shows("  cause       ");
    guest.end().assert_code(1);
    let (text, _) = terminal.end();
    assert!(text.contains("error: ") && !text.contains("gives up"), "{text}");
}

/// A terminal that cannot move its cursor has the plain lines only.
#[test]
fn simple_terminal_has_plain_lines() {
    let sandbox = Sandbox::new();
    let job = Job::new(&sandbox, "--nnodes 2");
    let mut terminal = Terminal::new(200, 24);
    let host = on(&terminal, job.agent("--no-python true"), "dumb").start();
    terminal.shows("the next round is not complete: ");
    job.agent("--no-python true").run().assert_code(0);
    host.end().assert_code(0);
    let (text, bytes) = terminal.end();
    assert!(!bytes.contains(&ESCAPE), "{text}");
}
