//! Tests the lines that an agent prints by default.

use std::{fs, path::Path};

use nix::sys::signal::Signal;

use crate::support::Sandbox;

/// The path of the agent's log that the last line of `stderr` names.
fn named_log(stderr: &str) -> &str {
    let last = stderr.lines().last().unwrap_or_default();
    last.strip_prefix("ragent: the log of this agent is ").unwrap_or_else(|| panic!("{stderr}"))
}

/// A standalone job that succeeds prints what its workers print, and leaves no file.
#[test]
fn successful_job_prints_nothing_of_its_own() {
    let sandbox = Sandbox::new();
    let words = "--standalone --nproc-per-node 2 --no-python echo output";
    let end = sandbox.ragent(words).default_lines().run();
    end.assert_code(0);
    assert_eq!((end.stdout.as_str(), end.stderr.as_str()), ("output\noutput\n", ""));
    assert_eq!(sandbox.files_below("tmp"), Vec::<String>::new());
}

/// A restart is one line with its number and reason. The log that was kept meanwhile is removed from
/// a temporary folder when the job succeeds.
#[test]
fn restart_is_one_line() {
    let sandbox = Sandbox::new();
    let job = sandbox.ragent("--standalone --max-restarts 3 --no-python bash -c");
    let end = job.arg("[ $TORCHELASTIC_RESTART_COUNT = 1 ]").default_lines().run();
    end.assert_code(0);
    let lines: Vec<&str> = end.stderr.lines().collect();
    assert_eq!(lines.len(), 2, "{}", end.stderr);
    let failed =
        "ragent: error: rank 0 failed in round 1: exited with code 1 (local rank 0, process ";
    assert!(lines[0].contains(failed), "{}", lines[0]);
    assert!(
        lines[1].contains("Z ragent: round 2: 1 node, 1 worker, master 127.0.0.1:"),
        "{}",
        lines[1]
    );
    assert!(lines[1].contains(", restart 1 of 3 (rank 0 on "), "{}", lines[1]);
    assert_eq!(sandbox.files_below("tmp"), Vec::<String>::new());
}

/// A job that fails keeps the lines that were not printed in a file, which is named after the report.
#[test]
fn failed_job_keeps_its_log() {
    let sandbox = Sandbox::new();
    let words = "--standalone --log-dir logs --no-python fail.sh 3";
    let end = sandbox.ragent(words).default_lines().run();
    end.assert_code(1);
    let path = named_log(&end.stderr);
    assert!(path.starts_with("logs/") && path.ends_with("/agent.log"), "{path}");
    let log = fs::read_to_string(sandbox.path(path)).unwrap();
    for part in ["INFO", "starting workers", "ERROR", "round=1.1"] {
        assert!(log.contains(part), "no `{part}` in:\n{log}");
    }
    assert!(!end.stderr.contains("starting workers"), "{}", end.stderr);
}

/// A job that is stopped by Ctrl-C leaves no file and names none.
#[test]
fn stopped_job_keeps_no_log() {
    let sandbox = Sandbox::new();
    let mut agent = sandbox.ragent("--standalone --no-python polite.sh").default_lines().start();
    agent.worker();
    agent.signal(Signal::SIGINT);
    let end = agent.end();
    end.assert_code(8);
    assert!(!end.stderr.contains("the log of this agent"), "{}", end.stderr);
    assert!(end.stderr.ends_with("ragent: the job was stopped by a signal\n"), "{}", end.stderr);
    assert_eq!(sandbox.files_below("tmp"), Vec::<String>::new());
}

/// If the output of workers goes to files of a temporary folder, one line names it. No line names a folder that the user gave.
#[test]
fn temporary_log_folder_is_named_once() {
    let sandbox = Sandbox::new();
    let start = |flags: &str| {
        sandbox.ragent(&format!("{flags} -r 3 --no-python bash -c")).arg("echo output")
    };
    let end = start("").default_lines().run();
    end.assert_code(0);
    let [line] = end.stderr.lines().collect::<Vec<_>>()[..] else { panic!("{}", end.stderr) };
    let (_, folder) = line.split_once("ragent: the output of workers is in files below ").unwrap();
    let file = Path::new(folder).join("attempt_0/0/stdout.log");
    assert_eq!(fs::read_to_string(file).unwrap(), "output\n");
    assert_eq!(start("--log-dir logs").default_lines().run().stderr, "");
}

/// With a level in the environment, and in JSON, log lines are printed and no file is written.
#[test]
fn log_lines_are_printed_on_request() {
    let sandbox = Sandbox::new();
    let words = "--standalone --log-dir logs --no-python fail.sh 3";
    let level = sandbox.ragent(words).default_lines().env("LOGLEVEL", "INFO");
    let json = sandbox.ragent(&format!("--log-format json {words}")).default_lines();
    for start in [level, json] {
        let end = start.run();
        end.assert_code(1);
        end.assert_stderr(&["starting workers"]);
        assert!(!end.stderr.contains("the log of this agent"), "{}", end.stderr);
    }
    assert!(sandbox.files_below("logs").iter().all(|file| !file.ends_with("agent.log")));
}
