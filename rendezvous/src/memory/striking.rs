//! Stops using checkpoints in memory that lead nowhere.
//!
//! - A checkpoint is void after two charged rounds that began with it, if no newer one became whole in them: its
//!   state may be bad. Rounds that end for another reason do not count, and neither do those whose failed worker had
//!   not received it.
//! - It is void at once if a checksum is wrong, or if the script has refused it.
//! - If memory goes off in a round, all checkpoints up to this round are void: one on disk may be newer.
//! - Memory is off for the rest of the job after the second process that the kernel has killed for lack of memory
//!   on a node with parts.

use tracing::{info, warn};

use crate::{
    effects::Effects,
    event::{EventKind, StrikeReason},
    ids::{NodeId, Round, RoundId},
    job::Job,
    limits::HOST_TALLIES_MAX,
    memory::JobMemory,
    message::{MemoryReport, MemoryUnusable, UnusableReason},
    snapshot::grouped,
};

/// The number of processes that the kernel may kill before memory is off for the rest of the job. The first may be
/// chance.
const KILLS_MAX: u32 = 2;

impl JobMemory {
    /// Returns true if the round began with a checkpoint in memory.
    pub(crate) fn began_from_memory(&self, round: RoundId) -> bool {
        self.round == round && self.plan.is_some()
    }

    /// Notes that the round was charged.
    pub(crate) fn strike(&mut self, job: &Job, round: RoundId, out: &mut Effects) {
        let planned = self.plan.as_ref().map(|plan| plan.checkpoint);
        let Some(checkpoint) = planned.filter(|_| self.began_from_memory(round)) else { return };
        // A checkpoint that was newer than the plan may have become whole in the round.
        if self.whole <= planned && self.tried.strike(checkpoint) {
            self.record_strike(job, checkpoint.step, StrikeReason::Failures, out);
        }
    }

    /// Stops using the checkpoint of a round that failed before the workers of the failed node received it. Returns false if the round
    /// began from disk.
    pub(crate) fn void_unread(&mut self, job: &Job, round: RoundId, out: &mut Effects) -> bool {
        let plan = self.plan.as_ref().filter(|_| self.began_from_memory(round));
        let Some(checkpoint) = plan.map(|plan| plan.checkpoint) else { return false };
        if self.tried.void(checkpoint) {
            self.record_strike(job, checkpoint.step, StrikeReason::Unread, out);
        }
        true
    }

    fn record_strike(&mut self, job: &Job, step: u64, reason: StrikeReason, out: &mut Effects) {
        warn!("step {} in memory is not used again: {}", grouped(step), reason.text());
        self.struck = Some(reason);
        out.event(job, None, None, EventKind::MemoryStruck { step, reason });
    }

    /// Returns the report of a node that it cannot use the checkpoint of the newest round, if there is one.
    pub(crate) fn unusable(&self, job: &Job, id: &NodeId) -> Option<MemoryUnusable> {
        let group = job.phase.group().filter(|group| group.round == self.round)?;
        group.held(id)?;
        let report = &job.roster.get(id)?.report;
        let unusable = report.memory_unusable.as_deref()?;
        let planned = self.plan.as_ref()?.checkpoint;
        let is_current = report.round == self.round && unusable.checkpoint == planned;
        is_current.then(|| unusable.clone())
    }

    /// Stops using the checkpoint of the round, because a node cannot use it.
    pub(crate) fn note_unusable(
        &mut self,
        job: &Job,
        id: &NodeId,
        unusable: &MemoryUnusable,
        out: &mut Effects,
    ) {
        let reason = match &unusable.why {
            UnusableReason::Sum => StrikeReason::Sum,
            UnusableReason::Script => StrikeReason::Script,
            UnusableReason::SourceGone { sources } => {
                return self.note_gone(job, id, unusable, sources);
            }
        };
        if self.tried.void(unusable.checkpoint) {
            self.record_strike(job, unusable.checkpoint.step, reason, out);
            out.remember();
        }
    }

    /// Notes the sources that a node has not reached. Only those count that its own admission has named, or that its
    /// workers have read from because the checkpoint is resharded.
    fn note_gone(&mut self, job: &Job, id: &NodeId, unusable: &MemoryUnusable, sources: &[String]) {
        let rank = job.phase.group().and_then(|group| Some(group.member(id)?.rank));
        let Some((rank, plan)) = rank.zip(self.plan.as_ref()) else { return };
        let gone = sources.iter().filter(|address| plan.names(rank, address)).cloned();
        self.gone.add(unusable.checkpoint, gone.collect::<Vec<_>>());
    }

    /// Turns memory off for the newest round, because a node has reported in it that it must be off.
    pub(super) fn turn_off_in(
        &mut self,
        job: &Job,
        round: RoundId,
        id: &NodeId,
        why: &str,
        out: &mut Effects,
    ) {
        let is_newest = round.round != Round(0) && round == job.newest_round();
        if !is_newest || !self.tried.void_round(round) {
            return;
        }
        // Each node warns of it.
        info!(%round, node = %id, why, "checkpoints in memory are off");
        self.off = Some(why.to_owned());
        out.event_of(job, None, id, EventKind::MemoryOff { reason: why.to_owned() });
        out.has_guidance = true;
        out.remember();
    }

    /// Returns the reason why memory is off in the newest round.
    pub(crate) fn why_off(&self) -> Option<String> {
        let is_off = self.tried.is_off();
        let for_job = || "the kernel killed two processes for lack of memory".to_owned();
        self.off.clone().or_else(|| is_off.then(for_job))
    }

    /// Counts a worker of the newest round that the kernel has killed for lack of memory, if its node holds parts.
    pub(crate) fn note_kill(&mut self, job: &Job, id: &NodeId, out: &mut Effects) {
        let Some(node) = job.roster.get(id) else { return };
        let killed = node.report.failure.as_ref().filter(|failure| failure.oom.is_some());
        let Some(failure) = killed.filter(|_| node.report.round == self.round) else {
            return;
        };
        let text = format!(
            "the kernel killed rank {} on {} for lack of memory",
            failure.global_rank, node.description.host_name
        );
        let has_parts = node.memory.as_deref().is_some_and(Self::has_parts);
        if has_parts && self.killed.insert(id.clone()) {
            self.count_kill(job, id, text, out);
        }
    }

    /// Remembers how many processes the kernel had killed on the host of a lost node with parts.
    pub(super) fn remember_kills(&mut self, host_name: &str, report: &MemoryReport) {
        let has_room = self.lost_hosts.len() < HOST_TALLIES_MAX;
        if let Some(kills) = report.oom_kills.filter(|_| has_room && Self::has_parts(report)) {
            self.lost_hosts.insert(host_name.to_owned(), kills);
        }
    }

    /// Counts an agent with parts that the kernel has killed for lack of memory. The next agent of its host knows.
    pub(crate) fn note_killed_agent(&mut self, job: &Job, id: &NodeId, out: &mut Effects) {
        if self.lost_hosts.is_empty() {
            return;
        }
        let host_name = job.host_name(id);
        let kills = job.roster.get(id).and_then(|node| node.memory.as_ref()?.oom_kills);
        let Some(kills) = kills else { return };
        if self.lost_hosts.remove(&host_name).is_some_and(|before| before < kills) {
            let text = format!("the kernel killed a process on {host_name} for lack of memory");
            self.count_kill(job, id, text, out);
        }
    }

    fn count_kill(&mut self, job: &Job, id: &NodeId, text: String, out: &mut Effects) {
        self.kills = self.kills.saturating_add(1);
        let round = job.newest_round();
        if self.kills >= KILLS_MAX && self.tried.turn_off(round) {
            warn!("checkpoints in memory are off for the rest of the job: {text}");
            out.event_of(job, None, id, EventKind::MemoryOff { reason: text.clone() });
            self.off = Some(text);
            out.has_guidance = true;
            out.remember();
        }
    }
}
