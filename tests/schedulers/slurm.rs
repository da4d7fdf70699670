//! Tests agents in the environment that `srun` gives to the tasks of a step.

use crate::support::{Sandbox, Start};

/// The task `task` of a step with `tasks` tasks, one per node. Its first node is this machine.
fn in_step(sandbox: &Sandbox, task: u32, tasks: u32, words: &str) -> Start {
    // No other running test has the same number.
    let job = std::process::id().to_string();
    let pairs = [
        ("SLURM_JOB_ID", job),
        ("SLURM_STEP_ID", "0".to_owned()),
        ("SLURM_PROCID", task.to_string()),
        ("SLURM_LOCALID", "0".to_owned()),
        ("SLURM_NODEID", task.to_string()),
        ("SLURM_STEP_NUM_TASKS", tasks.to_string()),
        ("SLURM_STEP_NUM_NODES", tasks.to_string()),
        ("SLURM_STEP_TASKS_PER_NODE", format!("1(x{tasks})")),
        ("SLURM_STEP_NODELIST", format!("localhost,away[1-{}]", tasks - 1)),
    ];
    let start = sandbox.ragent(words);
    pairs.iter().fold(start, |start, (name, value)| start.env(name, value))
}

/// The tasks of a step are one job without any flag. It has as many nodes as tasks, in their order, with the endpoint at the step's first
/// node, the step's name, and a worker for each allocated GPU.
#[test]
fn tasks_of_a_step_are_one_job() {
    let sandbox = Sandbox::new();
    let words = "--no-python environment.sh";
    // The agent with the higher rank starts first, and still does not get rank 0.
    let task = |task| in_step(&sandbox, task, 2, words).env("SLURM_GPUS_ON_NODE", "2").start();
    let (second, first) = (task(1), task(0));
    for (agent, ranks) in [(first, [0, 1]), (second, [2, 3])] {
        let end = agent.end();
        end.assert_code(0);
        let run_id = format!("TORCHELASTIC_RUN_ID=slurm-{}.0", std::process::id());
        for rank in ranks {
            for pair in ["WORLD_SIZE=4", "LOCAL_WORLD_SIZE=2", &run_id] {
                let line = format!("env rank={rank} {pair}");
                assert!(
                    end.stdout.lines().any(|printed| printed == line),
                    "{line} in {}",
                    end.stdout
                );
            }
        }
    }
}

/// A range of nodes starts with the nodes of the step, and waits for no more nodes than the step
/// has tasks.
#[test]
fn range_is_bounded_by_the_step() {
    let sandbox = Sandbox::new();
    let words = "--nnodes 1:64 --rdzv-conf last_call_timeout=600 --no-python true";
    // Two running jobs of one number would be one job. Numbers of processes are lower.
    let job = (std::process::id() + 4_194_305).to_string();
    let task = |task| in_step(&sandbox, task, 2, words).env("SLURM_JOB_ID", &job).start();
    let agents = [0, 1].map(task);
    for agent in agents {
        agent.end().assert_code(0);
    }
    let end = in_step(&sandbox, 0, 2, "--nnodes 3 --no-python true").run();
    end.assert_code(2);
    end.assert_stderr(&["Slurm has started 2 agents, but `--nnodes` is 3"]);
}

/// If a flag sets how nodes meet, the step's variables are ignored, so that scripts for torchrun
/// work the same under `srun`.
#[test]
fn flags_win() {
    let sandbox = Sandbox::new();
    for words in [
        "--standalone --no-python true",
        "--rdzv-endpoint 127.0.0.1:0 --no-python true",
        "--rdzv-backend c10d --rdzv-endpoint localhost:0 --no-python true",
    ] {
        in_step(&sandbox, 0, 2, words).run().assert_code(0);
    }
}
