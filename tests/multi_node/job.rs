//! One job: its endpoint, the flags that all its nodes share, and its agents.

use std::cell::Cell;

use serde_json::Value;

use crate::support::{Program, Sandbox, Start, Worker, free_port};

/// The settings that the agents of a job share.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    sandbox: &'a Sandbox,
    pub(crate) endpoint: String,
    flags: String,
    agents: Cell<u32>,
}

impl<'a> Job<'a> {
    /// A job with these flags on all nodes.
    pub(crate) fn new(sandbox: &'a Sandbox, flags: &str) -> Self {
        Self::at(sandbox, format!("127.0.0.1:{}", free_port()), flags)
    }

    /// A job with these flags on all nodes, at an endpoint of this machine.
    pub(crate) fn at(sandbox: &'a Sandbox, endpoint: String, flags: &str) -> Self {
        Self { sandbox, endpoint, flags: flags.to_owned(), agents: Cell::new(0) }
    }

    /// An agent that is not started yet; `words` are its own flags and its worker. Agents of the
    /// first round get their ranks in the order of these calls.
    pub(crate) fn agent(&self, words: &str) -> Start {
        let Self { endpoint, flags, agents, .. } = self;
        let rank = agents.replace(agents.get() + 1);
        self.sandbox.ragent(&format!(
            "--rdzv-backend c10d --rdzv-id j --rdzv-endpoint {endpoint} --node-rank {rank} {flags} \
             {words}"
        ))
    }

    /// Starts the agent that hosts the coordinator.
    #[track_caller]
    pub(crate) fn host(&self, words: &str) -> Program {
        hosting(self.agent(words))
    }

    /// Starts an agent of another node.
    pub(crate) fn guest(&self, words: &str) -> Program {
        self.agent(words).start()
    }

    /// Starts `ragent coordinator`.
    #[track_caller]
    pub(crate) fn coordinator(&self) -> Program {
        let port = self.endpoint.rsplit(':').next().unwrap();
        let words = format!("coordinator --rdzv-id j --host 127.0.0.1 --port {port}");
        let mut coordinator = self.sandbox.ragent(&words).start();
        coordinator.prints("127.0.0.1:");
        coordinator
    }

    /// The status of the job, in JSON.
    #[track_caller]
    pub(crate) fn status(&self) -> Value {
        let words = format!("status --json --rdzv-endpoint {}", self.endpoint);
        let end = self.sandbox.ragent(&words).run();
        end.assert_code(0);
        serde_json::from_str(&end.stdout).unwrap()
    }
}

/// Starts an agent and waits until it hosts the coordinator.
#[track_caller]
pub(crate) fn hosting(agent: Start) -> Program {
    let mut host = agent.start();
    host.endpoint();
    host
}

/// Waits for the next worker of each agent.
#[track_caller]
pub(crate) fn workers<const N: usize>(agents: [&mut Program; N]) -> [Worker; N] {
    agents.map(Program::worker)
}

/// A number of each worker, by name.
#[track_caller]
pub(crate) fn numbers<const N: usize>(workers: &[Worker; N], name: &str) -> [u32; N] {
    workers.each_ref().map(|worker| worker.number(name))
}
