//! Checks the plans of checkpoints that were saved with other ranks on the nodes, and reads them.
//!
//! The agents' part is not modelled: each worker reads all blocks where the plan says that they are.

use std::collections::BTreeMap;

use ragent_rendezvous::{
    effect::Effect,
    ids::{GlobalRank, GroupRank, NodeId, RoundId},
    message::{
        Admission, Assignment, CheckpointId, MemoryKind, MemoryPlan, Part, PartSources, ToNode,
    },
};

use super::{
    super::{Bug, World},
    Memory, node_at,
    workers::{Content, Lineage},
};

/// The members of a round, with their admissions.
pub(super) type Members = BTreeMap<NodeId, Admission>;

/// What a worker has read.
pub(super) enum Read {
    /// All blocks, of these trainings.
    Whole(Vec<Lineage>),
    /// A block has changed at all of its holders.
    Changed,
    /// No holder of a block is there any more.
    Gone,
}

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

    /// Returns the members of a round that begins with a checkpoint of other ranks.
    pub(super) fn plan_of_other_ranks(&self, round: RoundId) -> Option<MemoryPlan> {
        resharded_plan(self.memory.as_ref()?.members_of(round)?).cloned()
    }

    /// Reads all blocks of a plan.
    pub(super) fn read_resharded(&mut self, round: RoundId, plan: &MemoryPlan) -> Read {
        let mut all = Vec::new();
        for part in &plan.all_sources {
            let sources = part.sources.iter().filter_map(|source| node_at(source));
            let holders: Vec<NodeId> =
                sources.filter(|source| self.processes.contains_key(source)).collect();
            let (holds, lacks): (Vec<NodeId>, Vec<NodeId>) =
                holders.into_iter().partition(|holder| self.holds(holder, plan, part));
            let Some(memory) = &self.memory else { return Read::Gone };
            if let Some(other) = lacks.first().filter(|_| memory.faults.short.is_none()) {
                let why = format!("rule w: {other} does not hold {part:?}, which {round} reads");
                self.breaks_memory(|| why);
                return Read::Gone;
            }
            for rank in 0..part.local_ranks.get() {
                let rank = part.first_global_rank.0 + rank;
                let blocks = holds.iter().flat_map(|holder| memory.blocks_of(holder, plan, rank));
                match blocks.min_by_key(|(_, mark)| *mark) {
                    Some((lineage, 0)) => all.push(lineage),
                    Some(_) => return Read::Changed,
                    None => return Read::Gone,
                }
            }
        }
        Read::Whole(all)
    }

    fn holds(&self, id: &NodeId, plan: &MemoryPlan, part: &PartSources) -> bool {
        let agent = self.processes.get(id).and_then(|process| process.agent.as_ref());
        let report = agent.and_then(|agent| agent.node.agent().memory_report());
        let nodes = plan.all_sources.len();
        let is_it = |held: &Part| is_part(held, plan.checkpoint, part, nodes);
        report.is_some_and(|report| report.parts.iter().any(is_it))
    }
}

impl Memory {
    /// Returns the lineage of each block of a rank that a node has, and if it has changed.
    fn blocks_of(
        &self,
        id: &NodeId,
        plan: &MemoryPlan,
        of_rank: u32,
    ) -> impl Iterator<Item = (Lineage, u64)> {
        let files = self.drivers.get(id).into_iter().flat_map(|driver| driver.buffers.values());
        files.filter_map(move |file| match file.content {
            Some(Content::Whole { checkpoint, training, global_rank, is_bad, mark })
                if checkpoint == plan.checkpoint && global_rank == of_rank =>
            {
                Some(((checkpoint, training, is_bad), mark))
            }
            _ => None,
        })
    }
}
