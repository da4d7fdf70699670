//! Tests the variables and the port that workers of the static backend get, and that they reach their store there.

use std::collections::BTreeSet;

use ragent_base::secret::{Secret, file};

use crate::support::{Program, Sandbox, Start, free_port};

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
