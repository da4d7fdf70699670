//! Keeps the parts of checkpoints that this node holds, and the blocks of each.

use std::{collections::BTreeMap, num::NonZeroU32};

use ragent_rendezvous::{
    ids::{GlobalRank, LocalRank},
    message::{MemoryKind, MemoryPlan, Part, PartPlace},
};

use super::{
    MemoryRound,
    interface::{BlockHeader, Buffer, PartId, Sum, TransferId},
};

/// A part of a checkpoint: the blocks that the workers of one node have saved.
#[derive(Debug)]
pub(super) struct KeptPart {
    pub(super) id: PartId,
    pub(super) about: About,
    pub(super) blocks: BTreeMap<LocalRank, Block>,
    /// The address of the node that holds a copy.
    pub(super) copied_to: Option<String>,
    /// True if no copy is awaited any more.
    pub(super) is_given_up: bool,
}

/// What the blocks of a part have in common.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct About {
    pub(super) nodes: u32,
    pub(super) first_global_rank: GlobalRank,
    pub(super) local_ranks: NonZeroU32,
    pub(super) kind: MemoryKind,
    pub(super) is_replicated: bool,
}

/// What one worker has saved.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) buffer: Buffer,
    pub(super) bytes: u64,
    pub(super) state: BlockState,
    /// True if the node with the copy has it.
    pub(super) is_copied: bool,
    pub(super) check: Check,
}

/// The check of a block in this round, before ranges of it are sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Check {
    /// The content may have changed.
    Needed,
    /// The checksum is being computed.
    Running,
    /// The content is as it was saved.
    Passed,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum BlockState {
    /// A worker writes to it.
    Filling,
    /// It is being received.
    Receiving(TransferId),
    /// It is complete, and its checksum is being computed.
    Summing,
    /// It is complete.
    Held(Sum),
}

impl About {
    pub(super) fn of(header: &BlockHeader) -> Self {
        Self {
            nodes: header.nodes,
            first_global_rank: header.first_global_rank,
            local_ranks: header.local_ranks,
            kind: header.kind,
            is_replicated: header.is_replicated,
        }
    }

    /// Returns the number of blocks of a complete part.
    pub(super) fn block_count(&self) -> usize {
        if self.is_replicated { 1 } else { self.local_ranks.get() as usize }
    }
}

impl Block {
    pub(super) fn new(buffer: Buffer, bytes: u64, state: BlockState) -> Self {
        Self { buffer, bytes, state, is_copied: false, check: Check::Needed }
    }

    pub(super) fn sum(&self) -> Option<Sum> {
        match self.state {
            BlockState::Held(sum) => Some(sum),
            BlockState::Filling | BlockState::Receiving(_) | BlockState::Summing => None,
        }
    }
}

impl KeptPart {
    pub(super) fn new(id: PartId, about: About) -> Self {
        Self { id, about, blocks: BTreeMap::new(), copied_to: None, is_given_up: false }
    }

    /// Returns true if all of its blocks are complete.
    pub(super) fn is_held(&self) -> bool {
        self.blocks.len() == self.about.block_count()
            && self.blocks.values().all(|block| block.sum().is_some())
    }

    /// Returns the size of its content.
    pub(super) fn bytes(&self) -> u64 {
        self.blocks.values().fold(0, |all: u64, block| all.saturating_add(block.bytes))
    }

    /// Returns the reason for which the node holds it in this round.
    pub(super) fn place(&self, round: Option<&MemoryRound>) -> PartPlace {
        if self.about.is_replicated {
            return PartPlace::Own;
        }
        let Some(round) = round.filter(|round| round.nodes == self.about.nodes) else {
            return PartPlace::Leftover;
        };
        let is_of_other_ranks =
            |plan: &MemoryPlan| plan.is_resharded && plan.checkpoint == self.id.checkpoint;
        if round.plan.as_ref().is_some_and(is_of_other_ranks) {
            return PartPlace::Leftover;
        }
        let is_alike = self.about.first_global_rank == round.first_global_rank
            && self.about.local_ranks == round.workers;
        if self.id.group_rank == round.group_rank && is_alike {
            PartPlace::Own
        } else if round.ward == Some(self.id.group_rank) {
            PartPlace::Copy
        } else {
            PartPlace::Leftover
        }
    }

    /// Returns the header of a complete block.
    pub(super) fn header(&self, local_rank: LocalRank) -> Option<(BlockHeader, Buffer)> {
        let block = self.blocks.get(&local_rank)?;
        let header = BlockHeader {
            part: self.id,
            local_rank,
            nodes: self.about.nodes,
            first_global_rank: self.about.first_global_rank,
            local_ranks: self.about.local_ranks,
            kind: self.about.kind,
            is_replicated: self.about.is_replicated,
            bytes: block.bytes,
            sum: block.sum()?,
        };
        Some((header, block.buffer))
    }

    /// Returns the part as it is reported. `is_alone`: no second node will hold it.
    pub(super) fn reported(&self, round: Option<&MemoryRound>, is_alone: bool) -> Part {
        Part {
            checkpoint: self.id.checkpoint,
            group_rank: self.id.group_rank,
            nodes: self.about.nodes,
            first_global_rank: self.about.first_global_rank,
            local_ranks: self.about.local_ranks,
            kind: self.about.kind,
            is_replicated: self.about.is_replicated,
            place: self.place(round),
            bytes: self.bytes(),
            is_alone,
        }
    }
}
