//! Tests scripts that need more than torchrun's environment, with the real torch.

use super::{
    REPOSITORY,
    support::{Sandbox, Start},
    venv,
};

/// Workers meet at a shared file. After a failure it is a new one, and the checkpoint is at the same path.
#[test]
#[ignore = "`make test-all` runs it: importing torch takes seconds of CPU time"]
fn basic_uses_a_shared_file() {
    let Some(python) = venv("python") else { return };
    let sandbox = Sandbox::new();
    let words = format!(
        "--nproc-per-node 2 --max-restarts 1 --launch-method basic --shared-file auto \
         --checkpoint-path auto {REPOSITORY}/tests/torch/basic.py"
    );
    let start: Start = sandbox.ragent(&words).env("PYTHON_EXEC", python);
    let end = start.env("RES_OPTIONS", "timeout:1 attempts:1").run();
    end.assert_code(0);
    for attempt in 0..2 {
        for rank in 0..2 {
            let line = format!("attempt={attempt} rank={rank} sum=3 done={attempt}");
            assert!(end.stdout.contains(&line), "no `{line}` in:\n{}\n{}", end.stdout, end.stderr);
        }
    }
    sandbox.assert_nothing_left();
}
