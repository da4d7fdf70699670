//! Frameworks that people launch by torchrun: each trains a tiny model on two workers.

use ragent::host::{Host, ThisHost};

use super::{
    REPOSITORY, python_of,
    support::{End, Sandbox},
    venv,
};

fn train(python: &str, framework: &str, fails: &str) -> End {
    let sandbox = Sandbox::new();
    let script = format!("{REPOSITORY}/tests/torch/frameworks/train_{framework}.py");
    let start = sandbox.ragent(&format!("--nproc-per-node 2 {script}"));
    let start = start.env("PYTHON_EXEC", python).env("RES_OPTIONS", "timeout:1 attempts:1");
    let end =
        start.env("HF_HUB_OFFLINE", "1").env("FAILS", fails).env("HOME", sandbox.path("")).run();
    sandbox.assert_nothing_left();
    end
}

/// The framework sees both workers and trains; an exception in one of them is in the report.
fn trains(python: &str, framework: &str) {
    let end = train(python, framework, "");
    end.assert_code(0);
    for rank in 0..2 {
        let said = format!("{framework} rank={rank} world_size=2 steps=4");
        assert!(end.stdout.contains(&said), "no `{said}` in:\n{}\n{}", end.stdout, end.stderr);
    }
    let end = train(python, framework, "1");
    end.assert_code(1);
    end.assert_stderr(&["rank      : 1 (local_rank: 1)", "ValueError: no such batch"]);
}

/// accelerate, as a worker script.
#[test]
fn accelerate() {
    let Some(python) = venv("python") else { return };
    trains(&python, "accelerate");
}

/// Those that `FRAMEWORKS` names: `make test-frameworks`.
#[test]
fn other_frameworks() {
    let frameworks = ThisHost.env("FRAMEWORKS").unwrap_or_default();
    for framework in frameworks.to_string_lossy().split_ascii_whitespace() {
        let Some(python) = python_of("frameworks") else { continue };
        trains(&python, framework);
    }
}
