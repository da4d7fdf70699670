//! Tests what a command does about mistakes in its arguments and on the machine: exit code 2, messages on stderr, and nothing is started.
//! Unit tests check the arguments. Files and programs are looked up on the real machine here.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
};

use crate::support::{End, Sandbox, Start};

/// Runs a command that must be refused with exactly one message.
#[track_caller]
fn refused(start: Start) -> End {
    let end = start.run();
    end.assert_code(2);
    assert_eq!(end.stderr.matches("error:").count(), 1, "{}", end.stderr);
    assert!(!end.stderr.contains(" INFO "), "something was begun:\n{}", end.stderr);
    assert_eq!(end.stdout, "");
    end
}

/// All mistakes are reported at once, each in its own message, and nothing is begun.
#[test]
fn all_mistakes_at_once() {
    let sandbox = Sandbox::new();
    let words =
        "--nnodes 0 --nproc-per-node x --rdzv-endpoint : --max-restarts few -r 7 nothing.py";
    let end = sandbox.ragent(words).run();
    end.assert_code(2);
    assert_eq!(end.stderr.matches("error:").count(), 6, "{}", end.stderr);
    assert!(!end.stderr.contains(" INFO "), "something was begun:\n{}", end.stderr);
    assert_eq!(end.stdout, "");
}

/// Scripts, interpreters and programs that are missing or cannot be executed are each reported as such.
#[test]
fn files_are_examined() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("train.py"), "").unwrap();
    fs::write(sandbox.path("program"), "#!/bin/true\n").unwrap();
    for (words, variable, part) in [
        ("no_such_script.py", None, "`no_such_script.py` does not exist"),
        ("train.py", Some(("PATH", "/proc")), "no Python was found"),
        ("train.py", Some(("PYTHON_EXEC", "/no/python")), "PYTHON_EXEC is `/no/python`"),
        ("--no-python ./program", None, "`./program` is not an executable file"),
        ("--no-python no-such-program", None, "`no-such-program` was not found in PATH"),
        (".", None, "the script `.` is a folder without"),
    ] {
        let start = sandbox.ragent(words);
        let start = variable.into_iter().fold(start, |start, (name, value)| start.env(name, value));
        refused(start).assert_stderr(&[part]);
    }
    for (line, expected, hint) in [
        ("#!/no/such/sh\n", "requests \"/no/such/sh\"", "install it"),
        ("#!/bin/sh\r\n", "requests \"/bin/sh\\r\"", "Windows line endings"),
    ] {
        fs::write(sandbox.path("script"), line).unwrap();
        fs::set_permissions(sandbox.path("script"), Permissions::from_mode(0o755)).unwrap();
        let end = refused(sandbox.ragent("--no-python ./script"));
        end.assert_stderr(&["the first line of `./script`", expected, hint]);
    }
}

/// A log folder that cannot be made is reported before the keeper is started.
#[test]
fn log_folder_that_cannot_be_made() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("file"), "").unwrap();
    let end = refused(sandbox.ragent("--log-dir file/logs --no-python stay.sh"));
    end.assert_stderr(&["`--log-dir file/logs`", "Not a directory", "hint: "]);
}

/// Requests for the help or the version succeed.
#[test]
fn help_and_version_succeed() {
    let sandbox = Sandbox::new();
    for flag in ["--help", "--version"] {
        let end = sandbox.ragent(flag).run();
        end.assert_code(0);
        assert!(end.stdout.contains("ragent"), "{}", end.stdout);
    }
}

/// A mistake in the arguments of `ragent check` is reported before its script is written.
#[test]
fn mistake_in_a_check() {
    let sandbox = Sandbox::new();
    let end = refused(sandbox.ragent("check --nnodes 2 -- --timeout soon"));
    end.assert_stderr(&["`--timeout soon` is not a number from 1 to 86400", "hint: "]);
    assert!(sandbox.files_below("run").iter().all(|file| !file.contains("ragent_check")));
}
