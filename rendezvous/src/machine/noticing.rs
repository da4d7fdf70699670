//! Gives all ranks time for a checkpoint before nodes leave, before nodes join, and before the job ends.
//!
//! 1. A node reports that it has received a notice. If it is a member, a *phase* begins: all nodes of the round
//!    receive the notice.
//! 2. Further notices join the phase. It then has the strongest kind and the earliest end.
//! 3. The phase ends when all nodes have saved the same step, or when its time is over.
//! 4. The round ends with it, because everything after the checkpoint would be done again. If the notice was
//!    about the whole job, the job is closed.
//!
//! A request for a checkpoint has no phase. It only reaches all nodes under a number of its own.

use std::{collections::BTreeSet, mem, time::Instant};

use tracing::info;

use crate::{
    event::EventKind,
    group::Group,
    ids::NodeId,
    limits::{MEMORY_IS_ENOUGH_AFTER, SAVE_SPACING, after, millis},
    machine::{Rendezvous, closing::Failures},
    message::{Guidance, JobResult, NodeState, NoticeKind, Requests, RestartReason, ToNode},
    notice_phase::NoticePhase,
    phase::{RoundEnd, Running},
    settings::SharedSettings,
    snapshot::Saving,
};

/// The most ranges of ranks in a text.
const RANGES_SHOWN: usize = 8;

impl Rendezvous {
    /// Notes that a checkpoint or a look was requested on a node, or that the node has answered a notice.
    pub(super) fn note_requests(&mut self, now: Instant, id: &NodeId) {
        let Some(node) = self.job.roster.get_mut(id) else { return };
        let Requests { saves, looks } = node.report.requests;
        let known = node.requested;
        node.requested = Requests { saves: saves.max(known.saves), looks: looks.max(known.looks) };
        self.is_save_due |= saves > known.saves;
        if looks > known.looks {
            self.note_look_request(now);
        }
        let Some(node) = self.job.roster.get(id) else { return };
        let (saved, state) = (node.report.saved, node.report.state);
        let round = node.report.round;
        let runs = matches!(state, NodeState::Running | NodeState::Succeeded);
        if let Some(running) = self.job.phase.running_mut()
            && let Some(saved) = saved.filter(|_| runs)
            && running.group.round == round
            && running.group.held(id).is_some()
            && let Some(phase) = &mut running.notice
        {
            phase.record(id, &saved);
        }
    }

    /// Begins, extends or ends the phase of a notice. Returns true if the round has ended, or the job.
    pub(super) fn step_of_notice(&mut self, now: Instant, shared: SharedSettings) -> bool {
        if let Some((kind, until, text)) = self.pending_notice() {
            self.give_notice(now, kind, Some(until), text);
        } else if self.may_withdraw() {
            self.end_phase(now, None, None, true);
        }
        if self.request_due_at().is_some_and(|due| due <= now) {
            self.is_save_due = false;
            self.last_request = Some(now);
            self.give_notice(now, NoticeKind::Save, None, String::new());
        }
        let Some(running) = self.job.phase.running() else { return false };
        let Some(phase) = running.notice.as_ref().filter(|phase| phase.ends_round()) else {
            return false;
        };
        let before = self.progress.training().complete_step;
        // If the workers have done nothing since an earlier phase, its checkpoint is enough.
        let step = phase.saved_step(running.group.size).or(before);
        let is_over = phase.until.is_some_and(|until| until <= now);
        let in_memory = if step.is_none() { self.saved_in_memory(now) } else { None };
        let is_saved = step.or(in_memory).is_some();
        if !is_saved && !is_over {
            return false;
        }
        debug_assert!(phase.until <= Some(after(phase.since, shared.notice)) || is_saved);
        self.end_phase(now, step, in_memory, false);
        true
    }

    /// Returns the strongest kind of all notices that nodes have received, the earliest end, and the source of the
    /// notice with that end. A node without workers that only leaves has nothing to save, so its notice does not
    /// count.
    fn pending_notice(&self) -> Option<(NoticeKind, Instant, String)> {
        let Running { group, .. } = self.job.phase.running()?;
        let noticed = self.job.roster.noticed();
        let ends_job = self.job.roster.is_job_ending() || self.job.roster.all_will_leave();
        let counts = |id: &NodeId, ends: bool| ends || ends_job || group.held(id).is_some();
        let relevant = || noticed.iter().filter(|(id, noticed)| counts(id, noticed.ends_job));
        let until = relevant().map(|(_, noticed)| noticed.until).min()?;
        let (_, first) = relevant().min_by_key(|(_, noticed)| noticed.until)?;
        let kind = if ends_job { NoticeKind::End } else { NoticeKind::Leave };
        Some((kind, until, first.text.clone()))
    }

    /// Returns true if the round should end for waiting nodes, and this is no longer useful: the nodes are gone, or
    /// a member has done all its work. Workers that have exited because of the notice must start again.
    fn may_withdraw(&self) -> bool {
        let Some(Running { group, notice: Some(phase), .. }) = self.job.phase.running() else {
            return false;
        };
        let is_useless = !self.would_be_better(group) || group.any_succeeded();
        phase.kind == NoticeKind::Members && !phase.has_exits && is_useless
    }

    /// Begins a phase so that nodes can join after it.
    pub(super) fn give_notice_for_members(&mut self, now: Instant, shared: SharedSettings) {
        let waiting = self.job.roster.ready().len();
        let nodes = if waiting == 1 { "node waits" } else { "nodes wait" };
        let until = after(now, shared.notice);
        self.give_notice(now, NoticeKind::Members, Some(until), format!("{waiting} {nodes}"));
    }

    /// Begins a phase, or extends it.
    fn give_notice(
        &mut self,
        now: Instant,
        kind: NoticeKind,
        until: Option<Instant>,
        text: String,
    ) {
        let latest = self.job.settings.shared.map(|shared| after(now, shared.notice));
        let until = until.map(|until| latest.map_or(until, |latest| until.min(latest)));
        let noticed = self.job.roster.noticed().iter().filter(|(_, noticed)| !noticed.ends_job);
        let noticed: Vec<NodeId> = noticed.map(|(id, _)| id.clone()).collect();
        let leavers: BTreeSet<(String, NodeId)> =
            noticed.into_iter().map(|id| (self.job.host_name(&id), id)).collect();
        let Some(running) = self.job.phase.running_mut() else { return };
        let has_changed = match (&mut running.notice, until) {
            (Some(phase), Some(until)) if phase.ends_round() => {
                phase.join(kind, until, leavers, text)
            }
            // The checkpoint of the phase is the one that was requested.
            (Some(phase), None) if phase.ends_round() => false,
            (notice, until) => {
                let number = &mut self.notices_given;
                *number = number.saturating_add(1);
                let mut phase = NoticePhase::new(now, *number, kind, until, text);
                if kind >= NoticeKind::Leave {
                    phase.leavers = leavers;
                }
                *notice = Some(phase);
                true
            }
        };
        if !has_changed {
            return;
        }
        let Some(phase) = &running.notice else { return };
        let notice = phase.notice(now);
        let kind = EventKind::NoticeGiven {
            notice: notice.number,
            about: notice.kind,
            hosts: notice.hosts,
            source: notice.text,
            left_ms: notice.left.map(millis),
        };
        info!(number = notice.number, about = notice.kind.name(), "notice given");
        let event = self.out.event(&self.job, None, None, kind);
        self.notice_event = Some(event);
        (self.out.has_guidance, self.has_given_guidance) = (true, true);
        self.remember();
    }

    /// Ends the phase. `step` is what all ranks have saved on disk, and `in_memory` what the next round finds in memory.
    /// Only the former survives the end of the job.
    fn end_phase(
        &mut self,
        now: Instant,
        step: Option<u64>,
        in_memory: Option<u64>,
        is_withdrawn: bool,
    ) {
        let Some(running) = self.job.phase.running_mut() else { return };
        let Some(phase) = running.notice.take() else { return };
        let missing = missing_ranks(&running.group, &phase);
        self.record_end_of_phase(now, &phase, (step, in_memory), missing, is_withdrawn);
        if is_withdrawn {
            self.out.has_guidance = true;
            return;
        }
        self.progress.end_saving(now, step);
        match phase.kind {
            NoticeKind::Save => return,
            NoticeKind::Members => self.end_for_waiting(now, in_memory),
            NoticeKind::Leave => {
                let reason = RestartReason::Notice { kind: phase.kind, hosts: phase.hosts() };
                self.end_round(now, RoundEnd { memory_step: in_memory, ..reason.into() });
            }
            NoticeKind::End => return self.close_as_saved(),
        }
        self.remember();
    }

    /// Records the end of a phase whose round ends for another reason, such as a failure.
    pub(super) fn record_abandoned_phase(&mut self, now: Instant) {
        let Some(running) = self.job.phase.running_mut() else { return };
        let Some(phase) = running.notice.take().filter(NoticePhase::ends_round) else { return };
        let missing = missing_ranks(&running.group, &phase);
        self.record_end_of_phase(now, &phase, (None, None), missing, false);
    }

    fn record_end_of_phase(
        &mut self,
        now: Instant,
        phase: &NoticePhase,
        (step, memory_step): (Option<u64>, Option<u64>),
        missing: String,
        is_withdrawn: bool,
    ) {
        info!(number = phase.number, ?step, ?memory_step, missing, "the phase of a notice is over");
        let kind = EventKind::NoticeOver {
            notice: phase.number,
            step,
            memory_step,
            missing: if step.or(memory_step).is_some() { String::new() } else { missing },
            after_ms: millis(now.saturating_duration_since(phase.since)),
            is_withdrawn,
        };
        self.out.record_cause(&self.job, self.notice_event, None, kind);
    }

    /// Closes the job if a node has received a notice that it ends, and no round runs. Returns true if it did.
    pub(super) fn close_if_ending(&mut self) -> bool {
        let is_ending = self.job.roster.is_job_ending();
        if is_ending {
            self.close_as_saved();
        }
        is_ending
    }

    fn close_as_saved(&mut self) {
        let result = match self.progress.training().complete_step {
            Some(step) => JobResult::Saved { step },
            None => JobResult::AllLeft,
        };
        self.close(result, Failures::default());
    }

    /// Returns true while a phase may end the round.
    pub(super) fn is_saving(&self) -> bool {
        let Some(running) = self.job.phase.running() else { return false };
        running.notice.as_ref().is_some_and(NoticePhase::ends_round)
    }

    /// Returns the time at which the phase ends, a checkpoint in memory is enough, or a request is passed on.
    pub(super) fn notice_deadline(&self, running: &Running) -> Option<Instant> {
        let phase = running.notice.as_ref().filter(|phase| phase.ends_round());
        let until = phase.and_then(|phase| phase.until);
        let memory = phase.map(|phase| after(phase.since, MEMORY_IS_ENOUGH_AFTER));
        let memory = memory.filter(|at| *at > self.job.clock);
        [until, memory, self.request_due_at()].into_iter().flatten().min()
    }

    fn request_due_at(&self) -> Option<Instant> {
        let last = self.last_request.map_or(self.job.clock, |last| after(last, SAVE_SPACING));
        (self.is_save_due && self.job.phase.running().is_some()).then_some(last)
    }

    /// Sends all members the newest notice, if it has changed. They have received their admissions before.
    pub(super) fn send_new_guidance(&mut self, now: Instant) {
        if !mem::take(&mut self.out.has_guidance) {
            return;
        }
        let Some(running) = self.job.phase.running() else { return };
        let members: Vec<NodeId> = running.group.members().map(|(id, _)| id.clone()).collect();
        for id in members {
            self.send_guidance(now, &id);
        }
    }

    /// Sends a member the newest notice of the round, if there was one.
    pub(super) fn send_guidance(&mut self, now: Instant, id: &NodeId) {
        let Some(running) = self.job.phase.running() else { return };
        let memory_off = self.memory_off();
        let look = running.look.as_ref().map(|look| look.look());
        let has_news = self.has_given_guidance || memory_off.is_some() || look.is_some();
        if !has_news || running.group.held(id).is_none() {
            return;
        }
        let notice = running.notice.as_ref().map(|phase| phase.notice(now));
        let round = running.group.round;
        let hung = running.stall.as_ref().and_then(|stall| stall.hung);
        let guidance = Guidance { round, notice, look, hung, memory_off };
        if let Some(peer) = self.job.attached(id) {
            self.out.send(peer, ToNode::Guidance(guidance));
        }
    }

    /// Returns the state of the phase for people; `None` if there is none.
    pub(super) fn saving(&self, now: Instant) -> Option<Saving> {
        let running = self.job.phase.running()?;
        let phase = running.notice.as_ref().filter(|phase| phase.ends_round())?;
        let table = running.group.table.as_ref()?;
        let saved =
            table.member_ranks().iter().filter(|ranks| phase.has_answer_of(&ranks.node.node_id));
        Some(Saving {
            notice: phase.number,
            kind: phase.kind,
            hosts: phase.hosts(),
            source: phase.text.clone(),
            saved_ranks: saved.map(|ranks| ranks.node.local_world_size.get()).sum(),
            ranks: table.world_size(),
            missing: missing_ranks(&running.group, phase),
            left_ms: phase.until.map_or(0, |until| millis(until.saturating_duration_since(now))),
        })
    }
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
