//! Converts reports and plans about checkpoints in memory.

use ragent_rendezvous::{
    limits::NODES_MAX,
    message::{
        ALL_SOURCES_BYTES_MAX, CheckpointId, LINE_MAX, MemoryKind, MemoryPlan, MemoryReport,
        MemoryUnusable, PARTS_MAX, Part, PartPlace, PartSources, SOURCES_MAX, UnusableReason,
    },
};

use super::{
    kinds::{Address, FieldKind, List},
    number,
};
use crate::{
    Malformed, limits,
    v1::{self, memory_unusable::Why},
};

enumeration!(MemoryKind, MemoryKind, "memory.kind", [State, Dcp]);
enumeration!(PartPlace, PartPlace, "part.place", [Own, Copy, Leftover]);

message!(CheckpointId, v1::CheckpointId, "checkpoint_id", {
    round: Required(Inner),
    step: Step,
}, check_round);

/// A node must not claim a checkpoint that is newer than any of the job.
fn check_round(checkpoint: &v1::CheckpointId) -> Result<(), Malformed> {
    let v1::RoundId { term, round } = checkpoint.round.unwrap_or_default();
    number(term, "checkpoint_id.term")?;
    number(round, "checkpoint_id.round").map(drop)
}

message!(Part, v1::Part, "part", {
    checkpoint: Required(Inner),
    group_rank: Same,
    nodes: Same,
    first_global_rank: Same,
    local_ranks: Workers,
    kind: Enumeration,
    is_replicated: Same,
    place: Enumeration,
    bytes: ByteCount,
    is_alone: Same,
}, check_part);

fn check_part(part: &v1::Part) -> Result<(), Malformed> {
    if usize::try_from(part.nodes).map_or(true, |nodes| nodes > limits::MAX_NODES) {
        return Err(Malformed::OutOfRange("part.nodes"));
    }
    if part.group_rank >= part.nodes {
        return Err(Malformed::OutOfRange("part.group_rank"));
    }
    check_ranks(part.first_global_rank, part.local_ranks, "part.local_ranks")
}

/// Checks that the workers of a part, of which the first has the rank `first`, have ranks.
fn check_ranks(first: u32, ranks: u32, field: &'static str) -> Result<(), Malformed> {
    first.checked_add(ranks).map(drop).ok_or(Malformed::OutOfRange(field))
}

message!(MemoryReport, v1::MemoryReport, "memory_report", {
    round: Required(Inner),
    parts: List(PARTS_MAX, Inner),
    needed: ByteCount,
    limit: ByteCount,
    address: Optional(Address),
    obstacle: Optional(OneLine(LINE_MAX)),
    waits_for_buffer: Optional(Same),
    cost_ms as cost: Optional(Millis),
    fetch_ms as fetch_time: Optional(Millis),
    oom_kills: Same,
});

message!(MemoryPlan, v1::MemoryPlan, "memory", {
    checkpoint: Required(Inner),
    kind: Enumeration,
    sources: List(SOURCES_MAX, Address),
    all_sources: List(NODES_MAX, Inner),
    is_resharded: Same,
}, check_plan);

fn check_plan(plan: &v1::MemoryPlan) -> Result<(), Malformed> {
    let addresses = plan.all_sources.iter().flat_map(|part| &part.sources);
    let len = addresses.fold(0, |len: usize, address| len.saturating_add(address.len()));
    if len > ALL_SOURCES_BYTES_MAX {
        let field = "memory.all_sources";
        return Err(Malformed::TooLong { field, len, limit: ALL_SOURCES_BYTES_MAX });
    }
    Ok(())
}

message!(PartSources, v1::PartSources, "part_sources", {
    group_rank: Same,
    first_global_rank: Same,
    local_ranks: Workers,
    sources: List(SOURCES_MAX, Address),
}, check_sources);

fn check_sources(part: &v1::PartSources) -> Result<(), Malformed> {
    if part.sources.is_empty() {
        return Err(Malformed::Missing("part_sources.sources"));
    }
    check_ranks(part.first_global_rank, part.local_ranks, "part_sources.local_ranks")
}

message!(MemoryUnusable, v1::MemoryUnusable, "memory_unusable", {
    checkpoint: Required(Inner),
    why: Required(Inner),
    text: OneLine(LINE_MAX),
});

impl From<UnusableReason> for Why {
    fn from(why: UnusableReason) -> Self {
        match why {
            UnusableReason::Sum => Self::Sum(v1::memory_unusable::Sum {}),
            UnusableReason::Script => Self::Script(v1::memory_unusable::Script {}),
            UnusableReason::SourceGone { sources } => {
                Self::SourceGone(v1::memory_unusable::SourceGone { sources })
            }
        }
    }
}

impl TryFrom<Why> for UnusableReason {
    type Error = Malformed;

    fn try_from(why: Why) -> Result<Self, Malformed> {
        Ok(match why {
            Why::Sum(v1::memory_unusable::Sum {}) => Self::Sum,
            Why::Script(v1::memory_unusable::Script {}) => Self::Script,
            Why::SourceGone(v1::memory_unusable::SourceGone { sources }) => {
                let sources =
                    List(SOURCES_MAX, Address).read(sources, "memory_unusable.sources")?;
                Self::SourceGone { sources }
            }
        })
    }
}
