//! A job in a simulated world: clock, network, agents, keepers, and the machine between them.

mod coordinator;
mod fault;
mod keeper;
mod network;
mod node;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use ragent_rendezvous::{
    Rendezvous,
    ids::{JobUid, NodeId, Peer, Round, RoundId, RunId, Term},
    message::{JobResult, KnownRound, NodeDescription, NodeState, ToNode},
    settings::{Leases, Memory, NodeRange, SharedSettings, StoreAccess, Timeouts},
    snapshot::{PhaseName, Snapshot},
};

use crate::{chronicle::Chronicle, random::Random, replay::Replay, sabotage::Sabotage};
use fault::Fault;
use keeper::Processes;
use network::{FromAgent, Stream};
pub(crate) use node::failure;
use node::{Agent, Input};

/// A job and its environment.
#[derive(Debug)]
pub struct World {
    start: Instant,
    now: Instant,
    random: Random,
    sabotage: Sabotage,
    events: BTreeMap<(Instant, u64), Event>,
    events_scheduled: u64,
    coordinator: Option<Rendezvous>,
    /// The number of further effects after which the coordinator's process dies, if it does.
    dies_after: Option<u64>,
    memory: Memory,
    /// The state file of another run that existed at the start.
    planted: Option<Memory>,
    host: Option<u64>,
    host_node: Option<NodeId>,
    agents: BTreeMap<NodeId, Agent>,
    agents_started: u64,
    /// All agents that were ever started.
    descriptions: BTreeMap<NodeId, NodeDescription>,
    /// The fixed rank of each machine, if ranks are fixed.
    node_ranks: BTreeMap<u64, u32>,
    machines: BTreeMap<u64, KnownRound>,
    streams: BTreeMap<Peer, Stream>,
    processes: BTreeMap<NodeId, Processes>,
    /// The newest round that ran on each node.
    ran: BTreeMap<NodeId, Round>,
    shared: SharedSettings,
    min_nodes: u32,
    stage: Stage,
    overdue: Option<Instant>,
    /// The events so far.
    pub chronicle: Chronicle,
    /// The state of the job, from the journal of the coordinator alone.
    replay: Replay,
    /// The start of the coordinator, and the time that the job had been accounted for then.
    accounted_since: (Instant, u64),
}

/// The stage of a world.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Stage {
    /// Faults occur.
    Faulty,
    /// No faults have occurred since then.
    Quiet(Instant),
    /// The job has ended, and so has its coordinator.
    Finished,
}

/// An event at a certain time.
#[derive(Debug)]
enum Event {
    /// A connection is made, or refused.
    Connect(Peer),
    /// A message arrives at the coordinator.
    Up { from: Peer, message: FromAgent },
    /// A message arrives at an agent.
    Down { to: Peer, message: ToNode },
    /// The coordinator notices that a stream has ended.
    Detached(Peer),
    /// A keeper's obituary arrives.
    Obituary(NodeId),
    /// An agent gets an input.
    Input(NodeId, Input),
    /// A worker of a round fails on a node.
    WorkerFails(NodeId, RoundId),
    /// The workers of a round exit with 0 on a node.
    Succeeds(NodeId, RoundId),
    /// A keeper checks its lease.
    Lease(NodeId),
    /// The last process of a round on a node has ended, by a sweep or otherwise.
    Gone { node: NodeId, round: RoundId, is_swept: bool },
    /// An agent is started on a machine.
    StartAgent { machine: u64 },
    /// The coordinator's process is started.
    StartCoordinator,
    /// A fault occurs.
    Fault(Fault),
}

/// The time during which faults occur.
const FAULTY: Duration = Duration::from_secs(30);

/// The time limit for a job to run or to close after the last fault: two join timeouts, and the
/// time for a recovery, a grace period and the leases.
const HEALS_WITHIN: Duration = Duration::from_secs(110);

/// Leases and intervals: as in production, but with fewer keep-alives to simulate.
const LEASES: Leases = Leases {
    keep_alive_interval: Duration::from_millis(800),
    agent: Duration::from_millis(2_400),
    coordinator: Duration::from_millis(3_000),
};

impl World {
    /// Creates the world of `seed`, with a bug planted in it.
    #[expect(clippy::disallowed_methods, reason = "a world needs some instant to begin with")]
    pub fn new(seed: u64, sabotage: Sabotage) -> Self {
        let mut random = Random::new(seed);
        let min = random.between(1, 3);
        let max = random.between(min.max(2), min + 3);
        let fixed_ranks = seed % 5 == 4;
        let min = if fixed_ranks { max } else { min };
        let bound = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        let min_nodes = if sabotage == Sabotage::FewerThanMin { 1 } else { bound(min) };
        let unit = if seed % 5 == 3 { 2 } else { 1 };
        let nodes = NodeRange::in_units(min_nodes, bound(max), unit)
            .or_else(|| NodeRange::new(min_nodes, bound(max)))
            .expect("min is at most max");
        let min =
            min.max(if sabotage == Sabotage::FewerThanMin { min } else { nodes.min().into() });
        let timeouts = Timeouts {
            join: Duration::from_secs(40),
            last_call: random.millis(500, 4_000),
            join_settle: random.millis(100, 3_000),
            shrink: random.millis(0, 5_000),
            stop_grace: Duration::from_secs(2),
        };
        let max_restarts = bound(random.between(0, 6));
        let store_access = StoreAccess::Members;
        let shared = SharedSettings { nodes, max_restarts, timeouts, fixed_ranks, store_access };
        let start = Instant::now();
        let mut world = Self {
            start,
            now: start,
            random,
            sabotage,
            events: BTreeMap::new(),
            events_scheduled: 0,
            coordinator: None,
            dies_after: None,
            memory: Memory::fresh(JobUid::new("job")),
            planted: None,
            host: None,
            host_node: None,
            agents: BTreeMap::new(),
            agents_started: 0,
            descriptions: BTreeMap::new(),
            node_ranks: BTreeMap::new(),
            machines: BTreeMap::new(),
            streams: BTreeMap::new(),
            processes: BTreeMap::new(),
            ran: BTreeMap::new(),
            shared,
            min_nodes: bound(min),
            stage: Stage::Faulty,
            overdue: None,
            chronicle: Chronicle::default(),
            replay: Replay::default(),
            accounted_since: (start, 0),
        };
        world.populate(max);
        world
    }

    /// Handles the next event; returns false once there is nothing left to wait for.
    pub fn step(&mut self) -> bool {
        self.become_quiet();
        let deadline = self.coordinator.as_ref().and_then(Rendezvous::poll_timeout);
        let deadline = deadline.filter(|_| self.sabotage != Sabotage::NoTimeouts);
        let event = self.events.first_key_value().map(|((at, _), _)| *at);
        let Some(next) = event.into_iter().chain(deadline).min() else {
            return false;
        };
        self.now = self.now.max(next);
        // Inputs first: a message that arrives at the moment a lease ends is in time.
        if event == Some(next) {
            if let Some((_, event)) = self.events.pop_first() {
                self.happen(event);
            }
        } else {
            self.time_out();
        }
        !(self.stage == Stage::Finished || self.has_healed() || self.is_stuck())
    }

    /// Returns true if the faults have stopped and the job runs on all its members.
    pub fn has_healed(&self) -> bool {
        if !matches!(self.stage, Stage::Quiet(_)) {
            return false;
        }
        let Some(snapshot) = self.snapshot() else {
            return false;
        };
        let members = snapshot.nodes.iter().filter(|node| node.group_rank.is_some());
        let mut running = members.map(|node| self.runs(&node.node_id));
        snapshot.phase == PhaseName::Running && running.all(|runs| runs)
    }

    /// Returns true if the job should have run or closed by now.
    pub fn is_stuck(&self) -> bool {
        matches!(self.stage, Stage::Quiet(since) if self.now > since + HEALS_WITHIN)
    }

    /// Returns true if the job has succeeded.
    pub fn has_succeeded(&self) -> bool {
        let outcome = self.chronicle.outcome.as_ref();
        outcome.is_some_and(|outcome| outcome.result == JobResult::Succeeded)
    }

    /// The deadline that has passed, was applied, and is still waited for, if there is one.
    pub fn overdue(&self) -> Option<Duration> {
        self.overdue.map(|at| at.saturating_duration_since(self.start))
    }

    /// The snapshot of the coordinator, if it runs.
    pub fn snapshot(&self) -> Option<Snapshot> {
        self.coordinator.as_ref().map(|coordinator| coordinator.snapshot(self.now))
    }

    /// The nodes with live processes, and the round of these.
    pub fn processes(&self) -> impl Iterator<Item = (&NodeId, RoundId)> {
        self.processes.iter().map(|(node, processes)| (node, processes.round))
    }

    /// The settings that the job was started with.
    pub fn shared(&self) -> SharedSettings {
        self.shared
    }

    /// The fewest nodes that a round may have.
    pub fn min_nodes(&self) -> u32 {
        self.min_nodes
    }

    /// The state file of another run that existed at the start, if one did.
    pub fn planted(&self) -> Option<&Memory> {
        self.planted.as_ref()
    }

    /// The simulated time since the start.
    pub fn elapsed(&self) -> Duration {
        self.now.saturating_duration_since(self.start)
    }

    fn runs(&self, node: &NodeId) -> bool {
        let newest = self.chronicle.newest;
        self.processes.get(node).is_some_and(|processes| processes.round == newest)
            && self.agents.get(node).is_some_and(|agent| {
                let standing = agent.standing(self.now);
                standing.round == newest && standing.state == NodeState::Running
            })
    }

    /// Starts the coordinator and some of the nodes, and chooses the faults.
    fn populate(&mut self, max: u64) {
        self.host = self.random.chance(50).then_some(1);
        if self.random.chance(10) {
            self.memory = self.memory_of_another_run();
            self.planted = Some(self.memory.clone());
        }
        self.schedule(Duration::ZERO, Event::StartCoordinator);
        let nodes = self.random.between(1, max + 1);
        for machine in 1..=nodes {
            let delay = self.random.millis(1, 2_000);
            let is_host = self.host == Some(machine);
            self.schedule(
                if is_host { Duration::from_micros(1) } else { delay },
                Event::StartAgent { machine },
            );
        }
        for _ in 0..self.random.between(0, 12) {
            let at = self.random.millis(0, 30_000);
            let fault = Fault::roll(&mut self.random);
            self.schedule(at, Event::Fault(fault));
        }
    }

    /// Returns the state file of a run whose processes were all killed.
    fn memory_of_another_run(&mut self) -> Memory {
        let size = self.random.between(1, 4);
        let round = self.random.between(1, 9);
        let restarts_used = self.random.between(0, u64::from(self.shared.max_restarts));
        Memory {
            term: Term(self.random.between(1, 5)),
            round: Round(round),
            round_size: u32::try_from(size).unwrap_or(u32::MAX),
            restarts_used: u32::try_from(restarts_used).unwrap_or(u32::MAX),
            charged_through: Round(round - 1),
            ..Memory::fresh(JobUid::new("another"))
        }
    }

    /// Ends the faults when their time is over, and makes sure that the job could go on.
    fn become_quiet(&mut self) {
        if self.stage != Stage::Faulty || self.now < self.start + FAULTY {
            return;
        }
        self.stage = Stage::Quiet(self.now);
        self.events.retain(|_, event| !matches!(event, Event::Fault(_)));
        let alive = self.agents.values().filter(|agent| agent.may_take_part()).count();
        for _ in alive..self.min_nodes as usize {
            let machine = self.new_machine();
            let delay = self.random.millis(1, 1_000);
            self.schedule(delay, Event::StartAgent { machine });
        }
        self.finish_what_has_begun_to_succeed();
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Connect(peer) => self.connect(&peer),
            Event::Up { from, message } => self.arrive_up(from, message),
            Event::Down { to, message } => self.arrive_down(to, message),
            Event::Detached(peer) => self.detach(peer),
            Event::Obituary(node) => self.arrive_obituary(&node),
            Event::Input(node, input) => self.input(&node, input),
            Event::WorkerFails(node, round) => self.fail_a_worker(&node, round),
            Event::Succeeds(node, round) => self.finish_workers(&node, round),
            Event::Lease(node) => self.look_at_lease(&node),
            Event::Gone { node, round, is_swept } => {
                self.remove_processes(&node, round, is_swept);
            }
            Event::StartAgent { machine } => self.start_agent(machine),
            Event::StartCoordinator => self.start_coordinator(),
            Event::Fault(fault) => self.go_wrong(fault),
        }
    }

    fn schedule(&mut self, delay: Duration, event: Event) {
        self.schedule_at(self.now + delay, event);
    }

    fn schedule_at(&mut self, at: Instant, event: Event) {
        // The counter breaks ties, so that the order is always determined.
        self.events_scheduled += 1;
        self.events.insert((at, self.events_scheduled), event);
    }

    fn run_id() -> RunId {
        RunId::new("run")
    }
}
