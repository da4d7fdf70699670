//! Stops using checkpoints in memory that lead nowhere.
//!
//! - A checkpoint is void after two charged rounds that began with it, if no newer one became whole in them: its
//!   state may be bad. Rounds that end for another reason do not count, and neither do those whose failed worker had
//!   not received it.
//! - It is void at once if a checksum is wrong, or if the script has refused it.
//! - If memory goes off in a round, all checkpoints up to this round are void: one on disk may be newer.
//! - Memory is off for the rest of the job after the second process that the kernel has killed for lack of memory
//!   on a node with parts.

use std::time::Instant;

use tracing::{info, warn};

use crate::{
    event::{EventKind, FreeReason, StrikeReason},
    ids::{NodeId, Round, RoundId},
    limits::HOST_TALLIES_MAX,
    machine::Rendezvous,
    message::{MemoryReport, MemoryUnusable, RestartReason, UnusableReason},
    snapshot::grouped,
};

/// The number of processes that the kernel may kill before memory is off for the rest of the job. The first may be
/// chance.
const KILLS_MAX: u32 = 2;

impl Rendezvous {
    /// Returns true if the round began with a checkpoint in memory.
    pub(super) fn began_from_memory(&self, round: RoundId) -> bool {
        self.memory.round == round && self.memory.plan.is_some()
    }

    /// Notes that the round was charged.
    pub(super) fn strike_memory(&mut self, round: RoundId) {
        if !self.began_from_memory(round) || self.memory.is_past_plan() {
            return;
        }
        let Some(checkpoint) = self.memory.plan.as_ref().map(|plan| plan.checkpoint) else {
            return;
        };
        if self.memory.tried.strike(checkpoint) {
            self.record_strike(checkpoint.step, StrikeReason::Failures);
        }
    }

    /// Stops using the checkpoint of a round that failed before the workers of the failed node received it. Returns false if the round
    /// began from disk.
    pub(super) fn void_unread(&mut self, round: RoundId) -> bool {
        let plan = self.memory.plan.as_ref().filter(|_| self.began_from_memory(round));
        let Some(checkpoint) = plan.map(|plan| plan.checkpoint) else { return false };
        if self.memory.tried.void(checkpoint) {
            self.record_strike(checkpoint.step, StrikeReason::Unread);
        }
        true
    }

    fn record_strike(&mut self, step: u64, reason: StrikeReason) {
        warn!("step {} in memory is not used again: {}", grouped(step), reason.text());
        self.memory.struck = Some(reason);
        self.out.event(&self.job, None, None, EventKind::MemoryStruck { step, reason });
    }

    /// Returns the report of a node that it cannot use the checkpoint of the newest round, if there is one.
    pub(super) fn unusable(&self, id: &NodeId) -> Option<MemoryUnusable> {
        let group = self.job.phase.group().filter(|group| group.round == self.memory.round)?;
        group.held(id)?;
        let report = &self.job.roster.get(id)?.report;
        let unusable = report.memory_unusable.as_deref()?;
        let planned = self.memory.plan.as_ref()?.checkpoint;
        let is_current = report.round == self.memory.round && unusable.checkpoint == planned;
        is_current.then(|| unusable.clone())
    }

    /// Ends the running round, because a node cannot use its checkpoint. A failure of its workers is a consequence.
    pub(super) fn end_unusable(&mut self, now: Instant, id: &NodeId, unusable: MemoryUnusable) {
        self.note_unusable(id, &unusable);
        let host_name = self.job.host_name(id);
        info!(node = %id, why = unusable.why.kind(), "the checkpoint in memory cannot be used");
        self.end_round(now, RestartReason::MemoryUnusable { host_name, unusable });
    }

    /// Applies the same report if the round has ended already. A failure that has ended it was a consequence.
    pub(super) fn note_unusable_late(&mut self, id: &NodeId) {
        let Some(unusable) = self.unusable(id) else { return };
        self.note_unusable(id, &unusable);
        if let Some(regathering) = self.job.phase.regathering_mut()
            && regathering.verdict.take().is_some()
        {
            info!(node = %id, "failure not charged: the checkpoint in memory cannot be used");
            self.out.record_free_failure(&self.job, FreeReason::MemoryUnusable);
        }
    }

    fn note_unusable(&mut self, id: &NodeId, unusable: &MemoryUnusable) {
        let reason = match &unusable.why {
            UnusableReason::Sum => StrikeReason::Sum,
            UnusableReason::Script => StrikeReason::Script,
            UnusableReason::SourceGone { sources } => return self.note_gone(id, unusable, sources),
        };
        if self.memory.tried.void(unusable.checkpoint) {
            self.record_strike(unusable.checkpoint.step, reason);
            self.remember();
        }
    }

    /// Notes the sources that a node has not reached. Only those count that its own admission has named, or that its
    /// workers have read from because the checkpoint is resharded.
    fn note_gone(&mut self, id: &NodeId, unusable: &MemoryUnusable, sources: &[String]) {
        let rank = self.job.phase.group().and_then(|group| Some(group.member(id)?.rank));
        let Some((rank, plan)) = rank.zip(self.memory.plan.as_ref()) else { return };
        let gone = sources.iter().filter(|address| plan.names(rank, address)).cloned();
        self.memory.gone.add(unusable.checkpoint, gone.collect::<Vec<_>>());
    }

    /// Turns memory off for the newest round, because a node has reported in it that it must be off.
    pub(super) fn turn_memory_off_in(&mut self, round: RoundId, id: &NodeId, why: &str) {
        let is_newest = round.round != Round(0) && round == self.newest_round();
        if !is_newest || !self.memory.tried.void_round(round) {
            return;
        }
        // Each node warns of it.
        info!(%round, node = %id, why, "checkpoints in memory are off");
        self.memory.off = Some(why.to_owned());
        self.out.event_of(&self.job, None, id, EventKind::MemoryOff { reason: why.to_owned() });
        self.out.has_guidance = true;
        self.remember();
    }

    /// Returns the reason why memory is off in the newest round.
    pub(super) fn memory_off(&self) -> Option<String> {
        let is_off = self.memory.tried.is_off();
        let for_job = || "the kernel killed two processes for lack of memory".to_owned();
        self.memory.off.clone().or_else(|| is_off.then(for_job))
    }

    /// Counts a worker of the newest round that the kernel has killed for lack of memory, if its node holds parts.
    pub(super) fn note_kill(&mut self, id: &NodeId) {
        let Some(node) = self.job.roster.get(id) else { return };
        let killed = node.report.failure.as_ref().filter(|failure| failure.oom.is_some());
        let Some(failure) = killed.filter(|_| node.report.round == self.memory.round) else {
            return;
        };
        let text = format!(
            "the kernel killed rank {} on {} for lack of memory",
            failure.global_rank, node.description.host_name
        );
        let has_parts = node.memory.as_deref().is_some_and(Self::has_parts);
        if has_parts && self.memory.killed.insert(id.clone()) {
            self.count_kill(id, text);
        }
    }

    /// Remembers how many processes the kernel had killed on the host of a lost node with parts.
    pub(super) fn remember_kills(&mut self, host_name: &str, report: &MemoryReport) {
        let has_room = self.memory.lost_hosts.len() < HOST_TALLIES_MAX;
        if let Some(kills) = report.oom_kills.filter(|_| has_room && Self::has_parts(report)) {
            self.memory.lost_hosts.insert(host_name.to_owned(), kills);
        }
    }

    /// Counts an agent with parts that the kernel has killed for lack of memory. The next agent of its host knows.
    pub(super) fn note_killed_agent(&mut self, id: &NodeId) {
        if self.memory.lost_hosts.is_empty() {
            return;
        }
        let host_name = self.job.host_name(id);
        let kills = self.job.roster.get(id).and_then(|node| node.memory.as_ref()?.oom_kills);
        let Some(kills) = kills else { return };
        if self.memory.lost_hosts.remove(&host_name).is_some_and(|before| before < kills) {
            let text = format!("the kernel killed a process on {host_name} for lack of memory");
            self.count_kill(id, text);
        }
    }

    fn count_kill(&mut self, id: &NodeId, text: String) {
        self.memory.kills = self.memory.kills.saturating_add(1);
        let round = self.newest_round();
        if self.memory.kills >= KILLS_MAX && self.memory.tried.turn_off(round) {
            warn!("checkpoints in memory are off for the rest of the job: {text}");
            self.out.event_of(&self.job, None, id, EventKind::MemoryOff { reason: text.clone() });
            self.memory.off = Some(text);
            self.out.has_guidance = true;
            self.remember();
        }
    }
}
