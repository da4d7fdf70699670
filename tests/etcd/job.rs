//! Runs a job whose coordinator is chosen through etcd. Its workers record when they run.

use std::{collections::BTreeMap, thread};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::{
    records::{Lifetime, RoundId, Rounds, violations},
    support::{End, Program, Sandbox, Stream, field, listening_ports},
};

/// The log line of an agent that begins to lead.
const ELECTED: &str = "elected; coordinating the job";

/// A running job, named `j`.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    sandbox: &'a Sandbox,
    endpoints: String,
    flags: String,
    env: Vec<(&'static str, String)>,
    pub(crate) agents: Vec<Program>,
    /// The logs of the agents that have ended.
    ended: Vec<String>,
    /// The last round that was waited for.
    pub(crate) round: RoundId,
}

impl<'a> Job<'a> {
    /// A job without agents.
    pub(crate) fn new(sandbox: &'a Sandbox, endpoints: String, flags: &str) -> Self {
        Self {
            sandbox,
            endpoints,
            flags: flags.to_owned(),
            env: Vec::new(),
            agents: Vec::new(),
            ended: Vec::new(),
            round: RoundId::default(),
        }
    }

    /// Sets a variable of agents that are started later.
    pub(crate) fn env(mut self, name: &'static str, value: String) -> Self {
        self.env.push((name, value));
        self
    }

    /// Starts an agent.
    pub(crate) fn start_agent(&mut self) {
        self.start_agent_at(&self.endpoints.clone());
    }

    /// Starts an agent that reaches only these members of etcd. Both names of the backend mean the same, and are used in
    /// turn.
    pub(crate) fn start_agent_at(&mut self, endpoints: &str) {
        let backend = if self.agents.len().is_multiple_of(2) { "etcd" } else { "etcd-v2" };
        let flags = &self.flags;
        let words = format!(
            "--rdzv-backend {backend} --rdzv-id j --rdzv-endpoint {endpoints} {flags} --no-python alive.py"
        );
        let mut start = self.sandbox.ragent(&words);
        for (name, value) in &self.env {
            start = start.env(name, value);
        }
        self.agents.push(start.start());
    }

    /// Starts agents, and waits until their workers run.
    #[track_caller]
    pub(crate) fn run(&mut self, agents: usize) {
        for _ in 0..agents {
            self.start_agent();
        }
        self.runs();
    }

    /// Waits until a new round runs on all agents.
    #[track_caller]
    pub(crate) fn runs(&mut self) {
        let size = self.agents.len();
        let mut rounds = vec![self.round; size];
        let id = loop {
            let newest = rounds.iter().copied().max().unwrap_or_default();
            // A round may end before all of its nodes are admitted.
            let is_behind = |id: &RoundId| *id < newest || newest == self.round;
            let Some(at) = rounds.iter().position(is_behind) else { break newest };
            let line = self.agents[at].logs(&format!("nodes={size} world_size={size} "));
            rounds[at] = field(&line, "round").parse().expect("it is logged");
        };
        self.round = id;
        for agent in &mut self.agents {
            let line = agent.logs(&format!("worker started round={id} "));
            let pid = field(&line, "pid");
            agent.prints(&format!("pid={pid} alive"));
        }
    }

    /// Takes the agent that leads out of the job, according to its status.
    #[track_caller]
    pub(crate) fn take_leader(&mut self) -> Program {
        let mut endpoints: Vec<String> =
            self.agents.iter_mut().map(|agent| registered(agent)).collect();
        endpoints.dedup();
        let [endpoint] = &endpoints[..] else { panic!("agents registered at {endpoints:?}") };
        let port: u16 = endpoint.rsplit(':').next().and_then(|port| port.parse().ok()).unwrap();
        let serves = |agent: &Program| listening_ports(agent.pid()).contains(&port);
        let at = self.agents.iter().position(serves).expect("an agent serves the endpoint");
        self.agents.remove(at)
    }

    /// The status of the job, which `ragent` finds by the agents on this machine.
    #[track_caller]
    pub(crate) fn status(&self) -> Value {
        let end = self.sandbox.ragent("status --json").run();
        end.assert_code(0);
        serde_json::from_str(&end.stdout).unwrap()
    }

    /// The number of times that an agent began to lead.
    pub(crate) fn count_leaderships(&mut self) -> usize {
        self.logs().iter().map(|log| log.matches(ELECTED).count()).sum()
    }

    /// Waits for the end of an agent, and keeps its log for the checks at the end of the job.
    pub(crate) fn end_of(&mut self, agent: Program) -> End {
        let end = agent.end();
        self.ended.push(end.stderr.clone());
        end
    }

    /// Ends the job, and fails if two rounds ran at the same time.
    #[track_caller]
    pub(crate) fn end(mut self) {
        for agent in &self.agents {
            agent.signal(Signal::SIGKILL);
        }
        for agent in std::mem::take(&mut self.agents) {
            self.end_of(agent);
        }
        self.sandbox_rounds();
    }

    #[track_caller]
    fn sandbox_rounds(&mut self) {
        let mut rounds_of = BTreeMap::new();
        for log in self.logs() {
            for line in log.lines().filter(|line| line.contains("worker started round=")) {
                let id: RoundId = field(line, "round").parse().expect("it is logged");
                rounds_of.insert(field(line, "pid"), id);
            }
        }
        assert!(!rounds_of.is_empty(), "no worker has run");
        let mut rounds = Rounds::new();
        for (pid, id) in rounds_of {
            let path = self.sandbox.path(&format!("alive.{pid}"));
            // A worker may be killed before it has recorded anything.
            if let Ok(Some(lifetime)) = Lifetime::read(&path) {
                rounds.entry(id).or_default().push(lifetime);
            }
        }
        let violations = violations(&rounds);
        assert!(violations.is_empty(), "{}", violations.join("\n"));
    }

    fn logs(&mut self) -> Vec<String> {
        let mut logs = self.ended.clone();
        for agent in &mut self.agents {
            agent.receive_pending();
            logs.push(agent.text(Stream::Stderr));
        }
        logs
    }
}

impl Drop for Job<'_> {
    #[expect(clippy::print_stderr, reason = "the logs of all agents explain why a test has failed")]
    fn drop(&mut self) {
        if thread::panicking() {
            let logs = self.logs();
            let mut lines: Vec<&str> = logs.iter().flat_map(|log| log.lines()).collect();
            lines.sort_unstable();
            eprintln!("{}", lines.join("\n"));
        }
    }
}

/// The endpoint at which an agent has registered last.
#[track_caller]
fn registered(agent: &mut Program) -> String {
    agent.receive_pending();
    let log = agent.text(Stream::Stderr);
    let line = log.lines().rfind(|line| line.contains(" registered "));
    field(line.expect("it has registered"), "endpoint").replace('"', "")
}
