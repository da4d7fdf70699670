//! Tests GPUs that other processes hold when workers are to start. The driver's library is a fake.

use std::process::{Child, Command};

use crate::support::{Gpus, Sandbox, Start};

/// An agent on a machine with two GPUs; its worker is `obey.sh`.
fn agent(sandbox: &Sandbox, words: &str) -> Option<(Start, Gpus)> {
    let gpus = Gpus::new(sandbox)?;
    let start = sandbox.ragent(&format!("--max-restarts 1 {words} --no-python obey.sh"));
    Some((gpus.belong_to(start), gpus))
}

/// Returns the pid of a process that has ended.
fn ended() -> u32 {
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    child.id()
}

/// Before the next round's workers start, the agent waits for a GPU that the driver has not freed
/// yet.
#[test]
fn held_gpu_is_waited_for() {
    let sandbox = Sandbox::new();
    let Some((start, gpus)) = agent(&sandbox, "--held-gpu-timeout 3600") else { return };
    let orders = sandbox.orders(0);
    let mut agent = start.start();
    agent.worker();
    let pid = ended();
    gpus.hold(pid);
    orders.give("exit 1");
    let line = agent.logs("waiting for a GPU that is in use by a process that has ended");
    let what = format!("GPU 1: process {pid}, which has ended, has 3072 MiB");
    assert!(line.contains(&what), "{line}");
    gpus.free();
    assert_eq!(agent.worker().number("restart"), 1);
    orders.give("exit 0");
    agent.end().assert_code(0);
}

/// A GPU that stays held is named, and the job goes on. With a timeout of 0 the agent does not wait.
#[test]
fn gpu_that_stays_held_is_named() {
    for (seconds, is_reported) in [("0.2", true), ("0", false)] {
        let sandbox = Sandbox::new();
        let flag = format!("--held-gpu-timeout {seconds}");
        let Some((start, gpus)) = agent(&sandbox, &flag) else { return };
        let orders = sandbox.orders(0);
        gpus.hold(ended());
        let mut agent = start.start();
        agent.worker();
        orders.give("exit 0");
        let end = agent.end();
        end.assert_code(0);
        assert_eq!(
            end.stderr.contains("a GPU is still in use by a process that has ended; continuing"),
            is_reported,
            "{}",
            end.stderr
        );
    }
}

/// A process that is alive belongs to another job, and is not waited for, with any run id.
#[test]
fn others_are_not_waited_for() {
    let sandbox = Sandbox::new();
    let Some((start, gpus)) = agent(&sandbox, "--held-gpu-timeout 3600") else { return };
    let orders = sandbox.orders(0);
    let other = Other(
        Command::new("sleep").arg("1000").env("TORCHELASTIC_RUN_ID", "none").spawn().unwrap(),
    );
    gpus.hold(other.0.id());
    let mut agent = start.start();
    agent.worker();
    orders.give("exit 0");
    agent.end().assert_code(0);
}

/// A process that ends with the test.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
