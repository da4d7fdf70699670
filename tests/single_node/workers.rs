//! Tests local workers: detection of their ends, and the reports of them.

use std::fs;

use crate::support::{Sandbox, children, is_there, keeper_of, session_of};

/// Each worker leads its own session, without the agent's terminal and signals.
#[test]
fn each_worker_leads_a_session() {
    let sandbox = Sandbox::new();
    let mut agent = sandbox.ragent("--nproc-per-node 3 --no-python stay.sh").start();
    for worker in agent.workers(3) {
        assert_eq!(session_of(worker.pid()), Some(worker.pid()));
    }
    let keeper = keeper_of(agent.pid());
    assert_eq!(session_of(keeper), Some(keeper));
    assert_eq!(children(keeper).len(), 3);
}

/// A worker that exits with another code ends the job at once, although the other workers would run
/// forever, and although they have 5 minutes to end.
#[test]
fn one_failure_ends_the_group() {
    let sandbox = Sandbox::new();
    let orders = [0, 1].map(|rank| sandbox.orders(rank));
    let words = "--nproc-per-node 2 --shutdown-timeout 300 --no-python obey.sh";
    let mut agent = sandbox.ragent(words).start();
    agent.workers(2);
    orders[1].give("echo the disk is full >&2; exit 7");
    let end = agent.end();
    end.assert_code(1);
    let report = end.report();
    for part in ["obey.sh FAILED", "rank      : 1", "exited with code 7", "    the disk is full"] {
        assert!(report.contains(part), "no `{part}` in:\n{report}");
    }
    sandbox.assert_nothing_left();
}

/// The end of a worker is detected even if its descendants hold its stdout and stderr open.
#[test]
fn held_pipe_does_not_hide_an_end() {
    let sandbox = Sandbox::new();
    let words = "--nproc-per-node 2 -t 3 --log-dir logs --no-python litter.sh fail.sh 4";
    let end = sandbox.ragent(words).run();
    end.assert_code(1);
    assert!(end.report().contains("exited with code 4"), "{}", end.report());
    sandbox.assert_nothing_left();
}

/// A program that the kernel cannot execute fails with the kernel's reason.
#[test]
fn program_that_cannot_be_executed() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("program"), "#!/proc\n").unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(sandbox.path("program"), executable).unwrap();
    let end = sandbox.ragent("--nproc-per-node 2 --no-python ./program").run();
    end.assert_code(1);
    assert!(end.report().contains("could not be started: Permission denied"), "{}", end.report());
    sandbox.assert_nothing_left();
}

/// An idle keeper sleeps in a single wait without a time limit. The kernel reports the ends of processes, so the keeper does not poll.
#[cfg(target_arch = "x86_64")]
#[test]
fn keeper_waits_without_a_time_limit() {
    let sandbox = Sandbox::new();
    let mut agent = sandbox.ragent("--no-python stay.sh").start();
    agent.worker();
    let path = format!("/proc/{}/syscall", keeper_of(agent.pid()));
    // The line shows poll(fds, 3, -1). The last argument is the limit.
    let is_endless = |call: &str| {
        let words: Vec<&str> = call.split_ascii_whitespace().collect();
        matches!(words.as_slice(), ["7", _, "0x3", "0xffffffff" | "0xffffffffffffffff", ..])
    };
    let mut last = String::new();
    // The keeper may be busy for a moment with a renewed lease.
    for _ in 0..100_000 {
        match fs::read_to_string(&path) {
            Ok(call) => last = call,
            Err(error) => return crate::support::skip(&format!("{path}: {error}")),
        }
        if is_endless(&last) {
            return;
        }
        std::thread::yield_now();
    }
    panic!("the keeper was not seen waiting: {last}");
}

/// A script may be anything that Python runs: a file, a folder with a main module, a pipe, stdin.
#[test]
fn script_is_whatever_python_runs() {
    if !is_there("python3") {
        return;
    }
    let sandbox = Sandbox::new();
    let script = "import os; print('script of rank', os.environ['RANK'])\n";
    fs::create_dir(sandbox.path("folder")).unwrap();
    fs::write(sandbox.path("folder/__main__.py"), script).unwrap();
    fs::write(sandbox.path("file.py"), script).unwrap();
    nix::unistd::mkfifo(&sandbox.path("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    // Blocks until a worker reads the pipe.
    let (pipe, text) = (sandbox.path("pipe"), script.to_owned());
    std::thread::spawn(move || fs::write(pipe, text));
    for words in ["file.py", "folder", "pipe", "-"] {
        let stdin = fs::File::open(sandbox.path("file.py")).unwrap();
        let end = sandbox.ragent(words).stdin(stdin).run();
        end.assert_code(0);
        assert_eq!(end.stdout, "script of rank 0\n", "{words}");
    }
    sandbox.ragent("run").run().assert_code(2);
}

/// Workers start with no signal blocked, and none ignored, although their keeper ignores most.
#[test]
fn signals_of_a_new_worker() {
    let sandbox = Sandbox::new();
    let words = "--no-python grep -e SigBlk -e SigIgn /proc/self/status";
    let end = sandbox.ragent(words).run();
    end.assert_code(0);
    assert_eq!(end.stdout, "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
}

/// A script that `--run-path` runs does not end before the scripts of the other workers have returned, or ended. The failure of another one
/// ends it.
#[test]
fn scripts_of_run_path_end_together() {
    if !is_there("python3") {
        return;
    }
    let returns = "os.write(log, b'0 returns\\n')";
    let lines = "1 returns\n0 returns\n";
    let all = format!("{lines}1 exits\n");
    for (end_of_other, code, expected) in [
        (returns.to_owned(), 0, &*all),
        (format!("{returns}; os._exit(0)"), 0, &*all),
        (format!("{returns}; os._exit(3)"), 1, lines),
    ] {
        let sandbox = Sandbox::new();
        let script = format!(
            "\
import atexit, os, time
log = os.open('log', os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def has(line):
    return line in open('log').read()
if os.environ['RANK'] == '1':
    atexit.register(os.write, log, b'1 exits\\n')
    os.write(log, b'1 returns\\n')
else:
    while not has('1 returns'):
        time.sleep(0.01)
    # Long enough for a worker that does not wait.
    for _ in range(100):
        if not has('1 exits'):
            time.sleep(0.02)
    {end_of_other}
"
        );
        fs::write(sandbox.path("train.py"), script).unwrap();
        let end = sandbox.ragent("--nproc-per-node 2 --run-path train.py").run();
        end.assert_code(code);
        let log = fs::read_to_string(sandbox.path("log")).unwrap();
        assert_eq!(log, expected, "{}", end.stderr);
    }
}
