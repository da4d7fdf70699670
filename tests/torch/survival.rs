//! Tests gloo workers with all events after which torchrun 2.15 loses the job or hangs. After each event, all workers take a training step
//! together again.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::{
    REPOSITORY,
    support::{Program, Sandbox, Start, free_port, let_pass},
    venv,
};

/// A job with one worker on each node, and with `ragent coordinator` if a test starts it.
struct Job<'a> {
    sandbox: &'a Sandbox,
    python: String,
    /// Its endpoint, or the list of its voters.
    endpoint: String,
    flags: String,
}

impl<'a> Job<'a> {
    /// Creates a job. Returns `None` without torch.
    fn new(sandbox: &'a Sandbox, flags: &str) -> Option<Self> {
        let python = venv("python")?;
        let endpoint = format!("127.0.0.1:{}", free_port());
        Some(Self { sandbox, python, endpoint, flags: flags.to_owned() })
    }

    fn node(&self, words: &str) -> Start {
        let Self { sandbox, python, endpoint, flags } = self;
        let start = sandbox.ragent(&format!(
            "--rdzv-id steps --rdzv-endpoint {endpoint} {flags} {words} \
             {REPOSITORY}/tests/torch/steps.py"
        ));
        // torch resolves the names of its peers, and waits if there is no answer.
        start.env("PYTHON_EXEC", python).env("RES_OPTIONS", "timeout:1 attempts:1")
    }

    fn host(&self) -> Program {
        let mut host = self.node("").start();
        host.endpoint();
        host
    }

    /// Makes three processes the voters of the job, so that no node hosts it.
    fn voters(&mut self) -> [Program; 3] {
        self.endpoint = [(); 3].map(|()| format!("127.0.0.1:{}", free_port())).join(",");
        let Self { sandbox, endpoint, flags, .. } = self;
        let words = format!("coordinator --rdzv-id steps {flags} --rdzv-endpoint {endpoint}");
        [(); 3].map(|()| {
            let mut voter = sandbox.ragent(&words).start();
            voter.prints("127.0.0.1:");
            voter
        })
    }
}

/// Waits until each node's worker has taken a step in a group of `world_size`, in a round that is newer than `before`. Returns the pids of
/// the workers.
#[track_caller]
fn step(agents: &mut [&mut Program], world_size: u32, restart: u32, before: &[u32]) -> Vec<u32> {
    let pid = |agent: &mut &mut Program| loop {
        let line = agent.prints(&format!("world_size={world_size} restart={restart} pid="));
        let (_, pid) = line.rsplit_once('=').expect("it ends so");
        let pid = pid.parse().expect("a process");
        // A worker of the previous round may have printed the same until its end.
        if !before.contains(&pid) {
            return pid;
        }
    };
    agents.iter_mut().map(pid).collect()
}

fn kill(pid: u32) {
    super::kill(pid, Signal::SIGKILL);
}

/// A node joins a running job. Under torchrun this ends the job after 66 s.
#[test]
#[ignore = "`make test-all` runs it: importing torch takes seconds of CPU time"]
fn node_joins() {
    let sandbox = Sandbox::new();
    let flags = "--nnodes 2:3 --rdzv-conf last_call_timeout=1,join_settle=0";
    let Some(job) = Job::new(&sandbox, flags) else { return };
    let (mut host, mut second) = (job.host(), job.node("").start());
    let before = step(&mut [&mut host, &mut second], 2, 0, &[]);
    let mut third = job.node("").start();
    step(&mut [&mut host, &mut second, &mut third], 3, 0, &before);
}

/// A node that is lost at a fixed size is replaced by a spare. Under torchrun this ends the job after 73 s.
#[test]
fn lost_node_is_replaced() {
    let sandbox = Sandbox::new();
    let Some(job) = Job::new(&sandbox, "--nnodes 2") else { return };
    let (mut host, mut lost) = (job.host(), job.node("").start());
    let before = step(&mut [&mut host, &mut lost], 2, 0, &[]);
    let mut spare = job.node("").start();
    spare.logs("this node is a spare");
    lost.signal(Signal::SIGKILL);
    step(&mut [&mut host, &mut spare], 2, 0, &before);
}

/// A node whose loss makes no other worker fail is evicted. Torchrun never notices it, and its
/// orphans run on.
#[test]
#[ignore = "`make test-all` runs it: importing torch takes seconds of CPU time"]
fn lost_node_is_noticed() {
    let sandbox = Sandbox::new();
    let flags = "--nnodes 1:3 --rdzv-conf last_call_timeout=3600,shrink_timeout=0";
    let Some(job) = Job::new(&sandbox, flags) else { return };
    let (mut host, mut second, mut lost) = (job.host(), job.node("").start(), job.node("").start());
    let before = step(&mut [&mut host, &mut second, &mut lost], 3, 0, &[]);
    lost.signal(Signal::SIGKILL);
    lost.wait_until_silent();
    step(&mut [&mut host, &mut second], 2, 0, &before);
}

/// A node with rank 0 is lost and replaced. Under torchrun members then disagree on the master, and
/// hang.
#[test]
#[ignore = "`make test-all` runs it: importing torch takes seconds of CPU time"]
fn rank_zero_is_lost_and_replaced() {
    let sandbox = Sandbox::new();
    let Some(mut job) = Job::new(&sandbox, "--nnodes 2") else { return };
    let _voters = job.voters();
    let mut first = job.node("--node-rank 0").start();
    let mut second = job.node("--node-rank 1").start();
    let before = step(&mut [&mut first, &mut second], 2, 0, &[]);
    first.signal(Signal::SIGKILL);
    let mut newcomer = job.node("--node-rank 0").start();
    let after = step(&mut [&mut newcomer, &mut second], 2, 0, &before);
    // The same with the node that has moved to rank 0.
    second.signal(Signal::SIGKILL);
    let mut last = job.node("--node-rank 1").start();
    step(&mut [&mut newcomer, &mut last], 2, 0, &after);
}

/// Workers succeed after repeated restarts. Under torchrun they find the keys of their
/// predecessors: half of the restarts fail.
#[test]
#[ignore = "`make test-all` runs it: importing torch takes seconds of CPU time"]
fn workers_fail_again_and_again() {
    let sandbox = Sandbox::new();
    let Some(job) = Job::new(&sandbox, "--nproc-per-node 2 --max-restarts 5") else { return };
    let mut agent = job.node("").start();
    let mut before = Vec::new();
    for restart in 0..5 {
        let rank = |rank: u32| format!("rank={rank} world_size=2 restart={restart} pid=");
        let pids = [0, 1].map(|local_rank| {
            let line = agent.prints(&rank(local_rank));
            line.rsplit_once('=').and_then(|(_, pid)| pid.parse::<u32>().ok()).unwrap()
        });
        assert!(pids.iter().all(|pid| !before.contains(pid)));
        kill(pids[restart % 2]);
        before.extend(pids);
    }
    agent.prints("restart=5");
}

/// The host is lost and restarted, and the job goes on. Under torchrun the loss of the store's host
/// ends the job in any case.
#[test]
#[ignore = "`make test-all` runs it: importing torch takes seconds of CPU time"]
fn host_is_lost_and_comes_back() {
    let sandbox = Sandbox::new();
    let Some(job) = Job::new(&sandbox, "--nnodes 2") else { return };
    let (mut host, mut guest) = (job.host(), job.node("").start());
    let before = step(&mut [&mut host, &mut guest], 2, 0, &[]);
    host.signal(Signal::SIGKILL);
    host.wait_until_silent();
    let mut host = job.host();
    step(&mut [&mut host, &mut guest], 2, 0, &before);
}

/// A node that is paused for longer than its lease comes back. Torchrun drops it silently after its
/// heartbeat timeout, for good.
#[test]
#[ignore = "`make test-all` runs it: importing torch takes seconds of CPU time"]
fn paused_node_comes_back() {
    let sandbox = Sandbox::new();
    let flags = "--nnodes 1:2 --rdzv-conf last_call_timeout=3600,shrink_timeout=0,join_settle=0";
    let Some(job) = Job::new(&sandbox, flags) else { return };
    let (mut host, mut paused) = (job.host(), job.node("").start());
    let before = step(&mut [&mut host, &mut paused], 2, 0, &[]);
    paused.signal(Signal::SIGSTOP);
    let alone = step(&mut [&mut host], 1, 0, &before);
    paused.signal(Signal::SIGCONT);
    step(&mut [&mut host, &mut paused], 2, 0, &[before, alone].concat());
}

/// The failure of one node without a restart left ends the job on all nodes. Under torchrun the
/// others finish, wait for five minutes, and exit with 0.
#[test]
#[ignore = "`make test-all` runs it: importing torch takes seconds of CPU time"]
fn failure_is_everybodys() {
    let sandbox = Sandbox::new();
    let Some(job) = Job::new(&sandbox, "--nnodes 2") else { return };
    let (mut host, mut guest) = (job.host(), job.node("").start());
    let pids = step(&mut [&mut host, &mut guest], 2, 0, &[]);
    let_pass(Duration::from_millis(200));
    kill(pids[1]);
    let (host, guest) = (host.end(), guest.end());
    host.assert_code(1);
    guest.assert_code(1);
    assert_eq!(host.report(), guest.report());
    assert!(host.report().contains("killed by SIGKILL"), "{}", host.report());
}

/// A hung worker is found and killed. py-spy, which is installed next to its Python, reports the function in which it hung.
#[test]
#[ignore = "`make test-all` runs it: importing torch takes seconds of CPU time"]
fn hung_worker_reports_its_stack() {
    let sandbox = Sandbox::new();
    let Some(python) = venv("python") else { return };
    let script =
        "import time\ndef waits_for_the_lock():\n    time.sleep(1000)\nwaits_for_the_lock()\n";
    std::fs::write(sandbox.path("train.py"), script).expect("a fresh folder");
    let end =
        sandbox.ragent("--hang-timeout 1 --log-dir logs train.py").env("PYTHON_EXEC", python).run();
    end.assert_code(1);
    let stacks = sandbox.files_below("logs");
    let stack = stacks.iter().find(|path| path.ends_with("stack.txt")).expect("it was written");
    let stack = std::fs::read_to_string(sandbox.path("logs").join(stack)).expect("it can be read");
    assert!(stack.contains("waits_for_the_lock (train.py:3)"), "{stack}");
}
