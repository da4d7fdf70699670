//! Tests the protection of a launch from other users of the machine.

use std::{fs, os::unix::fs::MetadataExt, path::Path};

use crate::support::{Sandbox, children};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

/// Logs, reports and journals are never world-writable, with any umask. Otherwise text of other users there would be quoted as output of the
/// workers.
#[test]
fn nothing_is_writable_for_all() {
    let sandbox = Sandbox::new();
    let words = "--rdzv-id j --rdzv-endpoint 127.0.0.1:0 --log-dir logs -r 3 --report report.json \
                 --journal events.json --no-python true";
    let ragent = format!("umask 000; exec {} {words}", env!("CARGO_BIN_EXE_ragent"));
    let end = sandbox.program("/bin/bash").arg("-c").arg(ragent).run();
    end.assert_code(0);
    let mut files = sandbox.files_below("logs");
    assert!(files.len() >= 2, "{files:?}");
    files = files.into_iter().map(|file| format!("logs/{file}")).collect();
    files.extend(["report.json", "events.json"].map(str::to_owned));
    for file in files {
        let path = sandbox.path(&file);
        assert_eq!(mode(&path), 0o644, "{file}");
    }
    for folder in fs::read_dir(sandbox.path("logs")).unwrap() {
        assert_eq!(mode(&folder.unwrap().path()), 0o755);
    }
}

/// The soft limit of core dumps of a process.
fn core_limit(pid: u32) -> String {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    line.split_ascii_whitespace().nth(4).unwrap().to_owned()
}

/// Agent and keeper write no core dump, because it would contain secrets. Workers keep their limit.
#[test]
fn only_workers_dump_core() {
    let sandbox = Sandbox::new();
    let ragent = env!("CARGO_BIN_EXE_ragent");
    let script = format!("ulimit -S -c 4; exec {ragent} --no-python stay.sh");
    let mut agent = sandbox.program("/bin/bash").arg("-c").arg(script).start();
    let worker = agent.worker();
    assert_eq!(core_limit(agent.pid()), "0");
    for keeper in children(agent.pid()) {
        assert_eq!(core_limit(keeper), "0");
    }
    assert_eq!(core_limit(worker.pid()), "4096");
}
