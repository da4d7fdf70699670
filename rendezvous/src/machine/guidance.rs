//! Handles what members report while a round runs, and sends them what is new: a notice, a look at their workers, and refused clients of the
//! store.

use std::{mem, time::Instant};

use crate::{
    event::EventKind,
    group::Group,
    ids::NodeId,
    machine::{Rendezvous, closing::Failures},
    message::{
        Digest, Guidance, JobResult, MemoryReport, NoticeKind, RefusedClients, Requests,
        RestartReason, ToNode,
    },
    notices::PhaseOver,
    phase::{RoundEnd, Running},
    roster::RosterNode,
    stall::OwnWait,
};

impl Rendezvous {
    /// Notes that a checkpoint or a look was requested on a node, or that the node has answered a notice.
    pub(super) fn note_requests(&mut self, now: Instant, id: &NodeId) {
        let Some(node) = self.job.roster.get_mut(id) else { return };
        let Requests { saves, looks } = node.report.requests;
        let known = node.requested;
        node.requested = Requests { saves: saves.max(known.saves), looks: looks.max(known.looks) };
        if saves > known.saves {
            self.notices.request_save();
        }
        if looks > known.looks {
            self.stalls.request_look(&self.job, &mut self.out);
            self.send_new_guidance(now);
        }
        self.notices.record_answer(&self.job, id);
    }

    /// Handles the answer of a node to a look.
    pub(super) fn handle_digest(&mut self, now: Instant, id: &NodeId, digest: Digest) {
        self.stalls.handle_digest(&self.job, id, digest, &mut self.out);
        // A worker may have been named.
        self.send_new_guidance(now);
    }

    /// Begins a stall if one is due.
    pub(super) fn follow_stall(&mut self, now: Instant) {
        let Some(Running { group, .. }) = self.job.phase.running() else { return };
        let wait = self.own_wait(group);
        let is_excused =
            wait.is_some() || group.any_succeeded() || self.progress.is_at_last_step(group.round);
        self.progress.account.excuse(now, is_excused);
        self.stalls.follow(&self.job, &self.progress, wait, is_excused, &mut self.out);
    }

    /// Returns the reason for which ragent itself makes the workers wait, if there is one.
    fn own_wait(&self, group: &Group) -> Option<OwnWait> {
        if let Some((id, rank)) = self.memory.waits_for_buffer() {
            let to =
                group.member(id).and_then(|member| self.memory.buddy_host(&self.job, member.rank));
            return Some(OwnWait::Memory { rank, to });
        }
        self.notices.is_saving().then_some(OwnWait::Notice)
    }

    /// Handles a report of a node about its memory.
    pub(super) fn handle_memory_report(&mut self, now: Instant, id: &NodeId, report: MemoryReport) {
        let Some(node) = self.job.roster.get_mut(id) else { return };
        node.memory = Some(Box::new(report));
        self.follow_memory(id);
        self.follow_stall(now);
        let is_saved = self.notices.saved_in_memory(&self.job, &self.memory).is_some();
        if self.out.has_guidance || is_saved {
            // The round may end with this.
            self.counted.take();
            self.advance(now);
        }
    }

    /// Applies what a node has last reported about its memory, also with a registration.
    pub(super) fn follow_memory(&mut self, id: &NodeId) {
        if let Some(reached) = self.memory.follow(&self.job, id, &mut self.out) {
            self.progress.reach_in_memory(reached, &mut self.out);
        }
    }

    /// Forgets the parts of a node that was just removed.
    pub(super) fn forget_memory(&mut self, node: &RosterNode) {
        if let Some(reached) = self.memory.forget(&self.job, node, &mut self.out) {
            self.progress.reach_in_memory(reached, &mut self.out);
        }
    }

    /// Begins, extends or ends the phase of a notice. Returns true if the round has ended, or the job.
    pub(super) fn step_of_notice(&mut self, now: Instant) -> bool {
        self.notices.give_pending(&self.job, &mut self.out);
        let group = self.job.phase.running().map(|running| &running.group);
        let is_useless = |group| !self.would_be_better(group) || group.any_succeeded();
        if self.notices.is_saving() && group.is_some_and(is_useless) {
            self.notices.withdraw_for_members(&self.job, &mut self.out);
        }
        self.notices.give_request(&self.job, &mut self.out);
        let complete_step = self.progress.training().complete_step;
        let over = self.notices.end_if_over(&self.job, &self.memory, complete_step, &mut self.out);
        let Some(PhaseOver { kind, hosts, step, memory_step }) = over else { return false };
        self.progress.end_saving(now, step);
        let reason = match kind {
            NoticeKind::Members => self.note_waiting(now),
            NoticeKind::End => {
                self.close_as_saved();
                return true;
            }
            NoticeKind::Save | NoticeKind::Leave => RestartReason::Notice { kind, hosts },
        };
        self.end_round(now, RoundEnd { memory_step, ..reason.into() });
        self.out.remember();
        true
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

    /// Records the clients that the store of `node` has refused. Reports new ones to the other members of its
    /// round.
    pub(super) fn note_refused_clients(&mut self, node: &NodeId, refused: &RefusedClients) {
        let Some(running) = self.job.phase.running_mut() else { return };
        if !running.group.add_refused_clients(node, refused) {
            return;
        }
        let addresses = running.group.refused_clients().iter().map(ToString::to_string).collect();
        let members = running.group.members().map(|(member, _)| member.clone());
        let others: Vec<NodeId> = members.filter(|member| member != node).collect();
        self.out.event(&self.job, None, None, EventKind::StoreClientsRefused { addresses });
        for member in others {
            self.repeat_refused_clients(&member);
        }
    }

    /// Sends a member all clients that the store of its round has refused, if any.
    pub(super) fn repeat_refused_clients(&mut self, id: &NodeId) {
        let Some(Running { group, .. }) = self.job.phase.running() else { return };
        let addresses = group.refused_clients().to_vec();
        if addresses.is_empty() || group.held(id).is_none() {
            return;
        }
        if let Some(peer) = self.job.attached(id) {
            let refused = RefusedClients { round: group.round, addresses };
            self.out.send(peer, ToNode::RefusedClients(refused));
        }
    }

    /// Sends all members the newest notice and look, if they have changed. They have received their admissions before.
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

    /// Sends a member the newest notice and look of the round, if there was one.
    pub(super) fn send_guidance(&mut self, now: Instant, id: &NodeId) {
        let Some(running) = self.job.phase.running() else { return };
        let (look, memory_off) = (self.stalls.look(), self.memory.why_off());
        let has_news = self.out.has_given_guidance || memory_off.is_some() || look.is_some();
        if !has_news || running.group.held(id).is_none() {
            return;
        }
        let notice = self.notices.newest(now);
        let round = running.group.round;
        let hung = self.stalls.hung();
        let guidance = Guidance { round, notice, look, hung, memory_off };
        if let Some(peer) = self.job.attached(id) {
            self.out.send(peer, ToNode::Guidance(guidance));
        }
    }
}
