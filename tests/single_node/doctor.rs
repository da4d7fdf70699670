//! Tests the findings of `ragent doctor` on a real machine.

use std::{
    fs::{self, File},
    net::TcpListener,
    os::unix::fs::PermissionsExt,
};

use serde_json::Value;

use crate::support::{End, Sandbox, Start, Stream, free_port, is_there, may_make_networks};

/// The check called `name`, in JSON.
fn check(end: &End, name: &str) -> Value {
    let found: Value = serde_json::from_str(&end.stdout).expect("it prints JSON");
    let checks = found["checks"].as_array().expect("a list of checks").clone();
    let found = checks.into_iter().find(|check| check["check"] == name);
    found.unwrap_or_else(|| panic!("no check `{name}` in {}", end.stdout))
}

fn text(check: &Value) -> &str {
    check["text"].as_str().expect("a text")
}

/// Every check has its line, and a machine on which jobs run passes.
#[test]
fn every_check_has_a_line() {
    let sandbox = Sandbox::new();
    let end = sandbox.ragent("doctor").run();
    end.assert_code(0);
    for name in [
        "program", "kernel", "nofile", "nproc", "memlock", "shm", "gpu", "python", "cgroup",
        "service", "loopback", "hostname",
    ] {
        let line = end.stdout.lines().find(|line| line[4..].trim_start().starts_with(name));
        assert!(line.is_some(), "no {name} in {}", end.stdout);
    }
}

/// A second version of the program in PATH is named, with its path.
#[test]
fn two_versions_are_named() {
    let sandbox = Sandbox::new();
    let old = sandbox.path("old/ragent");
    fs::create_dir(sandbox.path("old")).expect("the folder is new");
    fs::write(&old, "#!/bin/sh\necho ragent 0.0.9\n").expect("the folder is writable");
    fs::set_permissions(&old, fs::Permissions::from_mode(0o755)).expect("the file is ours");
    let folder = sandbox.path("old");
    let path = format!("{}:/usr/bin:/bin", folder.display());
    let end = sandbox.ragent("doctor --json").env("PATH", path).run();
    end.assert_code(0);
    let found = check(&end, "program");
    assert_eq!(found["verdict"], "warn");
    assert!(
        text(&found).contains(concat!("this is ragent ", env!("CARGO_PKG_VERSION"))),
        "{found}"
    );
    assert!(text(&found).ends_with(&format!("{} is 0.0.9", old.display())), "{found}");
}

/// A module `ragent` of another project is named if Python finds it first. This project's own module is not.
#[test]
fn foreign_modules_are_named() {
    let sandbox = Sandbox::new();
    let foreign = sandbox.path("foreign");
    fs::create_dir(&foreign).expect("the folder is new");
    fs::write(foreign.join("ragent.py"), "raise SystemExit('it was imported')")
        .expect("the folder is writable");
    let end = sandbox.ragent("doctor --json").env("PYTHONPATH", &foreign).run();
    end.assert_code(0);
    let found = check(&end, "module");
    assert_eq!(found["verdict"], "warn");
    assert!(text(&found).ends_with("/foreign/ragent.py"), "{found}");
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/python");
    for path in [own, ""] {
        let end = sandbox.ragent("doctor --json").env("PYTHONPATH", path).run();
        assert!(!end.stdout.contains("\"module\""), "{}", end.stdout);
    }
}

/// Results are printed while a check waits. An interpreter that does not answer hides no other result.
#[test]
fn lines_are_printed_as_they_become_known() {
    let sandbox = Sandbox::new();
    let mut doctor = sandbox.ragent("doctor").env("PYTHON_EXEC", "stay.sh").start();
    for name in ["kernel", "nofile", "shm", "gpu"] {
        doctor.prints(name);
    }
    assert!(!doctor.text(Stream::Stdout).contains("python"));
}

/// Output that cannot be printed is an error, as in every command that prints.
#[test]
fn full_disk_is_reported() {
    for words in ["doctor", "doctor --json"] {
        let full = File::options().write(true).open("/dev/full").expect("every Linux has it");
        let end = Sandbox::new().ragent(words).stdout(full).run();
        end.assert_code(1);
        end.assert_stderr(&["failed to print the findings", "No space left"]);
    }
}

/// A port is reported as free, as held by a process, or as served by a job. The process or the job is named.
#[test]
fn endpoint_is_looked_at() {
    let sandbox = Sandbox::new();
    let doctor = |port: u16| {
        sandbox.ragent(&format!("doctor --json --rdzv-endpoint 127.0.0.1:{port}")).run()
    };
    let free = doctor(free_port());
    free.assert_code(0);
    assert!(text(&check(&free, "port")).ends_with("is free"), "{}", free.stdout);

    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback takes a listener");
    let held = doctor(listener.local_addr().expect("it is bound").port());
    held.assert_code(1);
    let holder = format!("process {}", std::process::id());
    let found = check(&held, "port");
    assert_eq!(found["verdict"], "fail");
    assert!(text(&found).contains(&holder), "{found}");

    let port = free_port();
    let words = format!("--rdzv-endpoint 127.0.0.1:{port} --rdzv-id job7 --no-python stay.sh");
    let mut agent = sandbox.ragent(&words).start();
    agent.worker();
    let served = doctor(port);
    served.assert_code(0);
    assert!(text(&check(&served, "port")).contains("job `job7`"), "{}", served.stdout);
    assert_eq!(check(&served, "version")["verdict"], "pass");
    assert_eq!(check(&served, "clock")["verdict"], "pass");
}

/// Shortages are named: too few files for the workers, and an interpreter that does not run.
#[test]
fn shortages_are_named() {
    let sandbox = Sandbox::new();
    let start =
        sandbox.program("prlimit").arg("--nofile=200:200").arg(env!("CARGO_BIN_EXE_ragent"));
    let end = start.arg("doctor").arg("--json").arg("--nproc-per-node").arg("64").run();
    end.assert_code(1);
    assert!(text(&check(&end, "nofile")).contains("64 workers need"), "{}", end.stdout);
    let end = sandbox.ragent("doctor --json").env("PYTHON_EXEC", "false").run();
    end.assert_code(1);
    assert_eq!(check(&end, "python")["verdict"], "fail");
}

/// If loopback is down, the check fails, and its hint is the command that brings it up.
#[test]
fn loopback_that_is_down() {
    if !may_make_networks() || !is_there("unshare") {
        return;
    }
    let sandbox = Sandbox::new();
    let words = ["-n", env!("CARGO_BIN_EXE_ragent"), "doctor", "--json"];
    let end = words.into_iter().fold(sandbox.program("unshare"), Start::arg).run();
    end.assert_code(1);
    let found = check(&end, "loopback");
    assert_eq!(found["verdict"], "fail");
    assert!(
        found["hint"].as_str().is_some_and(|hint| hint.contains("ip link set lo up")),
        "{found}"
    );
}

/// The nodes of a job are asked how they reach each other. Without a job, the check fails.
#[test]
fn peers_are_asked() {
    let sandbox = Sandbox::new();
    let port = free_port();
    let words = format!("--nnodes 2 --rdzv-endpoint 127.0.0.1:{port} --no-python stay.sh");
    let mut agents = [0, 1].map(|_| sandbox.ragent(&words).start());
    for agent in &mut agents {
        agent.worker();
    }
    let doctor = format!("doctor --json --peers --rdzv-endpoint 127.0.0.1:{port}");
    let end = sandbox.ragent(&doctor).run();
    end.assert_code(0);
    assert!(text(&check(&end, "peers")).starts_with("2 nodes reach each other"), "{}", end.stdout);
    let nobody = format!("doctor --json --peers --rdzv-endpoint 127.0.0.1:{}", free_port());
    let end = sandbox.ragent(&nobody).run();
    end.assert_code(1);
    assert_eq!(check(&end, "peers")["verdict"], "fail");
    let end = sandbox.ragent("doctor --peers").run();
    end.assert_code(2);
    end.assert_stderr(&["no endpoint is given"]);
    let end = sandbox.ragent("doctor --rdzv-endpoint n0:99999").run();
    end.assert_code(2);
}

/// The measurement of standbys that an earlier version had is refused, and the error names the replacement.
#[test]
fn measurement_of_standbys_is_refused() {
    let sandbox = Sandbox::new();
    for words in ["doctor --standby", "doctor --standby=json train.py"] {
        let end = sandbox.ragent(words).run();
        end.assert_code(2);
        end.assert_stderr(&["`ragent doctor` has no `--standby` any more", "start the job with"]);
    }
}
