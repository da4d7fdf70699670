//! Tests `--standby`, and jobs that cannot have standbys.

use crate::{
    job::{Job, READY, used_standbys, write},
    support::{Sandbox, children, keeper_of},
};

/// Programs, scripts from stdin, and workers whose arguments depend on the round have no standbys,
/// without a warning.
#[test]
fn workers_without_standbys() {
    let sandbox = Sandbox::new();
    for words in ["--no-python sleep infinity", "--launch-method basic wait.py", "-"] {
        let Some(job) = Job::new(&sandbox) else { return };
        write(&sandbox, "wait.py", "import signal\nsignal.pause()");
        let input = std::io::pipe().unwrap();
        let mut node = job.node(&format!("--standby=json {words}")).stdin(input.0).start();
        node.logs("waiting");
        assert!(children(keeper_of(node.pid())).is_empty());
        let _other = job.complete();
        let line = node.logs("worker started");
        assert!(line.contains("is_standby=false"), "{words}: {line}");
        node.signal(nix::sys::signal::Signal::SIGTERM);
        let end = node.end();
        assert!(!end.stderr.contains("standbys"), "{}", end.stderr);
    }
}

/// `PET_STANDBY` is the same as the flag. The flag overrides it.
#[test]
fn variable() {
    let sandbox = Sandbox::new();
    let cases = [
        ("json", "", Some("True False")),
        ("1", "", Some("False True")),
        ("json", "--standby=decimal", Some("False False")),
        ("none", "", None),
        ("0", "", None),
        ("json", "--standby=none", None),
        ("none", "--standby=json", Some("True False")),
    ];
    for (value, flag, expected) in cases {
        let Some(job) = Job::new(&sandbox) else { return };
        write(&sandbox, "modules/torch/__init__.py", "");
        write(&sandbox, "modules/torch/_dynamo.py", "");
        let script = "import sys\nprint('json' in sys.modules, 'torch._dynamo' in sys.modules)";
        write(&sandbox, "train.py", script);
        let start = job.node(&format!("{flag} train.py")).env("PET_STANDBY", value);
        let mut node = start.start();
        if expected.is_some() {
            node.logs(READY);
        }
        let end = job.finish(node);
        end.assert_code(0);
        assert_eq!(used_standbys(&end), expected.is_some(), "{value} {flag}");
        assert_eq!(end.stdout.trim_end(), expected.unwrap_or("False False"));
    }
}
