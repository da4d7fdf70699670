//! Tests what the kernel and the driver's library report about memory and GPUs, together with a failure. The library is a fake.

use ragent_base::sys::host::ThisHost;

use crate::support::{Cgroup, Gpus, Sandbox, free_port};

/// A worker that takes more memory than its cgroup has.
const HUNGRY: &str = "exec python3 -c 'taken = bytearray(1 << 30)'";

/// A worker that the kernel has killed for lack of memory is named so: in the log, in the report, and in the reason of the restart.
/// It is only probable, because the cgroup has other processes.
#[test]
fn kill_for_lack_of_memory_is_named() {
    let text = "probably killed by the kernel for lack of memory (SIGKILL)";
    for workers in [1, 2] {
        let sandbox = Sandbox::new();
        let Some(cgroup) = Cgroup::limited(&format!("oom-{workers}"), 256 << 20) else { return };
        let words = format!("--nproc-per-node {workers} --max-restarts 1 --no-python obey.sh");
        let orders = sandbox.orders(0);
        let mut agent = cgroup.ragent(&sandbox, &words).default_lines().start();
        (0..workers).for_each(|_| drop(agent.worker()));
        orders.give(HUNGRY);
        let line = agent.logs("rank 0 failed in round 1");
        assert!(line.contains(&format!("failed in round 1: {text} (local rank 0")), "{line}");
        let line = agent.logs("round 2: 1 node");
        assert!(line.contains("(rank 0 on ") && line.contains(&format!(" {text})")), "{line}");
        (0..workers).for_each(|_| drop(agent.worker()));
        orders.give(HUNGRY);
        let end = agent.end();
        end.assert_code(1);
        assert!(end.stderr.contains(&format!("  ended     : {text} (pid: ")), "{}", end.stderr);
        sandbox.wait_until_nothing_left();
    }
}

/// A worker that somebody else has killed is not named so.
#[test]
fn other_kills_are_not_named_so() {
    let sandbox = Sandbox::new();
    let orders = sandbox.orders(0);
    let mut agent = sandbox.ragent("--no-python obey.sh").default_lines().start();
    agent.worker();
    orders.give("kill -KILL $$");
    let end = agent.end();
    end.assert_code(1);
    assert!(end.stderr.contains("rank 0 failed in round 1: killed by SIGKILL"), "{}", end.stderr);
}

/// The line about the first reading of a round.
const READ: &str = "the hardware was read at the start of the round";

/// A failure is named together with the error that a GPU has reported before, in the log, on the first line of the report, and in the
/// file of `--report`.
#[test]
fn error_of_a_gpu_is_named() {
    let sandbox = Sandbox::new();
    let Some(mut gpus) = Gpus::new(&sandbox) else { return };
    let orders = sandbox.orders(0);
    let start = sandbox.ragent("--report end.json --no-python obey.sh").default_lines();
    let mut agent = gpus.belong_to(start).start();
    agent.worker();
    gpus.fail(1, 79);
    let text = "GPU 1 reported XID 79 (fell off the bus)";
    agent.logs(&format!("warning: {text}"));
    orders.give("exit 3");
    let line = agent.logs("rank 0 failed in round 1");
    assert!(line.contains(&format!(": exited with code 3; {text} ")), "{line}");
    assert!(line.contains(" s before (local rank 0"), "{line}");
    let end = agent.end();
    end.assert_code(1);
    let first = "Root cause (first observed failure):\n  hardware  : ";
    assert!(end.stderr.contains(&format!("{first}{text} ")), "{}", end.stderr);
    let report = std::fs::read_to_string(sandbox.path("end.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let line = report["first_failure"]["hardware"][0].as_str().unwrap();
    assert!(line.starts_with(text), "{report}");
}

/// A GPU that is gone is named, and the numbers of the others stay the same. So is one that becomes unavailable.
#[test]
fn lost_gpus_are_named() {
    let sandbox = Sandbox::new();
    let Some(mut gpus) = Gpus::new(&sandbox) else { return };
    let orders = sandbox.orders(0);
    let mut agent = gpus.belong_to(sandbox.ragent("--no-python obey.sh")).start();
    agent.worker();
    agent.logs(READ);
    gpus.make_unavailable(1);
    agent.logs("WARN GPU 1 became unavailable");
    gpus.lose(0);
    gpus.change(1, 230, 1);
    agent.logs("WARN 1 of 2 GPUs was found missing");
    agent.logs("WARN GPU 1 asked for a reset");
    orders.give("exit 3");
    let end = agent.end();
    end.assert_code(1);
    let first =
        "Root cause (first observed failure):\n  hardware  : 1 of 2 GPUs was found missing ";
    assert!(end.stderr.contains(first), "{}", end.stderr);
}

/// A driver that does not answer delays neither a restart nor the end of the agent. Errors are still named.
#[test]
fn driver_that_hangs_delays_nothing() {
    let sandbox = Sandbox::new();
    let Some(mut gpus) = Gpus::new(&sandbox) else { return };
    let orders = sandbox.orders(0);
    let start = sandbox.ragent("--max-restarts 1 --no-python obey.sh");
    let mut agent = gpus.belong_to(start).start();
    agent.worker();
    agent.logs(READ);
    gpus.hang(true);
    gpus.fail(0, 119);
    agent.logs("WARN GPU 0 reported XID 119");
    gpus.fail(0, 79);
    agent.logs("WARN GPU 0 reported XID 79");
    orders.give("exit 3");
    assert_eq!(agent.worker().number("restart"), 1);
    orders.give("exit 3");
    agent.end().assert_code(1);
    sandbox.wait_until_nothing_left();
}

/// `ragent explain node` shows what the hardware of a node has reported, as its own agent knows it. `ragent doctor` reads the state once.
#[test]
fn hardware_is_explained() {
    let sandbox = Sandbox::new();
    let Some(mut gpus) = Gpus::new(&sandbox) else { return };
    let orders = sandbox.orders(0);
    let endpoint = format!("127.0.0.1:{}", free_port());
    let words = format!("--rdzv-backend c10d --rdzv-endpoint {endpoint} --no-python obey.sh");
    let mut agent = gpus.belong_to(sandbox.ragent(&words)).start();
    agent.worker();
    agent.logs(READ);
    gpus.fail(0, 31);
    agent.logs("GPU 0 reported XID 31");
    gpus.change(1, 144, 1);
    agent.logs("WARN GPU 1 was found with a pending row remap");
    let state = "GPU 1 has a pending row remap, which a reset completes";
    let node = ThisHost.name();
    let explain = sandbox.ragent(&format!("explain node {node} --rdzv-endpoint {endpoint}")).run();
    explain.assert_code(0);
    let lines: Vec<&str> =
        explain.stdout.lines().skip_while(|line| !line.starts_with("hardware")).collect();
    assert_eq!(lines[..2], ["hardware       2 GPUs", &format!("               {state}")]);
    let last = "               GPU 0 reported XID 31 (memory page fault) ";
    assert!(lines[2].starts_with(last) && lines[2].ends_with(" ago"), "{}", explain.stdout);
    let doctor = gpus.belong_to(sandbox.ragent("doctor")).run();
    doctor.assert_code(0);
    let line = doctor.stdout.lines().find(|line| line.contains(state));
    assert!(line.is_some_and(|line| line.starts_with("warn  hardware ")), "{}", doctor.stdout);
    orders.give("exit 0");
    agent.end().assert_code(0);
}
