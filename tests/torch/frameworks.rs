//! Frameworks that are commonly launched by torchrun: each trains a tiny model on two workers.

use ragent::sys::host::{Host, ThisHost};

use super::{
    REPOSITORY, python_of,
    support::{End, Sandbox, Start},
    venv,
};

fn train(python: &str, framework: &str, fails: &str) -> End {
    let sandbox = Sandbox::new();
    let folder = format!("{REPOSITORY}/tests/torch/frameworks");
    let method = match framework {
        "deepspeed" => {
            format!("--launch-method deepspeed --deepspeed-config {folder}/deepspeed.json")
        }
        _ => String::new(),
    };
    let script = format!("{folder}/train_{framework}.py");
    let start = sandbox.ragent(&format!("--nproc-per-node 2 {method} {script}"));
    let start = start.env("PYTHON_EXEC", python).env("RES_OPTIONS", "timeout:1 attempts:1");
    let end =
        start.env("HF_HUB_OFFLINE", "1").env("FAILS", fails).env("HOME", sandbox.path("")).run();
    sandbox.assert_nothing_left();
    end
}

/// The framework uses both workers and trains; an exception in one of them is in the report.
fn trains(python: &str, framework: &str) {
    let end = train(python, framework, "");
    end.assert_code(0);
    for rank in 0..2 {
        let line = format!("{framework} rank={rank} world_size=2 steps=4");
        assert!(end.stdout.contains(&line), "no `{line}` in:\n{}\n{}", end.stdout, end.stderr);
    }
    let end = train(python, framework, "1");
    end.assert_code(1);
    end.assert_stderr(&["rank      : 1 (local_rank: 1)", "ValueError: no such batch"]);
}

/// accelerate trains on two workers.
#[test]
fn accelerate() {
    let Some(python) = venv("python") else { return };
    trains(&python, "accelerate");
}

/// The frameworks in `FRAMEWORKS` train on two workers: `make test-frameworks`.
#[test]
fn other_frameworks() {
    let frameworks = ThisHost.env("FRAMEWORKS").unwrap_or_default();
    for framework in frameworks.to_string_lossy().split_ascii_whitespace() {
        let Some(python) = python_of("frameworks") else { continue };
        trains(&python, framework);
    }
}

/// A worker gets the same from DeepSpeed's own launcher; runs if `FRAMEWORKS` contains `deepspeed`.
#[test]
fn deepspeeds_contract() {
    let frameworks = ThisHost.env("FRAMEWORKS").unwrap_or_default();
    if !frameworks.to_string_lossy().split_ascii_whitespace().any(|name| name == "deepspeed") {
        return;
    }
    let Some(python) = python_of("frameworks") else { return };
    let sandbox = Sandbox::new();
    let script = format!("{REPOSITORY}/tests/torch/frameworks/contract_deepspeed.py");
    let words = format!("--nproc-per-node 2 --launch-method deepspeed {script} --lr 3");
    let ours = sandbox.ragent(&words).env("PYTHON_EXEC", &python).run();
    // `{"localhost": [0, 1]}`, as its runner passes it to its launcher.
    let world = "--world_info=eyJsb2NhbGhvc3QiOiBbMCwgMV19";
    let words = ["-m", "deepspeed.launcher.launch", world, &script, "--lr", "3"];
    let start = words.iter().fold(sandbox.program(&python), Start::arg);
    let theirs = start.env("HOME", sandbox.path("")).run();
    let told = |end: &End| {
        end.assert_code(0);
        let mut told: Vec<String> = end
            .stdout
            .lines()
            .filter(|line| line.starts_with("told "))
            .map(str::to_owned)
            .collect();
        told.sort();
        assert_eq!(told.len(), 2, "{}\n{}", end.stdout, end.stderr);
        told
    };
    assert_eq!(told(&ours), told(&theirs));
}
