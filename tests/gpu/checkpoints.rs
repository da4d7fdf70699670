//! Tests checkpoints in memory of what is on GPUs.

use crate::{
    machine::{Machine, worker},
    support::Sandbox,
};

/// Trains, and returns the output of the workers.
fn train(machine: &Machine, kill_after: u32) -> String {
    let sandbox = Sandbox::new();
    let module = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/python");
    let words = format!(
        "--standalone --nproc-per-node {} --max-restarts 1 {} {kill_after}",
        machine.workers,
        worker("checkpoints.py")
    );
    let start = machine.ragent(&sandbox, &words).env("PYTHONPATH", module);
    let end = start.env("PYTHONDONTWRITEBYTECODE", "1").run();
    end.assert_code(0);
    sandbox.assert_nothing_left();
    end.stdout
}

/// A killed worker changes no parameter: model, optimizer and the generators of the GPU go on from the checkpoint. CUDA copies to the
/// buffers of the agent directly, also after many saves.
#[test]
fn killed_worker_changes_no_parameter() {
    let Some(machine) = Machine::with_gpus() else { return };
    let (whole, interrupted) = (train(&machine, 0), train(&machine, 20));
    for rank in 0..machine.workers {
        let line = |output: &str, text: &str| {
            let start = format!("rank={rank} {text}");
            let line = output.lines().find(|line| line.starts_with(&start));
            line.unwrap_or_else(|| panic!("no `{start}`: {output}")).to_owned()
        };
        let begins = line(&interrupted, "restart=1 begins after=");
        assert!(!begins.ends_with("None"), "{interrupted}");
        assert_eq!(line(&whole, "result="), line(&interrupted, "result="));
        line(&interrupted, "direct=True");
    }
}
