//! Simulates checkpoints in memory: workers that save and load, and the memory files and transfers of the agents. Its rules:
//!
//! - w: all workers of a round that load get the checkpoint of its plan, each its own block, as one training has written it. No worker gets
//!   nothing while another one gets a block, also if memory goes off in the middle. Of a checkpoint of other ranks, each worker gets the
//!   ranges that it wants, and none is sent before the checksum of its block is computed.
//! - x: the plan of a round is the same for all members, and held. It is the newest checkpoint that fits and is not void. If it was saved
//!   with other ranks, all parts are named in order, and each named node holds its part.
//! - y: without lack of memory, and with the same ranks or by DCP, what a node was told to be whole survives the death of a worker and, if
//!   it was copied, the loss of a node.
//! - z: a node holds at most two checkpoints of its own and three parts of others, besides what is left of a plan and of an older checkpoint. Its memory files stay
//!   below its limit, and none is closed or overwritten while it is used.
//! - aa: when faults have stopped, no `save` waits for 120 s, and what was restored is soon on two nodes.
//! - ab: at most two charged rounds begin with a checkpoint without a newer one that became whole. Lost nodes, workers that are killed
//!   with them, and those that had not received it strike none.
//! - ac: after memory was off in a round, no checkpoint of it or of an earlier one is loaded. No content crosses the network without a secret.
//! - ad: no round ends because a checkpoint cannot be used, unless a fault of the world explains it.
//! - aq: a spare takes the place of a failed node only if it has room for all that this node keeps. Without a secret it has none.
//!
//! These worlds have random numbers of their own, so that the other worlds of a seed stay the same.

mod driver;
mod forging;
mod resharding;
mod rules;
mod transfers;
mod workers;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use ragent_core::memory::{Buffer, MemoryLeft, MemorySettings};
use ragent_rendezvous::{
    ids::{LocalRank, NodeId, RoundId},
    message::{CheckpointId, MemoryKind, MemoryReport, NodeDescription, NoticeKind},
};

use self::{
    driver::Driver,
    rules::Known,
    transfers::{Flight, Stage as FlightStage},
    workers::{Content, Work},
};
use super::{
    Bug, Event, World,
    fault::{Fault, Victim},
    node::AgentInput,
    rules::Stage,
};
use crate::random::Random;

/// The checkpoints in memory of a job.
#[derive(Debug)]
pub(super) struct Memory {
    random: Random,
    script: Script,
    hosts: Hosts,
    drivers: BTreeMap<NodeId, Driver>,
    flights: BTreeMap<u64, Flight>,
    flights_begun: u64,
    rounds: BTreeMap<RoundId, Work>,
    trainings: u64,
    /// The step of the checkpoint on disk.
    disk: u64,
    faults: Faults,
    known: Known,
    /// Reports that are delivered one report late.
    delayed: BTreeMap<(NodeId, NodeId), MemoryReport>,
    broken: Option<String>,
    totals: MemoryTotals,
    /// The world lasts at least until then, to see that no `save` waits.
    until: Instant,
    /// True if the job has run after the last fault.
    has_healed: bool,
}

/// The numbers of a world with checkpoints in memory.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct MemoryTotals {
    /// Rounds in which all workers have loaded a checkpoint from memory.
    pub restored: u64,
    /// Rounds of these whose checkpoint was saved with other ranks on the nodes.
    pub resharded: u64,
    /// Blocks that were fetched.
    pub fetched: u64,
    /// Blocks that were copied.
    pub copied: u64,
    /// Checkpoints that were struck off.
    pub struck: u64,
    /// Rounds in which memory went off.
    pub off: u64,
    /// Echoes that have named a newer checkpoint as whole.
    pub whole: u64,
}

/// What the script does.
#[derive(Debug)]
struct Script {
    kind: MemoryKind,
    is_replicated: bool,
    /// The number of steps between two saves.
    interval: u64,
    /// The number of steps between two saves on disk.
    disk_interval: u64,
    /// The size of a block.
    bytes: u64,
    /// The longest time in which a worker fills a buffer, in milliseconds.
    fills_ms: u64,
    /// The global rank that behaves otherwise.
    odd: Option<(u32, Odd)>,
    /// The percentage of saves whose state is bad.
    bad_percent: u64,
    /// The number of steps after which a bad state fails.
    fails_after: u64,
    /// The percentage of loads that the script refuses.
    refuses_percent: u64,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Odd {
    /// It never saves.
    Never,
    /// It saves other steps.
    OtherSteps,
}

/// What differs between the hosts.
#[derive(Debug)]
struct Hosts {
    /// The number of workers of each host; `None` if it differs.
    workers: Option<u32>,
    /// The number of hosts in a failure domain; 0 for none.
    domain: usize,
    /// True if two hosts have the same name.
    shares_name: bool,
    has_secret: bool,
    /// The most memory for parts, in blocks.
    limit: u64,
    capacity: u64,
    /// The highest time of a transfer between two hosts, in milliseconds.
    slow: BTreeMap<(usize, usize), u64>,
    /// Hosts whose agents reach another one never.
    walls: BTreeSet<(usize, usize)>,
}

/// The faults so far, as far as the rules need them.
#[derive(Debug, Default)]
struct Faults {
    /// Checkpoints of which a byte was changed.
    changed: BTreeSet<CheckpointId>,
    /// Checkpoints that the script has refused.
    refused: BTreeSet<CheckpointId>,
    /// The last time at which a transfer has failed, or a process was lost.
    failed: Option<Instant>,
    /// The last time at which a node had too little memory.
    short: Option<Instant>,
    /// The last time at which memory went off.
    off: Option<Instant>,
}

/// An event of the checkpoints in memory.
#[derive(Debug)]
pub(super) enum MemoryEvent {
    /// A worker begins.
    Begin(NodeId, RoundId, LocalRank),
    /// A worker has filled a buffer.
    Filled(NodeId, RoundId, LocalRank, u64),
    /// A worker fails.
    Fails(NodeId, RoundId),
    /// The workers of a round make a step, if none waits.
    Step(RoundId),
    /// A transfer goes on.
    Flight(u64, FlightStage),
    /// A checksum is computed.
    Sum(NodeId, Buffer, u64),
    /// A node watches its memory.
    Watch(NodeId),
}

/// A fault that concerns the memory.
#[derive(Clone, Copy, Debug)]
pub(super) enum MemoryFault {
    /// A byte changes in a buffer of some node.
    Change,
    /// Memory gets short on some node for a while.
    Short(Duration),
    /// A worker dies.
    WorkerDies,
    /// A node receives the notice that it leaves.
    Leave,
}

const STEP: Duration = Duration::from_millis(400);

/// The memory that stays free.
const RESERVE: u64 = 1_000;

impl World {
    /// Creates a world whose workers keep checkpoints in memory. It has one endpoint, or voters.
    pub fn with_memory(seed: u64, bug: Bug) -> Self {
        let mut world = if seed.is_multiple_of(2) {
            Self::with_fixed_coordinator(seed, bug)
        } else {
            Self::new(seed, bug)
        };
        world.keep_in_memory(seed);
        world
    }

    fn keep_in_memory(&mut self, seed: u64) {
        let mut random = Random::new(seed ^ 0x6d65_6d6f_7279);
        self.shared.memory_copies = u32::from(random.chance(88));
        let restarts = random.pick(&[1, 6, 20, 20]).unwrap_or(6);
        self.shared.max_restarts = self.shared.max_restarts.max(restarts);
        if random.chance(20) {
            self.shared.notice = random.millis(2_000, 6_000);
        }
        let hosts = self.hosts.len();
        let bytes = random.between(20, 60);
        let odd_rank = u32::try_from(random.between(0, 3)).unwrap_or(0);
        let odd = match random.between(1, 100) {
            1..=5 => Some(Odd::Never),
            6..=10 => Some(Odd::OtherSteps),
            _ => None,
        };
        let mut script = Script {
            kind: if random.chance(80) { MemoryKind::State } else { MemoryKind::Dcp },
            is_replicated: random.chance(25),
            interval: random.between(1, 6),
            disk_interval: random.pick(&[7, 20, 50]).unwrap_or(20),
            bytes,
            fills_ms: random.pick(&[20, 300, 1_500]).unwrap_or(300),
            odd: odd.map(|odd| (odd_rank, odd)),
            bad_percent: random.pick(&[0, 0, 3, 10]).unwrap_or(0),
            fails_after: random.between(1, 8),
            refuses_percent: random.pick(&[0, 0, 0, 0, 5]).unwrap_or(0),
        };
        if self.bug == Bug::StrikesLost {
            // The bug only matters if a coordinator is lost while a bad checkpoint is tried.
            (script.interval, script.bad_percent, script.fails_after) = (6, 50, 3);
            for _ in 0..4 {
                let (at, down) = (random.millis(5_000, 38_000), random.millis(100, 1_000));
                let fault = Fault::KillAgent { victim: Victim::Leader, down };
                self.schedule(at, Event::Fault(fault));
            }
        }
        let some_pairs = |percent: u64, random: &mut Random| -> BTreeSet<(usize, usize)> {
            let mut pairs = BTreeSet::new();
            for from in 0..hosts {
                for to in 0..hosts {
                    if from != to && random.chance(percent) {
                        pairs.insert((from, to));
                    }
                }
            }
            pairs
        };
        let walls = if random.chance(8) { some_pairs(25, &mut random) } else { BTreeSet::new() };
        let slow = if random.chance(25) { some_pairs(30, &mut random) } else { BTreeSet::new() };
        let slow = slow.into_iter().map(|pair| (pair, random.between(2_000, 100_000))).collect();
        let workers = random.pick(&[1, 1, 2, 3]);
        let workers = workers.filter(|_| random.chance(92));
        let part = bytes * u64::from(workers.unwrap_or(3));
        let limit = if random.chance(10) { part * random.between(0, 5) } else { part * 20 };
        let hosts = Hosts {
            workers,
            domain: if random.chance(15) { 2 } else { 0 },
            shares_name: random.chance(6),
            has_secret: random.chance(90),
            limit,
            capacity: RESERVE + part * 40,
            slow,
            walls,
        };
        for _ in 0..random.between(0, 4) {
            let at = random.millis(4_000, 38_000);
            let fault = match random.between(1, 100) {
                1..=55 => MemoryFault::WorkerDies,
                56..=72 => MemoryFault::Change,
                73..=82 => MemoryFault::Short(random.millis(500, 5_000)),
                _ => MemoryFault::Leave,
            };
            self.schedule(at, Event::Fault(Fault::Memory(fault)));
        }
        let lasts = match random.chance(25) || self.bug.needs_long_worlds() {
            true => super::FAULTY + Duration::from_secs(190),
            false => super::FAULTY + random.millis(0, 30_000),
        };
        self.memory = Some(Box::new(Memory {
            random,
            script,
            hosts,
            drivers: BTreeMap::new(),
            flights: BTreeMap::new(),
            flights_begun: 0,
            rounds: BTreeMap::new(),
            trainings: 0,
            disk: 0,
            faults: Faults::default(),
            known: Known::default(),
            delayed: BTreeMap::new(),
            broken: None,
            totals: MemoryTotals::default(),
            until: self.start + lasts,
            has_healed: false,
        }));
    }

    /// Returns the numbers of checkpoints in memory so far.
    pub fn memory_totals(&self) -> MemoryTotals {
        self.memory.as_ref().map(|memory| memory.totals).unwrap_or_default()
    }

    /// Notes that the job runs after the last fault. Returns true if the world must last longer.
    pub(super) fn heal_with_memory(&mut self) -> bool {
        if let Some(memory) = &mut self.memory {
            memory.has_healed = true;
        }
        self.memory_goes_on()
    }

    /// Returns true if the job has run after the last fault, in a world that lasts longer.
    pub(super) fn has_healed_with_memory(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| memory.has_healed)
    }

    /// Returns true if the world must last longer.
    pub(super) fn memory_goes_on(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| self.now < memory.until)
    }

    /// Returns the settings of an agent for its memory, and adapts its description.
    pub(super) fn memory_of_agent(
        &mut self,
        host: usize,
        node: &mut NodeDescription,
    ) -> MemorySettings {
        let copies = self.shared.memory_copies > 0;
        let Some(memory) = &mut self.memory else { return MemorySettings::off() };
        let workers = memory.hosts.workers.and_then(std::num::NonZeroU32::new);
        node.local_world_size = workers.unwrap_or(node.local_world_size);
        if let Some(number) = host.checked_div(memory.hosts.domain) {
            node.failure_domain = format!("rack{number}");
        }
        if memory.hosts.shares_name && host == 1 {
            node.host_name = "host0".to_owned();
        }
        let driver = Driver::new(host, memory.hosts.capacity);
        let left = driver.left();
        memory.drivers.insert(node.node_id.clone(), driver);
        MemorySettings {
            workers: node.local_world_size,
            host_name: node.host_name.clone(),
            limit: memory.hosts.limit,
            reserve: RESERVE,
            has_copies: copies,
            is_secured: false,
            address: None,
            left,
        }
    }

    /// Returns the address at which other agents reach a node.
    pub(super) fn memory_address(&self, id: &NodeId) -> Option<String> {
        let memory = self.memory.as_ref()?;
        memory.hosts.has_secret.then(|| address_of(id))
    }

    pub(super) fn happen_in_memory(&mut self, event: MemoryEvent) {
        match event {
            MemoryEvent::Begin(id, round, rank) => self.begin_worker(&id, round, rank),
            MemoryEvent::Filled(id, round, rank, step) => self.fill(&id, round, rank, step),
            MemoryEvent::Fails(id, round) => {
                self.schedule(Duration::ZERO, Event::WorkerFails(id, round));
                self.fail_others(round);
            }
            MemoryEvent::Step(round) => self.make_step(round),
            MemoryEvent::Flight(number, stage) => self.fly(number, stage),
            MemoryEvent::Sum(id, buffer, bytes) => self.sum(&id, buffer, bytes),
            MemoryEvent::Watch(id) => self.watch_memory_of(&id),
        }
    }

    pub(super) fn strike_memory(&mut self, fault: MemoryFault) {
        let now = self.now;
        let ids: Vec<NodeId> = self.processes.keys().cloned().collect();
        let Some(memory) = &mut self.memory else { return };
        let Some(id) = memory.random.pick(&ids) else { return };
        match fault {
            MemoryFault::Change => {
                let Some(driver) = memory.drivers.get_mut(&id) else { return };
                let buffers: Vec<u64> = driver.buffers.keys().copied().collect();
                let Some(buffer) = memory.random.pick(&buffers) else { return };
                if let Some(Content::Whole { checkpoint, mark, .. }) =
                    driver.buffers.get_mut(&buffer).and_then(|file| file.content.as_mut())
                {
                    *mark += 1;
                    memory.faults.changed.insert(*checkpoint);
                }
            }
            MemoryFault::Short(time) => {
                memory.faults.short = Some(now + time + Duration::from_secs(2));
                if let Some(driver) = memory.drivers.get_mut(&id) {
                    driver.short_until = Some(now + time);
                }
            }
            MemoryFault::WorkerDies => {
                if let Some(round) = self.round_on(&id) {
                    self.happen_in_memory(MemoryEvent::Fails(id, round));
                }
            }
            MemoryFault::Leave => {
                let notice = AgentInput::Notice(NoticeKind::Leave, None);
                self.wake_agent(&id, Duration::ZERO, notice);
            }
        }
    }

    /// Ends what slows transfers down, with the other faults.
    pub(super) fn end_memory_faults(&mut self) {
        let Some(memory) = &mut self.memory else { return };
        memory.hosts.slow.clear();
        memory.drivers.values_mut().for_each(|driver| driver.short_until = None);
    }

    /// Returns the time since which there are no faults.
    fn quiet_since(&self) -> Option<Instant> {
        match self.stage {
            Stage::Faulty | Stage::Closed(_) => None,
            Stage::Quiet(since) | Stage::Healed(since, _) => Some(since),
        }
    }

    /// Notes that a rule is broken; the first one counts.
    fn breaks_memory(&mut self, why: impl FnOnce() -> String) {
        if let Some(memory) = &mut self.memory {
            memory.broken.get_or_insert_with(why);
        }
    }
}

fn address_of(id: &NodeId) -> String {
    format!("{id}:1")
}

/// Returns the node at an address.
fn node_at(address: &str) -> Option<NodeId> {
    Some(NodeId::new(address.strip_suffix(":1")?))
}

impl Driver {
    /// Returns the memory that is free.
    fn left(&self) -> MemoryLeft {
        let used: u64 = self.buffers.values().map(|file| file.size).sum();
        let available = match self.short_until {
            Some(_) => RESERVE / 2,
            None => self.capacity.saturating_sub(used),
        };
        MemoryLeft { available, oom_kills: None }
    }
}
