//! Models the workers: they load at the start of a round, train in lockstep and save at intervals. A rank that waits holds all of them up.

use std::{
    collections::BTreeMap,
    hash::{Hash, Hasher},
    time::{Duration, Instant},
};

use ragent_core::memory::{Answer, Ask, Buffer, Input, RangesRequest, Sum};
use ragent_rendezvous::{
    ids::{LocalRank, NodeId, RoundId},
    message::{CheckpointId, PartSources},
};

use super::{
    super::{Bug, Event, World},
    Memory, MemoryEvent, Odd, STEP,
};

/// The content of a memory file.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(super) enum Content {
    /// A worker or a transfer has not finished.
    Partial,
    /// A block.
    Whole {
        checkpoint: CheckpointId,
        /// The training that has written it.
        training: u64,
        global_rank: u32,
        /// True if the state leads to a failure.
        is_bad: bool,
        /// It differs if a byte has changed.
        mark: u64,
    },
}

/// A checkpoint, the training that has written it, and true if its state leads to a failure.
pub(super) type Lineage = (CheckpointId, u64, bool);

/// Returns the checksum of a content.
pub(super) fn sum_of(content: Option<&Content>, bytes: u64) -> Sum {
    let mut hasher = Fnv(0xcbf2_9ce4_8422_2325);
    (content, bytes).hash(&mut hasher);
    Sum(u128::from(hasher.finish()))
}

/// A hash that is the same in every run.
struct Fnv(u64);

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

/// The workers of a round.
#[derive(Debug)]
pub(super) struct Work {
    /// The number of this training.
    training: u64,
    pub(super) ranks: BTreeMap<(NodeId, LocalRank), Rank>,
    /// All parts of a checkpoint of other ranks, once global rank 0 has the list.
    pub(super) parts: Vec<PartSources>,
    /// True since all workers have loaded.
    pub(super) began: Option<Instant>,
    is_ticking: bool,
    step: u64,
    is_bad: bool,
    fails_at: Option<u64>,
    /// What the first worker has loaded, with its training.
    loaded: Option<Lineage>,
    /// A worker that has loaded nothing.
    without: Option<NodeId>,
}

#[derive(Clone, Debug)]
pub(super) struct Rank {
    pub(super) global_rank: u32,
    pub(super) since: Instant,
    pub(super) doing: Doing,
    /// The ranges that it still needs. It has asked for the last ones.
    pub(super) requests: Vec<RangesRequest>,
}

/// What a worker does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Doing {
    Starting,
    Loading,
    /// It waits for the list of all parts.
    Planning,
    /// It waits for ranges.
    Ranging,
    /// It reads what it was given.
    Reading(Buffer),
    /// It trains.
    Training,
    /// It waits for a buffer.
    Asking(u64),
    Filling(u64, Buffer),
    /// It has said that it has saved.
    Saving,
    Gone,
}

/// The time that a `save` may wait when there are no faults, a little less than the time after which the agent gives up.
const WAITS_MAX: Duration = Duration::from_secs(119);

impl Memory {
    /// Notes that a worker has ended. Returns false if it had ended before.
    pub(super) fn forget_worker(
        &mut self,
        id: &NodeId,
        round: RoundId,
        worker: LocalRank,
        bug: Bug,
    ) -> bool {
        let Some(work) = self.rounds.get_mut(&round) else { return false };
        let Some(rank) = work.ranks.get_mut(&(id.clone(), worker)) else { return false };
        if bug == Bug::OldSocket && matches!(rank.doing, Doing::Filling(..)) {
            return true;
        }
        let doing = std::mem::replace(&mut rank.doing, Doing::Gone);
        if let Doing::Filling(_, buffer) | Doing::Reading(buffer) = doing
            && let Some(driver) = self.drivers.get_mut(id)
        {
            driver.change_users(buffer, -1);
        }
        doing != Doing::Gone
    }
}

impl Memory {
    /// Returns the step that a worker of a node fills, if it is newer than a checkpoint.
    pub(super) fn filling_step(&self, id: &NodeId, than: CheckpointId) -> Option<u64> {
        let works = self.rounds.values().flat_map(|work| &work.ranks);
        let of_node = works.filter(|((node, _), _)| node == id);
        let steps = of_node.filter_map(|(_, rank)| match rank.doing {
            Doing::Filling(step, _) => Some(step),
            _ => None,
        });
        steps.filter(|step| *step > than.step).max()
    }
}

impl World {
    /// Begins the workers of a round on a node.
    pub(in crate::world) fn begin_memory(&mut self, id: &NodeId, round: RoundId) {
        let now = self.now;
        let members = self.chronicle.rounds.get(&round).into_iter().flatten();
        let member = members.into_iter().find(|member| member.node == *id);
        let Some((first, size)) =
            member.map(|member| (member.admission.first_global_rank.0, member.local_world_size))
        else {
            return;
        };
        let Some(memory) = &mut self.memory else { return };
        if !memory.rounds.contains_key(&round) {
            memory.trainings += 1;
            let work = Work {
                training: memory.trainings,
                ranks: BTreeMap::new(),
                parts: Vec::new(),
                began: None,
                is_ticking: false,
                step: 0,
                is_bad: false,
                fails_at: None,
                loaded: None,
                without: None,
            };
            memory.rounds.insert(round, work);
        }
        let Some(work) = memory.rounds.get_mut(&round) else { return };
        let is_first = !std::mem::replace(&mut work.is_ticking, true);
        let mut begins = Vec::new();
        for worker in 0..size {
            let rank = Rank {
                global_rank: first + worker,
                since: now,
                doing: Doing::Starting,
                requests: Vec::new(),
            };
            work.ranks.insert((id.clone(), LocalRank(worker)), rank);
            begins.push((LocalRank(worker), memory.random.millis(50, 600)));
        }
        for (worker, pause) in begins {
            let event = MemoryEvent::Begin(id.clone(), round, worker);
            self.schedule(pause, Event::Memory(event));
        }
        if is_first {
            self.schedule(STEP, Event::Memory(MemoryEvent::Step(round)));
        }
    }

    pub(super) fn rank_of(
        &mut self,
        id: &NodeId,
        round: RoundId,
        worker: LocalRank,
    ) -> Option<&mut Rank> {
        let memory = self.memory.as_mut()?;
        memory.rounds.get_mut(&round)?.ranks.get_mut(&(id.clone(), worker))
    }

    pub(super) fn begin_worker(&mut self, id: &NodeId, round: RoundId, worker: LocalRank) {
        if !self.runs_workers_of(id, round) {
            return;
        }
        let Some(memory) = &self.memory else { return };
        let kind = memory.script.kind;
        let Some(rank) = self.rank_of(id, round, worker) else { return };
        if rank.doing != Doing::Starting {
            return;
        }
        rank.doing = Doing::Loading;
        self.ask(id, round, worker, Ask::Load { kind });
    }

    /// Gives a worker the answer of its agent.
    pub(super) fn answer_worker(&mut self, id: &NodeId, worker: LocalRank, answer: Answer) {
        let now = self.now;
        let Some(memory) = &mut self.memory else { return };
        let Some(round) = memory.drivers.get(id).and_then(|driver| driver.sockets) else { return };
        if let Answer::Buffer { buffer, .. } = &answer
            && let Some(driver) = memory.drivers.get_mut(id)
        {
            // It is made, also if the worker has ended.
            let is_used = driver.buffers.get(&buffer.id).is_some_and(|file| file.users > 0);
            driver.put(*buffer, Some(Content::Partial));
            if is_used {
                let buffer = *buffer;
                self.breaks_memory(|| format!("rule z: {id} gives {buffer:?}, which is used"));
            }
        }
        if !self.runs_workers_of(id, round) {
            return;
        }
        let fills_ms = self.memory.as_ref().map_or(0, |memory| memory.script.fills_ms);
        let Some(rank) = self.rank_of(id, round, worker) else { return };
        let doing = rank.doing;
        let next = match (&answer, doing) {
            (Answer::Block { buffer, .. }, Doing::Loading) => Doing::Reading(*buffer),
            (Answer::Nothing, Doing::Loading) => Doing::Training,
            (Answer::Resharded { .. }, Doing::Loading) => Doing::Planning,
            (Answer::Ranges { .. } | Answer::Refused(_), Doing::Ranging) => Doing::Ranging,
            (Answer::Buffer { buffer, .. }, Doing::Asking(step)) => Doing::Filling(step, *buffer),
            (Answer::Refused(_), Doing::Asking(_) | Doing::Saving)
            | (Answer::Taken, Doing::Saving) => Doing::Training,
            _ => return,
        };
        (rank.doing, rank.since) = (next, now);
        let Some(memory) = &mut self.memory else { return };
        if matches!(next, Doing::Reading(_) | Doing::Planning) {
            memory.known.given.insert((id.clone(), round.round));
        }
        if let (Doing::Filling(_, buffer) | Doing::Reading(buffer), Some(driver)) =
            (next, memory.drivers.get_mut(id))
        {
            driver.change_users(buffer, 1);
            let takes = memory.random.millis(2, fills_ms.max(3));
            let step = if let Doing::Filling(step, _) = next { step } else { 0 };
            let event = MemoryEvent::Filled(id.clone(), round, worker, step);
            self.schedule(takes, Event::Memory(event));
        }
        match answer {
            Answer::Block { buffer, step, .. } => self.load(id, round, worker, buffer, step),
            Answer::Nothing => self.load_nothing(id, round),
            Answer::Resharded { step, parts } => self.plan_ranges(id, round, worker, step, parts),
            Answer::Ranges { transfer, bytes } => {
                self.read_ranges(id, round, worker, transfer, bytes);
            }
            Answer::Refused(why) if next == Doing::Ranging => {
                self.breaks_memory(|| format!("rule w: {id} refuses ranges in {round}: {why}"));
            }
            _ => {}
        }
    }

    /// Checks rules w and ac for a worker that gets a block.
    fn load(&mut self, id: &NodeId, round: RoundId, worker: LocalRank, buffer: Buffer, step: u64) {
        let Some(memory) = &mut self.memory else { return };
        let is_replicated = memory.script.is_replicated;
        let Some(content) = memory.drivers.get(id).and_then(|driver| driver.content(buffer)) else {
            return self.breaks_memory(|| format!("rule w: {id} gives an empty {buffer:?}"));
        };
        let content = content.clone();
        let Some(work) = memory.rounds.get_mut(&round) else { return };
        let Some(rank) = work.ranks.get(&(id.clone(), worker)) else { return };
        let own_rank = rank.global_rank;
        let Content::Whole { checkpoint, training, global_rank, is_bad, mark } = content else {
            return self.breaks_memory(|| format!("rule w: {id} loads a torn block in {round}"));
        };
        if checkpoint.step != step || !is_replicated && global_rank != own_rank {
            return self.breaks_memory(|| {
                format!("rule w: rank {own_rank} on {id} loads {checkpoint:?} of {global_rank}")
            });
        }
        if mark > 0 && !memory.faults.changed.contains(&checkpoint) {
            return self.breaks_memory(|| format!("rule w: rank {own_rank} loads {mark}"));
        }
        self.check_loaded(id, round, worker, (checkpoint, training, is_bad));
        self.refuse_by_chance(id, round, worker, checkpoint);
    }

    /// Checks rules w and ac for the lineage of a block.
    pub(super) fn check_loaded(
        &mut self,
        id: &NodeId,
        round: RoundId,
        worker: LocalRank,
        lineage: Lineage,
    ) {
        let is_off = self.is_off_on(id, round);
        let plan = self.plan_of(round);
        let Some(memory) = &mut self.memory else { return };
        let Some(work) = memory.rounds.get_mut(&round) else { return };
        let without = work.without.clone();
        let first = *work.loaded.get_or_insert(lineage);
        let checkpoint = lineage.0;
        if first != lineage || Some(checkpoint) != plan {
            return self.breaks_memory(|| {
                format!(
                    "rule w: {worker:?} of {id} loads {lineage:?} in {round}, others {first:?}, and \
                     the plan is {plan:?}"
                )
            });
        }
        if let Some(other) = without {
            return self
                .breaks_memory(|| format!("rule w: {id} loads {checkpoint:?}, {other} nothing"));
        }
        if is_off {
            self.breaks_memory(|| {
                format!("rule ac: {id} loads {checkpoint:?} after memory went off in {round}")
            });
        }
    }

    pub(super) fn refuse_by_chance(
        &mut self,
        id: &NodeId,
        round: RoundId,
        worker: LocalRank,
        checkpoint: CheckpointId,
    ) {
        let Some(memory) = &mut self.memory else { return };
        if memory.random.chance(memory.script.refuses_percent) {
            self.refuse(id, round, worker, checkpoint, "it does not fit the model");
        }
    }

    /// Lets a worker end because it cannot use what it has loaded.
    fn refuse(
        &mut self,
        id: &NodeId,
        round: RoundId,
        worker: LocalRank,
        checkpoint: CheckpointId,
        why: &str,
    ) {
        let Some(memory) = &mut self.memory else { return };
        memory.faults.refused.insert(checkpoint);
        let ask = Ask::Unusable { step: checkpoint.step, reason: why.to_owned() };
        self.ask(id, round, worker, ask);
        let event = MemoryEvent::Fails(id.clone(), round);
        self.schedule(Duration::from_millis(300), Event::Memory(event));
    }

    fn load_nothing(&mut self, id: &NodeId, round: RoundId) {
        let plan = self.plan_of(round);
        let Some(memory) = &mut self.memory else { return };
        let Some(work) = memory.rounds.get_mut(&round) else { return };
        work.without.get_or_insert_with(|| id.clone());
        if let Some(loaded) = work.loaded {
            return self.breaks_memory(|| {
                format!("rule w: {id} loads nothing in {round}, others {loaded:?}")
            });
        }
        if let Some(plan) = plan {
            self.breaks_memory(|| format!("rule w: {id} loads nothing in {round}, not {plan:?}"));
        }
    }

    /// Ends the filling or reading of a buffer.
    pub(super) fn fill(&mut self, id: &NodeId, round: RoundId, worker: LocalRank, step: u64) {
        let is_bug = self.bug == Bug::OldSocket;
        let runs = self.runs_workers_of(id, round);
        if !runs && !is_bug {
            return;
        }
        let now = self.now;
        let Some(rank) = self.rank_of(id, round, worker) else { return };
        let (doing, global_rank) = (rank.doing, rank.global_rank);
        (rank.doing, rank.since) = match doing {
            Doing::Reading(_) => (Doing::Training, now),
            Doing::Filling(filled, _) if filled == step => (Doing::Saving, now),
            other => return rank.doing = other,
        };
        let Some(memory) = &mut self.memory else { return };
        let bytes = memory.script.bytes;
        let kind = memory.script.kind;
        let is_replicated = memory.script.is_replicated;
        let Some(work) = memory.rounds.get(&round) else { return };
        let checkpoint = CheckpointId { round, step };
        let (training, is_bad) = (work.training, work.is_bad);
        let Some(driver) = memory.drivers.get_mut(id) else { return };
        match doing {
            Doing::Reading(buffer) => driver.change_users(buffer, -1),
            Doing::Filling(_, buffer) => {
                driver.change_users(buffer, -1);
                let content = Content::Whole { checkpoint, training, global_rank, is_bad, mark: 0 };
                driver.put(buffer, Some(content));
                if !runs {
                    // The bug: the process of an earlier round speaks in the next one.
                    let Some(round) = driver.sockets.filter(|of_socket| *of_socket != round) else {
                        rank_again(memory, id, round, worker, buffer, step);
                        let event = MemoryEvent::Filled(id.clone(), round, worker, step);
                        return self.schedule(Duration::from_secs(1), Event::Memory(event));
                    };
                    let left = driver.left();
                    let ask = Ask::Buffer { step, bytes, kind, is_replicated };
                    let asked = Input::Asked { round, worker, ask, left };
                    self.tell_keeper(id, Duration::ZERO, asked);
                }
                self.ask(id, round, worker, Ask::Saved { step, bytes });
            }
            _ => {}
        }
    }

    /// Lets the workers of a round make a step, if all of them train.
    pub(super) fn make_step(&mut self, round: RoundId) {
        let now = self.now;
        let size = self.size_of(round);
        let Some(memory) = &self.memory else { return };
        let Some(work) = memory.rounds.get(&round) else { return };
        let nodes: std::collections::BTreeSet<&NodeId> =
            work.ranks.keys().map(|(id, _)| id).collect();
        let running = nodes.iter().filter(|id| self.runs_workers_of(id, round)).count();
        if running == 0 {
            return;
        }
        let all_run = size == Some(running);
        let trains = work.ranks.values().all(|rank| rank.doing == Doing::Training);
        let waits = work.ranks.iter().find_map(|((id, _), rank)| {
            let since = rank.since.max(self.quiet_since()?);
            let may_wait =
                matches!(rank.doing, Doing::Asking(_) | Doing::Planning | Doing::Ranging);
            let is_long = may_wait && since + WAITS_MAX < now;
            is_long.then(|| (id.clone(), rank.clone()))
        });
        self.schedule(STEP, Event::Memory(MemoryEvent::Step(round)));
        let has_odd = self.memory.as_ref().is_some_and(|memory| memory.script.odd.is_some());
        if let Some((id, rank)) = waits.filter(|_| all_run && !has_odd) {
            return self.breaks_memory(|| format!("rule aa: {rank:?} of {id} waits in {round}"));
        }
        self.check_copied(round);
        if !all_run || !trains {
            return;
        }
        let is_resharded = self.is_resharded(round);
        let Some(memory) = &mut self.memory else { return };
        let Some(work) = memory.rounds.get_mut(&round) else { return };
        let script = &memory.script;
        if work.began.is_none() {
            work.began = Some(now);
            (work.step, work.is_bad) = match work.loaded {
                Some((checkpoint, _, is_bad)) => (checkpoint.step, is_bad),
                None => (memory.disk, false),
            };
            memory.totals.restored += u64::from(work.loaded.is_some());
            memory.totals.resharded += u64::from(work.loaded.is_some() && is_resharded);
            work.fails_at = work.is_bad.then_some(work.step + script.fails_after);
            return;
        }
        work.step += 1;
        let step = work.step;
        if work.fails_at.is_some_and(|at| at <= step) {
            work.fails_at = None;
            let id = work.ranks.keys().next().map(|(id, _)| id.clone());
            let Some(id) = id else { return };
            return self.happen_in_memory(MemoryEvent::Fails(id, round));
        }
        if step.is_multiple_of(script.disk_interval) && !work.is_bad {
            memory.disk = memory.disk.max(step);
        }
        if step.is_multiple_of(script.interval) && memory.random.chance(script.bad_percent) {
            work.is_bad = true;
            work.fails_at.get_or_insert(step + script.fails_after);
        }
        let mut asks = Vec::new();
        for ((id, worker), rank) in &mut work.ranks {
            let odd = script.odd.filter(|(odd, _)| *odd == rank.global_rank);
            let shift = match odd.map(|(_, odd)| odd) {
                Some(Odd::Never) => continue,
                Some(Odd::OtherSteps) => 1,
                None => 0,
            };
            let saves = (step + shift).is_multiple_of(script.interval)
                && (!script.is_replicated || *worker == LocalRank(0));
            if saves {
                (rank.doing, rank.since) = (Doing::Asking(step), now);
                asks.push((id.clone(), *worker));
            }
        }
        let (bytes, kind, is_replicated) = (script.bytes, script.kind, script.is_replicated);
        for (id, worker) in asks {
            self.ask(&id, round, worker, Ask::Buffer { step, bytes, kind, is_replicated });
        }
    }
}

fn rank_again(
    memory: &mut Memory,
    id: &NodeId,
    round: RoundId,
    worker: LocalRank,
    buffer: Buffer,
    step: u64,
) {
    if let Some(work) = memory.rounds.get_mut(&round)
        && let Some(rank) = work.ranks.get_mut(&(id.clone(), worker))
    {
        rank.doing = Doing::Filling(step, buffer);
    }
}
