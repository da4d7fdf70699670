//! Tests the real torch: its client with our store, its collectives under our agents, and its launcher compared with ours.

use std::{fs, net::Ipv4Addr, path::PathBuf};

use nix::sys::signal::Signal;
use ragent_store::{AdmissionRule, StoreThread};
use support::{Program, Sandbox, Start, children, free_port, keeper_of, kill, skip};

mod check;
mod frameworks;
mod launch_methods;
mod memory;
mod notices;
mod stalls;
mod standbys;
#[path = "../support/mod.rs"]
mod support;
mod survival;
mod versions;

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// A program of the Python environment that `scripts/setup-venv.sh` makes. `None` if it is missing.
fn venv(name: &str) -> Option<String> {
    let path = PathBuf::from(format!("{REPOSITORY}/.venv/bin/{name}"));
    if path.exists() {
        return Some(path.display().to_string());
    }
    skip("there is no .venv; `scripts/setup-venv.sh` makes it");
    None
}

/// The Python of another environment that this script makes. `None` if it is missing.
fn python_of(environment: &str) -> Option<String> {
    let path = PathBuf::from(format!("{REPOSITORY}/.venvs/{environment}/bin/python"));
    if path.exists() {
        return Some(path.display().to_string());
    }
    skip(&format!("`scripts/setup-venv.sh {environment}` makes the environment"));
    None
}

/// An agent that trains the digits with two workers.
fn trainer(sandbox: &Sandbox, python: &str, port: u16) -> Start {
    let folder = sandbox.path("checkpoints");
    fs::create_dir_all(&folder).expect("a folder");
    let words = format!(
        "--nnodes 2 --nproc-per-node 2 --max-restarts 1 --rdzv-endpoint 127.0.0.1:{port} \
         --rdzv-id digits {REPOSITORY}/examples/digits/train.py --epochs 4 --folder {}",
        folder.display()
    );
    let module = format!("{REPOSITORY}/packaging/python");
    sandbox.ragent(&words).env("PYTHON_EXEC", python).env("PYTHONPATH", module)
}

fn worker_of(agent: &Program) -> u32 {
    let keeper = keeper_of(agent.pid());
    *children(keeper).first().expect("its workers run")
}

/// Every operation of the unmodified TCPStore client is answered as torch's own server would.
#[test]
fn torch_client_is_served() {
    let Some(python) = venv("python") else { return };
    let sandbox = Sandbox::new();
    let listener = ragent_store::listen((Ipv4Addr::LOCALHOST, 0).into()).expect("a port");
    let address = listener.local_addr().expect("a bound listener");
    let stores = StoreThread::start("store").expect("a thread");
    let _store = stores.open(listener, AdmissionRule::Anybody).expect("a store");
    let script = format!("{REPOSITORY}/tests/torch/store_conformance.py");
    // torch resolves the name of its peer for every connection, and waits if there is no answer.
    let client = sandbox.program(&python).env("RES_OPTIONS", "timeout:1 attempts:1");
    let client = client.arg(script).arg(address.ip().to_string()).arg(address.port().to_string());
    let mut client = client.start();
    client.prints("compare_set ");
    client.prints("rules hold");
    let end = client.end();
    assert_eq!(end.code, Some(0), "{}\n{}", end.stdout, end.stderr);
}

/// DistributedDataParallel on gloo continues from its checkpoint after a worker was killed. Its store has no keys of the previous round,
/// and it succeeds on both nodes.
#[test]
fn training_survives_a_killed_worker() {
    let Some(python) = venv("python") else { return };
    let sandbox = Sandbox::new();
    let port = free_port();
    let mut host = trainer(&sandbox, &python, port).start();
    host.logs("coordinating the job");
    let mut guest = trainer(&sandbox, &python, port).start();
    host.prints("epoch=1/4 world_size=4");
    kill(worker_of(&guest), Signal::SIGKILL);
    guest.logs("worker failed");
    host.prints("resumed after step");
    host.prints("epoch=4/4 world_size=4");
    for (agent, name) in [(host, "host"), (guest, "guest")] {
        let end = agent.end();
        assert_eq!(end.code, Some(0), "{name}:\n{}", end.stderr);
        assert!(end.stderr.contains("restart_count=1"), "{name}:\n{}", end.stderr);
    }
    sandbox.assert_nothing_left();
}

/// The example runs unchanged under torchrun.
#[test]
#[ignore = "`make test-all` runs it: importing torch takes seconds of CPU time"]
fn example_runs_under_torchrun() {
    let Some(torchrun) = venv("torchrun") else { return };
    let sandbox = Sandbox::new();
    let end = sandbox
        .program(&torchrun)
        .arg("--standalone")
        .arg("--nproc-per-node=2")
        .arg(format!("{REPOSITORY}/examples/digits/train.py"))
        .arg("--epochs=1")
        .env("PYTHONPATH", format!("{REPOSITORY}/packaging/python"))
        .run();
    assert_eq!(end.code, Some(0), "{}", end.stderr);
    assert!(end.stdout.contains("epoch=1/1 world_size=2"), "{}", end.stdout);
}

/// A worker has the same variables under both launchers, with the same values unless they name a
/// port, a folder or a run. Eight more are ragent's own.
#[test]
fn environment_is_torchruns() {
    let Some(torchrun) = venv("torchrun") else { return };
    let sandbox = Sandbox::new();
    let flags = ["--standalone", "--nproc-per-node=2", "--max-restarts=3", "--no-python", "env"];
    // Without a locale, Python sets one and passes it on.
    let with_flags =
        |start: Start| flags.iter().fold(start.env("LC_ALL", "C.UTF-8"), Start::arg).run();
    let theirs = environment(&with_flags(sandbox.program(&torchrun)).stdout);
    let ours = environment(&with_flags(sandbox.ragent("")).stdout);
    let names = [
        "RAGENT_MEMORY_SOCKET",
        "RAGENT_NOTICE_FILE",
        "RAGENT_ROUNDS_WITHOUT_PROGRESS",
        "RAGENT_SAVED_STEP",
        "RAGENT_SOCKET",
        "TORCH_FR_DUMP_TEMP_FILE",
        "TORCH_WORKER_SERVER_SOCKET",
    ];
    let is_own = |line: &String| names.iter().any(|name| line.starts_with(&format!("{name}=")));
    let (own, ours): (Vec<_>, Vec<_>) = ours.into_iter().partition(is_own);
    assert_eq!(own.len(), 2 * names.len(), "{own:?}");
    assert_eq!(ours, theirs);
}

/// The lines of `env`, sorted, without the values that differ between any two runs.
fn environment(text: &str) -> Vec<String> {
    const OF_THE_RUN: [&str; 5] =
        ["MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RUN_ID", "_"];
    let mut lines: Vec<String> = text
        .lines()
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| {
            let value = if OF_THE_RUN.contains(&name) { "…" } else { value };
            format!("{name}={value}")
        })
        .collect();
    lines.sort();
    lines
}
