//! Tests checkpoints in memory with the module `ragent.checkpoint` and real optimizers.

use crate::{REPOSITORY, support::Sandbox, venv};

/// Training that was interrupted by a killed worker ends with the same parameters as training that was not. The second round has a new
/// optimizer, and begins after a step that was saved in memory.
#[test]
fn killed_worker_changes_no_parameter() {
    let Some(python) = venv("python") else { return };
    for mode in ["state", "replicated", "dcp"] {
        let sandbox = Sandbox::new();
        let words = format!(
            "--standalone --nproc-per-node 2 --max-restarts 1 {REPOSITORY}/tests/torch/memory.py {mode}"
        );
        let end = sandbox
            .ragent(&words)
            .env("PYTHON_EXEC", &python)
            .env("PYTHONPATH", format!("{REPOSITORY}/packaging/python"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("GLOO_SOCKET_IFNAME", "lo")
            .run();
        assert_eq!(end.code, Some(0), "{mode}\n{}\n{}", end.stdout, end.stderr);
        for rank in 0..2 {
            let line = |text: &str| {
                let text = format!("rank={rank} {text}=");
                let line = end.stdout.lines().find_map(|line| line.strip_prefix(&text));
                line.unwrap_or_else(|| panic!("{mode}: no `{text}` in {}", end.stdout)).to_owned()
            };
            let step: Result<u32, _> = line("restart=1 begins after").parse();
            assert!(step.is_ok_and(|step| step % 3 == 0), "{mode}: {}", end.stdout);
            assert_eq!(line("same"), "True", "{mode}: {}", end.stdout);
        }
        sandbox.assert_nothing_left();
    }
}
