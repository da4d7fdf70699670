//! Tests how workers without progress are noticed and examined: CPU time in `/proc`, sockets for heartbeats, signals and stacks.

use std::{
    fs::{File, OpenOptions},
    io::Write,
    time::{Duration, UNIX_EPOCH},
};

use nix::{
    sys::{signal::Signal, stat::Mode},
    unistd,
};
use serde_json::Value;

use crate::support::{Faults, Program, Sandbox, Start, is_there, let_pass, may_make_networks};

/// The pipe of the fake worker `beat.py`.
fn beats(sandbox: &Sandbox) -> File {
    let path = sandbox.path("beats.0");
    unistd::mkfifo(&path, Mode::S_IRWXU).unwrap();
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

/// Returns the progress that the workers of the job's only node report, once it contains `what`.
fn progress(sandbox: &Sandbox, what: &str) -> String {
    // Progress is forwarded at intervals.
    for _ in 0..300 {
        let end = sandbox.ragent("status --json").run();
        let status: Value = serde_json::from_str(&end.stdout).unwrap();
        let progress = status["nodes"][0]["progress"].as_str().unwrap_or_default().to_owned();
        if progress.contains(what) {
            return progress;
        }
        let_pass(Duration::from_millis(20));
    }
    panic!("no node reports `{what}`");
}

fn agent(sandbox: &Sandbox, words: &str) -> Program {
    sandbox.ragent(&format!("{words} --no-python beat.py")).start()
}

/// Workers that do nothing have failed, without any change to their code. They are killed although they ignore signals and have a shutdown
/// timeout of five minutes. The job is restarted, and finally closed. The report has the reason and the path of the stacks.
#[test]
fn idle_workers_have_failed() {
    let sandbox = Sandbox::new();
    let words = "--nproc-per-node 2 --hang-timeout 1 --max-restarts 1 --shutdown-timeout 300 \
                 --log-dir logs --no-python stubborn.sh";
    let mut agent = sandbox.ragent(words).start();
    agent.workers(2);
    agent.logs("the workers make no progress");
    assert_eq!(agent.workers(2)[1].number("restart"), 1);
    let end = agent.end();
    end.assert_code(1);
    let report = end.report();
    assert!(report.contains("killed because it made no progress for 1"), "{report}");
    assert!(report.contains("its stack is in logs/"), "{report}");
    assert!(!report.contains("error.json"), "{report}");
    let stacks = sandbox.files_below("logs");
    let stacks: Vec<&String> = stacks.iter().filter(|path| path.ends_with("stack.txt")).collect();
    assert_eq!(stacks.len(), 4, "{stacks:?}");
    let stack = std::fs::read_to_string(sandbox.path("logs").join(stacks[0])).unwrap();
    for part in ["sleep infinity", "S (sleeping), waits in", "py-spy was asked to: dump --pid"] {
        assert!(stack.contains(part), "no `{part}` in:\n{stack}");
    }
    sandbox.assert_nothing_left();
}

/// If torch has recorded the collectives of a failed worker, the report names the file, and the command that reads it.
#[test]
fn records_of_collectives_are_named() {
    let sandbox = Sandbox::new();
    let work = r#"touch "$TORCH_FR_DUMP_TEMP_FILE$RANK"; kill -ABRT $$"#;
    let end = sandbox.ragent("--log-dir logs --no-python bash -c").arg(work).run();
    end.assert_code(1);
    let report = end.report();
    for part in
        ["torch has recorded its collectives in logs/", "/nccl_trace_rank_0 (", "`torchfrtrace"]
    {
        assert!(report.contains(part), "{report}");
    }
    let end = sandbox.ragent("--log-dir logs --no-python bash -c").arg("kill -ABRT $$").run();
    assert!(!end.report().contains("torchfrtrace"), "{}", end.report());
}

/// Workers that write or compute are never killed as hung.
#[test]
fn busy_workers_do_not_hang() {
    for work in ["while :; do :; done", "while :; do echo x; read -t 0.2 <> $SCRATCH/none; done"] {
        let sandbox = Sandbox::new();
        unistd::mkfifo(&sandbox.path("none"), Mode::S_IRWXU).unwrap();
        let start = sandbox.ragent("--hang-timeout 1 --no-python bash -c").arg(work);
        let mut agent = start.start();
        agent.logs("admitted; starting workers");
        let_pass(Duration::from_secs(3));
        agent.signal(Signal::SIGTERM);
        let end = agent.end();
        assert!(!end.stderr.contains("no progress"), "{}", end.stderr);
    }
}

/// A worker that sends heartbeats is judged by them alone. It may be idle between them, and it may not spin without them. `ragent status`
/// shows its own description of its progress.
#[test]
fn heartbeats_are_progress() {
    let sandbox = Sandbox::new();
    let mut beats = beats(&sandbox);
    let mut agent = agent(&sandbox, "--hang-timeout 2.5");
    assert_eq!(agent.worker().number("watchdog"), 2_500_000);
    for step in 0..8 {
        writeln!(beats, "{step} loss 0.31").unwrap();
        let_pass(Duration::from_millis(500));
    }
    assert_eq!(progress(&sandbox, "step 7"), "step 7 loss 0.31");
    writeln!(beats, "spin").unwrap();
    let end = agent.end();
    end.assert_code(1);
    assert!(end.report().contains("killed because it made no progress"), "{}", end.report());
}

/// Sockets of a killed agent, and a folder with the mode of a loose umask, do not disable the reports to the next agent. A folder that
/// others can write to is not used, and workers start without a socket.
#[test]
fn folder_of_the_sockets() {
    let sandbox = Sandbox::new();
    let run = |script: &str| {
        let agent = format!("{} --no-python environment.sh", env!("CARGO_BIN_EXE_ragent"));
        sandbox.program("bash").arg("-c").arg(format!("{script}; exec {agent}")).run()
    };
    let stale = "mkdir -p -m 700 run/ragent run/ragent/sockets-AAAAAAAA; \
                 touch -d 2020-01-01 run/ragent/sockets-AAAAAAAA; umask 002";
    for (script, is_well) in [("umask 002", true), (stale, true), ("chmod 777 run/ragent", false)] {
        let end = run(script);
        end.assert_code(0);
        assert_eq!(end.stdout.contains(" RAGENT_SOCKET="), is_well, "{}", end.stdout);
        assert_eq!(
            !end.stderr.contains("failed to open the sockets for reports of workers"),
            is_well,
            "{}",
            end.stderr
        );
        assert!(!sandbox.path("run/ragent/sockets-AAAAAAAA").exists());
    }
}

/// An agent in another container, where the processes of the first one do not exist, keeps the sockets and the registration of
/// the first one.
#[test]
fn agent_in_another_container_keeps_the_sockets() {
    if !may_make_networks() || !is_there("unshare") {
        return;
    }
    let sandbox = Sandbox::new();
    let mut agent = sandbox.ragent("--no-python stay.sh").start();
    agent.worker();
    let files = || {
        let entries = sandbox.path("run/ragent").read_dir().unwrap();
        let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    };
    let before = files();
    for name in ["agent-", "sockets-"] {
        let is_named = |path: &&std::path::PathBuf| path.display().to_string().contains(name);
        let file = before.iter().find(is_named).expect("it exists while the agent runs");
        File::open(file).unwrap().set_modified(UNIX_EPOCH).unwrap();
    }
    let ragent = env!("CARGO_BIN_EXE_ragent");
    let words = ["--pid", "--fork", "--mount-proc", ragent, "--no-python", "true"];
    words.into_iter().fold(sandbox.program("unshare"), Start::arg).run().assert_code(0);
    assert_eq!(files(), before);
}

/// Preparing files or waiting for a GPU is not a hang.
#[test]
fn preparing_is_no_hang() {
    let sandbox = Sandbox::new();
    let Some(faults) = Faults::new(&sandbox) else { return };
    faults.set("slow", 1500);
    let logs = sandbox.path("slow").join("logs");
    let words = format!("--hang-timeout 1 --log-dir {} -t 3 --no-python true", logs.display());
    let end = faults.happen_to(sandbox.ragent(&words)).run();
    end.assert_code(0);
}

/// With `--hang-signal`, hung workers get that signal before they are killed, and have time to
/// print their stacks.
#[test]
fn signal_asks_hung_workers_for_their_stacks() {
    let sandbox = Sandbox::new();
    let script = "trap 'echo I am in the forward pass >&2' QUIT; sleep infinity & \
                  while :; do wait; done";
    // Also without log files, and so without stack files.
    for folder in ["", "--log-dir /dev/null"] {
        let words = format!("{folder} --hang-timeout 1 --hang-signal SIGQUIT --no-python bash -c");
        let end = sandbox.ragent(&words).arg(script).run();
        end.assert_code(1);
        assert!(end.report().contains("    I am in the forward pass"), "{}", end.report());
    }
}

/// `ragent stacks` prints where all workers are, also in a job that makes progress or has no steps. Without py-spy and torch, that is the
/// place in the kernel.
#[test]
fn places_of_workers_are_printed() {
    let sandbox = Sandbox::new();
    let words = "--nproc-per-node 3 --rdzv-id j --rdzv-endpoint 127.0.0.1:0 --log-dir logs --no-python sleep 3600";
    let mut agent = sandbox.ragent(words).start();
    for _ in 0..3 {
        agent.logs("worker started");
    }
    let end = sandbox.ragent("stacks").run();
    end.assert_code(0);
    assert!(end.stdout.starts_with("ranks 0-2: "), "{}", end.stdout);
    assert!(end.stdout.contains("/attempt_0/0/stack.txt\n"), "{}", end.stdout);
    assert!(
        end.stdout.contains("no stack of Python could be read: install py-spy"),
        "{}",
        end.stdout
    );
    // Another look, within ten seconds of the first one.
    let end = sandbox.ragent("stacks 1,7-9").run();
    assert!(end.stdout.starts_with("rank 1: "), "{}", end.stdout);
    let end = sandbox.ragent("stacks --json").run();
    let look: Value = serde_json::from_str(&end.stdout).unwrap();
    assert_eq!(look["places"][0]["ranks"], serde_json::json!([[0, 2]]), "{look}");
    let wrong = sandbox.ragent("stacks 9-7").run();
    wrong.assert_code(2);
    assert!(wrong.stderr.contains("is not a list of ranks"), "{}", wrong.stderr);
    agent.signal(Signal::SIGTERM);
    agent.end();
    let none = sandbox.ragent("stacks").run();
    none.assert_code(1);
    assert!(none.stderr.contains("no job of this user"), "{}", none.stderr);
}
