//! Tests that mistakes in arguments and on the machine are reported before anything else happens: one message with the mistake and its
//! reason, exit code 2, no log line, no network, no worker.

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

/// An unknown flag is named, and is not taken for the script or its arguments.
#[test]
fn unknown_flag() {
    let sandbox = Sandbox::new();
    let end = refused(sandbox.ragent("--no-such-flag --no-python stay.sh"));
    end.assert_stderr(&["--no-such-flag", "--help"]);
}

/// An empty range of nodes is repeated as typed, with the form of a valid one.
#[test]
fn empty_range_of_nodes() {
    let sandbox = Sandbox::new();
    let end = refused(sandbox.ragent("--nnodes 4:2 --no-python stay.sh"));
    assert_eq!(
        end.stderr,
        "error: `--nnodes 4:2` must satisfy 1 <= MIN <= MAX\nhint: give the smaller number first: `--nnodes 2:4`\n"
    );
}

/// A mistake that is found twice is reported once.
#[test]
fn one_mistake_is_reported_once() {
    let sandbox = Sandbox::new();
    let words = "--nnodes 2 --rdzv-endpoint auto --rdzv-id x --node-rank abc --no-python stay.sh";
    refused(sandbox.ragent(words)).assert_stderr(&["`--node-rank abc` is not a whole number"]);
}

/// An endpoint needs a host.
#[test]
fn endpoint_without_a_host() {
    let sandbox = Sandbox::new();
    let end = refused(sandbox.ragent("--rdzv-endpoint :29400 --no-python stay.sh"));
    end.assert_stderr(&["`--rdzv-endpoint :29400`", "it has no host", "hint: "]);
}

/// A mistake in a variable is reported with the variable's name, not with the flag's.
#[test]
fn mistake_in_a_variable() {
    let sandbox = Sandbox::new();
    let end = refused(sandbox.ragent("--no-python stay.sh").env("PET_NNODES", "many"));
    end.assert_stderr(&["`PET_NNODES=many`"]);
}

/// A script that does not exist is reported by the agent, not by Python in the first round.
#[test]
fn script_that_does_not_exist() {
    let sandbox = Sandbox::new();
    let end = refused(sandbox.ragent("no_such_script.py"));
    end.assert_stderr(&["`no_such_script.py` does not exist", "hint: "]);
}

/// Without any Python, the message lists the places that were searched, and how to name one.
#[test]
fn no_python() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("train.py"), "").unwrap();
    let end = refused(sandbox.ragent("train.py").env("PATH", sandbox.path("run")));
    end.assert_stderr(&["no Python was found", "python3", "PYTHON_EXEC"]);
}

/// A named interpreter that cannot be executed is named in the message.
#[test]
fn named_python_that_cannot_be_executed() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("train.py"), "").unwrap();
    let end = refused(sandbox.ragent("train.py").env("PYTHON_EXEC", "/no/such/python"));
    end.assert_stderr(&["PYTHON_EXEC is `/no/such/python`"]);
}

/// A program must be executable.
#[test]
fn program_that_is_not_executable() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("program"), "#!/bin/true\n").unwrap();
    let end = refused(sandbox.ragent("--no-python ./program"));
    end.assert_stderr(&["`./program` is not an executable file", "hint: "]);
}

/// A script with a missing interpreter, a folder as the script, and a program that is not in PATH
/// are each reported as such.
#[test]
fn program_that_is_not_in_path() {
    let sandbox = Sandbox::new();
    for (line, expected, hint) in [
        ("#!/no/such/sh\n", "requests \"/no/such/sh\"", "install it"),
        ("#!/bin/sh\r\n", "requests \"/bin/sh\\r\"", "Windows line endings"),
    ] {
        fs::write(sandbox.path("script"), line).unwrap();
        fs::set_permissions(sandbox.path("script"), Permissions::from_mode(0o755)).unwrap();
        let end = refused(sandbox.ragent("--no-python ./script"));
        end.assert_stderr(&["the first line of `./script`", expected, hint]);
    }
    refused(sandbox.ragent(".")).assert_stderr(&["the script `.` is a folder without"]);
    let end = refused(sandbox.ragent("--no-python no-such-program"));
    end.assert_stderr(&["`no-such-program` was not found in PATH"]);
}

/// A log folder that cannot be made is reported before the keeper is started.
#[test]
fn log_folder_that_cannot_be_made() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("file"), "").unwrap();
    let end = refused(sandbox.ragent("--log-dir file/logs --no-python stay.sh"));
    end.assert_stderr(&["`--log-dir file/logs`", "Not a directory", "hint: "]);
}

/// All mistakes are reported at once, each in its own message.
#[test]
fn all_mistakes_at_once() {
    let sandbox = Sandbox::new();
    let words =
        "--nnodes 0 --nproc-per-node x --rdzv-endpoint : --max-restarts few -r 7 nothing.py";
    let end = sandbox.ragent(words).run();
    end.assert_code(2);
    assert_eq!(end.stderr.matches("error:").count(), 6, "{}", end.stderr);
}

/// Without anything to launch, the message points to the help.
#[test]
fn nothing_to_launch() {
    let sandbox = Sandbox::new();
    refused(sandbox.ragent("")).assert_stderr(&["no training script is given", "ragent --help"]);
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

/// An invalid time, signal or exit code is repeated as typed.
#[test]
fn watching_and_restarting() {
    let sandbox = Sandbox::new();
    for flag in [
        "--hang-timeout 0",
        "--hang-timeout soon",
        "--hang-timeout inf",
        "--hang-signal QUIT",
        "--signal-workers all",
        "--signals-to-forward SIGTERM",
        "--signals-to-forward SIGKILL",
        "--signals-to-forward SIGUSR1,USR2",
        "--held-gpu-timeout -1",
        "--no-restart-exit-codes 0",
        "--no-restart-exit-codes 3,x",
        "--no-restart-exit-codes 256",
        "--notice -1",
        "--notice soon",
        "--notice-on SIGTERM",
        "--notice-on SIGKILL",
        "--notice-on SIGNOPE",
        "--notice-on SIGUSR1=members",
        "--notice-on SIGUSR1,USR1=save",
        "--notice-command no-such-program",
        "--notice-command 'open",
        "--health gpu,disks",
        "--health off,gpu",
        "--health-check no-such-program",
        "--health-check 'open",
        "--health-timeout 0",
        "--health-timeout 3601",
        "--health-timeout soon",
        "--no-progress-limit 1",
        "--no-progress-limit 9",
        "--no-progress-limit many",
    ] {
        let end = refused(sandbox.ragent(&format!("{flag} --no-python stay.sh")));
        end.assert_stderr(&[&format!("`{flag}`")]);
    }
}

/// An unknown launch method, a flag of another one, and a configuration that is not valid are
/// refused.
#[test]
fn launch_methods() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("bad.json"), "{,}").unwrap();
    for (flags, parts) in [
        (
            "--launch-method horovod",
            ["`--launch-method horovod`", "`basic`, `torchrun` or `deepspeed`"],
        ),
        ("--shared-file auto", ["`--shared-file auto`", "hint: add `--launch-method basic`"]),
        ("--deepspeed-config bad.json", ["`--deepspeed-config bad.json`", "hint: add `--launch-"]),
        (
            "--launch-method deepspeed --deepspeed-config bad.json",
            ["`--deepspeed-config bad.json` is not valid JSON", "line 1 column 2"],
        ),
        (
            "--launch-method deepspeed --deepspeed-config none.json",
            ["`--deepspeed-config none.json` does not exist", "hint: "],
        ),
        ("--nnodes 2 --save-path auto", ["`--save-path auto`", "hint: give `--rdzv-id NAME`"]),
        ("--nnodes 2 --checkpoint-path auto:/x", ["`--checkpoint-path auto:/x`", "--rdzv-id"]),
    ] {
        refused(sandbox.ragent(&format!("{flags} --no-python stay.sh"))).assert_stderr(&parts);
    }
}

/// A pattern for training steps must be valid and name the group of the step.
#[test]
fn pattern_without_a_step() {
    let sandbox = Sandbox::new();
    let end = refused(sandbox.ragent(r"--progress step=(\d+) --no-python stay.sh"));
    assert_eq!(
        end.stderr,
        "error: `--progress step=(\\d+)` is neither `auto` nor `off`, and as a pattern it has no group `(?<step>\\d+)`\n\
         hint: give a regular expression with a group for the step, and optionally one for the number of all steps, \
         such as `step (?<step>\\d+)/(?<steps>\\d+)`\n"
    );
    let end = refused(sandbox.ragent("--no-python stay.sh").env("PET_PROGRESS", "(?<step>"));
    end.assert_stderr(&["`PET_PROGRESS=(?<step>` is not a valid pattern: ", "hint: "]);
}

/// Mistakes in the arguments of `ragent check` are reported before it starts anything, on each side of `--`.
#[test]
fn mistakes_in_a_check() {
    let sandbox = Sandbox::new();
    let check = |words: &str| refused(sandbox.ragent(&format!("check {words}")));
    check("--nnodes 2 --backend gloo").assert_stderr(&["--backend", "write it after `--`"]);
    check("--nnodes 2 -- --nnodes 2").assert_stderr(&["unexpected argument '--nnodes'"]);
    check("--nnodes 2 train.py").assert_stderr(&["unexpected argument 'train.py'"]);
    let end = check("--nnodes 2 -- --timeout soon");
    end.assert_stderr(&["`--timeout soon` is not a number from 1 to 86400", "hint: "]);
    let end = check("--nnodes 1:4 -- --timeout 10");
    end.assert_stderr(&["at least 2 nodes", "`--nnodes` is 1:4", "--rdzv-endpoint"]);
    let end = check("--nnodes 2 --no-python");
    end.assert_stderr(&["runs a Python script of its own", "leave out"]);
    assert!(sandbox.files_below("run").iter().all(|file| !file.contains("ragent_check")));
}
