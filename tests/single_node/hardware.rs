//! Tests that a failure is named together with what the machine has reported.

use crate::support::{Cgroup, Sandbox};

/// A worker that takes more memory than its cgroup has.
const HUNGRY: &str = "exec python3 -c 'taken = bytearray(1 << 30)'";

/// A worker that the kernel has killed for lack of memory is named so: in the log, in the report, and in the reason of the restart.
/// It is certain if the cgroup has no other worker.
#[test]
fn kill_for_lack_of_memory_is_named() {
    for (workers, text) in [
        (1, "killed by the kernel for lack of memory (SIGKILL)"),
        (2, "probably killed by the kernel for lack of memory (SIGKILL)"),
    ] {
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
