//! Runs a job whose coordinator is elected: five agents on a network with failures. The first three are voters, or all of them choose a
//! coordinator through etcd. Their workers record when they run.

use std::{collections::BTreeMap, fs, path::PathBuf, thread, time::Duration};

use nix::sys::signal::Signal;
use ragent_base::{
    secret::{Secret, file},
    sys::clock,
};
use serde_json::Value;

use crate::{
    records::{Lifetime, RoundId, Rounds, violations},
    support::{
        Authority, End, Issue, Network, PATIENCE, Program, READY, Sandbox, Stream, field, is_alive,
        keeper_of, kill, let_pass, tls_flags, write_certificates,
    },
};

/// The number of nodes.
pub(crate) const NODES: u32 = 5;

/// The nodes whose agents are voters.
const VOTERS: [u32; 3] = [1, 2, 3];

/// The node of etcd, if the job uses it.
const ETCD: u32 = NODES + 1;

/// A node that is not a voter. Its agent survives the loss of any leader, and its log names each leader.
pub(crate) const WITNESS: u32 = 5;

/// The log line of an agent that is elected.
const ELECTED: &str = "elected; coordinating the job";

/// A running job.
#[derive(Debug)]
pub(crate) struct ElectedJob {
    agents: BTreeMap<u32, Program>,
    /// The logs of the agents that have ended.
    ended: Vec<String>,
    /// The last round that was waited for.
    round: RoundId,
    /// True if the agents know only the endpoint of node 1, not a list of the voters.
    has_one_endpoint: bool,
    /// The etcd through which the agents find their coordinator. `None` if voters elect it.
    etcd: Option<Program>,
    /// The flags for the authentication of agents, and of `ragent status`.
    auth: String,
    sandbox: Sandbox,
    pub(crate) network: Network,
}

/// The node whose agent coordinates the job, and its term.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Leader {
    pub(crate) node: u32,
    pub(crate) term: u64,
}

/// A round whose workers run.
#[derive(Clone, Debug)]
pub(crate) struct Round {
    /// The time at which the last worker began.
    pub(crate) complete: Duration,
    /// The pids of its workers, by node.
    workers: BTreeMap<u32, u32>,
}

impl ElectedJob {
    /// Starts the job and waits until all of its workers run.
    pub(crate) fn start(name: &str) -> (Self, Round) {
        Self::with_agents(Self::new(name))
    }

    /// Starts a job whose nodes share a secret, and waits until all of its workers run.
    pub(crate) fn start_secured(name: &str) -> (Self, Round) {
        let mut job = Self::new(name);
        let path = job.sandbox.path("secret");
        let secret = Secret::random().expect("the system has random bytes");
        file::create(&path, &secret).expect("the sandbox is writable");
        job.auth = format!("--auth secret --secret-file {}", path.display());
        Self::with_agents(job)
    }

    /// Starts a job whose nodes have certificates, and waits until all of its workers run.
    pub(crate) fn start_certified(name: &str) -> (Self, Round) {
        let mut job = Self::new(name);
        let authority = Authority::new("ca");
        let issued = authority.issue(&Issue::with_names(&["spiffe://site/job"]));
        job.auth = tls_flags(&write_certificates(&job.sandbox.path("tls"), &[&authority], &issued));
        Self::with_agents(job)
    }

    /// Runs `ragent` with these arguments on a node.
    pub(crate) fn run_on(&self, node: u32, words: &str) -> End {
        self.network.ragent(&self.sandbox, node, words).run()
    }

    /// Prints the status of the job on a node.
    pub(crate) fn status(&self, node: u32, auth: &str) -> End {
        let voters = VOTERS.map(Network::address).join(",");
        let words = format!("status {auth} --rdzv-endpoint {voters}:29400");
        self.run_on(node, &words)
    }

    /// Starts the job with the endpoint of node 1 alone and waits until all of its workers run.
    pub(crate) fn start_at_one_endpoint(name: &str) -> (Self, Round) {
        let mut job = Self::new(name);
        job.has_one_endpoint = true;
        Self::with_agents(job)
    }

    /// Starts an etcd of one member, and a job whose agents find their coordinator through it. Waits until all of its workers run.
    pub(crate) fn start_with_etcd(name: &str) -> (Self, Round) {
        let mut job = Self::new(name);
        let url = format!("http://{}:2379", Network::address(ETCD));
        let data = job.sandbox.path("etcd").display().to_string();
        let mut etcd = job.network.program(&job.sandbox, ETCD, "etcd");
        for (flag, value) in
            [("data-dir", &data), ("listen-client-urls", &url), ("advertise-client-urls", &url)]
        {
            etcd = etcd.arg(format!("--{flag}={value}"));
        }
        let mut etcd = etcd.start();
        etcd.logs("ready to serve client requests");
        job.etcd = Some(etcd);
        Self::with_agents(job)
    }

    fn new(name: &str) -> Self {
        Self {
            agents: BTreeMap::new(),
            ended: Vec::new(),
            round: RoundId::default(),
            has_one_endpoint: false,
            etcd: None,
            auth: "--auth none".to_owned(),
            sandbox: Sandbox::with_standbys(),
            network: Network::new(name, ETCD),
        }
    }

    fn with_agents(mut job: Self) -> (Self, Round) {
        for node in Self::all() {
            job.start_agent(node);
        }
        let round = job.runs_on(&Self::all());
        if job.sandbox.has_standbys() {
            // The next round uses them.
            for agent in job.agents.values_mut() {
                agent.logs(READY);
            }
        }
        (job, round)
    }

    /// Starts the agent of a node.
    pub(crate) fn start_agent(&mut self, node: u32) {
        self.start_agent_after(node, "true");
    }

    /// Starts the agent of a node after a shell has carried out `mounts`. Only this agent notices them. `$XDG_RUNTIME_DIR` is the runtime
    /// folder of the node.
    pub(crate) fn start_agent_after(&mut self, node: u32, mounts: &str) {
        let rendezvous = match (&self.etcd, self.has_one_endpoint) {
            (Some(_), _) => {
                let etcd = Network::address(ETCD);
                format!("--rdzv-backend etcd --rdzv-id j --rdzv-endpoint {etcd}")
            }
            (None, true) => format!("--rdzv-endpoint {}", Network::address(1)),
            (None, false) => {
                format!("--rdzv-endpoint {}:29400", VOTERS.map(Network::address).join(","))
            }
        };
        let words = format!(
            "--nnodes 2:{NODES} --max-restarts 1 {rendezvous} \
             --rdzv-conf last_call_timeout=600,join_timeout=600,join_settle=0.1,shrink_timeout=0 \
             {} --no-python alive.py",
            self.auth
        );
        let agent = self.network.ragent_after(&self.sandbox, node, mounts, &words).start();
        self.agents.insert(node, agent);
    }

    /// The state file of the voter on a node.
    #[track_caller]
    pub(crate) fn state_file(&self, node: u32) -> PathBuf {
        let folder = format!("run{node}/ragent");
        let files = self.sandbox.files_below(&folder);
        let mut files =
            files.iter().filter(|file| file.starts_with("job-") && file.ends_with(".json"));
        let file = files.next().expect("a voter has run there");
        assert_eq!(files.next(), None, "one voter has run there");
        self.sandbox.path(&folder).join(file)
    }

    /// Waits until a leader answers, and returns the identity of the job. No event reports that to this process, so it polls.
    #[track_caller]
    pub(crate) fn uid(&self) -> String {
        let deadline = clock::now_blocking() + PATIENCE;
        loop {
            let end = self.status(WITNESS, "--json --auth none");
            if end.code == Some(0) {
                let status: Value = serde_json::from_str(&end.stdout).expect("the status is JSON");
                return status["job_uid"].as_str().expect("a job has an identity").to_owned();
            }
            assert!(clock::now_blocking() < deadline, "{}", end.stderr);
            let_pass(Duration::from_millis(100));
        }
    }

    /// Kills the agent of a node.
    pub(crate) fn kill_agent(&mut self, node: u32) {
        self.agent(node).signal(Signal::SIGKILL);
    }

    /// Stops the agent and the keeper of a node, so that no process kills the node's worker.
    pub(crate) fn stop_all_but_the_worker(&mut self, node: u32) {
        let agent = self.agent(node).pid();
        for pid in [keeper_of(agent), agent] {
            kill(pid, Signal::SIGSTOP);
        }
    }

    /// Kills all processes of a host at once, and removes its state folder, as if another machine took its place.
    pub(crate) fn lose_host(&mut self, node: u32) {
        self.network.kill_all(node);
        self.wait_for_end(node);
        let state = self.sandbox.path(&format!("run{node}"));
        fs::remove_dir_all(state).expect("an agent has run there, and has ended");
    }

    /// Waits for the end of an agent, of its keeper and of its workers, and starts another agent.
    pub(crate) fn replace_agent(&mut self, node: u32) {
        self.wait_for_end(node);
        self.start_agent(node);
    }

    /// Waits for the end of an agent, of its keeper and of its workers.
    pub(crate) fn wait_for_end(&mut self, node: u32) -> End {
        let agent = self.agents.remove(&node).expect("it was started");
        let end = agent.end();
        self.ended.push(end.stderr.clone());
        end
    }

    /// The agent of a node.
    pub(crate) fn agent(&mut self, node: u32) -> &mut Program {
        self.agents.get_mut(&node).expect("it was started")
    }

    /// All nodes.
    pub(crate) fn all() -> Vec<u32> {
        Self::without(&[])
    }

    /// The nodes other than these.
    pub(crate) fn without(nodes: &[u32]) -> Vec<u32> {
        (1..=NODES).filter(|node| !nodes.contains(node)).collect()
    }

    /// Waits until exactly these nodes run, all of them in the same new round.
    #[track_caller]
    pub(crate) fn runs_on(&mut self, nodes: &[u32]) -> Round {
        let size = nodes.len();
        let mut rounds: BTreeMap<u32, RoundId> =
            nodes.iter().map(|node| (*node, self.round)).collect();
        let admitted = format!("nodes={size} world_size={size} ");
        let mut workers = BTreeMap::new();
        loop {
            let newest = rounds.values().copied().max().unwrap_or_default();
            // A round may end before all of its nodes are admitted.
            let is_behind = |id: &RoundId| *id < newest || newest == self.round;
            if let Some((&node, _)) = rounds.iter().find(|(_, id)| is_behind(id)) {
                let line = self.agent(node).logs(&admitted);
                rounds.insert(node, round_of(&line));
                workers.clear();
                continue;
            }
            let Some(&node) = nodes.iter().find(|node| !workers.contains_key(*node)) else {
                self.round = newest;
                break;
            };
            // It may also end before its workers are alive, on a busy machine.
            let started = format!("worker started round={newest} ");
            let agent = self.agent(node);
            let mut line = agent.prints_unless((Stream::Stderr, &started), &[&admitted]);
            let pid = loop {
                let Ok(of_worker) = &line else { break line.map(|_| 0) };
                let pid: u32 = field(of_worker, "pid").parse().expect("it is logged");
                let alive = format!("pid={pid} alive");
                match agent.prints_unless((Stream::Stdout, &alive), &[&started, &admitted]) {
                    Ok(_) => break Ok(pid),
                    // A standby has ended, and the worker is a new process.
                    Err(other) if other.contains(&started) => line = Ok(other),
                    Err(other) => line = Err(other),
                }
            };
            match pid {
                Ok(pid) => drop(workers.insert(node, pid)),
                Err(line) => drop(rounds.insert(node, round_of(&line))),
            }
        }
        let begins =
            workers.values().filter_map(|pid| self.lifetime(*pid)).map(|lifetime| lifetime.begin);
        Round { complete: begins.max().expect("the workers have recorded it"), workers }
    }

    /// Returns the leader that the agent of a node has registered with last.
    #[track_caller]
    pub(crate) fn leader(&mut self, witness: u32) -> Leader {
        let agent = self.agent(witness);
        agent.receive_pending();
        let log = agent.text(Stream::Stderr);
        log.lines()
            .rev()
            .find_map(registration)
            .unwrap_or_else(|| panic!("it has not registered:\n{log}"))
    }

    /// Waits until the agent of a node has registered with another leader than the `former` one.
    #[track_caller]
    pub(crate) fn next_leader(&mut self, witness: u32, former: Leader) -> Leader {
        loop {
            let line = self.agent(witness).logs(" registered ");
            let leader = registration(&line).expect("it names the leader");
            if leader.term > former.term {
                assert_ne!(leader.node, former.node, "the same agent was elected");
                return leader;
            }
        }
    }

    /// The number of elections so far.
    pub(crate) fn count_elections(&mut self) -> usize {
        self.logs().iter().map(|log| log.matches(ELECTED).count()).sum()
    }

    /// Fails if the worker of one of these nodes in a round is alive.
    #[track_caller]
    pub(crate) fn assert_dead(round: &Round, nodes: &[u32]) {
        for node in nodes {
            assert!(!is_alive(round.workers[node]), "the worker of node {node} runs");
        }
    }

    /// Fails if the records of the workers so far break a rule.
    #[track_caller]
    pub(crate) fn assert_rules(&mut self) {
        let violations = self.violations();
        assert!(violations.is_empty(), "{}", violations.join("\n"));
    }

    /// Ends the job, and fails if the records of its workers break a rule.
    #[track_caller]
    pub(crate) fn end(mut self) {
        self.kill_agents();
        self.assert_rules();
    }

    /// Kills all agents, and waits for their ends.
    pub(crate) fn kill_agents(&mut self) {
        let nodes: Vec<u32> = self.agents.keys().copied().collect();
        for node in &nodes {
            self.kill_agent(*node);
        }
        for node in nodes {
            self.wait_for_end(node);
        }
    }

    /// The rules that the records of the workers so far break.
    pub(crate) fn violations(&mut self) -> Vec<String> {
        let mut rounds_of = BTreeMap::new();
        for log in self.logs() {
            for line in log.lines().filter(|line| line.contains("worker started round=")) {
                let id: RoundId = field(line, "round").parse().expect("it is logged");
                rounds_of.insert(field(line, "pid"), id);
            }
        }
        let mut rounds = Rounds::new();
        let mut found = Vec::new();
        for file in self.sandbox.files_below("") {
            let Some(pid) = file.strip_prefix("alive.") else { continue };
            let lifetime = pid.parse().ok().and_then(|pid| self.lifetime(pid));
            match (rounds_of.get(pid), lifetime) {
                (Some(id), Some(lifetime)) => rounds.entry(*id).or_default().push(lifetime),
                (None, _) => found.push(format!("no agent has logged the start of process {pid}")),
                (Some(_), None) => {}
            }
        }
        found.extend(violations(&rounds));
        found
    }

    /// The record of a worker.
    fn lifetime(&self, pid: u32) -> Option<Lifetime> {
        Lifetime::read(&self.sandbox.path(&format!("alive.{pid}"))).expect("it is ours")
    }

    /// Waits until the worker of a round on a node has recorded that it runs at a certain time.
    #[track_caller]
    pub(crate) fn wait_for_record(&self, round: &Round, node: u32, at: Duration) {
        let deadline = clock::now_blocking() + PATIENCE;
        while self.lifetime(round.workers[&node]).is_none_or(|lifetime| lifetime.last < at) {
            assert!(clock::now_blocking() < deadline, "the worker of node {node} has ended");
            let_pass(Duration::from_millis(5));
        }
    }

    /// The log lines of all agents so far, in the order of their times.
    pub(crate) fn log(&mut self) -> String {
        let logs = self.logs();
        let mut lines: Vec<&str> = logs.iter().flat_map(|log| log.lines()).collect();
        lines.sort_unstable();
        lines.join("\n")
    }

    /// The logs of all agents so far.
    fn logs(&mut self) -> Vec<String> {
        let mut logs = self.ended.clone();
        for agent in self.agents.values_mut() {
            agent.receive_pending();
            logs.push(agent.text(Stream::Stderr));
        }
        logs
    }
}

impl Drop for ElectedJob {
    #[expect(clippy::print_stderr, reason = "the logs of all agents explain why a test has failed")]
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{}", self.log());
        }
    }
}

/// The round in a line of a log.
fn round_of(line: &str) -> RoundId {
    field(line, "round").parse().expect("it is logged")
}

/// The leader in an agent's log line of its registration.
fn registration(line: &str) -> Option<Leader> {
    if !line.contains(" registered ") {
        return None;
    }
    let endpoint = field(line, "endpoint").replace('"', "");
    // A member that has replaced a voter has another port.
    let (address, _) = endpoint.rsplit_once(':')?;
    let node = (1..=NODES).find(|node| address == Network::address(*node))?;
    Some(Leader { node, term: field(line, "term").parse().ok()? })
}
