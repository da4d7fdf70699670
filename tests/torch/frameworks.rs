//! Tests frameworks that are commonly launched by torchrun. Each trains a tiny model on two workers.

use std::time::Duration;

use ragent_base::sys::{
    clock,
    host::{Host, ThisHost},
};
use serde_json::Value;

use super::{
    REPOSITORY, python_of,
    support::{End, PATIENCE, Program, Sandbox, Start, Stream, let_pass},
    venv,
};

/// The interval between two looks at what a script or the status shows.
const INTERVAL: Duration = Duration::from_millis(50);

/// The number of steps of the bar that scripts draw before the training. It has no description.
const PREPARATION: u64 = 28;

/// An agent with two workers. `script` is the name of a script in the folder `frameworks`, and its arguments.
fn agent(sandbox: &Sandbox, python: &str, flags: &str, script: &str) -> Start {
    let script = format!("{REPOSITORY}/tests/torch/frameworks/{script}");
    let start = sandbox.ragent(&format!("--nproc-per-node 2 {flags} {script}"));
    let start = start.env("PYTHON_EXEC", python).env("RES_OPTIONS", "timeout:1 attempts:1");
    start.env("HF_HUB_OFFLINE", "1").env("HOME", sandbox.path(""))
}

fn train(python: &str, framework: &str, fails: &str) -> End {
    let sandbox = Sandbox::new();
    let flags = match framework {
        "deepspeed" => {
            let config = format!("{REPOSITORY}/tests/torch/frameworks/deepspeed.json");
            format!("--launch-method deepspeed --deepspeed-config {config}")
        }
        _ => String::new(),
    };
    let script = format!("train_{framework}.py");
    let end = agent(&sandbox, python, &flags, &script).env("FAILS", fails).run();
    sandbox.assert_nothing_left();
    end
}

/// The framework uses both workers and trains. An exception in one of them is in the report.
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

/// A training that stops at some places, at each of which the status has the true step.
struct Training<'a> {
    sandbox: &'a Sandbox,
    agent: Program,
}

impl Training<'_> {
    /// Waits until there is a result, and returns it. Fails if the agent ends before.
    #[track_caller]
    fn until<T>(&mut self, mut result: impl FnMut() -> Result<T, String>) -> T {
        let deadline = clock::now_blocking() + PATIENCE;
        let seen = loop {
            match result() {
                Ok(result) => return result,
                Err(seen) if self.agent.has_ended() || clock::now_blocking() > deadline => {
                    break seen;
                }
                Err(_) => let_pass(INTERVAL),
            }
        };
        let [stdout, stderr] = [Stream::Stdout, Stream::Stderr].map(|of| self.agent.text(of));
        panic!("{seen}\n{stdout}\n{stderr}");
    }

    /// Waits until the script has stopped, and returns the place and the true step.
    #[track_caller]
    fn stop(&mut self) -> Value {
        let path = self.sandbox.path("stop.json");
        let text = self
            .until(|| std::fs::read_to_string(&path).map_err(|error| format!("no stop: {error}")));
        std::fs::remove_file(&path).expect("the sandbox can be written");
        serde_json::from_str(&text).expect("the script writes JSON")
    }

    /// Waits until the progress in the status is as wanted.
    #[track_caller]
    fn shows(&mut self, stop: &Value, is_wanted: impl Fn(&Value) -> bool) {
        let sandbox = self.sandbox;
        self.until(|| {
            let end = sandbox.ragent("status --json").run();
            let status: Value = serde_json::from_str(&end.stdout).unwrap_or_default();
            let progress = &status["progress"];
            let seen = || format!("{progress} instead of {stop}");
            is_wanted(progress).then_some(()).ok_or_else(seen)
        });
    }
}

/// The steps that the agent has read, in their order: the lowest and the highest one of the workers, and the number of all.
fn steps_read(log: &str) -> Vec<(u64, u64, Option<u64>)> {
    let lines = log.lines().filter_map(|line| line.split_once("Steps(NodeSteps {"));
    let numbers = lines.map(|(_, steps)| {
        let number = |name: &str| {
            let (_, rest) = steps.split_once(name)?;
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            digits.parse::<u64>().ok()
        };
        let step = |name| number(name).expect("the log has it");
        (step("lowest: "), step("highest: "), number("total: Some("))
    });
    numbers.collect()
}

/// Starts a training whose output is read. It draws its bars at every step, as trainings with longer steps do.
fn stopping<'a>(sandbox: &'a Sandbox, python: &str, flags: &str, script: &str) -> Training<'a> {
    let start = agent(sandbox, python, &format!("-t 1 {flags}"), script);
    let start =
        start.env("TQDM_MININTERVAL", "0").env("RAGENT_LOG", "info,ragent_node::node=debug");
    Training { sandbox, agent: start.start() }
}

/// The status has the true step while the training stops at each of these places of each round. No other bar counts at any time, except
/// one without a description before the training.
#[track_caller]
fn progress_is_true(python: &str, flags: &str, script: &str, rounds: &[&[&str]]) {
    let sandbox = Sandbox::new();
    let orders = sandbox.orders(0);
    let mut training = stopping(&sandbox, python, flags, script);
    let mut stop_at = |place: &&str| {
        let stop = training.stop();
        assert_eq!(stop["place"], *place);
        let step = stop["step"].as_u64().expect("the script writes it");
        let all = stop["steps"].as_u64();
        training.shows(&stop, |progress| {
            progress["source"] == "read"
                && progress["step"] == step
                && progress["highest"] == step
                && progress["steps_left"].as_u64() == all.map(|all| all - step)
        });
        orders.give("go on");
        (step, step, all)
    };
    let rounds: Vec<Vec<_>> =
        rounds.iter().map(|places| places.iter().map(&mut stop_at).collect()).collect();
    let end = training.agent.end();
    end.assert_code(0);
    for (log, stops) in end.stderr.split(" round ended ").zip(&rounds) {
        let read = steps_read(log);
        let from = read.iter().position(|read| *read == stops[0]).expect("the status had it");
        let (before, after) = read.split_at(from);
        let all = stops[0].2;
        let is_other = |read: &(u64, u64, Option<u64>)| read.2 != all;
        assert!(
            !before.iter().any(|read| is_other(read) && read.2 != Some(PREPARATION)),
            "{read:?}"
        );
        let are_equal = after.iter().all(|read| read.0 == read.1);
        assert!(are_equal && !after.iter().any(is_other) && after.is_sorted(), "{read:?}");
    }
    let last = rounds.last().and_then(|stops| stops.last());
    assert_eq!(steps_read(&end.stderr).last(), last, "{script}");
    sandbox.assert_nothing_left();
}

/// The script draws nothing that could be read.
#[track_caller]
fn no_progress_is_read(python: &str, script: &str, places: &[&str]) {
    let sandbox = Sandbox::new();
    let orders = sandbox.orders(0);
    let mut training = stopping(&sandbox, python, "", script);
    for place in places {
        assert_eq!(training.stop()["place"], *place);
        orders.give("go on");
    }
    let end = training.agent.end();
    end.assert_code(0);
    assert_eq!(steps_read(&end.stderr), []);
    sandbox.assert_nothing_left();
}

/// The progress that the framework draws or prints is read.
fn progress(python: &str, framework: &str) {
    let script = format!("progress_{framework}.py");
    match framework {
        "accelerate" => {
            let places = ["training", "evaluation", "training", "end"];
            progress_is_true(python, "", &script, &[&places]);
        }
        "deepspeed" => progress_is_true(python, "", &script, &[&["training", "training", "end"]]),
        "lightning" => {
            let places = ["training", "validation", "training", "end"];
            progress_is_true(python, "", &format!("{script} tqdm"), &[&places]);
            no_progress_is_read(python, &format!("{script} rich"), &places);
        }
        "transformers" => {
            let places: [&[&str]; 2] =
                [&["training", "evaluation"], &["training", "evaluation", "end"]];
            progress_is_true(python, "--max-restarts 1", &script, &places);
        }
        other => panic!("there is no script that draws the progress of {other}"),
    }
}

/// accelerate trains on two workers, and its progress is read.
#[test]
fn accelerate() {
    let Some(python) = venv("python") else { return };
    trains(&python, "accelerate");
    progress(&python, "accelerate");
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

/// The progress of the frameworks in `FRAMEWORKS` is read: `make test-frameworks`.
#[test]
fn other_frameworks_show_progress() {
    let frameworks = ThisHost.env("FRAMEWORKS").unwrap_or_default();
    for framework in frameworks.to_string_lossy().split_ascii_whitespace() {
        let Some(python) = python_of("frameworks") else { continue };
        progress(&python, framework);
    }
}

/// DeepSpeed's own launcher gives a worker the same. Runs if `FRAMEWORKS` contains `deepspeed`.
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
