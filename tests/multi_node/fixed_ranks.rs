//! Tests the variables and the port that workers of the static backend get, and that they reach their store there.

use std::collections::BTreeSet;

use ragent_base::secret::{Secret, file};

use crate::support::{Sandbox, free_port};

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
