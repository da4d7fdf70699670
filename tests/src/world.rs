//! Simulates a job: the real machines of every host, and the takeovers between them.
//!
//! A coordinator is chosen in one of three ways: elected among voters, always on the first host (`fixed.rs`), or through etcd (`etcd.rs`).
//!
//! - Each voter's host has the real `Election`. While its election leads, it also has the real `Rendezvous`.
//! - Both are driven as the program drives them: effects wait until a majority has the state, and registrations are held until a leader is
//!   known.
//! - Each host has the real `Node` and `Supervisor`, and dials the voter that the real `Targets` selects.
//! - Clocks drift. Network, keepers and faults are models.

mod aimed;
mod bug;
mod changes;
mod coordinator;
mod driver;
mod election;
mod etcd;
mod fault;
mod fixed;
mod health;
mod host;
mod jobs;
mod keeper;
mod links;
mod losses;
mod memory;
mod network;
mod node;
mod port;
mod rules;
mod stalls;
mod training;
mod workers;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use ragent_election::{
    claim::{ChangeOutcome, KeyContent},
    election::{
        message::{Answer, VoterMessage},
        timers::Timers,
    },
};
use ragent_rendezvous::{
    ids::{NodeId, Peer, Round, RoundId, RunId, VoterAddress},
    known_job::Seniority,
    message::{NodeDescription, Outcome as JobOutcome},
    settings::{NodeRange, SharedSettings, StoreAccess, Timeouts},
};

use crate::{addresses::Place, chronicle::Chronicle, random::Random, trace::Trace};
pub use bug::Bug;
use driver::Waiting;
use etcd::{Etcd, StoreEvent};
use fault::Fault;
use fixed::Fixed;
use health::Health;
pub use health::HealthTotals;
use host::{Host, Process};
use keeper::Keeper;
use links::{Incoming, LinkEvent};
pub use memory::MemoryTotals;
use memory::{Memory, MemoryEvent};
use network::Stream;
use node::AgentInput;
use port::{Down, Up};
pub use rules::Totals;
use rules::{Record, Stage};
pub use stalls::StallTotals;
use stalls::{StallEvent, Stalls};
pub use training::NoticeTotals;
use training::{Training, TrainingEvent};

/// A job and its environment.
#[derive(Debug)]
pub struct World {
    start: Instant,
    now: Instant,
    random: Random,
    bug: Bug,
    timers: Timers,
    shared: SharedSettings,
    /// The number of hosts that the user gave as endpoints.
    listed: usize,
    hosts: Vec<Host>,
    processes: BTreeMap<NodeId, Process>,
    processes_started: u64,
    keepers: BTreeMap<NodeId, Keeper>,
    /// All agents that were ever started.
    descriptions: BTreeMap<NodeId, NodeDescription>,
    streams: BTreeMap<Peer, Stream>,
    events: BTreeMap<(Instant, u64), Event>,
    events_scheduled: u64,
    /// The times until which messages from one host to another are lost.
    cuts: BTreeMap<(usize, usize), Instant>,
    /// The percentage of all messages that is lost, and until when.
    loss: (u64, Instant),
    /// The process that is to die, and the number of effects that it still carries out.
    dies_after: Option<(NodeId, u64)>,
    /// True if a voter may return without its state file.
    forgets: bool,
    /// True if faults are aimed at the voters.
    is_aimed: bool,
    /// True if any host may lose its state, even a majority of the voters.
    loses_states: bool,
    /// True if the world continues until lost voters must have been replaced.
    checks_voters: bool,
    stage: Stage,
    record: Record,
    /// The store through which the processes choose the coordinator. `None` if they do not.
    etcd: Option<Box<Etcd>>,
    /// The parts of a job that has one endpoint. `None` for other jobs.
    fixed: Option<Box<Fixed>>,
    /// The training of the workers, and the notices. `None` for jobs without.
    training: Option<Box<Training>>,
    /// The checkpoints in memory. `None` for jobs without.
    memory: Option<Box<Memory>>,
    /// The long pauses of the workers. `None` for jobs without.
    stalls: Option<Box<Stalls>>,
    /// The unhealthy machines. `None` for jobs without.
    health: Option<Box<Health>>,
    /// The time during which faults occur.
    faulty: Duration,
    /// The events of such a job that its rules need.
    pub chronicle: Chronicle,
    /// The number of stores that agents have opened for their workers.
    stores_opened: u16,
    /// The effects of all coordinators. `None` in most worlds, because it takes time.
    trace: Option<Trace>,
}

/// An event at a certain time.
#[derive(Debug)]
enum Event {
    /// An agent's process is started on a host.
    Start(usize),
    /// A suspended host resumes.
    Resume(usize),
    /// A keeper's death notice arrives at the voter of a host.
    DeathNotice { to: Place, node: NodeId, round: Round },
    /// A connection request arrives.
    Dial(Peer),
    /// A lost connection request is sent again.
    Redial(Peer),
    /// A process receives an input.
    Process(NodeId, Input),
    /// A keeper checks its lease.
    Lease(NodeId),
    /// The last process of a round on a node has ended, by a cleanup or otherwise.
    Gone { node: NodeId, round: RoundId, is_by_cleanup: bool },
    /// A keeper sends its death notice.
    SendDeathNotice(NodeId),
    /// A worker of a round fails on a node.
    WorkerFails(NodeId, RoundId),
    /// The workers of a round exit with 0 on a node.
    Succeeds(NodeId, RoundId),
    /// An event of the training.
    Training(TrainingEvent),
    /// An event of the checkpoints in memory.
    Memory(MemoryEvent),
    /// An event of a job whose workers make long pauses.
    Stall(StallEvent),
    /// The machine of a host becomes unhealthy, or healthy again.
    Health { host: usize, fails: bool },
    /// An event of the store.
    Store(StoreEvent),
    /// A fault occurs.
    Fault(Fault),
}

/// An input of one part of a process.
#[derive(Debug)]
enum Input {
    /// An event on the connection with this number to another voter.
    Link(VoterAddress, u64, LinkEvent),
    /// The request of another voter.
    Request(Box<Incoming>),
    /// The answer of the voter at this address, on the connection with this number.
    Answer(VoterAddress, u64, Box<VoterMessage<Answer>>),
    /// The store has made the change of the key with this number, or has refused it.
    Changed(u64, Box<ChangeOutcome>),
    /// The key has this content.
    Watched(Box<KeyContent>),
    /// A command of the coordinator to its voter or claim.
    Command(election::Command),
    /// The leader has changed, as the voter knows it.
    Leader,
    /// The voters have changed while this process leads.
    Voters(Vec<VoterAddress>),
    /// The other jobs of this name have changed.
    OtherJobs(Vec<String>),
    /// The job of this process does not go on, because another one does. That one is led at this address.
    Yield(Seniority, VoterAddress),
    /// The job of this process has ended without it.
    Outlived(Option<Box<JobOutcome>>),
    /// The change of the state with this number is stored, or will never be.
    Stored(u64, bool),
    /// A message arrives at the port.
    Up(Peer, Up),
    /// A keeper's death notice.
    DeathNotice(NodeId, Round),
    /// The agent has ended, so the process is to end.
    Shutdown,
    /// The last messages are sent, and the process ends.
    Exit,
    /// A message arrives at the agent.
    Down(Peer, Down),
    /// Another input of the agent.
    Agent(AgentInput),
    /// The timer of a part fires.
    Timer(Part, Instant),
}

/// A part of a process that runs on its own.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Part {
    Voter,
    Coordinator,
    Agent,
}

/// The time during which faults occur, in most worlds.
const FAULTY: Duration = Duration::from_secs(40);

/// The maximum number of events in a world; the usual number is 30,000.
const EVENTS_MAX: u64 = 400_000;

impl World {
    /// Creates the world of `seed`, with a bug planted in it.
    #[expect(clippy::disallowed_methods, reason = "a world needs some instant to begin with")]
    pub fn new(seed: u64, bug: Bug) -> Self {
        let mut random = Random::new(seed);
        let start = Instant::now();
        let listed = random.pick(&[1, 1, 3, 3, 3, 3, 3, 5, 5]).unwrap_or(3);
        let others: &[usize] = if listed == 1 { &[1, 2, 3, 4] } else { &[0, 1, 2] };
        let hosts = listed + random.pick(others).unwrap_or_default();
        let bound = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let min = u32::try_from(random.between(1, hosts.min(3) as u64)).unwrap_or(1);
        let max = if random.chance(70) { bound(hosts) } else { bound(hosts - 1).max(min) };
        let timeouts = Timeouts {
            join: Duration::from_secs(40),
            last_call: random.millis(500, 2_000),
            join_settle: random.millis(100, 2_000),
            shrink: random.millis(0, 3_000),
            stop_grace: Duration::from_secs(2),
        };
        let shared = SharedSettings {
            nodes: NodeRange::new(min, max).expect("min is at most max"),
            max_restarts: u32::try_from(random.between(0, 6)).unwrap_or(0),
            timeouts,
            hang_auto: false,
            as_torchrun: false,
            memory_copies: 1,
            fixed_ranks: false,
            store_access: StoreAccess::Members,
            notice: Duration::ZERO,
            no_progress_limit: 0,
        };
        let hosts = (0..hosts).map(|_| Host::new(start, &mut random)).collect();
        let mut world = Self {
            start,
            now: start,
            bug,
            timers: bug.timers(),
            shared,
            listed,
            hosts,
            processes: BTreeMap::new(),
            processes_started: 0,
            keepers: BTreeMap::new(),
            descriptions: BTreeMap::new(),
            streams: BTreeMap::new(),
            events: BTreeMap::new(),
            events_scheduled: 0,
            cuts: BTreeMap::new(),
            loss: (0, start),
            dies_after: None,
            is_aimed: false,
            loses_states: false,
            forgets: random.chance(25),
            checks_voters: random.chance(25) && !bug.forges_grants(),
            stage: Stage::Faulty,
            record: Record::default(),
            etcd: None,
            fixed: None,
            training: None,
            memory: None,
            stalls: None,
            health: None,
            faulty: FAULTY,
            chronicle: Chronicle::default(),
            stores_opened: 0,
            trace: None,
            random,
        };
        world.populate();
        world
    }

    /// Creates a world in which further faults are aimed at the voters.
    pub fn with_aimed_faults(seed: u64, bug: Bug) -> Self {
        let mut world = Self::new(seed, bug);
        world.aim();
        world
    }

    /// Creates a world in which any host may lose its state, and hosts leave and are started late.
    pub fn with_lost_states(seed: u64, bug: Bug) -> Self {
        let mut world = Self::new(seed, bug);
        world.lose_states();
        world
    }

    /// Creates a world in which the coordinator is chosen through etcd.
    pub fn with_etcd(seed: u64, bug: Bug) -> Self {
        let mut world = Self::new(seed, bug);
        world.choose_through_etcd();
        world
    }

    /// Creates a world of a job that has one endpoint.
    pub fn with_fixed_coordinator(seed: u64, bug: Bug) -> Self {
        let mut world = Self::new(seed, bug);
        world.fix_coordinator(seed);
        world
    }

    /// Runs the world to its end, and returns a number that changes with any effect of a coordinator.
    pub fn trace(&mut self) -> u64 {
        self.trace = Some(Trace::default());
        while self.step() == Ok(true) {}
        self.trace.as_ref().map_or(0, Trace::number)
    }

    /// Starts the hosts, and chooses the faults.
    fn populate(&mut self) {
        for host in 0..self.hosts.len() {
            let latest = if self.random.chance(80) { 300 } else { 6_000 };
            let delay = self.random.millis(0, latest);
            self.schedule(delay, Event::Start(host));
        }
        for _ in 0..self.random.between(0, 12) {
            let at = self.random.millis(0, 40_000);
            let fault = self.roll_fault();
            self.schedule(at, Event::Fault(fault));
        }
    }

    /// Handles the next event. Returns false at the end of the world: the job runs after the last fault, or has ended.
    ///
    /// # Errors
    ///
    /// Returns the rule that is broken, with the details.
    pub fn step(&mut self) -> Result<bool, String> {
        self.become_quiet();
        let Some(((at, _), event)) = self.events.pop_first() else {
            return match self.fixed {
                Some(_) => self.check_fixed_end(),
                None if self.loses_states => Ok(false),
                None => self.check_end(),
            };
        };
        self.now = self.now.max(at);
        self.record.events += 1;
        // A world with checkpoints in memory or with pauses may last longer, and its workers save at each step.
        let is_long = self.memory.is_some() || self.stalls.is_some();
        let most = if is_long { 2 * EVENTS_MAX } else { EVENTS_MAX };
        if self.record.events > most {
            let at = self.elapsed();
            return Err(format!("rule g: more than {most} events at {at:?}"));
        }
        self.happen(event);
        self.check_memory()?;
        self.check_machines()?;
        if !self.check_training()? {
            return Ok(false);
        }
        if self.fixed.is_some() {
            return self.check_fixed();
        }
        self.check_invariants()?;
        if self.loses_states {
            let goes_on = self.check_jobs();
            return match self.record.broken.take() {
                Some(broken) => Err(format!("{broken}, at {:?}", self.elapsed())),
                None => Ok(goes_on),
            };
        }
        self.check_coordinators();
        if self.record.is_majority_lost {
            return Ok(false);
        }
        match self.record.broken.take() {
            Some(broken) => Err(format!("{broken}, at {:?}", self.elapsed())),
            None => self.check_health(),
        }
    }

    /// Returns the simulated time since the start.
    pub fn elapsed(&self) -> Duration {
        self.now.saturating_duration_since(self.start)
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Start(host) => self.start_process(host),
            Event::Resume(host) => self.resume(host),
            Event::DeathNotice { to, node, round } => {
                let node = self.buried(node);
                if let Some(to) = self.process_at(to) {
                    self.give(to, Input::DeathNotice(node, round));
                }
            }
            Event::Dial(peer) => self.arrive_dial(peer),
            Event::Redial(peer) => self.dial(peer),
            Event::Process(id, input) => self.give(id, input),
            Event::Lease(node) => self.check_lease(&node),
            Event::Gone { node, round, is_by_cleanup } => {
                self.remove_workers(&node, round, is_by_cleanup)
            }
            Event::SendDeathNotice(node) => self.send_death_notices(&node),
            Event::WorkerFails(node, round) => self.fail_worker(&node, round),
            Event::Succeeds(node, round) => self.finish_workers(&node, round),
            Event::Training(event) => self.happen_in_training(event),
            Event::Memory(event) => self.happen_in_memory(event),
            Event::Stall(event) => self.happen_in_stalls(event),
            Event::Health { host, fails } => self.happen_in_machine(host, fails),
            Event::Store(event) => self.happen_in_store(event),
            Event::Fault(fault) => self.strike(fault),
        }
    }

    /// Gives an input to a process, now or when it is no longer frozen.
    fn give(&mut self, id: NodeId, input: Input) {
        let Some(process) = self.processes.get(&id) else { return };
        let frozen = process.frozen_until(input.part()).max(self.hosts[process.host].suspended);
        if let Some(until) = frozen.filter(|until| self.now < *until) {
            // Each part reads the messages that have arrived before it checks its timer.
            let is_timer = matches!(input, Input::Timer(..));
            let at = until + Duration::from_micros(u64::from(is_timer));
            return self.schedule_at(at, Event::Process(id, input));
        }
        match input {
            Input::Link(to, number, event) => self.handle_link(&id, &to, number, event),
            Input::Request(incoming) => self.arrive_incoming(&id, *incoming),
            Input::Answer(from, link, answer) => {
                self.arrive_linked_answer(&id, &from, link, *answer);
            }
            Input::Changed(number, outcome) => self.handle_changed(&id, number, *outcome),
            Input::Watched(value) => self.handle_watched(&id, *value),
            Input::Command(command) if self.etcd.is_some() => self.command_claim(&id, command),
            Input::Command(command) => self.handle_command(&id, command),
            Input::Leader => self.follow_leader(&id),
            Input::Voters(voters) => self.call_coordinator(&id, Waiting::Voters(voters)),
            Input::OtherJobs(jobs) => self.call_coordinator(&id, Waiting::OtherJobs(jobs)),
            Input::Yield(other, at) => self.yield_to(&id, other, at),
            Input::Outlived(outcome) => {
                self.with_node(&id, |node, now| {
                    node.tell(now, |agent| agent.handle_outlived(outcome.map(|o| *o)));
                });
            }
            Input::Stored(number, is_copied) => self.handle_stored(&id, number, is_copied),
            Input::Up(peer, message) => self.arrive_up(&id, peer, message),
            Input::DeathNotice(node, round) => self.arrive_death_notice(&id, node, round),
            Input::Shutdown => self.shut_down(&id),
            Input::Exit => self.exit(&id),
            Input::Down(peer, message) => self.arrive_down(&peer, message),
            Input::Agent(input) => self.input(&id, input),
            Input::Timer(part, at) => self.time_out(&id, part, at),
        }
    }

    /// Gives an input to a process after a delay.
    fn wake(&mut self, id: &NodeId, delay: Duration, input: Input) {
        self.schedule(delay, Event::Process(id.clone(), input));
    }

    /// Passes an input from one part of a process to another. Inputs arrive in order.
    fn pass(&mut self, id: &NodeId, input: Input) {
        let delay = if self.random.chance(3) {
            self.random.millis(0, 50)
        } else {
            Duration::from_micros(self.random.between(0, 200))
        };
        let now = self.now;
        let Some(process) = self.processes.get_mut(id) else { return };
        let free_at = &mut process.parts[input.part() as usize].free_at;
        *free_at = (*free_at).max(now + delay);
        let at = *free_at;
        self.schedule_at(at, Event::Process(id.clone(), input));
    }

    fn schedule(&mut self, delay: Duration, event: Event) {
        self.schedule_at(self.now + delay, event);
    }

    fn schedule_at(&mut self, at: Instant, event: Event) {
        // The counter breaks ties, so that the order is always determined.
        self.events_scheduled += 1;
        self.events.insert((at.max(self.now), self.events_scheduled), event);
    }

    fn run_id() -> RunId {
        RunId::new("run")
    }
}

impl Input {
    fn part(&self) -> Part {
        match self {
            Self::Link(..)
            | Self::Request(_)
            | Self::Answer(..)
            | Self::Changed(..)
            | Self::Watched(_)
            | Self::Command(_) => Part::Voter,
            Self::Leader
            | Self::Voters(_)
            | Self::OtherJobs(_)
            | Self::Yield(..)
            | Self::Outlived(_)
            | Self::Stored(..)
            | Self::Up(..)
            | Self::DeathNotice(..)
            | Self::Shutdown
            | Self::Exit => Part::Coordinator,
            Self::Down(..) | Self::Agent(_) => Part::Agent,
            Self::Timer(part, _) => *part,
        }
    }
}
