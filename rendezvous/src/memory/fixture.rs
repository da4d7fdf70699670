//! Parts of checkpoints, for tests.

use std::num::NonZeroU32;

use crate::{
    ids::{GlobalRank, GroupRank, Round, RoundId, Term},
    message::{CheckpointId, MemoryKind, MemoryReport, Part, PartPlace},
};

pub(crate) fn round(number: u64) -> RoundId {
    RoundId { term: Term(1), round: Round(number) }
}

pub(crate) fn checkpoint(of: u64, step: u64) -> CheckpointId {
    CheckpointId { round: round(of), step }
}

/// Returns the part of one of `nodes` nodes, each with one worker.
pub(crate) fn part(checkpoint: CheckpointId, rank: u32, nodes: u32, place: PartPlace) -> Part {
    Part {
        checkpoint,
        group_rank: GroupRank(rank),
        nodes,
        first_global_rank: GlobalRank(rank),
        local_ranks: NonZeroU32::MIN,
        kind: MemoryKind::State,
        is_replicated: false,
        place,
        bytes: 10,
        is_alone: false,
    }
}

pub(crate) fn replicated(part: Part) -> Part {
    Part { is_replicated: true, ..part }
}

pub(crate) fn alone(part: Part) -> Part {
    Part { is_alone: true, ..part }
}

pub(crate) fn report(address: Option<&str>, parts: &[Part]) -> MemoryReport {
    let address = address.map(str::to_owned);
    MemoryReport { parts: parts.to_vec(), address, ..MemoryReport::default() }
}
