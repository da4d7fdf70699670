//! Tests the training step of a job, from its workers to `ragent status`.

use std::time::Duration;

use ragent_base::sys::clock;
use serde_json::Value;

use crate::{
    job::{Job, hosting, pages, workers},
    support::{PATIENCE, Sandbox, let_pass},
};

/// The interval between two requests for the status. It changes with keep-alives.
const INTERVAL: Duration = Duration::from_millis(50);

/// Waits until the status is as wanted, and returns it.
#[track_caller]
fn until_status(job: &Job<'_>, is_wanted: impl Fn(&Value) -> bool) -> Value {
    let deadline = clock::now_blocking() + PATIENCE;
    loop {
        let status = job.status();
        if is_wanted(&status) {
            return status;
        }
        assert!(clock::now_blocking() < deadline, "the status is {status}");
        let_pass(INTERVAL);
    }
}

/// Waits until the job's progress is as wanted, and returns the status.
#[track_caller]
fn until(job: &Job<'_>, is_wanted: impl Fn(&Value) -> bool) -> Value {
    until_status(job, |status| is_wanted(&status["progress"]))
}

/// Returns true if the progress has this source, lowest and highest step.
fn is_at(progress: &Value, source: &str, lowest: u64, highest: u64) -> bool {
    progress["source"] == source && progress["step"] == lowest && progress["highest"] == highest
}

/// Steps that workers report through their socket are in the status: the lowest and the highest of all nodes, even if they go back. A
/// restart begins without a step.
#[test]
fn reported_steps_are_in_the_status() {
    let sandbox = Sandbox::new();
    let orders = [0, 1].map(|rank| sandbox.orders(rank));
    let job = Job::new(&sandbox, "--nnodes 2 --max-restarts 1");
    let mut host = job.host("--no-python steps.py");
    let mut guest = job.guest("--no-python steps.py");
    workers([&mut host, &mut guest]);
    assert_eq!(job.status()["progress"], Value::Null);
    orders[0].give("report('X_RAGENT_STEP=1200', 'X_RAGENT_STEPS=100000', 'X_OTHER=1', 'odd')");
    orders[1].give("report('X_RAGENT_STEP=1198')");
    let status = until(&job, |progress| is_at(progress, "reported", 1_198, 1_200));
    assert_eq!(status["progress"]["steps_left"], 98_802);
    let ages = status["nodes"].as_array().unwrap().iter();
    assert!(ages.clone().all(|node| node["progress_age_ms"].is_u64()), "{status}");
    let text = sandbox.ragent("status").run().stdout;
    let line = "step 1,198 of 100,000, highest 1,200 (reported by the workers)  ";
    assert!(text.lines().nth(1).is_some_and(|written| written.starts_with(line)), "{text}");
    orders[1].give("report('X_RAGENT_STEP=1202')");
    let status = until(&job, |progress| progress["step_ms"].is_number());
    assert!(is_at(&status["progress"], "reported", 1_200, 1_202), "{status}");
    let metrics = pages(&status, "/metrics").concat();
    for line in ["ragent_step 1200", "ragent_progress_source{source=\"reported\"} 1"] {
        assert!(metrics.lines().any(|written| written == line), "{line}: {metrics}");
    }
    assert!(metrics.contains("\nragent_step_seconds "), "{metrics}");
    orders[0].give("report('X_RAGENT_STEP=40')");
    until(&job, |progress| is_at(progress, "reported", 40, 1_202));
    orders[1].give("report('X_RAGENT_STEP=5'); os._exit(1)");
    workers([&mut host, &mut guest]);
    assert_eq!(job.status()["progress"], Value::Null);
    orders[0].give("report('X_RAGENT_STEP=30')");
    until(&job, |progress| is_at(progress, "reported", 30, 30));
}

/// Steps are read from captured output: of common frameworks, from a progress bar whose line has no end, or with the pattern of the user.
/// If a worker reports its step, that replaces the steps that are read.
#[test]
fn steps_are_read_from_output() {
    let sandbox = Sandbox::new();
    let orders = [0, 1].map(|rank| sandbox.orders(rank));
    let job = Job::new(&sandbox, "--nnodes 2");
    let mut host = job.host("--no-python steps.py");
    let pattern = r"--progress done=(?<step>\d+)of(?<steps>\d+) -t 1";
    let mut guest = job.guest(&format!("{pattern} --no-python steps.py"));
    workers([&mut host, &mut guest]);
    orders[0].give("sys.stderr.write('\\r 10%|#   | 6/50 [00:01<00:05]')");
    orders[1].give("print('step: 900'); print('done=9of50')");
    until(&job, |progress| is_at(progress, "read", 6, 9));
    orders[0].give("sys.stderr.write('epoch 3\\nstep: 7  loss: 0.3\\nsaved\\n')");
    let status = until(&job, |progress| is_at(progress, "read", 7, 9));
    assert_eq!(status["progress"]["steps_left"], 43);
    let text = sandbox.ragent("status").run().stdout;
    let line = "step 7 of 50, highest 9 (read from output)  ";
    assert!(text.lines().nth(1).is_some_and(|written| written.starts_with(line)), "{text}");
    orders[1].give("report('X_RAGENT_STEP=3'); print('done=10of50')");
    until(&job, |progress| is_at(progress, "reported", 3, 3));
    orders[0].give("report('X_RAGENT_STEP=4'); print('step: 11', file=sys.stderr)");
    until(&job, |progress| is_at(progress, "reported", 3, 4));
}

/// With `--progress off` no output is searched. Reported steps still count.
#[test]
fn output_is_not_searched_if_switched_off() {
    let sandbox = Sandbox::new();
    let orders = sandbox.orders(0);
    let job = Job::new(&sandbox, "--nnodes 1 --progress off -t 3");
    let mut agent = job.host("--no-python steps.py");
    agent.worker();
    orders.give("print('step: 7'); print('step: 7', file=sys.stderr); print('written')");
    agent.prints("written");
    orders.give("report('X_RAGENT_STEP=3')");
    until(&job, |progress| is_at(progress, "reported", 3, 3));
}

/// A flood of lines with steps is copied completely, and its last step is read. The steps are passed on at most ten times a second.
#[test]
fn flood_of_steps_is_bounded() {
    const LINES: usize = 200_000;
    let sandbox = Sandbox::new();
    let orders = sandbox.orders(0);
    let job = Job::new(&sandbox, "--nnodes 1 --log-dir logs -r 3");
    let begun = clock::now_blocking();
    let start = job.agent("--no-python steps.py").env("RAGENT_LOG", "info,ragent_node::node=debug");
    let mut agent = hosting(start);
    agent.logs("admitted; starting workers");
    orders.give(&format!("[print(f'step: {{n}}') for n in range({LINES} + 1)]"));
    let last = LINES as u64;
    until(&job, |progress| is_at(progress, "read", last, last));
    orders.give("sys.exit(0)");
    let end = agent.end();
    end.assert_code(0);
    let passed_on = end.stderr.matches("Steps(NodeSteps").count() as u128;
    let passed = clock::now_blocking().saturating_duration_since(begun);
    let most = passed.as_millis() / 100 + 1;
    assert!((1..=most).contains(&passed_on), "{passed_on} of at most {most}");
    let logs = sandbox.files_below("logs");
    let stdout = logs.iter().find(|path| path.ends_with("stdout.log")).unwrap();
    let stdout = std::fs::read_to_string(sandbox.path("logs").join(stdout)).unwrap();
    let written = stdout.lines().filter(|line| line.starts_with("step: ")).count();
    assert_eq!(written, LINES + 1);
}
