//! Tests checkpoints in memory with the module `ragent.checkpoint` and real optimizers.

use crate::{REPOSITORY, support::Sandbox, venv};

/// Trains with two workers. Returns the output of the workers.
fn train(python: &str, mode: &str, kill_after: u32) -> String {
    let sandbox = Sandbox::new();
    let words = format!(
        "--standalone --nproc-per-node 2 --max-restarts 1 {REPOSITORY}/tests/torch/memory.py {mode} {kill_after}"
    );
    let end = sandbox
        .ragent(&words)
        .env("PYTHON_EXEC", python)
        .env("PYTHONPATH", format!("{REPOSITORY}/packaging/python"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("GLOO_SOCKET_IFNAME", "lo")
        .run();
    assert_eq!(end.code, Some(0), "{mode}\n{}\n{}", end.stdout, end.stderr);
    sandbox.assert_nothing_left();
    end.stdout
}

fn result(output: &str) -> &str {
    let line = output.lines().find(|line| line.starts_with("rank=0 result="));
    line.expect("rank 0 prints it")
}

/// Training that was interrupted by a killed worker ends with the same parameters as training that was not. The second round has a new
/// optimizer, and begins after a step that was saved in memory.
#[test]
fn killed_worker_changes_no_parameter() {
    let Some(python) = venv("python") else { return };
    for mode in ["state", "replicated", "dcp"] {
        let (whole, interrupted) = (train(&python, mode, 0), train(&python, mode, 14));
        for rank in 0..2 {
            let begins = format!("rank={rank} restart=1 begins after=");
            let line = interrupted.lines().find(|line| line.starts_with(&begins));
            let step = line.and_then(|line| line.rsplit('=').next()?.parse::<u32>().ok());
            assert!(step.is_some_and(|step| step % 3 == 0), "{mode}: {interrupted}");
        }
        assert_eq!(result(&whole), result(&interrupted), "{mode}");
    }
}
