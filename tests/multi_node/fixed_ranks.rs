//! Tests the static backend: ranks and the address of rank 0 are as typed, in every round.

use std::{collections::BTreeSet, fs};

use nix::sys::signal::Signal;
use ragent_base::{
    secret::{Secret, file},
    sys::clock,
};
use serde_json::Value;

use crate::{
    job::{numbers, workers},
    support::{PATIENCE, Program, Sandbox, Start, free_port},
};

/// The agents of a job with fixed ranks, with the flags of scripts for torchrun.
struct StaticJob<'a> {
    sandbox: &'a Sandbox,
    port: u16,
    flags: &'static str,
}

impl<'a> StaticJob<'a> {
    fn new(sandbox: &'a Sandbox, flags: &'static str) -> Self {
        Self { sandbox, port: free_port(), flags }
    }

    fn agent(&self, node_rank: u32, words: &str) -> Start {
        let Self { sandbox, port, flags } = self;
        sandbox.ragent(&format!(
            "--node-rank {node_rank} --master-addr localhost --master-port {port} {flags} \
             --no-python {words}"
        ))
    }

    fn start(&self, node_rank: u32, words: &str) -> Program {
        self.agent(node_rank, words).start()
    }
}

/// Ranks are as typed, in any order of arrival. All workers get the address and the port as typed, and reach the store of their round
/// there.
#[test]
fn ranks_and_master_are_as_typed() {
    let sandbox = Sandbox::new();
    let job = StaticJob::new(&sandbox, "--nnodes 3");
    let mut agents = [2, 0, 1].map(|rank| job.start(rank, "reach.sh"));
    for (agent, rank) in agents.iter_mut().zip([2, 0, 1]) {
        assert_eq!(agent.worker().number("rank"), rank);
        agent.prints(&format!("reached localhost by rank={rank}"));
    }
    agents.into_iter().for_each(|agent| agent.end().assert_code(0));
    sandbox.assert_nothing_left();
}

/// The variables that Kubeflow Trainer sets in its pods are sufficient, with a secret that is mounted in them.
#[test]
fn variables_of_kubeflow_trainer_are_sufficient() {
    let sandbox = Sandbox::new();
    let secret = sandbox.path("secret");
    file::create(&secret, &Secret::random().unwrap()).unwrap();
    let port = free_port().to_string();
    let mut agents = ["2", "0", "1"].map(|rank| {
        let agent = sandbox.ragent("--no-python reach.sh").env("PET_NNODES", "3");
        let agent = agent.env("PET_NPROC_PER_NODE", "2").env("PET_NODE_RANK", rank);
        let agent = agent.env("PET_MASTER_ADDR", "localhost").env("PET_MASTER_PORT", &port);
        agent.env("PET_SECRET_FILE", secret.to_str().unwrap()).start()
    });
    for (agent, node_rank) in agents.iter_mut().zip([2, 0, 1]) {
        let ranks = BTreeSet::from([(); 2].map(|()| agent.worker().number("rank")));
        assert_eq!(ranks, BTreeSet::from([2 * node_rank, 2 * node_rank + 1]));
        for rank in ranks {
            agent.prints(&format!("reached localhost by rank={rank}"));
        }
    }
    agents.into_iter().for_each(|agent| agent.end().assert_code(0));
}

/// The job waits for a replacement of a lost node. The replacement gets its rank.
#[test]
fn replacement_has_the_rank_of_the_lost() {
    let sandbox = Sandbox::new();
    let job = StaticJob::new(&sandbox, "--nnodes 2");
    let mut host = job.start(0, "stay.sh");
    let mut guest = job.start(1, "stay.sh");
    workers([&mut host, &mut guest]);
    guest.signal(Signal::SIGKILL);
    host.logs("was lost");
    let mut guest = job.start(1, "stay.sh");
    let both = workers([&mut host, &mut guest]);
    assert_eq!(numbers(&both, "rank"), [0, 1]);
    assert_eq!(numbers(&both, "restart"), [0, 0]);
}

/// A replacement that registers while the node with its rank is silent, but not lost yet, waits for
/// the end of that node's lease.
#[test]
fn replacement_of_a_silent_node_waits() {
    let sandbox = Sandbox::new();
    let job = StaticJob::new(&sandbox, "--nnodes 2");
    let mut host = job.start(0, "stay.sh");
    let mut guest = job.start(1, "stay.sh");
    workers([&mut host, &mut guest]);
    guest.signal(Signal::SIGSTOP);
    let words = format!("status --json --rdzv-endpoint localhost:{}", job.port);
    let deadline = clock::now_blocking() + PATIENCE;
    loop {
        let end = sandbox.ragent(&words).run();
        let status: Value = serde_json::from_str(&end.stdout).unwrap();
        let nodes = status["nodes"].as_array().unwrap();
        let silent = |node: &Value| node["last_seen_ms"].as_u64() > Some(600);
        if nodes.len() == 1 || nodes.iter().any(silent) {
            break;
        }
        assert!(clock::now_blocking() < deadline, "{status}");
    }
    let mut other = job.start(1, "stay.sh");
    let both = workers([&mut host, &mut other]);
    assert_eq!(numbers(&both, "rank"), [0, 1]);
    assert_eq!(numbers(&both, "restart"), [0, 0]);
}

/// The node with rank 0 hosts the job, and can be restarted too.
#[test]
fn rank_zero_comes_back() {
    let sandbox = Sandbox::new();
    let job = StaticJob::new(&sandbox, "--nnodes 2");
    let mut host = job.start(0, "stay.sh");
    let mut guest = job.start(1, "stay.sh");
    workers([&mut host, &mut guest]);
    host.signal(Signal::SIGKILL);
    host.end();
    let mut host = job.start(0, "stay.sh");
    let both = workers([&mut host, &mut guest]);
    assert_eq!(numbers(&both, "rank"), [0, 1]);
}

/// A failure restarts the workers of all nodes, while torchrun restarts those of one node.
#[test]
fn failure_restarts_all() {
    let sandbox = Sandbox::new();
    let orders = [0, 1].map(|rank| sandbox.orders(rank));
    let job = StaticJob::new(&sandbox, "--nnodes 2 --max-restarts 1");
    let mut host = job.start(0, "obey.sh");
    let mut guest = job.start(1, "obey.sh");
    workers([&mut host, &mut guest]);
    orders[1].give("exit 3");
    let both = workers([&mut host, &mut guest]);
    assert_eq!(numbers(&both, "restart"), [1, 1]);
    orders.iter().for_each(|orders| orders.give("exit 0"));
    [host, guest].into_iter().for_each(|agent| agent.end().assert_code(0));
}

/// A second node with the rank of an active node is refused, and ends.
#[test]
fn second_node_of_a_rank_is_refused() {
    let sandbox = Sandbox::new();
    let job = StaticJob::new(&sandbox, "--nnodes 3");
    let mut host = job.start(0, "stay.sh");
    host.endpoint();
    let mut guest = job.start(1, "stay.sh");
    guest.logs("waiting");
    let end = job.agent(1, "stay.sh").run();
    end.assert_code(9);
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let refusal = format!("caused by: {} already has `--node-rank 1`", name.trim());
    end.assert_stderr(&[&refusal, "hint: give each node a different rank"]);
}

/// Different backends at one endpoint are a mistake. The error names both.
#[test]
fn other_backend_is_refused() {
    let sandbox = Sandbox::new();
    let job = StaticJob::new(&sandbox, "--nnodes 2");
    let mut host = job.start(0, "stay.sh");
    host.endpoint();
    let words = format!(
        "--nnodes 2 --rdzv-endpoint localhost:{} --rdzv-conf join_timeout=900 --no-python stay.sh",
        job.port
    );
    let end = sandbox.ragent(&words).run();
    end.assert_code(9);
    end.assert_stderr(&["--rdzv-backend is c10d here and static there"]);
}
