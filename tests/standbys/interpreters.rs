//! Tests interpreters, and what users have installed in them.

use std::{fs, os::unix::fs::PermissionsExt};

use crate::{
    job::{Job, READY, used_standbys, write},
    support::{End, Sandbox},
};

const SCRIPT: &str = "\
import os, sys
with open(os.environ['SCRATCH'] + '/runs', 'a') as runs:
    runs.write('rank %s of %s\\n' % (os.environ.get('RANK'), os.environ.get('WORLD_SIZE')))
print('done')
";

/// Writes an executable shell script and returns its path.
fn wrapper(sandbox: &Sandbox, text: &str) -> String {
    write(sandbox, "python", &format!("#!/bin/sh\n{text}\n"));
    let path = sandbox.path("python");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path.display().to_string()
}

/// Returns how often the script has run, and with which rank.
fn runs(sandbox: &Sandbox) -> String {
    fs::read_to_string(sandbox.path("runs")).unwrap_or_default()
}

/// Runs a job with an interpreter that cannot have standbys.
#[track_caller]
fn without_standbys(text: &str, words: &str) -> Option<End> {
    let sandbox = Sandbox::new();
    let job = Job::new(&sandbox)?;
    write(&sandbox, "train.py", SCRIPT);
    let python = wrapper(&sandbox, text);
    let mut node = job.node(&format!("--standby=json {words}")).env("PYTHON_EXEC", python).start();
    node.logs("workers have no standbys");
    let end = job.finish(node);
    assert_eq!(end.stderr.matches("have no standbys").count(), 1, "{}", end.stderr);
    assert!(!used_standbys(&end));
    assert_eq!(runs(&sandbox), "rank 0 of 2\n", "{text} {words}");
    Some(end)
}

/// An interpreter that ignores PYTHONPATH or `sitecustomize` has no standbys. One warning states that. The script runs once, in its round.
#[test]
fn interpreters_that_ignore_the_hook() {
    for flag in ["-I", "-E", "-S", "-IS"] {
        let text = format!("exec /usr/bin/python3 {flag} \"$@\"");
        let Some(end) = without_standbys(&text, "train.py") else { return };
        end.assert_code(0);
        end.assert_stderr(&["ignores PYTHONPATH or does not import `sitecustomize`"]);
    }
    let texts = [
        "unset PYTHONPATH; exec /usr/bin/python3 \"$@\"",
        "echo loading a module; exec /usr/bin/python3 \"$@\"",
        "[ \"$RAGENT_STANDBY\" = '?' ] && exit 9; exec /usr/bin/python3 \"$@\"",
    ];
    for text in texts {
        let Some(end) = without_standbys(text, "train.py") else { return };
        end.assert_code(0);
    }
}

/// A wrapper may run the hook only for some commands. The command of the worker decides.
#[test]
fn wrappers_that_run_the_hook_for_other_commands() {
    let cases = [
        ("*' -c '*) ;; *) unset PYTHONPATH", "train.py"),
        ("*' -m '*) unset PYTHONPATH", "-m train"),
        ("*.py) unset PYTHONPATH", "train.py"),
        ("*' --lr '*) unset PYTHONPATH", "train.py --lr 3"),
        ("*' --lr '*) unset PYTHONPATH", "--run-path train.py --lr 3"),
    ];
    for (case, words) in cases {
        let text = format!("case \"$*\" in {case};; esac; exec /usr/bin/python3 \"$@\"");
        let Some(end) = without_standbys(&text, words) else { return };
        end.assert_code(0);
    }
}

/// A wrapper that runs the interpreter as its child has standbys.
#[test]
fn wrapper_with_a_child() {
    let sandbox = Sandbox::new();
    let Some(job) = Job::new(&sandbox) else { return };
    write(&sandbox, "train.py", SCRIPT);
    let python = wrapper(&sandbox, "/usr/bin/python3 \"$@\"; exit $?");
    let mut node = job.node("--standby=json train.py").env("PYTHON_EXEC", python).start();
    node.logs(READY);
    let end = job.finish(node);
    end.assert_code(0);
    assert!(used_standbys(&end));
    assert_eq!(runs(&sandbox), "rank 0 of 2\n");
    sandbox.wait_until_nothing_left();
}

/// If a wrapper names no path, the worker is started as a new process.
#[test]
fn wrapper_that_searches_the_interpreter() {
    let sandbox = Sandbox::new();
    let Some(job) = Job::new(&sandbox) else { return };
    write(&sandbox, "modules/setter.py", "import os\nos.environ['WORLD_SIZE'] = '1'\n");
    write(&sandbox, "train.py", SCRIPT);
    let python = wrapper(&sandbox, "export PATH=/usr/bin:$PATH; exec python3 \"$@\"");
    let mut node = job.node("--standby=setter train.py").env("PYTHON_EXEC", python).start();
    node.logs(READY);
    let end = job.finish(node);
    end.assert_code(0);
    assert!(end.stderr.contains("sets WORLD_SIZE while it is imported"), "{}", end.stderr);
    assert_eq!(end.stderr.matches("is_standby=false").count(), 1, "{}", end.stderr);
    assert_eq!(runs(&sandbox), "rank 0 of 2\n");
}

/// If the hook fails, the script does not run without its round.
#[test]
fn failing_hook_never_runs_the_script() {
    let sandbox = Sandbox::new();
    let Some(job) = Job::new(&sandbox) else { return };
    write(&sandbox, "train.py", SCRIPT);
    // Enough open files for Python, and not for the hook.
    let script = format!(
        "ulimit -Sn 6; exec {} {} --node-rank 0 --standby=json train.py",
        env!("CARGO_BIN_EXE_ragent"),
        job.flags
    );
    let start = sandbox.program("bash").arg("-c").arg(script);
    let mut node = job.prepared(start).start();
    let line = node.logs("worker 0 has no standby from now on");
    assert!(line.contains("exited with code 70"), "{line}");
    assert_eq!(runs(&sandbox), "");
    let end = job.finish(node);
    end.assert_code(0);
    assert!(!used_standbys(&end));
    assert_eq!(runs(&sandbox), "rank 0 of 2\n");
}

/// The `sitecustomize` of the user runs once in each worker, with the PYTHONPATH of the user.
#[test]
fn sitecustomize_of_the_user() {
    let custom = "\
import helper, os, sys
with open(os.environ['SCRATCH'] + '/custom', 'a') as custom:
    custom.write('%d %s\\n' % (os.getpid(), os.environ.get('PYTHONPATH')))
sys.custom = sys.modules['sitecustomize'].__file__
";
    let script = "\
import os, sys
import helper, sitecustomize
print(os.getpid(), os.environ.get('PYTHONPATH'), sys.custom, sitecustomize.__file__, sys.path)
print(helper.__file__)
";
    let sandbox = Sandbox::new();
    let mut lines = Vec::new();
    for standby in ["json", "none"] {
        let Some(job) = Job::new(&sandbox) else { return };
        write(&sandbox, "modules/sitecustomize.py", custom);
        // It imports the first one, with standbys and without.
        write(&sandbox, "modules/helper.py", "");
        write(&sandbox, "helper.py", "");
        write(&sandbox, "train.py", script);
        write(&sandbox, "custom", "");
        let mut node = job.node(&format!("--standby={standby} train.py")).start();
        if standby == "json" {
            node.logs(READY);
        }
        let end = job.finish(node);
        end.assert_code(0);
        assert_eq!(used_standbys(&end), standby == "json");
        assert!(!end.stderr.contains("standbys do not import"), "{}", end.stderr);
        let (pid, rest) = end.stdout.split_once(' ').unwrap();
        lines.push(rest.to_owned());
        let runs = fs::read_to_string(sandbox.path("custom")).unwrap();
        let modules = sandbox.path("modules");
        let expected = format!("{pid} {}\n", modules.display());
        assert!(runs.contains(&expected), "{runs}");
        let by_worker = runs.lines().filter(|line| line.starts_with(&format!("{pid} ")));
        assert_eq!(by_worker.count(), 1, "{runs}");
        // The test of the interpreter runs nothing of the user.
        assert_eq!(runs.lines().count(), 1, "{runs}");
    }
    assert_eq!(lines[0], lines[1]);
}

/// Without a PYTHONPATH of the user, workers have none.
#[test]
fn no_pythonpath() {
    let sandbox = Sandbox::new();
    for standby in ["json", "none"] {
        let Some(job) = Job::new(&sandbox) else { return };
        let script = "import os, sys\nprint('PYTHONPATH' in os.environ, [name for name in os.environ if 'STANDBY' in name])";
        write(&sandbox, "train.py", script);
        let words = format!("{} --node-rank 0 --standby={standby} train.py", job.flags);
        let mut node = sandbox.ragent(&words).start();
        if standby == "json" {
            node.logs(READY);
        }
        let end = job.finish(node);
        end.assert_code(0);
        assert_eq!(end.stdout, "False []\n");
    }
}

/// If the `sitecustomize` of the user fails, workers are started without standbys. Python prints the error and runs the script.
#[test]
fn failing_sitecustomize_of_the_user() {
    let sandbox = Sandbox::new();
    let Some(job) = Job::new(&sandbox) else { return };
    write(&sandbox, "modules/sitecustomize.py", "raise ValueError('not today')");
    write(&sandbox, "train.py", SCRIPT);
    let mut node = job.node("--standby=json train.py").start();
    let line = node.logs("worker 0 has no standby from now on");
    assert!(line.contains("not today"), "{line}");
    let end = job.finish(node);
    end.assert_code(0);
    assert!(!used_standbys(&end));
    assert_eq!(runs(&sandbox), "rank 0 of 2\n");
    // Of the worker, and of nothing else.
    assert_eq!(end.stderr.matches("Error in sitecustomize").count(), 1, "{}", end.stderr);
}
