//! Gives all ranks time for a checkpoint before nodes leave, before nodes join, and before the job ends.
//!
//! 1. A node reports that it has received a notice. If it is a member, a *phase* begins: all nodes of the round
//!    receive the notice.
//! 2. Further notices join the phase. It then has the strongest kind and the earliest end.
//! 3. The phase ends when all nodes have saved the same step, or when its time is over.
//! 4. The machine ends the round with it, because everything after the checkpoint would be done again. If the notice was
//!    about the whole job, the job is closed.
//!
//! A request for a checkpoint has no phase. It only reaches all nodes under a number of its own.

mod phase;
#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, time::Instant};

use phase::NoticePhase;
use tracing::info;

use crate::{
    effects::Effects,
    event::{EventId, EventKind},
    group::Group,
    ids::NodeId,
    job::Job,
    limits::{MEMORY_IS_ENOUGH_AFTER, SAVE_SPACING, after, millis},
    memory::JobMemory,
    message::{NodeState, Notice, NoticeKind},
    settings::{JobState, SharedSettings},
    snapshot::Saving,
};

/// The most ranges of ranks in a text.
const RANGES_SHOWN: usize = 8;

/// The notices of the job.
#[derive(Debug)]
pub(crate) struct JobNotices {
    /// The newest notice of the running round, if there was one.
    phase: Option<NoticePhase>,
    /// The event of the newest notice. The event of its end names it as the cause.
    event: Option<EventId>,
    /// The number of notices so far. The next coordinator goes on from it.
    given: u64,
    /// The time at which a checkpoint was last requested on behalf of a node.
    last_request: Option<Instant>,
    /// True if another one is requested, but not yet passed on.
    is_save_due: bool,
}

/// A phase that is over, and ends the round.
#[derive(Debug)]
pub(crate) struct PhaseOver {
    pub(crate) kind: NoticeKind,
    pub(crate) hosts: Vec<String>,
    /// The step that all ranks have saved on disk. Only this one survives the end of the job.
    pub(crate) step: Option<u64>,
    /// The step that the next round finds in memory, if none on disk was waited for.
    pub(crate) memory_step: Option<u64>,
}

impl JobNotices {
    /// Goes on from what an earlier coordinator has kept.
    pub(crate) fn new(kept: &JobState) -> Self {
        let given = kept.training.notices;
        Self { phase: None, event: None, given, last_request: None, is_save_due: false }
    }

    /// Writes to the state of the job what the next coordinator goes on from.
    pub(crate) fn keep(&self, state: &mut JobState) {
        state.training.notices = self.given;
    }

    /// Notes that a checkpoint was requested on a node.
    pub(crate) fn request_save(&mut self) {
        self.is_save_due = true;
    }

    /// Records the answer of a node to a notice, if it runs the round.
    pub(crate) fn record_answer(&mut self, job: &Job, id: &NodeId) {
        if let Some(phase) = &mut self.phase
            && job.run_by(id).is_some()
            && let Some(report) = job.roster.get(id).map(|node| &node.report)
            && let (NodeState::Running | NodeState::Succeeded, Some(saved)) =
                (report.state, &report.saved)
        {
            phase.record(id, saved);
        }
    }

    /// Notes that all workers of a member have exited with 0. Returns true if they have saved before, because the
    /// round ends: then they have not succeeded.
    pub(crate) fn note_exit(&mut self, id: &NodeId) -> bool {
        self.phase.as_mut().is_some_and(|phase| phase.note_exit(id))
    }

    /// Begins or extends a phase, if nodes have received a notice.
    pub(crate) fn give_pending(&mut self, job: &Job, out: &mut Effects) {
        if let Some((kind, until, text)) = pending_notice(job) {
            self.give(job, kind, Some(until), text, out);
        }
    }

    /// Passes on a request for a checkpoint, if one is due.
    pub(crate) fn give_request(&mut self, job: &Job, out: &mut Effects) {
        if self.request_due_at(job).is_some_and(|due| due <= job.clock) {
            self.is_save_due = false;
            self.last_request = Some(job.clock);
            self.give(job, NoticeKind::Save, None, String::new(), out);
        }
    }

    /// Begins a phase so that nodes can join after it.
    pub(crate) fn give_for_members(
        &mut self,
        job: &Job,
        shared: SharedSettings,
        out: &mut Effects,
    ) {
        let waiting = job.roster.ready().len();
        let nodes = if waiting == 1 { "node waits" } else { "nodes wait" };
        let until = after(job.clock, shared.notice);
        self.give(job, NoticeKind::Members, Some(until), format!("{waiting} {nodes}"), out);
    }

    /// Begins a phase, or extends it.
    fn give(
        &mut self,
        job: &Job,
        kind: NoticeKind,
        until: Option<Instant>,
        text: String,
        out: &mut Effects,
    ) {
        let now = job.clock;
        let latest = job.settings.shared.map(|shared| after(now, shared.notice));
        let until = until.map(|until| latest.map_or(until, |latest| until.min(latest)));
        let noticed = job.roster.noticed().iter().filter(|(_, noticed)| !noticed.ends_job);
        let leavers: BTreeSet<(String, NodeId)> =
            noticed.map(|(id, _)| (job.host_name(id), id.clone())).collect();
        let phase = match (&mut self.phase, until) {
            (Some(phase), Some(until)) if phase.ends_round() => {
                if !phase.join(kind, until, leavers, text) {
                    return;
                }
                phase
            }
            // The checkpoint of the phase is the one that was requested.
            (Some(phase), None) if phase.ends_round() => return,
            (phase, until) => {
                self.given = self.given.saturating_add(1);
                let mut begun = NoticePhase::new(now, self.given, kind, until, text);
                if kind >= NoticeKind::Leave {
                    begun.leavers = leavers;
                }
                phase.insert(begun)
            }
        };
        let notice = phase.notice(now);
        let kind = EventKind::NoticeGiven {
            notice: notice.number,
            about: notice.kind,
            hosts: notice.hosts,
            source: notice.text,
            left_ms: notice.left.map(millis),
        };
        info!(number = notice.number, about = notice.kind.name(), "notice given");
        self.event = Some(out.event(job, None, None, kind));
        (out.has_guidance, out.has_given_guidance) = (true, true);
        out.remember();
    }

    /// Withdraws a notice that was given because nodes wait: they are gone, or a member has done all its work. Workers that have
    /// exited because of the notice must start again.
    pub(crate) fn withdraw_for_members(&mut self, job: &Job, out: &mut Effects) {
        let is_for_members =
            |phase: &mut NoticePhase| phase.kind == NoticeKind::Members && !phase.has_exits;
        if let Some(phase) = self.phase.take_if(is_for_members) {
            let over = self.over(job, &phase, (None, None), true);
            out.event(job, self.event, None, over);
            out.has_guidance = true;
        }
    }

    /// Ends the phase once all ranks have saved the same step, or once its time is over. `complete_step` is what they have saved for an
    /// earlier notice, if they have done nothing since: that is enough.
    pub(crate) fn end_if_over(
        &mut self,
        job: &Job,
        memory: &JobMemory,
        complete_step: Option<u64>,
        out: &mut Effects,
    ) -> Option<PhaseOver> {
        let phase = self.ending()?;
        let step = phase.saved_step(job.phase.running()?.group.size).or(complete_step);
        let is_over = phase.until.is_some_and(|until| until <= job.clock);
        let memory_step = if step.is_none() { self.saved_in_memory(job, memory) } else { None };
        let is_saved = step.or(memory_step).is_some();
        let latest = job.settings.shared.map(|shared| after(phase.since, shared.notice));
        debug_assert!(is_saved || latest.is_none_or(|latest| phase.until <= Some(latest)));
        let phase = self.phase.take_if(|_| is_saved || is_over)?;
        let over = self.over(job, &phase, (step, memory_step), false);
        out.record_cause(job, self.event, None, over);
        Some(PhaseOver { kind: phase.kind, hosts: phase.hosts(), step, memory_step })
    }

    /// Returns the step of a checkpoint in memory that is enough for the phase, if there is one.
    pub(crate) fn saved_in_memory(&self, job: &Job, memory: &JobMemory) -> Option<u64> {
        let phase = self.ending()?;
        let is_suitable = matches!(phase.kind, NoticeKind::Leave | NoticeKind::Members);
        let is_over = phase.until.is_some_and(|until| until <= job.clock);
        let may_be_enough = is_over || after(phase.since, MEMORY_IS_ENOUGH_AFTER) <= job.clock;
        let leavers = phase.leavers.iter().map(|(_, id)| id);
        if is_suitable && may_be_enough {
            memory.enough_for_notice(job, phase.since, leavers)
        } else {
            None
        }
    }

    /// Ends the phase of a round that ends for another reason, such as a failure.
    pub(crate) fn end_round(&mut self, job: &Job, out: &mut Effects) {
        if let Some(phase) = self.phase.take().filter(NoticePhase::ends_round) {
            let over = self.over(job, &phase, (None, None), false);
            out.event(job, self.event, None, over);
        }
    }

    /// Logs the end of a phase, and returns its event.
    fn over(
        &self,
        job: &Job,
        phase: &NoticePhase,
        (step, memory_step): (Option<u64>, Option<u64>),
        is_withdrawn: bool,
    ) -> EventKind {
        let group = job.phase.running().map(|running| &running.group);
        let missing = group.map_or_else(String::new, |group| missing_ranks(group, phase));
        info!(number = phase.number, ?step, ?memory_step, missing, "the phase of a notice is over");
        EventKind::NoticeOver {
            notice: phase.number,
            step,
            memory_step,
            missing: if step.or(memory_step).is_some() { String::new() } else { missing },
            after_ms: millis(job.clock.saturating_duration_since(phase.since)),
            is_withdrawn,
        }
    }

    /// Returns the phase, if it ends the round.
    fn ending(&self) -> Option<&NoticePhase> {
        self.phase.as_ref().filter(|phase| phase.ends_round())
    }

    /// Returns true while a phase may end the round.
    pub(crate) fn is_saving(&self) -> bool {
        self.ending().is_some()
    }

    /// Returns the time at which the phase ends, a checkpoint in memory is enough, or a request is passed on.
    pub(crate) fn deadline(&self, job: &Job) -> Option<Instant> {
        let phase = self.ending();
        let until = phase.and_then(|phase| phase.until);
        let memory = phase.map(|phase| after(phase.since, MEMORY_IS_ENOUGH_AFTER));
        let memory = memory.filter(|at| *at > job.clock);
        [until, memory, self.request_due_at(job)].into_iter().flatten().min()
    }

    fn request_due_at(&self, job: &Job) -> Option<Instant> {
        let last = self.last_request.map_or(job.clock, |last| after(last, SAVE_SPACING));
        (self.is_save_due && job.phase.running().is_some()).then_some(last)
    }

    /// Returns the newest notice of the round, as it is sent to members at `now`.
    pub(crate) fn newest(&self, now: Instant) -> Option<Notice> {
        self.phase.as_ref().map(|phase| phase.notice(now))
    }

    /// Returns the state of the phase for people; `None` if there is none.
    pub(crate) fn saving(&self, now: Instant, job: &Job) -> Option<Saving> {
        let (group, phase) = (&job.phase.running()?.group, self.ending()?);
        let table = group.table.as_ref()?;
        let saved =
            table.member_ranks().iter().filter(|ranks| phase.has_answer_of(&ranks.node.node_id));
        Some(Saving {
            notice: phase.number,
            kind: phase.kind,
            hosts: phase.hosts(),
            source: phase.text.clone(),
            saved_ranks: saved.map(|ranks| ranks.node.local_world_size.get()).sum(),
            ranks: table.world_size(),
            missing: missing_ranks(group, phase),
            left_ms: phase.until.map_or(0, |until| millis(until.saturating_duration_since(now))),
        })
    }
}

/// Returns the strongest kind of all notices that nodes have received, the earliest end, and the source of the
/// notice with that end. A node without workers that only leaves has nothing to save, so its notice does not
/// count.
fn pending_notice(job: &Job) -> Option<(NoticeKind, Instant, String)> {
    let group = &job.phase.running()?.group;
    let noticed = job.roster.noticed();
    let ends_job = job.roster.is_job_ending() || job.roster.all_will_leave();
    let counts = |id: &NodeId, ends: bool| ends || ends_job || group.held(id).is_some();
    let relevant = || noticed.iter().filter(|(id, noticed)| counts(id, noticed.ends_job));
    let until = relevant().map(|(_, noticed)| noticed.until).min()?;
    let (_, first) = relevant().min_by_key(|(_, noticed)| noticed.until)?;
    let kind = if ends_job { NoticeKind::End } else { NoticeKind::Leave };
    Some((kind, until, first.text.clone()))
}

/// Returns the ranks that have saved nothing for the notice, such as `0, 12-31`.
fn missing_ranks(group: &Group, phase: &NoticePhase) -> String {
    let ranks = group.table.iter().flat_map(|table| table.member_ranks());
    let missing = ranks.filter(|ranks| !phase.has_answer_of(&ranks.node.node_id));
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for ranks in missing {
        let first = ranks.first_global_rank.0;
        let last = first + ranks.node.local_world_size.get() - 1;
        match ranges.last_mut() {
            Some((_, end)) if *end + 1 == first => *end = last,
            Some(_) | None => ranges.push((first, last)),
        }
    }
    let more = ranges.len().saturating_sub(RANGES_SHOWN);
    let text = |(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    let mut text = ranges.iter().take(RANGES_SHOWN).map(text).collect::<Vec<_>>().join(", ");
    if more > 0 {
        text.push_str(&format!(" and {more} more ranges"));
    }
    text
}
