//! Gives workers ranges of parts that another number of ranks has saved.
//!
//! torch plans which bytes a rank needs. A worker asks for them, and this node fetches them from the nodes that hold the
//! parts, even if it is this one. A holder computes the checksum of a block before it sends the first range of it.

use std::time::Instant;

use ragent_rendezvous::{
    ids::LocalRank,
    message::{CheckpointId, MemoryUnusable, UnusableReason},
};

use super::{
    NodeMemory, Transfer, fitted,
    interface::{
        Answer, Ask, BlockRange, Decline, Effect, PartId, RangesRequest, TransferEnd, TransferId,
    },
    parts::Check,
    saving::Waiting,
};

/// A range that another agent wants.
#[derive(Clone, Copy, Debug)]
pub(super) struct WantedRange {
    pub(super) transfer: TransferId,
    part: PartId,
    range: BlockRange,
}

impl NodeMemory {
    /// Handles the request of a worker for ranges.
    pub(super) fn handle_ranges(
        &mut self,
        now: Instant,
        worker: LocalRank,
        request: RangesRequest,
    ) {
        let plan = self.plan().filter(|plan| plan.is_resharded);
        let checkpoint = plan.map(|plan| plan.checkpoint);
        let Some(checkpoint) = checkpoint.filter(|known| known.step == request.step) else {
            let why = format!("this round does not begin with ranges of step {}", request.step);
            return self.answer(worker, Answer::Refused(why));
        };
        let ask = Ask::Ranges(request.clone());
        self.waiting.insert(worker, Waiting { ask, since: now });
        if self.off.is_some() || self.resharded_checkpoint().is_none() {
            // The round ends.
            return;
        }
        let RangesRequest { group_rank, sources, ranges, .. } = request;
        let bytes = ranges.iter().fold(0, |all: u64, range| all.saturating_add(range.bytes));
        let transfer =
            self.begin_transfer(Transfer::Ranges { worker, sources: sources.clone(), bytes });
        let part = PartId { checkpoint, group_rank };
        self.effects.push_back(Effect::FetchRanges { transfer, sources, part, ranges });
    }

    /// Handles the end of such a transfer.
    pub(super) fn handle_ranges_ended(
        &mut self,
        transfer: TransferId,
        worker: LocalRank,
        sources: Vec<String>,
        bytes: u64,
        end: TransferEnd,
    ) {
        let checkpoint = self.resharded_checkpoint();
        let (why, text) = match end {
            TransferEnd::Done => {
                self.waiting.remove(&worker);
                return self.answer(worker, Answer::Ranges { transfer, bytes });
            }
            TransferEnd::WrongSum => {
                let text = format!("its content has changed on {}", sources.join(" and "));
                (UnusableReason::Sum, text)
            }
            TransferEnd::Declined(Decline::NoRoom) => {
                let text = format!("{} gave no memory to read it", self.settings.host_name);
                return self.refuse_plan_because(text);
            }
            TransferEnd::Declined(_) => {
                let text = format!("{} no longer has it", sources.join(" or "));
                (UnusableReason::SourceGone { sources }, text)
            }
            TransferEnd::Failed(why) => {
                let host = &self.settings.host_name;
                let text = format!("{host} does not reach {}: {why}", sources.join(" or "));
                (UnusableReason::SourceGone { sources }, text)
            }
        };
        if let Some(checkpoint) = checkpoint {
            self.refuse_plan(MemoryUnusable { checkpoint, why, text: fitted(&text) });
        }
    }

    /// Ends what is fetched for a worker that is gone.
    pub(super) fn abort_ranges(&mut self, worker: LocalRank) {
        for (id, transfer) in &mut self.transfers {
            if matches!(transfer, Transfer::Ranges { worker: of, .. } if *of == worker) {
                *transfer = Transfer::Over(None);
                self.effects.push_back(Effect::Abort(*id));
            }
        }
    }

    /// Computes the checksums of what this node holds of a checkpoint, while the workers start.
    pub(super) fn check_all(&mut self, checkpoint: CheckpointId) {
        let parts = self.parts.values().filter(|part| part.id.checkpoint == checkpoint);
        let blocks: Vec<_> =
            parts.flat_map(|part| part.blocks.keys().map(|worker| (part.id, *worker))).collect();
        blocks.into_iter().for_each(|(part, worker)| self.check(part, worker));
    }

    /// Computes the checksum of a block, unless this was done in the round or is being done.
    fn check(&mut self, part: PartId, worker: LocalRank) {
        let part = self.parts.get_mut(&part);
        let Some(block) = part.and_then(|part| part.blocks.get_mut(&worker)) else { return };
        if block.check == Check::Needed && block.sum().is_some() {
            block.check = Check::Running;
            let (buffer, bytes) = (block.buffer, block.bytes);
            self.sum(buffer, bytes);
        }
    }

    /// Handles the request of another agent for a range.
    pub(super) fn handle_wanted_range(
        &mut self,
        transfer: TransferId,
        part: PartId,
        range: BlockRange,
    ) {
        let block = self.parts.get(&part).and_then(|part| part.blocks.get(&range.local_rank));
        let is_in =
            |bytes: u64| range.offset.checked_add(range.bytes).is_some_and(|end| end <= bytes);
        let held = block.filter(|block| block.sum().is_some() && is_in(block.bytes)).copied();
        let Some(block) = held else { return self.decline(transfer, Decline::NotHere) };
        self.buffers.hold(block.buffer);
        self.transfers.insert(transfer, Transfer::Serve(block.buffer));
        if block.check == Check::Passed {
            let buffer = block.buffer;
            return self.effects.push_back(Effect::ServeRange { transfer, buffer, range });
        }
        self.check(part, range.local_rank);
        self.wanted_ranges.push(WantedRange { transfer, part, range });
    }

    /// Sends the ranges that were wanted of a block, since its checksum was computed.
    pub(super) fn serve_checked(&mut self, part: PartId, worker: LocalRank, is_right: bool) {
        let is_of =
            |wanted: &mut WantedRange| wanted.part == part && wanted.range.local_rank == worker;
        let wanted: Vec<WantedRange> = self.wanted_ranges.extract_if(.., is_of).collect();
        let was_wanted = !wanted.is_empty();
        for WantedRange { transfer, range, .. } in wanted {
            // The other agent may have given up.
            let Some(Transfer::Serve(buffer)) = self.transfers.get(&transfer) else { continue };
            let buffer = *buffer;
            if is_right {
                self.effects.push_back(Effect::ServeRange { transfer, buffer, range });
            } else {
                self.decline(transfer, Decline::Changed);
            }
        }
        if !is_right && (was_wanted || self.resharded_checkpoint() == Some(part.checkpoint)) {
            let (step, host) = (part.checkpoint.step, &self.settings.host_name);
            let why = format!("step {step} has changed in the memory of {host}");
            self.obstacle = Some(fitted(&why));
            self.drop_part(part);
        }
    }

    /// Declines the ranges that other agents want of a part that is dropped.
    pub(super) fn decline_ranges_of(&mut self, part: PartId) {
        let is_of = |wanted: &mut WantedRange| wanted.part == part;
        let wanted: Vec<WantedRange> = self.wanted_ranges.extract_if(.., is_of).collect();
        wanted.iter().for_each(|wanted| self.decline(wanted.transfer, Decline::NotHere));
    }
}
