//! Tests timers of workers, as torch's `FileTimerClient` sets them.

use std::fs;

use crate::support::Sandbox;

/// A worker that sets a timer for `pid` and runs on. The times are long past, so that no test
/// waits.
fn worker(pid: &str) -> String {
    format!(
        "printf '{{\"version\": 1, \"pid\": %d, \"scope_id\": \"step\", \"expiration_time\": 1.5, \
         \"signal\": 9}}\\n' {pid} >\"$TORCHELASTIC_TIMER_FILE\"; exec sleep infinity"
    )
}

/// A worker with an expired timer is killed. That counts as any other failure: the agent goes on, and restarts within the budget.
#[test]
fn overdue_worker_is_killed() {
    let sandbox = Sandbox::new();
    let script = format!("[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; {}", worker("$BASHPID"));
    let start = sandbox.ragent("--max-restarts 1 --no-python bash -c").arg(script);
    let end = start.env("TORCHELASTIC_ENABLE_FILE_TIMER", "1").run();
    end.assert_code(0);
    end.assert_stderr(&["a worker's timer has expired; killing the worker", "killed by SIGKILL"]);
    assert_eq!(fs::read_dir(sandbox.path("tmp")).unwrap().count(), 0, "the pipe is removed");
}

/// A timer of a process that is not a worker kills no process.
#[test]
fn processes_of_others_are_not_killed() {
    let sandbox = Sandbox::new();
    let other = sandbox.program("/bin/sleep").arg("infinity").start();
    let script = worker(&other.pid().to_string());
    let start = sandbox.ragent("--no-python bash -c").arg(script);
    let mut agent = start
        .env("TORCHELASTIC_ENABLE_FILE_TIMER", "1")
        .env("TORCHELASTIC_TIMER_FILE", sandbox.path("timer"))
        .start();
    agent.logs(
        "a timer has expired, but its process is not a worker of this agent; no process is killed",
    );
    assert!(sandbox.path("timer").exists());
    agent.signal(nix::sys::signal::Signal::SIGTERM);
    agent.end().assert_code(8);
    other.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(other.end().signal, Some(15));
}

/// A file at the path of the pipe is reported, and kept.
#[test]
fn file_in_the_way() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("timer"), "mine").unwrap();
    let end = sandbox
        .ragent("--no-python true")
        .env("TORCHELASTIC_ENABLE_FILE_TIMER", "1")
        .env("TORCHELASTIC_TIMER_FILE", sandbox.path("timer"))
        .run();
    end.assert_code(2);
    end.assert_stderr(&["`TORCHELASTIC_TIMER_FILE=", "cannot be written: it is not a pipe"]);
    assert_eq!(fs::read_to_string(sandbox.path("timer")).unwrap(), "mine");
}
