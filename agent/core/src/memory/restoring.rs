//! Restores the checkpoint with which a round begins: checks or fetches the part of this node, and gives it to the
//! workers.

use std::{
    collections::{BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use ragent_rendezvous::{
    ids::LocalRank,
    message::{
        CheckpointId, MemoryKind, MemoryPlan, MemoryUnusable, PartPlace, SOURCES_MAX,
        UnusableReason,
    },
};

use super::{
    NodeMemory, TRANSFERS_MAX, Transfer, fitted,
    interface::{Answer, BlockHeader, Decline, Effect, PartId, TransferEnd, TransferId},
    parts::{About, Block, BlockState, KeptPart},
};

/// The restoring of a round.
#[derive(Debug, Default)]
pub(super) struct Restore {
    state: State,
    /// The nodes that may have the part, apart from `from`.
    sources: VecDeque<String>,
    /// The node that is asked.
    from: Option<String>,
    failed: Vec<String>,
    has_wrong_sum: bool,
    began: Option<Instant>,
    pub(super) time: Option<Duration>,
    /// The blocks to check, or to fetch.
    left: BTreeSet<LocalRank>,
    /// True if the part is the same on all nodes.
    is_replicated: bool,
    /// The workers that have received their block.
    loaded: BTreeSet<LocalRank>,
    /// The workers that have asked for a buffer since.
    saved: BTreeSet<LocalRank>,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum State {
    /// The round begins from disk.
    #[default]
    Nothing,
    /// The part is here, and its checksums are computed.
    Checking(PartId),
    /// The part is fetched.
    Fetching,
    /// The workers may read the part.
    Ready(PartId),
    /// Another number of ranks has saved the checkpoint. The workers may read ranges of all parts.
    Resharded(CheckpointId),
    /// The part cannot be had. The round ends.
    Failed,
}

impl NodeMemory {
    pub(super) fn begin_restore(&mut self, now: Instant) {
        self.restore = Restore::default();
        let Some(plan) = self.plan().cloned() else { return };
        if plan.is_resharded {
            self.restore.state = State::Resharded(plan.checkpoint);
            return self.check_all(plan.checkpoint);
        }
        self.restore.began = Some(now);
        self.restore.sources = plan.sources.iter().take(SOURCES_MAX).cloned().collect();
        let round = self.round.as_ref();
        let is_it = |part: &&KeptPart| {
            part.id.checkpoint == plan.checkpoint && part.place(round) == PartPlace::Own
        };
        let Some(part) = self.parts.values().find(is_it) else { return self.fetch_from_next() };
        let id = part.id;
        let blocks: Vec<_> = part
            .blocks
            .iter()
            .map(|(worker, block)| (*worker, block.buffer, block.bytes))
            .collect();
        // If what is here has changed, the copy is used.
        if let Some(copy) = &part.copied_to
            && !self.restore.sources.contains(copy)
        {
            self.restore.sources.push_back(copy.clone());
        }
        self.restore.state = State::Checking(id);
        for (worker, buffer, bytes) in blocks {
            self.restore.left.insert(worker);
            self.sum(buffer, bytes);
        }
    }

    pub(super) fn plan(&self) -> Option<&MemoryPlan> {
        self.round.as_ref()?.plan.as_ref()
    }

    /// Returns the checkpoint of the round if its part is still being fetched.
    pub(super) fn fetched_checkpoint(&self) -> Option<CheckpointId> {
        let plan = self.plan().filter(|_| self.restore.state == State::Fetching)?;
        Some(plan.checkpoint)
    }

    /// Notes if a block of the part is as it was saved.
    pub(super) fn handle_checked(&mut self, worker: LocalRank, id: PartId, is_right: bool) {
        if self.restore.state != State::Checking(id) {
            return;
        }
        if !is_right {
            self.restore.has_wrong_sum = true;
            self.drop_part(id);
            self.restore.left.clear();
            return self.fetch_from_next();
        }
        self.restore.left.remove(&worker);
        if self.restore.left.is_empty() {
            self.restore.state = State::Ready(id);
        }
    }

    /// Asks the next node that may have the part.
    fn fetch_from_next(&mut self) {
        let Some(source) = self.restore.sources.pop_front() else { return self.give_up_plan() };
        if self.restore.state != State::Fetching {
            self.restore.state = State::Fetching;
            // Its header says if there are more.
            self.restore.left.insert(LocalRank(0));
        }
        self.restore.from = Some(source);
    }

    fn give_up_plan(&mut self) {
        let Some(checkpoint) = self.plan().map(|plan| plan.checkpoint) else { return };
        let sources: Vec<String> = self.restore.failed.iter().take(SOURCES_MAX).cloned().collect();
        let host = &self.settings.host_name;
        let (why, text) = if self.restore.has_wrong_sum {
            (UnusableReason::Sum, format!("its content has changed in the memory of {host}"))
        } else if sources.is_empty() {
            // It was freed between the report and the admission. Its content was right, so other holders may have it.
            (UnusableReason::SourceGone { sources }, String::new())
        } else {
            let text = format!("{host} does not reach {}", sources.join(" or "));
            (UnusableReason::SourceGone { sources }, text)
        };
        self.refuse_plan(MemoryUnusable { checkpoint, why, text: fitted(&text) });
    }

    /// Reports that this node cannot use the checkpoint of the round, which ends the round.
    pub(super) fn refuse_plan(&mut self, unusable: MemoryUnusable) {
        self.restore.state = State::Failed;
        self.unusable.get_or_insert(unusable);
    }

    /// Begins to fetch blocks, as many as may be fetched at once.
    pub(super) fn continue_restore(&mut self) {
        if self.restore.state != State::Fetching {
            return;
        }
        let (Some(plan), Some(round)) = (self.plan().cloned(), self.round.as_ref()) else { return };
        let part = PartId { checkpoint: plan.checkpoint, group_rank: round.group_rank };
        let fetches = self.transfers.values().filter(|t| matches!(t, Transfer::Fetch { .. }));
        for _ in fetches.count()..TRANSFERS_MAX {
            let (Some(from), Some(local_rank)) =
                (self.restore.from.clone(), self.restore.left.pop_first())
            else {
                return;
            };
            let fetch = Transfer::Fetch { local_rank, from: from.clone(), header: None };
            let transfer = self.begin_transfer(fetch);
            self.effects.push_back(Effect::Fetch { transfer, from, part, local_rank });
        }
    }

    /// Handles a block that another node has sent because this node fetches it.
    pub(super) fn handle_fetched(&mut self, transfer: TransferId, header: &BlockHeader) {
        let Some(Transfer::Fetch { local_rank, header: None, .. }) = self.transfers.get(&transfer)
        else {
            return self.decline(transfer, Decline::NotNeeded);
        };
        let (local_rank, about) = (*local_rank, About::of(header));
        if !self.fits_plan(local_rank, header) {
            return self.decline(transfer, Decline::NotNeeded);
        }
        let Some(buffer) = self.take_buffer(header.bytes, Self::room) else {
            self.decline(transfer, Decline::NoRoom);
            let host = self.settings.host_name.clone();
            return self.turn_all_off(&format!(
                "{host} has no room for step {}",
                header.part.checkpoint.step
            ));
        };
        self.buffers.hold(buffer);
        let is_first = !self.parts.contains_key(&header.part);
        let part =
            self.parts.entry(header.part).or_insert_with(|| KeptPart::new(header.part, about));
        let state = BlockState::Receiving(transfer);
        part.blocks.insert(local_rank, Block::new(buffer, header.bytes, state));
        if is_first && !about.is_replicated {
            self.restore.left.extend((1..about.local_ranks.get()).map(LocalRank));
        }
        if let Some(Transfer::Fetch { header: known, .. }) = self.transfers.get_mut(&transfer) {
            *known = Some((*header, buffer));
        }
        self.effects.push_back(Effect::Receive { transfer, buffer });
    }

    fn fits_plan(&self, local_rank: LocalRank, header: &BlockHeader) -> bool {
        let (Some(plan), Some(round)) = (self.plan(), self.round.as_ref()) else { return false };
        let is_own = header.part.group_rank == round.group_rank
            && header.nodes == round.nodes
            && header.first_global_rank == round.first_global_rank
            && header.local_ranks == round.workers;
        let known = self.parts.get(&header.part);
        self.restore.state == State::Fetching
            && header.part.checkpoint == plan.checkpoint
            && header.kind == plan.kind
            && header.local_rank == local_rank
            && (header.is_replicated || is_own)
            && known.is_none_or(|part| {
                part.about == About::of(header) && !part.blocks.contains_key(&local_rank)
            })
    }

    /// Handles the end of a fetch.
    pub(super) fn handle_fetch_ended(
        &mut self,
        now: Instant,
        local_rank: LocalRank,
        from: String,
        header: Option<BlockHeader>,
        end: TransferEnd,
    ) {
        let received = header.filter(|_| end == TransferEnd::Done);
        if let Some(header) = received {
            let Some(part) = self.parts.get_mut(&header.part) else { return };
            if let Some(block) = part.blocks.get_mut(&local_rank) {
                block.state = BlockState::Held(header.sum);
            }
            if part.is_held() && self.restore.state == State::Fetching {
                self.restore.state = State::Ready(header.part);
                let took = |began| now.saturating_duration_since(began);
                self.restore.time = self.restore.began.map(took);
            }
            return;
        }
        if let Some(header) = header {
            self.drop_block(header.part, local_rank);
        }
        if self.restore.state != State::Fetching {
            return;
        }
        self.restore.left.insert(local_rank);
        self.restore.has_wrong_sum |= end == TransferEnd::WrongSum;
        // Of several transfers from one node, the first that fails counts.
        if self.restore.from.as_ref() == Some(&from) {
            self.restore.failed.push(from);
            self.restore.from = None;
            self.fetch_from_next();
        }
    }

    /// Ends the round if it has begun from memory, and memory is off before a worker has loaded.
    pub(super) fn refuse_plan_without_memory(&mut self) {
        if let Some(off) = self.off.clone() {
            self.refuse_plan_because(off);
        }
    }

    pub(super) fn refuse_plan_because(&mut self, text: String) {
        if let Some(checkpoint) = self.plan().map(|plan| plan.checkpoint) {
            let why = UnusableReason::Script;
            self.refuse_plan(MemoryUnusable { checkpoint, why, text: fitted(&text) });
        }
    }

    /// Returns the checkpoint of the round if workers may read ranges of its parts.
    pub(super) fn resharded_checkpoint(&self) -> Option<CheckpointId> {
        match self.restore.state {
            State::Resharded(checkpoint) => Some(checkpoint),
            State::Nothing
            | State::Checking(_)
            | State::Fetching
            | State::Ready(_)
            | State::Failed => None,
        }
    }

    /// Returns true if a worker has received the checkpoint with which the round began.
    pub(crate) fn has_given(&self) -> bool {
        !self.restore.loaded.is_empty()
    }

    /// Notes that a worker goes on from what it has loaded.
    pub(super) fn note_saving(&mut self, worker: LocalRank) {
        self.restore.saved.insert(worker);
    }

    /// Returns the answer to a request for the checkpoint of the round; `None` if the worker must wait.
    pub(super) fn load(&mut self, worker: LocalRank, kind: MemoryKind) -> Option<Answer> {
        if self.plan().is_none_or(|plan| plan.kind != kind) {
            return Some(Answer::Nothing);
        }
        // The part may be freed once all ranks have saved. So this answer depends on what the worker itself has done, as on all
        // other ranks.
        let saver = if self.restore.is_replicated { LocalRank(0) } else { worker };
        let has_loaded = saver == worker || self.restore.loaded.contains(&worker);
        if has_loaded && self.restore.saved.contains(&saver) {
            return Some(Answer::Nothing);
        }
        if let Some(off) = self.off.clone() {
            // Other ranks may have loaded it.
            self.refuse_plan_because(off);
        }
        if let State::Resharded(checkpoint) = self.restore.state {
            self.restore.loaded.insert(worker);
            let plan = self.plan().filter(|_| worker == LocalRank(0));
            let parts = plan.map_or(Vec::new(), |plan| plan.all_sources.clone());
            return Some(Answer::Resharded { step: checkpoint.step, parts });
        }
        let State::Ready(id) = self.restore.state else { return None };
        self.restore.loaded.insert(worker);
        let of = |about: &About| if about.is_replicated { LocalRank(0) } else { worker };
        let block = self
            .parts
            .get(&id)
            .and_then(|part| Some((part.about.is_replicated, part.blocks.get(&of(&part.about))?)));
        let Some((is_replicated, block)) = block else {
            // Others have gone on from it, and a newer one is whole. This worker must not begin from another step.
            self.refuse_plan_because("a worker has loaded it too late".to_owned());
            return None;
        };
        self.restore.is_replicated = is_replicated;
        let (step, buffer, bytes) = (id.checkpoint.step, block.buffer, block.bytes);
        self.stop_reading(worker);
        self.buffers.hold(buffer);
        self.reading.insert(worker, buffer);
        Some(Answer::Block { step, buffer, bytes, is_replicated })
    }
}
