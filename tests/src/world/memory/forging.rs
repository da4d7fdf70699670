//! Changes messages between the machines as a planted bug does.

use std::{collections::BTreeMap, time::Duration};

use ragent_core::memory::{Buffer, Input};
use ragent_rendezvous::{
    ids::NodeId,
    message::{
        Assignment, CheckpointId, FromNode, MemoryReport, NodeReport, PartPlace, ToNode,
        UnusableReason,
    },
    settings::JobState,
};

use super::{
    super::{Bug, World},
    address_of,
    workers::{Content, sum_of},
};

impl Bug {
    /// Returns true if a world must last until a `save` has waited for long.
    pub(super) fn needs_long_worlds(self) -> bool {
        matches!(
            self,
            Self::OwnBuddy | Self::RestoredNotCopied | Self::NeverAlone | Self::OffAtOneNode
        )
    }
}

impl World {
    /// Changes a message of an agent.
    pub(in crate::world) fn forge_memory_up(&mut self, id: &NodeId, message: &mut FromNode) {
        match message {
            FromNode::MemoryReport(report) => self.forge_memory_report(id, report),
            FromNode::NodeReport(report) => self.forge_unusable(report),
            _ => {}
        }
    }

    pub(in crate::world) fn forge_unusable(&self, report: &mut NodeReport) {
        if self.bug == Bug::UnreadCounts
            && let Some(failure) = &mut report.failure
        {
            failure.before_load = false;
        }
        if self.bug == Bug::GoneIsStruck
            && let Some(unusable) = &mut report.memory_unusable
            && matches!(unusable.why, UnusableReason::SourceGone { .. })
        {
            unusable.why = UnusableReason::Sum;
        }
    }

    pub(in crate::world) fn forge_memory_report(&mut self, id: &NodeId, report: &mut MemoryReport) {
        match self.bug {
            Bug::StepIsId => {
                report.parts.iter_mut().for_each(|part| part.checkpoint.round = report.round);
            }
            Bug::FalseRoom => report.limit = report.limit.max(1_000_000),
            Bug::NeverAlone => report.parts.iter_mut().for_each(|part| part.is_alone = false),
            Bug::PartialReported => self.report_partial(id, report),
            _ => {}
        }
    }

    /// Reports the next checkpoint as soon as a worker fills a buffer for it.
    fn report_partial(&self, id: &NodeId, report: &mut MemoryReport) {
        let Some(memory) = &self.memory else { return };
        let own = report
            .parts
            .iter()
            .filter(|part| part.place == PartPlace::Own)
            .max_by_key(|p| p.checkpoint);
        let Some(own) = own.copied() else { return };
        let Some(step) = memory.filling_step(id, own.checkpoint) else { return };
        let checkpoint = CheckpointId { round: report.round, step };
        if own.checkpoint < checkpoint {
            report.parts.push(ragent_rendezvous::message::Part { checkpoint, ..own });
        }
    }

    /// Changes a message of the coordinator to a node.
    pub(in crate::world) fn forge_memory_down(&mut self, id: &NodeId, message: &mut ToNode) {
        match message {
            ToNode::Echo { memory_whole, .. } => match self.bug {
                Bug::LowestIsWhole => *memory_whole = self.newest_steps(id).or(*memory_whole),
                Bug::OnceIsWhole => *memory_whole = self.held_once(id).max(*memory_whole),
                Bug::PlanIsWhole => *memory_whole = self.plan_of_node(id).max(*memory_whole),
                _ => {}
            },
            ToNode::Assignment(Assignment::Admit(admission))
                if self.bug == Bug::OwnBuddy && admission.buddy.is_some() =>
            {
                admission.buddy = Some(address_of(id));
                admission.ward = Some(admission.group_rank);
            }
            ToNode::Guidance(guidance) if self.bug == Bug::OffAtOneNode => {
                let rank = self.agent(id).map(|agent| agent.node.agent().memory_report());
                let reports_it = rank
                    .flatten()
                    .and_then(|report| report.obstacle)
                    .is_some_and(|text| text.starts_with("off: "));
                if !reports_it {
                    guidance.memory_off = None;
                }
            }
            _ => {}
        }
        match message {
            ToNode::Echo { memory_whole: Some(whole), .. } => self.note_whole(id, *whole),
            ToNode::Guidance(guidance) if guidance.memory_off.is_some() => {
                self.note_memory_off(id, guidance.round);
            }
            _ => {}
        }
    }

    /// Returns the parts of its own that each member of a node's round holds in it.
    fn own_parts(&self, id: &NodeId) -> Option<BTreeMap<NodeId, Vec<CheckpointId>>> {
        let agent = |id: &NodeId| self.processes.get(id)?.agent.as_ref();
        let round = agent(id)?.node.agent().known_round().round;
        let members = self.chronicle.rounds.get(&round)?;
        let own = |id: &NodeId| {
            let report = agent(id)?.node.agent().memory_report()?;
            let own = report.parts.iter().filter(|part| part.place == PartPlace::Own);
            Some(own.map(|part| part.checkpoint).collect())
        };
        members.iter().map(|member| Some((member.node.clone(), own(&member.node)?))).collect()
    }

    /// Returns the plan of a node's round.
    fn plan_of_node(&self, id: &NodeId) -> Option<CheckpointId> {
        let agent = self.processes.get(id)?.agent.as_ref()?;
        self.plan_of(agent.node.agent().known_round().round)
    }

    /// Returns the lowest of the newest checkpoints of all members.
    fn newest_steps(&self, id: &NodeId) -> Option<CheckpointId> {
        let own = self.own_parts(id)?;
        let newest: Option<Vec<CheckpointId>> =
            own.values().map(|own| own.iter().max().copied()).collect();
        newest?.into_iter().min()
    }

    /// Returns the newest checkpoint of which each member holds its part.
    fn held_once(&self, id: &NodeId) -> Option<CheckpointId> {
        let own = self.own_parts(id)?;
        let ids = own.values().next()?.iter().copied();
        ids.filter(|id| own.values().all(|own| own.contains(id))).max()
    }

    /// Replaces a report by the one before.
    pub(in crate::world) fn delay_memory_report(
        &mut self,
        id: &NodeId,
        node: &NodeId,
        report: &mut MemoryReport,
    ) {
        if self.bug != Bug::OlderReport {
            return;
        }
        if let Some(memory) = &mut self.memory {
            let key = (id.clone(), node.clone());
            let before = memory.delayed.insert(key, report.clone());
            *report = before.unwrap_or_default();
        }
    }

    /// Reports the checksum that a buffer had before a byte of it changed, without reading it.
    pub(super) fn skip_sum(&mut self, id: &NodeId, buffer: Buffer, bytes: u64) {
        let driver = self.memory.as_ref().and_then(|memory| memory.drivers.get(id));
        let mut content = driver.and_then(|driver| driver.content(buffer)).cloned();
        if let Some(Content::Whole { mark, .. }) = &mut content {
            *mark = 0;
        }
        let sum = Ok(sum_of(content.as_ref(), bytes));
        self.tell_keeper(id, Duration::ZERO, Input::Summed { buffer, sum });
    }

    /// Changes the state with which a coordinator begins.
    pub(in crate::world) fn forge_strikes(&self, job_state: &mut JobState) {
        if self.bug == Bug::StrikesLost {
            job_state.training.memory = None;
        }
    }
}
