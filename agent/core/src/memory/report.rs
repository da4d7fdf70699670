//! Reports to the coordinator what this node holds.

use std::time::Duration;

use ragent_rendezvous::{
    ids::LocalRank,
    message::{DIFFERENT_STEPS, MEMORY_BYTES_MAX, MemoryReport, PARTS_MAX, PartPlace},
};

use super::{NodeMemory, parts::KeptPart};

impl NodeMemory {
    /// Returns the report of this node; `None` if its job does not use memory.
    pub fn report(&self) -> Option<MemoryReport> {
        if !self.is_used {
            return None;
        }
        let round = self.round.as_ref();
        let held = self.parts.values().filter(|part| part.is_held());
        let parts = held.map(|part| part.reported(round, self.is_alone(part)));
        let own = self.parts.values().filter(|part| part.place(round) == PartPlace::Own);
        let needed = own.map(|part| self.needed_for(part.bytes(), part.about.is_replicated)).max();
        Some(MemoryReport {
            round: round.map(|round| round.round).unwrap_or_default(),
            parts: parts.take(PARTS_MAX).collect(),
            needed: needed.unwrap_or(0).min(MEMORY_BYTES_MAX),
            limit: self.settings.limit.min(MEMORY_BYTES_MAX),
            address: self.settings.address.clone(),
            obstacle: self
                .late_rank()
                .or_else(|| self.obstacle.clone())
                .or_else(|| self.no_copies()),
            waits_for_buffer: self.waiting_rank(),
            cost: self.cost(),
            fetch_time: self.restore.time,
            oom_kills: self.left.oom_kills,
        })
    }

    /// Names a rank of this node that has not saved yet, while a `save` of another rank waits. Usually the script saves on rank 0 only.
    fn late_rank(&self) -> Option<String> {
        self.waiting_rank()?;
        let round = self.round.as_ref()?;
        let own = self.parts.values().filter(|part| part.place(Some(round)) == PartPlace::Own);
        let first_late = |part: &KeptPart| {
            let mut ranks = (0..).map(LocalRank).take(part.about.block_count());
            ranks.find(|rank| !part.blocks.contains_key(rank))
        };
        let late = own.filter_map(|part| Some((part.id.checkpoint.step, first_late(part)?)));
        let (step, rank) = late.min()?;
        let rank = round.first_global_rank.0.saturating_add(rank.0);
        Some(format!("rank {rank} has not saved step {step}; {DIFFERENT_STEPS}"))
    }

    /// Returns the reason why parts that this node holds are copied to no other.
    fn no_copies(&self) -> Option<String> {
        let round = self.round.as_ref().filter(|round| round.nodes > 1)?;
        let needs_copy = self.parts.values().any(|part| !part.about.is_replicated);
        if !needs_copy || !self.settings.has_copies || round.buddy.is_some() {
            return None;
        }
        let why = match self.settings.address {
            None => "the job has no secret (ragent secret --init)",
            Some(_) => "no other node is on another host and in another failure domain",
        };
        Some(format!("no copies: {why}"))
    }

    /// Returns the memory that a part of this size needs with all copies: two of its own, and two of the ward.
    pub(super) fn needed_for(&self, part: u64, is_replicated: bool) -> u64 {
        let copies = self.settings.has_copies && self.settings.address.is_some() && !is_replicated;
        part.saturating_mul(if copies { 4 } else { 2 })
    }

    /// Returns the median of the newest costs, which an unusual one does not change.
    fn cost(&self) -> Option<Duration> {
        let mut costs: Vec<Duration> = self.costs.iter().copied().collect();
        costs.sort_unstable();
        costs.get(costs.len() / 2).copied()
    }

    /// Returns the report to send, if it has changed since the last call.
    pub fn take_report(&mut self) -> Option<MemoryReport> {
        if !std::mem::take(&mut self.has_news) {
            return None;
        }
        self.reported = self.report();
        self.reported.clone()
    }

    /// Notes if the report has changed. Costs alone are no change: they differ each time.
    pub(super) fn review_report(&mut self) {
        let comparable = |report: MemoryReport| MemoryReport { cost: None, ..report };
        let new = self.report().map(comparable);
        let known = self.reported.clone().map(comparable);
        self.has_news |= new != known;
    }

    /// Returns the parts that are held, for tests of whole jobs.
    pub fn held(&self) -> impl Iterator<Item = super::PartId> {
        self.parts.values().filter(|part| part.is_held()).map(|part: &KeptPart| part.id)
    }
}
