//! Gloo workers through everything in which torchrun 2.15 loses the job, or leaves it hanging: after
//! each event all workers take a training step together again.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::{
    REPOSITORY,
    support::{Program, Sandbox, Start, free_port, let_pass},
    venv,
};

/// Nodes of one job, with one worker each; a coordinator stands beside them where one is asked for.
struct Job<'a> {
    sandbox: &'a Sandbox,
    python: String,
    port: u16,
    flags: String,
}

impl<'a> Job<'a> {
    /// A job; none where there is no torch.
    fn new(sandbox: &'a Sandbox, flags: &str) -> Option<Self> {
        let python = venv("python")?;
        Some(Self { sandbox, python, port: free_port(), flags: flags.to_owned() })
    }

    fn node(&self, words: &str) -> Start {
        let Self { sandbox, python, port, flags } = self;
        let start = sandbox.ragent(&format!(
            "--rdzv-id steps --rdzv-endpoint 127.0.0.1:{port} {flags} {words} \
             {REPOSITORY}/tests/torch/steps.py"
        ));
        // torch looks up the names of its peers, and waits where nobody answers.
        start.env("PYTHON_EXEC", python).env("RES_OPTIONS", "timeout:1 attempts:1")
    }

    fn host(&self) -> Program {
        let mut host = self.node("").start();
        host.endpoint();
        host
    }

    fn coordinator(&self) -> Program {
        let words = format!("coordinator --rdzv-id steps --host 127.0.0.1 --port {}", self.port);
        let mut coordinator = self.sandbox.ragent(&words).start();
        coordinator.says("127.0.0.1:");
        coordinator
    }
}

/// Waits until each node's worker has taken a step in a group of `world_size`, in a round that was
/// not there when this was last asked; returns their processes.
#[track_caller]
fn step(agents: &mut [&mut Program], world_size: u32, restart: u32, before: &[u32]) -> Vec<u32> {
    let pid = |agent: &mut &mut Program| loop {
        let line = agent.says(&format!("world_size={world_size} restart={restart} pid="));
        let (_, pid) = line.rsplit_once('=').expect("it ends so");
        let pid = pid.parse().expect("a process");
        // The one before may have said the same until its end.
        if !before.contains(&pid) {
            return pid;
        }
    };
    agents.iter_mut().map(pid).collect()
}

fn kill(pid: u32) {
    super::kill(pid, Signal::SIGKILL);
}

/// A node that joins ends a job under torchrun after 66 s.
#[test]
fn node_joins() {
    let sandbox = Sandbox::new();
    let flags = "--nnodes 2:3 --rdzv-conf last_call_timeout=1,join_settle=0";
    let Some(job) = Job::new(&sandbox, flags) else { return };
    let (mut host, mut second) = (job.host(), job.node("").start());
    let before = step(&mut [&mut host, &mut second], 2, 0, &[]);
    let mut third = job.node("").start();
    step(&mut [&mut host, &mut second, &mut third], 3, 0, &before);
}

/// A node that is lost at a fixed size, and its replacement, end it after 73 s; so does a spare that
/// is to take the place.
#[test]
fn lost_node_is_replaced() {
    for has_spare in [false, true] {
        let sandbox = Sandbox::new();
        let Some(job) = Job::new(&sandbox, "--nnodes 2") else { return };
        let (mut host, mut lost) = (job.host(), job.node("").start());
        let before = step(&mut [&mut host, &mut lost], 2, 0, &[]);
        let spare = has_spare.then(|| {
            let mut spare = job.node("").start();
            spare.logs("this node is a spare");
            spare
        });
        lost.signal(Signal::SIGKILL);
        let mut replacement = spare.unwrap_or_else(|| job.node("").start());
        step(&mut [&mut host, &mut replacement], 2, 0, &before);
    }
}

/// The loss of a node none of whose peers fails is never noticed, and its orphans go on.
#[test]
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

/// When rank 0 changes, members disagree on the master, and hang.
#[test]
fn rank_zero_is_lost_and_replaced() {
    let sandbox = Sandbox::new();
    let Some(job) = Job::new(&sandbox, "--nnodes 2") else { return };
    let _coordinator = job.coordinator();
    let mut first = job.node("--node-rank 0").start();
    let mut second = job.node("--node-rank 1").start();
    let before = step(&mut [&mut first, &mut second], 2, 0, &[]);
    first.signal(Signal::SIGKILL);
    let mut newcomer = job.node("--node-rank 0").start();
    let after = step(&mut [&mut newcomer, &mut second], 2, 0, &before);
    // And once more, with the one that had moved to rank 0.
    second.signal(Signal::SIGKILL);
    let mut last = job.node("--node-rank 1").start();
    step(&mut [&mut newcomer, &mut last], 2, 0, &after);
}

/// Workers that are restarted meet the keys of the dead ones: half of the restarts fail.
#[test]
fn workers_fail_again_and_again() {
    let sandbox = Sandbox::new();
    let Some(job) = Job::new(&sandbox, "--nproc-per-node 2 --max-restarts 5") else { return };
    let mut agent = job.node("").start();
    let mut before = Vec::new();
    for restart in 0..5 {
        let rank = |rank: u32| format!("rank={rank} world_size=2 restart={restart} pid=");
        let pids = [0, 1].map(|local_rank| {
            let line = agent.says(&rank(local_rank));
            line.rsplit_once('=').and_then(|(_, pid)| pid.parse::<u32>().ok()).unwrap()
        });
        assert!(pids.iter().all(|pid| !before.contains(pid)));
        kill(pids[restart % 2]);
        before.extend(pids);
    }
    agent.says("restart=5");
}

/// The loss of the store's host ends the job, whoever comes back.
#[test]
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

/// A node that is paused for longer than its heartbeat is dropped without a word, and never comes
/// back.
#[test]
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

/// The failure of one node without a restart left is none of the others' business: they finish, wait
/// for five minutes, and exit with 0.
#[test]
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

/// A worker that hangs is found and killed; py-spy, which stands beside its Python, says in which
/// function it was.
#[test]
fn hung_worker_tells_where() {
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
