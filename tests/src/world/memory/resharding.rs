//! Checks the plans of checkpoints that were saved with other ranks on the nodes, and lets workers read ranges of them.

use std::collections::BTreeMap;

use ragent_core::memory::{Ask, BlockRange, RangesRequest, TransferId};
use ragent_rendezvous::{
    effect::Effect,
    ids::{GlobalRank, GroupRank, LocalRank, NodeId, RoundId},
    message::{
        Admission, Assignment, CheckpointId, MemoryKind, MemoryPlan, Part, PartSources, ToNode,
    },
};

use super::{
    super::{Bug, World},
    node_at,
    workers::{Content, Doing},
};
use crate::random::Random;

/// The members of a round, with their admissions.
pub(super) type Members = BTreeMap<NodeId, Admission>;

/// Returns the plan with the holders of all parts, if the members begin with a checkpoint of other ranks.
pub(super) fn resharded_plan(members: &Members) -> Option<&MemoryPlan> {
    let first = members.values().find(|admission| admission.group_rank == GroupRank(0));
    first?.memory.as_deref().filter(|plan| plan.is_resharded)
}

/// Returns true if these are the parts that this node has reported, or one of them.
fn is_part(part: &Part, checkpoint: CheckpointId, named: &PartSources, nodes: usize) -> bool {
    let ranks = |part: &Part| (part.group_rank, part.first_global_rank, part.local_ranks);
    part.checkpoint == checkpoint
        && ranks(part) == (named.group_rank, named.first_global_rank, named.local_ranks)
        && part.nodes as usize == nodes
        && part.kind == MemoryKind::Dcp
        && !part.is_replicated
}

impl Bug {
    /// Changes the plan of a checkpoint that was saved with other ranks.
    pub(in crate::world) fn forge_plan(self, effect: &mut Effect) {
        let Effect::Send { message: ToNode::Assignment(Assignment::Admit(admission)), .. } = effect
        else {
            return;
        };
        let Some(plan) = admission.memory.as_mut().filter(|plan| plan.is_resharded) else { return };
        match (self, &mut plan.all_sources[..]) {
            (Self::PartLeftOut, _) => drop(plan.all_sources.pop()),
            (Self::SourcesSwapped, [first, second, ..]) => {
                std::mem::swap(&mut first.sources, &mut second.sources);
            }
            (Self::RanksIgnored, _) => {
                (plan.is_resharded, plan.all_sources) = (false, Vec::new());
            }
            _ => {}
        }
    }
}

impl World {
    /// Returns the reason why a plan with other ranks is wrong.
    pub(super) fn check_resharded(&self, id: &NodeId, members: &Members) -> Option<String> {
        let memory = self.memory.as_ref()?;
        let plan = resharded_plan(members)?;
        for (node, admission) in members {
            let own = admission.memory.as_deref()?;
            let has_all = admission.group_rank == GroupRank(0) || own.all_sources.is_empty();
            if !own.is_resharded || !own.sources.is_empty() || !has_all {
                return Some(format!("the plan of {node} is not resharded: {own:?}"));
            }
        }
        let (mut next, nodes) = (0, plan.all_sources.len());
        for (rank, part) in (0..).map(GroupRank).zip(&plan.all_sources) {
            if part.group_rank != rank || part.first_global_rank.0 != next {
                return Some(format!("{part:?} does not follow on the part before"));
            }
            next += part.local_ranks.get();
            let holds = |node: NodeId| {
                let mut parts = memory.parts_known_to(id, &node).iter();
                parts.any(|known| is_part(known, plan.checkpoint, part, nodes))
            };
            let all_hold = part.sources.iter().all(|source| node_at(source).is_some_and(holds));
            if part.sources.is_empty() || !all_hold {
                return Some(format!("the sources do not hold {part:?} of {:?}", plan.checkpoint));
            }
        }
        let mut first_ranks: Vec<GlobalRank> =
            members.values().map(|admission| admission.first_global_rank).collect();
        first_ranks.sort_unstable();
        let is_alike = first_ranks.iter().eq(plan.all_sources.iter().map(|p| &p.first_global_rank))
            && members.values().all(|admission| admission.world_size == next);
        is_alike.then(|| "the ranks are those of the checkpoint".to_owned())
    }

    /// Returns true if a round begins with a checkpoint of other ranks.
    pub(super) fn is_resharded(&self, round: RoundId) -> bool {
        let members = self.memory.as_ref().and_then(|memory| memory.members_of(round));
        members.and_then(resharded_plan).is_some()
    }

    /// Handles that a worker learns of a checkpoint of other ranks. Global rank 0 passes the list of all parts to the others, as torch
    /// does. Those that have it ask for ranges.
    pub(super) fn plan_ranges(
        &mut self,
        id: &NodeId,
        round: RoundId,
        worker: LocalRank,
        step: u64,
        parts: Vec<PartSources>,
    ) {
        let now = self.now;
        let Some(memory) = &mut self.memory else { return };
        let bytes = memory.script.bytes;
        let Some(work) = memory.rounds.get_mut(&round) else { return };
        let rank = work.ranks.get(&(id.clone(), worker)).map(|rank| rank.global_rank);
        if (rank == Some(0)) == parts.is_empty() {
            return self.breaks_memory(|| format!("rule w: rank {rank:?} on {id} gets {parts:?}"));
        }
        if !parts.is_empty() {
            work.parts = parts;
        }
        if work.parts.is_empty() {
            return;
        }
        let mut plan = Vec::new();
        for (key, rank) in &mut work.ranks {
            if rank.doing == Doing::Planning {
                (rank.doing, rank.since) = (Doing::Ranging, now);
                rank.requests = requests(&mut memory.random, &work.parts, step, bytes);
                plan.push(key.clone());
            }
        }
        for (id, worker) in plan {
            self.ask_for_ranges(&id, round, worker);
        }
    }

    /// Asks for the next ranges that a worker needs. Returns false if it has all.
    fn ask_for_ranges(&mut self, id: &NodeId, round: RoundId, worker: LocalRank) -> bool {
        let rank = self.rank_of(id, round, worker);
        let Some(request) = rank.and_then(|rank| rank.requests.last()).cloned() else {
            return false;
        };
        self.ask(id, round, worker, Ask::Ranges(request));
        true
    }

    /// Checks rule w for ranges that a worker gets.
    pub(super) fn read_ranges(
        &mut self,
        id: &NodeId,
        round: RoundId,
        worker: LocalRank,
        transfer: TransferId,
        bytes: u64,
    ) {
        let now = self.now;
        let Some(memory) = &mut self.memory else { return };
        let arrived = memory.drivers.get_mut(id).and_then(|driver| driver.ranges.remove(&transfer));
        let Some(work) = memory.rounds.get_mut(&round) else { return };
        let Some(rank) = work.ranks.get_mut(&(id.clone(), worker)) else { return };
        let (Some(arrived), Some(request)) = (arrived, rank.requests.pop()) else {
            return self.breaks_memory(|| format!("rule w: {id} gives ranges, which nobody wants"));
        };
        rank.since = now;
        let is_it = |part: &&PartSources| part.group_rank == request.group_rank;
        let first = work.parts.iter().find(is_it).map_or(0, |part| part.first_global_rank.0);
        let total: u64 = request.ranges.iter().map(|range| range.bytes).sum();
        let mut lineages = Vec::new();
        for (range, content) in request.ranges.iter().zip(&arrived) {
            let Some(Content::Whole { checkpoint, training, global_rank, is_bad, mark }) = *content
            else {
                break;
            };
            let is_explained = mark == 0 || memory.faults.changed.contains(&checkpoint);
            if global_rank == first + range.local_rank.0 && is_explained {
                lineages.push((checkpoint, training, is_bad));
            }
        }
        if lineages.len() != request.ranges.len() || bytes != total {
            return self.breaks_memory(|| {
                format!("rule w: {worker:?} of {id} gets {bytes} B, {arrived:?} for {request:?}")
            });
        }
        let checkpoint = lineages.first().map(|(checkpoint, ..)| *checkpoint);
        lineages.into_iter().for_each(|one| self.check_loaded(id, round, worker, one));
        if !self.ask_for_ranges(id, round, worker) {
            if let Some(rank) = self.rank_of(id, round, worker) {
                rank.doing = Doing::Training;
            }
            checkpoint.into_iter().for_each(|one| self.refuse_by_chance(id, round, worker, one));
        }
    }
}

/// Returns requests for all blocks of one part, and at least one block of each other part.
fn requests(
    random: &mut Random,
    parts: &[PartSources],
    step: u64,
    bytes: u64,
) -> Vec<RangesRequest> {
    let all: Vec<GroupRank> = parts.iter().map(|part| part.group_rank).collect();
    let whole = random.pick(&all);
    let mut requests = Vec::new();
    for part in parts {
        let ranks = u64::from(part.local_ranks.get());
        let wants_all = whole == Some(part.group_rank) || random.chance(50);
        let one = random.between(0, ranks - 1);
        let mut ranges = Vec::new();
        for rank in (0..ranks).filter(|rank| wants_all || *rank == one) {
            let offset = random.between(0, bytes - 1);
            let bytes = random.between(1, bytes - offset);
            let local_rank = LocalRank(u32::try_from(rank).unwrap_or(0));
            ranges.push(BlockRange { local_rank, offset, bytes });
        }
        let (group_rank, sources) = (part.group_rank, part.sources.clone());
        requests.push(RangesRequest { step, group_rank, sources, ranges });
    }
    requests
}
