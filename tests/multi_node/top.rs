//! Tests `ragent top` in a pseudo terminal.

use nix::sys::signal::Signal;

use crate::{
    job::{Job, workers},
    support::{Program, Sandbox, ScreenTerminal, Start},
};

/// Starts a program in a terminal.
fn start_in(terminal: &ScreenTerminal, program: Start) -> Program {
    program.stdin(terminal.stdio()).stdout(terminal.stdio()).stderr(terminal.stdio()).start()
}

/// Starts `ragent top` of a job.
fn top(sandbox: &Sandbox, job: &Job<'_>, terminal: &ScreenTerminal) -> Program {
    start_in(terminal, sandbox.ragent(&format!("top --rdzv-endpoint {}", job.endpoint)))
}

/// The view shows the nodes, and a failure of a worker with the restart that follows. `q` restores the terminal.
#[test]
fn job_is_shown() {
    let sandbox = Sandbox::new();
    let job = Job::new(&sandbox, "--nnodes 2 --max-restarts 1");
    let mut host = job.host("--no-python stay.sh");
    let mut guest = job.guest("--no-python stay.sh");
    let [_, worker] = workers([&mut host, &mut guest]);
    let mut terminal = ScreenTerminal::new(100, 30);
    let top = top(&sandbox, &job, &terminal);
    let text = terminal.shows("all workers of round 1 run");
    for part in [
        "job j · round 1 · running for ",
        " · 2 of 2 nodes · 2 workers · restarts 0/1",
        "── nodes: 2, 0 unusual, by state ──",
        "\n  0-1 ",
        "q quit  ",
    ] {
        assert!(text.contains(part), "no `{part}` in:\n{text}");
    }
    worker.signal(Signal::SIGKILL);
    workers([&mut host, &mut guest]);
    let text = terminal.shows("all workers of round 2 run");
    assert!(text.contains("killed by SIGKILL (signal 9)"), "{text}");
    terminal.shows(" · 2 workers · restarts 1/1");
    terminal.shows("job j · round 2 · running for ");

    // A row for each node instead of one for both.
    terminal.types("\r");
    terminal.shows("\n  1 ");
    terminal.types("s");
    terminal.shows(", by rank ──");
    terminal.types("q");
    top.end().assert_code(0);
    terminal.assert_restored();
}

/// Without a coordinator, the last state is shown. The view goes on at the next coordinator.
#[test]
fn next_coordinator_is_found() {
    let sandbox = Sandbox::new();
    let job = Job::new(&sandbox, "--nnodes 1");
    let mut agent = job.host("--no-python stay.sh");
    agent.worker();
    let mut terminal = ScreenTerminal::new(100, 30);
    let top = top(&sandbox, &job, &terminal);
    terminal.shows("all workers of round 1 run");
    agent.signal(Signal::SIGKILL);
    agent.wait_until_silent();
    let text = terminal.shows("connection lost ");
    assert!(text.contains("this is the last state"), "{text}");
    assert!(text.contains("job j · round 1 · running for "), "{text}");
    let _next = job.host("--no-python stay.sh");
    terminal.shows("the coordinator has started");
    terminal.hides("connection lost");
    terminal.shows("running for ");
    terminal.types("q");
    top.end().assert_code(0);
}

/// A signal restores the terminal before the process ends.
#[test]
fn signals_restore_the_terminal() {
    let sandbox = Sandbox::new();
    let job = Job::new(&sandbox, "--nnodes 1");
    let mut agent = job.host("--no-python stay.sh");
    agent.worker();
    for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGHUP, 129)] {
        let mut terminal = ScreenTerminal::new(40, 10);
        let top = top(&sandbox, &job, &terminal);
        terminal.shows("q quit");
        top.signal(signal);
        top.end().assert_code(code);
        terminal.assert_restored();
    }
}
