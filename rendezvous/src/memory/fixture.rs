//! Parts of checkpoints and jobs that keep them, for tests.

use std::num::NonZeroU32;

use super::JobMemory;
use crate::{
    fixture::TestJob,
    ids::{GlobalRank, GroupRank, JobUid, NodeId, Round, RoundId, Term},
    message::{CheckpointId, MemoryKind, MemoryReport, Part, PartPlace},
    settings::{JobState, SharedSettings},
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

pub(crate) fn dcp(part: Part) -> Part {
    Part { kind: MemoryKind::Dcp, ..part }
}

pub(crate) fn alone(part: Part) -> Part {
    Part { is_alone: true, ..part }
}

pub(crate) fn report(address: Option<&str>, parts: &[Part]) -> MemoryReport {
    let address = address.map(str::to_owned);
    MemoryReport { parts: parts.to_vec(), address, ..MemoryReport::default() }
}

/// A job whose nodes keep checkpoints. The address of node `a` is `a:1`.
pub(crate) struct MemoryJob {
    pub(crate) t: TestJob,
    pub(crate) memory: JobMemory,
}

impl MemoryJob {
    /// Returns a job of these nodes, whose first round runs with all of them.
    pub(crate) fn running(
        min: u32,
        max: u32,
        names: &[&str],
        change: impl FnOnce(&mut SharedSettings),
    ) -> Self {
        let mut job = Self {
            t: TestJob::with(min, max, names, change),
            memory: JobMemory::new(&JobState::new(JobUid::new("uid"))),
        };
        for name in names {
            job.hold(name, &[]);
        }
        job.begin_round(names);
        job
    }

    /// Begins the next round of these nodes, as the machine does.
    pub(crate) fn begin_round(&mut self, names: &[&str]) {
        self.t.begin_round(names);
        let group = self.t.job.phase.group().expect("a round");
        let table = group.table.as_ref().expect("a table");
        let plan = self.memory.choose(&self.t.job, table);
        self.memory.begin_round(&self.t.job, group.round, table, plan, &mut self.t.out);
    }

    /// Returns what a node reports about its memory.
    pub(crate) fn report(&self, name: &str, parts: &[Part]) -> MemoryReport {
        let round = self.t.job.phase.group().map(|group| group.round).unwrap_or_default();
        MemoryReport { round, ..report(Some(&format!("{name}:1")), parts) }
    }

    /// Applies a report of a node.
    pub(crate) fn follow(&mut self, name: &str, report: MemoryReport) -> Option<CheckpointId> {
        self.t.set_memory(name, report);
        self.memory.follow(&self.t.job, &NodeId::new(name), &mut self.t.out)
    }

    /// Reports that a node holds these parts.
    pub(crate) fn hold(&mut self, name: &str, parts: &[Part]) -> Option<CheckpointId> {
        let report = self.report(name, parts);
        self.follow(name, report)
    }

    /// Reports that `a` and `b` hold their own parts of this checkpoint, and the copies of each other.
    pub(crate) fn hold_both(&mut self, id: CheckpointId) {
        let (own, copy) = (PartPlace::Own, PartPlace::Copy);
        self.hold("a", &[part(id, 0, 2, own), part(id, 1, 2, copy)]);
        self.hold("b", &[part(id, 1, 2, own), part(id, 0, 2, copy)]);
    }
}
