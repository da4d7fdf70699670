//! Tests checkpoints for notices with the module `ragent` and real collectives.

use std::{collections::BTreeSet, fs, path::Path};

use nix::sys::signal::Signal;

use crate::{
    REPOSITORY,
    support::{Program, Sandbox, Start, free_port},
    venv,
};

/// An agent of a job on gloo, with one worker. `mode` is what the script does after a checkpoint.
fn agent(sandbox: &Sandbox, python: &str, port: u16, flags: &str, mode: &str) -> Start {
    let words = format!(
        "{flags} --rdzv-endpoint 127.0.0.1:{port} --rdzv-id notices {REPOSITORY}/tests/torch/notices.py {mode} {}",
        sandbox.path("").display()
    );
    let module = format!("{REPOSITORY}/packaging/python");
    let start = sandbox.ragent(&words).env("PYTHON_EXEC", python);
    start
        .env("PYTHONPATH", module)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("GLOO_SOCKET_IFNAME", "lo")
}

fn start(sandbox: &Sandbox, python: &str, nodes: &str, mode: &str) -> Vec<Program> {
    let port = free_port();
    let flags =
        format!("--nnodes {nodes} --notice 120 --rdzv-conf last_call_timeout=60,join_timeout=30");
    let mut agents = vec![agent(sandbox, python, port, &flags, mode).start()];
    agents[0].endpoint();
    agents.extend([(); 2].map(|()| agent(sandbox, python, port, &flags, mode).start()));
    agents.iter_mut().for_each(|agent| drop(agent.prints("begins after=0")));
    agents
}

/// The steps that were saved, each by this number of ranks.
fn saved(folder: &Path, ranks: usize) -> BTreeSet<u64> {
    let names = fs::read_dir(folder)
        .expect("the folder exists")
        .map(|entry| entry.expect("the folder is read").file_name());
    let names: Vec<String> =
        names.map(|name| name.into_string().expect("the names are text")).collect();
    let step = |name: &String| name.strip_prefix("saved.")?.split('.').next()?.parse().ok();
    let steps: Vec<u64> = names.iter().filter_map(step).collect();
    let is_whole = |step: &u64| steps.iter().filter(|other| *other == step).count() == ranks;
    assert!(steps.iter().all(is_whole), "{names:?}");
    steps.into_iter().collect()
}

/// One of three agents gets SIGTERM. All ranks save the same step, the agent leaves, and the other two go on after this step.
#[test]
fn all_ranks_save_one_step() {
    let Some(python) = venv("python") else { return };
    let sandbox = Sandbox::new();
    let mut agents = start(&sandbox, &python, "2:3", "waits");
    agents[2].signal(Signal::SIGTERM);
    let line = agents[0].prints("saved=");
    let step: u64 = line.rsplit('=').next().unwrap().parse().unwrap();
    agents.pop().unwrap().end().assert_code(8);
    assert_eq!(saved(&sandbox.path(""), 3), BTreeSet::from([step]));
    for agent in &mut agents {
        let line = agent.prints(&format!("begins after={step}"));
        assert!(line.contains("of=2"), "{line}");
    }
}

/// All agents get SIGTERM, one after the other. All ranks save one step, also if they exit with 0 afterwards, and the job can be started
/// again without a loss.
#[test]
#[ignore = "`make test-all` runs it: importing torch takes seconds of CPU time"]
fn all_agents_leave_after_a_checkpoint() {
    let Some(python) = venv("python") else { return };
    for mode in ["waits", "exit"] {
        let sandbox = Sandbox::new();
        let agents = start(&sandbox, &python, "3", mode);
        for agent in &agents {
            agent.signal(Signal::SIGTERM);
        }
        let codes: Vec<Option<i32>> = agents.into_iter().map(|agent| agent.end().code).collect();
        assert!(codes.contains(&Some(5)), "{codes:?}");
        // An agent whose signal came first may have left before the others had one.
        assert!(codes[1..].iter().all(|code| *code == Some(5)), "{codes:?}");
        assert!(matches!(codes[0], Some(5 | 8)), "{codes:?}");
        assert_eq!(saved(&sandbox.path(""), 3).len(), 1);
        sandbox.assert_nothing_left();
    }
}

/// The agents get SIGTERM after each other, and the first one has left when the next one gets it. The first node leaves a job that goes on. The
/// others end it, and lose nothing.
#[test]
#[ignore = "`make test-all` runs it: importing torch takes seconds of CPU time"]
fn last_agents_leave_between_rounds() {
    let Some(python) = venv("python") else { return };
    for first in [0, 2] {
        let sandbox = Sandbox::new();
        let mut agents = start(&sandbox, &python, "3", "waits");
        let leaver = agents.remove(first);
        leaver.signal(Signal::SIGTERM);
        agents.iter_mut().for_each(|agent| drop(agent.logs("all ranks have saved step")));
        leaver.end().assert_code(8);
        for agent in agents {
            agent.signal(Signal::SIGTERM);
            let end = agent.end();
            end.assert_code(5);
            end.assert_stderr(&["and it goes on from there"]);
        }
        sandbox.assert_nothing_left();
    }
}

/// A script that fails at the same step each time is started three times, and not a fourth time.
#[test]
#[ignore = "`make test-all` runs it: importing torch takes seconds of CPU time"]
fn failure_at_the_same_step_ends_the_job() {
    let Some(python) = venv("python") else { return };
    let sandbox = Sandbox::new();
    let words = format!(
        "--standalone --nproc-per-node 2 --max-restarts 9 {REPOSITORY}/tests/torch/notices.py fail {}",
        sandbox.path("").display()
    );
    let module = format!("{REPOSITORY}/packaging/python");
    let end = sandbox
        .ragent(&words)
        .env("PYTHON_EXEC", &python)
        .env("PYTHONPATH", module)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .run();
    end.assert_code(6);
    assert_eq!(end.stdout.matches("rank=0 of=2 begins").count(), 3, "{}", end.stdout);
    end.assert_stderr(&["the job fails again and again before a new step"]);
}
