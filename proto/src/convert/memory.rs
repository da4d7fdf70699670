//! Converts reports and plans about checkpoints in memory.

use std::num::NonZeroU32;

use ragent_rendezvous::{
    ids::{GlobalRank, GroupRank, Round, RoundId, Term},
    limits::NODES_MAX,
    message::{
        ALL_SOURCES_BYTES_MAX, CheckpointId, MEMORY_BYTES_MAX, MemoryKind, MemoryPlan,
        MemoryReport, MemoryUnusable, PARTS_MAX, Part, PartPlace, PartSources, SOURCES_MAX,
        UnusableReason,
    },
};

use super::{
    fitted_line, line, list, millis, nonempty, progress::step, required, round, to_millis,
    to_round, voter::number,
};
use crate::{
    Malformed, limits,
    v1::{self, memory_unusable},
};

enumeration!(MemoryKind, MemoryKind, "memory.kind", [State, Dcp]);
enumeration!(PartPlace, PartPlace, "part.place", [Own, Copy, Leftover]);

impl From<CheckpointId> for v1::CheckpointId {
    fn from(CheckpointId { round, step }: CheckpointId) -> Self {
        Self { round: to_round(round), step }
    }
}

impl TryFrom<v1::CheckpointId> for CheckpointId {
    type Error = Malformed;

    fn try_from(checkpoint: v1::CheckpointId) -> Result<Self, Malformed> {
        let v1::CheckpointId { round: saved_in, step: saved } = checkpoint;
        let RoundId { term, round } = round(saved_in, "checkpoint_id.round")?;
        // A node must not claim a checkpoint that is newer than any of the job.
        let term = Term(number(term.0, "checkpoint_id.term")?);
        let round = RoundId { term, round: Round(number(round.0, "checkpoint_id.round")?) };
        Ok(Self { round, step: step(saved, "checkpoint_id.step")? })
    }
}

/// Parses the address of a node's parts: a host and a port.
pub(super) fn address(value: String, field: &'static str) -> Result<String, Malformed> {
    let value = nonempty(value, field)?;
    let (host, port) = value.rsplit_once(':').ok_or(Malformed::OutOfRange(field))?;
    let is_port = port.parse().is_ok_and(|port: u16| port > 0);
    if host.is_empty() || !is_port {
        return Err(Malformed::OutOfRange(field));
    }
    Ok(value)
}

fn sources(values: Vec<String>, field: &'static str) -> Result<Vec<String>, Malformed> {
    list(values, field, SOURCES_MAX, |source| address(source, field))
}

fn some_sources(values: Vec<String>, field: &'static str) -> Result<Vec<String>, Malformed> {
    if values.is_empty() {
        return Err(Malformed::Missing(field));
    }
    sources(values, field)
}

pub(super) fn bytes(value: u64, field: &'static str) -> Result<u64, Malformed> {
    if value > MEMORY_BYTES_MAX { Err(Malformed::OutOfRange(field)) } else { Ok(value) }
}

/// Parses the number of workers of a part, the first of which has the rank `first`.
fn local_ranks(ranks: u32, first: u32, field: &'static str) -> Result<NonZeroU32, Malformed> {
    NonZeroU32::new(ranks)
        .filter(|ranks| ranks.get() <= limits::MAX_LOCAL_WORLD_SIZE)
        .filter(|ranks| first.checked_add(ranks.get()).is_some())
        .ok_or(Malformed::OutOfRange(field))
}

impl From<Part> for v1::Part {
    fn from(part: Part) -> Self {
        Self {
            checkpoint: Some(part.checkpoint.into()),
            group_rank: part.group_rank.0,
            nodes: part.nodes,
            first_global_rank: part.first_global_rank.0,
            local_ranks: part.local_ranks.get(),
            kind: v1::MemoryKind::from(part.kind).into(),
            is_replicated: part.is_replicated,
            place: v1::PartPlace::from(part.place).into(),
            bytes: part.bytes,
            is_alone: part.is_alone,
        }
    }
}

impl TryFrom<v1::Part> for Part {
    type Error = Malformed;

    fn try_from(part: v1::Part) -> Result<Self, Malformed> {
        if usize::try_from(part.nodes).map_or(true, |nodes| nodes > limits::MAX_NODES) {
            return Err(Malformed::OutOfRange("part.nodes"));
        }
        if part.group_rank >= part.nodes {
            return Err(Malformed::OutOfRange("part.group_rank"));
        }
        let first = part.first_global_rank;
        Ok(Self {
            kind: part.kind().try_into()?,
            place: part.place().try_into()?,
            checkpoint: required(part.checkpoint, "part.checkpoint")?.try_into()?,
            group_rank: GroupRank(part.group_rank),
            nodes: part.nodes,
            first_global_rank: GlobalRank(first),
            local_ranks: local_ranks(part.local_ranks, first, "part.local_ranks")?,
            is_replicated: part.is_replicated,
            bytes: bytes(part.bytes, "part.bytes")?,
            is_alone: part.is_alone,
        })
    }
}

impl From<MemoryReport> for v1::MemoryReport {
    fn from(report: MemoryReport) -> Self {
        Self {
            round: to_round(report.round),
            parts: report.parts.into_iter().map(Into::into).collect(),
            needed: report.needed,
            limit: report.limit,
            address: report.address,
            obstacle: report.obstacle.as_deref().map(fitted_line),
            waits_for_buffer: report.waits_for_buffer.map(|rank| rank.0),
            cost_ms: report.cost.map(to_millis),
            fetch_ms: report.fetch_time.map(to_millis),
            oom_kills: report.oom_kills,
        }
    }
}

impl TryFrom<v1::MemoryReport> for MemoryReport {
    type Error = Malformed;

    fn try_from(report: v1::MemoryReport) -> Result<Self, Malformed> {
        let time = |ms: Option<u64>, field| ms.map(|ms| millis(ms, field)).transpose();
        let at = |value| address(value, "memory_report.address");
        let obstacle = |value| line(value, "memory_report.obstacle");
        Ok(Self {
            round: round(report.round, "memory_report.round")?,
            parts: list(report.parts, "memory_report.parts", PARTS_MAX, TryInto::try_into)?,
            needed: bytes(report.needed, "memory_report.needed")?,
            limit: bytes(report.limit, "memory_report.limit")?,
            address: report.address.map(at).transpose()?,
            obstacle: report.obstacle.map(obstacle).transpose()?,
            waits_for_buffer: report.waits_for_buffer.map(GlobalRank),
            cost: time(report.cost_ms, "memory_report.cost_ms")?,
            fetch_time: time(report.fetch_ms, "memory_report.fetch_ms")?,
            oom_kills: report.oom_kills,
        })
    }
}

impl From<MemoryPlan> for v1::MemoryPlan {
    fn from(plan: MemoryPlan) -> Self {
        Self {
            checkpoint: Some(plan.checkpoint.into()),
            kind: v1::MemoryKind::from(plan.kind).into(),
            sources: plan.sources,
            is_resharded: plan.is_resharded,
            all_sources: plan.all_sources.into_iter().map(Into::into).collect(),
        }
    }
}

impl TryFrom<v1::MemoryPlan> for MemoryPlan {
    type Error = Malformed;

    fn try_from(plan: v1::MemoryPlan) -> Result<Self, Malformed> {
        const ALL: &str = "memory.all_sources";
        let addresses = plan.all_sources.iter().flat_map(|part| &part.sources);
        let len = addresses.fold(0, |len: usize, address| len.saturating_add(address.len()));
        if len > ALL_SOURCES_BYTES_MAX {
            return Err(Malformed::TooLong { field: ALL, len, limit: ALL_SOURCES_BYTES_MAX });
        }
        Ok(Self {
            kind: plan.kind().try_into()?,
            checkpoint: required(plan.checkpoint, "memory.checkpoint")?.try_into()?,
            sources: sources(plan.sources, "memory.sources")?,
            is_resharded: plan.is_resharded,
            all_sources: list(plan.all_sources, ALL, NODES_MAX, TryInto::try_into)?,
        })
    }
}

impl From<PartSources> for v1::PartSources {
    fn from(part: PartSources) -> Self {
        Self {
            group_rank: part.group_rank.0,
            first_global_rank: part.first_global_rank.0,
            local_ranks: part.local_ranks.get(),
            sources: part.sources,
        }
    }
}

impl TryFrom<v1::PartSources> for PartSources {
    type Error = Malformed;

    fn try_from(part: v1::PartSources) -> Result<Self, Malformed> {
        let first = part.first_global_rank;
        Ok(Self {
            group_rank: GroupRank(part.group_rank),
            first_global_rank: GlobalRank(first),
            local_ranks: local_ranks(part.local_ranks, first, "part_sources.local_ranks")?,
            sources: some_sources(part.sources, "part_sources.sources")?,
        })
    }
}

impl From<MemoryUnusable> for v1::MemoryUnusable {
    fn from(MemoryUnusable { checkpoint, why, text }: MemoryUnusable) -> Self {
        use memory_unusable::Why;
        let why = match why {
            UnusableReason::Sum => Why::Sum(memory_unusable::Sum {}),
            UnusableReason::Script => Why::Script(memory_unusable::Script {}),
            UnusableReason::SourceGone { sources } => {
                Why::SourceGone(memory_unusable::SourceGone { sources })
            }
        };
        Self { checkpoint: Some(checkpoint.into()), why: Some(why), text: fitted_line(&text) }
    }
}

impl TryFrom<v1::MemoryUnusable> for MemoryUnusable {
    type Error = Malformed;

    fn try_from(unusable: v1::MemoryUnusable) -> Result<Self, Malformed> {
        use memory_unusable::Why;
        Ok(Self {
            checkpoint: required(unusable.checkpoint, "memory_unusable.checkpoint")?.try_into()?,
            why: match required(unusable.why, "memory_unusable.why")? {
                Why::Sum(memory_unusable::Sum {}) => UnusableReason::Sum,
                Why::Script(memory_unusable::Script {}) => UnusableReason::Script,
                Why::SourceGone(memory_unusable::SourceGone { sources }) => {
                    let sources = self::sources(sources, "memory_unusable.sources")?;
                    UnusableReason::SourceGone { sources }
                }
            },
            text: line(unusable.text, "memory_unusable.text")?,
        })
    }
}
