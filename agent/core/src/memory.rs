//! Decides which checkpoints this node keeps in memory, and for how long.
//!
//! 1. A worker asks for a buffer, fills it, and says that it has saved (`saving.rs`).
//! 2. When all workers of the node have saved, the node holds its *part* of the checkpoint. It reports the part to the
//!    coordinator, and sends a copy to another node, its *buddy* (`copying.rs`).
//! 3. The coordinator's echo names the newest checkpoint that is whole. Older ones are freed.
//! 4. A round begins with the checkpoint that its admission names. A node without the part fetches it, and workers read
//!    it (`restoring.rs`). If another number of ranks has saved the checkpoint, workers read ranges of all parts
//!    (`resharding.rs`).
//!
//! The machine has no file, socket or clock.

mod buffers;
mod copying;
mod interface;
mod parts;
mod report;
mod resharding;
mod restoring;
mod saving;
#[cfg(test)]
mod sequences;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    mem,
    num::NonZeroU32,
    time::{Duration, Instant},
};

use ragent_rendezvous::{
    ids::{GlobalRank, GroupRank, LocalRank, Round, RoundId},
    jitter::Pauses,
    message::{
        Admission, CheckpointId, LINE_MAX, MemoryPlan, MemoryReport, MemoryUnusable, PartPlace,
    },
    snapshot::size,
};

pub use self::interface::{
    Answer, Ask, BlockHeader, BlockRange, Buffer, Decline, Effect, Input, MemoryLeft,
    MemorySettings, PartId, RANGES_BYTES_MAX, RANGES_MAX, RangesRequest, Sum, TransferEnd,
    TransferId,
};
use self::{
    buffers::{Buffers, Room},
    copying::Copying,
    parts::{BlockState, Check, KeptPart},
    resharding::WantedRange,
    restoring::Restore,
    saving::{Filling, Waiting},
};

/// Keeps the checkpoints in the memory of this node.
#[derive(Debug)]
pub struct NodeMemory {
    settings: MemorySettings,
    /// The round in which this node has a place.
    round: Option<MemoryRound>,
    /// The newest round that this node knows, with or without a place in it.
    newest_round: Round,
    parts: BTreeMap<PartId, KeptPart>,
    buffers: Buffers,
    transfers: BTreeMap<TransferId, Transfer>,
    next_transfer: u64,
    copying: Copying,
    restore: Restore,
    /// The requests of workers that are not answered yet.
    waiting: BTreeMap<LocalRank, Waiting>,
    /// The buffers that workers fill.
    filling: BTreeMap<LocalRank, Filling>,
    /// The buffers that workers read.
    reading: BTreeMap<LocalRank, Buffer>,
    /// The ranges that are sent once the checksum of their block is computed.
    wanted_ranges: Vec<WantedRange>,
    /// The newest checkpoint that was whole, by the last echo of the round.
    whole: Option<CheckpointId>,
    /// The reason why nothing is saved in this round.
    off: Option<String>,
    obstacle: Option<String>,
    unusable: Option<MemoryUnusable>,
    /// The times for which the newest calls of `save` have stopped a worker.
    costs: VecDeque<Duration>,
    left: MemoryLeft,
    /// The number of standbys, which go before any part. `None` if this node has none in this job.
    standbys: Option<u32>,
    /// The seconds for which workers may have needed more memory than there is.
    short_for: u32,
    is_watching: bool,
    /// True if this job uses memory, so that the coordinator receives reports.
    is_used: bool,
    reported: Option<MemoryReport>,
    has_news: bool,
    effects: VecDeque<Effect>,
}

/// The place of this node in a round.
#[derive(Clone, Debug)]
pub(super) struct MemoryRound {
    round: RoundId,
    group_rank: GroupRank,
    nodes: u32,
    first_global_rank: GlobalRank,
    workers: NonZeroU32,
    plan: Option<MemoryPlan>,
    buddy: Option<String>,
    ward: Option<GroupRank>,
    /// False when the workers have ended.
    is_running: bool,
}

/// A transfer of a block.
#[derive(Clone, Debug)]
enum Transfer {
    /// A block of a part of this node goes to its buddy.
    Copy(PartId, LocalRank, Buffer),
    /// A block comes from another node. Its header and its buffer are known once the node has answered.
    Fetch { local_rank: LocalRank, from: String, header: Option<(BlockHeader, Buffer)> },
    /// Another agent sends a block.
    Receive(BlockHeader, Buffer),
    /// Another agent wants a block.
    Serve(Buffer),
    /// Bytes of a part come from another node for a worker.
    Ranges { worker: LocalRank, sources: Vec<String>, bytes: u64 },
    /// It is being ended, and only keeps its buffer from being reused.
    Over(Option<Buffer>),
}

/// The number of checkpoints of its own that a node keeps: the newest whole one, and the next one.
const OWN_MAX: usize = 2;
/// The number of checkpoints of its ward that it keeps.
const WARD_MAX: usize = 2;
/// The seconds until all parts are freed, because workers may need the memory. What was freed at first is not back at once:
/// the kernel needs a tenth of a second for a GiB.
const SHORT_MAX: u32 = 3;
/// The number of blocks that are sent or fetched at once. Other agents refuse more.
const TRANSFERS_MAX: usize = 4;

impl NodeMemory {
    /// Creates a memory that holds nothing. `seed` decides the jitter.
    pub fn new(settings: MemorySettings, seed: u64) -> Self {
        let pauses = Pauses::new(copying::RETRY_FIRST, copying::RETRY_MAX, seed);
        let (is_used, left) = (settings.address.is_some(), settings.left);
        Self {
            settings,
            round: None,
            newest_round: Round(0),
            parts: BTreeMap::new(),
            buffers: Buffers::default(),
            transfers: BTreeMap::new(),
            next_transfer: 0,
            copying: Copying::new(pauses),
            restore: Restore::default(),
            waiting: BTreeMap::new(),
            filling: BTreeMap::new(),
            reading: BTreeMap::new(),
            wanted_ranges: Vec::new(),
            whole: None,
            off: None,
            obstacle: None,
            unusable: None,
            costs: VecDeque::new(),
            left,
            standbys: None,
            short_for: 0,
            is_watching: false,
            is_used,
            reported: None,
            has_news: false,
            effects: VecDeque::new(),
        }
    }

    /// Sets the address at which other agents reach this one. It is known when a stream to the coordinator is open.
    pub fn set_address(&mut self, address: String) {
        self.settings.address = Some(address);
        self.is_used = true;
    }

    /// Sets the number of standbys that this node has.
    pub fn set_standbys(&mut self, standbys: u32) {
        self.standbys = Some(standbys);
    }

    /// Begins a round with a place for this node. The admission's plan is constant for the round.
    pub fn handle_admission(&mut self, now: Instant, admission: &Admission) {
        self.end_round();
        self.newest_round = admission.round.round;
        self.round = Some(MemoryRound {
            round: admission.round,
            group_rank: admission.group_rank,
            nodes: admission.group_world_size,
            first_global_rank: admission.first_global_rank,
            workers: self.settings.workers,
            plan: admission.memory.as_deref().cloned(),
            buddy: admission.buddy.clone(),
            ward: admission.ward,
            is_running: true,
        });
        self.keep_for_round(admission.memory.as_deref().map(|plan| plan.checkpoint));
        self.whole = None;
        self.off = None;
        self.obstacle = None;
        self.unusable = None;
        self.copying.begin();
        for part in self.parts.values_mut() {
            part.is_given_up = false;
            // It goes to the buddy of this round. One that has it says so.
            part.blocks.values_mut().for_each(|block| block.is_copied = false);
        }
        let workers = self.settings.workers;
        self.effects.push_back(Effect::OpenSockets { round: admission.round, workers });
        self.begin_restore(now);
        self.settle(now);
    }

    /// Notes that the workers of the round have ended. What they have not saved completely is dropped.
    pub fn handle_round_over(&mut self, now: Instant) {
        self.end_round();
        self.settle(now);
    }

    /// Notes that this node waits. `kept` is the checkpoint with which the round `round` has begun; `None` if the
    /// coordinator does not know it.
    pub fn handle_wait(&mut self, now: Instant, round: RoundId, kept: Option<CheckpointId>) {
        if round.round <= self.newest_round || kept.is_none() {
            return;
        }
        // A round has begun without this node.
        self.newest_round = round.round;
        self.end_round();
        self.round = None;
        self.whole = None;
        self.keep_for_round(kept);
        self.settle(now);
    }

    /// Notes the newest checkpoint that is whole.
    pub fn handle_whole(&mut self, now: Instant, whole: Option<CheckpointId>) {
        let Some(whole) = whole.filter(|whole| self.whole.is_none_or(|known| known < *whole))
        else {
            return;
        };
        self.whole = Some(whole);
        let round = self.round.as_ref();
        let is_over = |part: &KeptPart| {
            let is_leftover = round.is_some() && part.place(round) == PartPlace::Leftover;
            part.id.checkpoint < whole || part.id.checkpoint == whole && is_leftover
        };
        let over: Vec<PartId> =
            self.parts.values().filter(|part| is_over(part)).map(|part| part.id).collect();
        over.into_iter().for_each(|part| self.drop_part(part));
        self.settle(now);
    }

    /// Notes that nothing is saved for the rest of the round.
    pub fn handle_off(&mut self, now: Instant, round: RoundId, why: &str) {
        if self.round.as_ref().is_some_and(|own| own.round == round) && self.off.is_none() {
            self.turn_off(why.to_owned());
            self.settle(now);
        }
    }

    /// Handles an event of the driver.
    pub fn handle_input(&mut self, now: Instant, input: Input) {
        match input {
            Input::Asked { round, worker, ask, left } => {
                self.left = left;
                if self.is_running(round) {
                    self.is_used = true;
                    self.handle_ask(now, worker, ask);
                }
            }
            Input::WorkerGone { round, worker } => {
                if self.is_running(round) {
                    self.forget_worker(worker);
                }
            }
            Input::Summed { buffer, sum } => {
                self.buffers.unhold(buffer);
                self.handle_summed(buffer, sum);
            }
            Input::NotOpened { round, why } => {
                if self.is_running(round) {
                    let host = self.settings.host_name.clone();
                    self.turn_all_off(&format!("{host} has no sockets for its workers: {why}"));
                    // The ranks of other nodes may load it.
                    self.refuse_plan_without_memory();
                }
            }
            Input::Made(buffer) => self.buffers.note_made(buffer),
            Input::NotMade { buffer, why } => self.handle_not_made(buffer, &why),
            Input::Incoming { transfer, header, left } => {
                self.left = left;
                self.handle_incoming(transfer, &header);
            }
            Input::Wanted { transfer, part, local_rank } => {
                self.handle_wanted(transfer, part, local_rank);
            }
            Input::WantedRange { transfer, part, range } => {
                self.handle_wanted_range(transfer, part, range);
            }
            Input::Ended { transfer, end } => self.handle_ended(now, transfer, end),
            Input::Left(left) => {
                self.left = left;
                self.review_memory();
            }
        }
        self.settle(now);
    }

    /// Returns the time at which a deadline passes.
    pub fn poll_timeout(&self) -> Option<Instant> {
        [self.copying_deadline(), self.waiting_deadline()].into_iter().flatten().min()
    }

    /// Applies every deadline that has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.poll_timeout().is_some_and(|at| at <= now) {
            self.handle_waiting_timeout(now);
            self.settle(now);
        }
    }

    /// Returns the next effect; `None` if there are none.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Returns the reason why this node cannot use the checkpoint of its round.
    pub fn unusable(&self) -> Option<&MemoryUnusable> {
        self.unusable.as_ref()
    }

    fn is_running(&self, round: RoundId) -> bool {
        self.round.as_ref().is_some_and(|own| own.round == round && own.is_running)
    }

    /// Does what became possible: answers workers, and begins transfers.
    fn settle(&mut self, now: Instant) {
        self.serve_waiting(now);
        self.continue_restore();
        self.continue_copies(now);
        if self.off.is_some() {
            self.buffers.drop_idle(&mut self.effects);
        }
        let watches = !self.parts.is_empty();
        if mem::replace(&mut self.is_watching, watches) != watches {
            self.effects.push_back(Effect::WatchMemory(watches));
            if !watches {
                self.leave_to_standbys(None);
            }
        }
        self.review_report();
    }

    fn end_round(&mut self) {
        let Some(round) = self.round.as_mut().filter(|round| round.is_running) else { return };
        round.is_running = false;
        self.waiting.clear();
        let workers: BTreeSet<LocalRank> =
            self.filling.keys().chain(self.reading.keys()).copied().collect();
        workers.into_iter().for_each(|worker| self.forget_worker(worker));
        self.abort_own_transfers();
        self.effects.push_back(Effect::CloseSockets);
    }

    /// Frees what a round does not need that begins with this checkpoint. The newest older one stays until that is whole, as its *fallback*:
    /// the copies of the newer one may not be made yet, and then the loss of one node would lose both.
    fn keep_for_round(&mut self, plan: Option<CheckpointId>) {
        let older = self.parts.values().filter(|part| part.is_held());
        let older = older.map(|part| Some(part.id.checkpoint)).filter(|id| *id < plan).max();
        self.free_all_but(|part| {
            let checkpoint = Some(part.id.checkpoint);
            checkpoint == plan || Some(checkpoint) == older
        });
    }

    /// Returns true if a part is older than the checkpoint of the round.
    fn is_fallback(&self, part: &KeptPart) -> bool {
        let plan = self.round.as_ref().and_then(|round| round.plan.as_ref());
        plan.is_some_and(|plan| part.id.checkpoint < plan.checkpoint)
    }

    /// Takes a buffer. If there is no room, the fallback of the round is freed.
    fn take_buffer(&mut self, bytes: u64, room: impl Fn(&Self) -> Room) -> Option<Buffer> {
        let buffer = self.buffers.take(bytes, room(self), &mut self.effects);
        if buffer.is_some() {
            return buffer;
        }
        let fallback = self.parts.values().filter(|part| self.is_fallback(part));
        let fallback: Vec<PartId> = fallback.map(|part| part.id).collect();
        fallback.into_iter().for_each(|part| self.drop_part(part));
        self.buffers.take(bytes, room(self), &mut self.effects)
    }

    /// Frees all parts, except complete ones that are kept. A round begins, or memory is off.
    fn free_all_but(&mut self, is_kept: impl Fn(&KeptPart) -> bool) {
        let others = self
            .parts
            .values()
            .filter(|part| !is_kept(part) || !part.is_held())
            .map(|part| part.id);
        let others: Vec<PartId> = others.collect();
        others.into_iter().for_each(|part| self.drop_part(part));
        let blocks = self.parts.values_mut().flat_map(|part| part.blocks.values_mut());
        blocks.for_each(|block| block.check = Check::Needed);
    }

    /// Frees a part. What uses its buffers goes on, except transfers that write to them.
    fn drop_part(&mut self, id: PartId) {
        let Some(part) = self.parts.remove(&id) else { return };
        self.decline_ranges_of(id);
        for block in part.blocks.into_values() {
            self.buffers.free(block.buffer);
            if let BlockState::Receiving(transfer) = block.state
                && let Some(ended) = self.transfers.get_mut(&transfer)
            {
                *ended = Transfer::Over(ended.buffer());
                self.effects.push_back(Effect::Abort(transfer));
            }
        }
    }

    fn drop_block(&mut self, id: PartId, worker: LocalRank) {
        let Some(part) = self.parts.get_mut(&id) else { return };
        if let Some(block) = part.blocks.remove(&worker) {
            self.buffers.free(block.buffer);
        }
        if part.blocks.is_empty() {
            self.parts.remove(&id);
        }
    }

    /// Stops to save for the rest of the round, and frees all parts: an old one must not be used in place of a newer
    /// checkpoint on disk.
    fn turn_off(&mut self, why: String) {
        self.off.get_or_insert(why);
        self.free_all_but(|_| false);
        self.abort_own_transfers();
    }

    /// Stops to save, and makes the coordinator stop all nodes.
    fn turn_all_off(&mut self, why: &str) {
        self.obstacle = Some(fitted(&format!("{OFF}{why}")));
        self.turn_off(why.to_owned());
    }

    fn leave_to_standbys(&mut self, bytes: Option<u64>) {
        if self.standbys.is_some() {
            self.effects.push_back(Effect::LeaveToStandbys(bytes));
        }
    }

    /// Frees memory for the workers: first of standbys, then copies for other nodes, and then all parts.
    fn review_memory(&mut self) {
        if self.is_watching {
            self.leave_to_standbys(Some(self.room().available));
        }
        if self.left.available >= self.settings.reserve {
            self.short_for = 0;
            return;
        }
        self.buffers.drop_idle(&mut self.effects);
        self.short_for += 1;
        if self.short_for == 1 && self.standbys.is_some_and(|standbys| standbys > 0) {
            // Their memory counts at the next check.
            return;
        }
        let round = self.round.as_ref();
        // What workers are reading stays as long as own parts, because all ranks need it.
        let read = self.resharded_checkpoint();
        let is_foreign = |part: &&KeptPart| {
            part.place(round) != PartPlace::Own && read != Some(part.id.checkpoint)
        };
        let foreign: Vec<PartId> =
            self.parts.values().filter(is_foreign).map(|part| part.id).collect();
        if !foreign.is_empty() {
            foreign.into_iter().for_each(|part| self.drop_part(part));
            self.obstacle = Some(fitted(&format!("copies were dropped: {}", self.shortage())));
        } else if self.short_for >= SHORT_MAX && !self.parts.is_empty() {
            let shortage = self.shortage();
            self.turn_all_off(&shortage);
        }
        self.buffers.drop_idle(&mut self.effects);
    }

    fn shortage(&self) -> String {
        let (host, left) = (&self.settings.host_name, size(self.left.available));
        format!("{host} has {left} left, and keeps {} free", size(self.settings.reserve))
    }

    fn room(&self) -> Room {
        let available = self.left.available.saturating_sub(self.settings.reserve);
        Room { limit: self.settings.limit, available }
    }

    /// Returns the checkpoints of its own that this node keeps, is filling, or is fetching.
    fn own_checkpoints(&self) -> BTreeSet<CheckpointId> {
        let round = self.round.as_ref();
        let own = self.parts.values().filter(|part| part.place(round) == PartPlace::Own);
        own.map(|part| part.id.checkpoint).chain(self.fetched_checkpoint()).collect()
    }

    fn begin_transfer(&mut self, transfer: Transfer) -> TransferId {
        self.next_transfer += 1;
        let id = TransferId { is_foreign: false, number: self.next_transfer };
        self.transfers.insert(id, transfer);
        id
    }

    /// Ends what this node has begun to send or fetch.
    fn abort_own_transfers(&mut self) {
        let mut fetched = Vec::new();
        for (id, transfer) in &mut self.transfers {
            match transfer {
                Transfer::Fetch { local_rank, header, .. } => {
                    let part = header.map(|(header, _)| header.part);
                    fetched.extend(part.map(|part| (part, *local_rank, *id)));
                }
                Transfer::Copy(..) | Transfer::Ranges { .. } => {}
                Transfer::Receive(..) | Transfer::Serve(_) | Transfer::Over(_) => continue,
            }
            *transfer = Transfer::Over(transfer.buffer());
            self.effects.push_back(Effect::Abort(*id));
        }
        for (part, worker, transfer) in fetched {
            let block = self.parts.get(&part).and_then(|part| part.blocks.get(&worker));
            if block.is_some_and(|block| block.state == BlockState::Receiving(transfer)) {
                self.drop_block(part, worker);
            }
        }
    }
}

/// The beginning of an obstacle because of which the coordinator turns memory off on all nodes.
const OFF: &str = "off: ";

/// Cuts a line to the longest one that is sent.
fn fitted(line: &str) -> String {
    line[..line.floor_char_boundary(LINE_MAX)].to_owned()
}
