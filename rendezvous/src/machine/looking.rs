//! Looks at the workers of a stalled round, and explains the stall by the answers.
//!
//! 1. When a stall begins, or when a person asks (`ragent stacks`), all nodes receive a look with their guidance. It has
//!    two parts ([`Looking`]), so a job has at most one look in ten seconds.
//! 2. The answers are restricted to what their nodes can know, and kept until the look is over.
//! 3. The places of the workers are shown until the round ends ([`places`]).
//! 4. The answers are explained in a sentence ([`explain_stall`]), which is shown at once. In a stall, it is recorded as an
//!    event when the look is over, so that the journal has one for both parts. Without a stall, nobody is blamed.

use std::{net::Ipv6Addr, time::Instant};

use tracing::debug;

use crate::{
    event::EventKind,
    group::Group,
    ids::NodeId,
    limits::millis,
    looking::{LookStep, Looking},
    machine::Rendezvous,
    message::Digest,
    notice_phase::NoticePhase,
    phase::{Phase, Running},
    snapshot::JobLook,
    stall::{NOTHING_KNOWN, Own, OwnWait, RankedNode, explain_stall, places, restrict},
    table::MemberRanks,
};

impl Rendezvous {
    /// Begins a look at the workers of the running round.
    pub(super) fn begin_look(&mut self, now: Instant) {
        let Some(running) = self.job.phase.running_mut() else { return };
        self.looks = self.looks.saturating_add(1);
        running.look = Some(Box::new(Looking::new(now, self.looks, running.group.size)));
        running.is_look_due = false;
        debug!(number = self.looks, "look at the workers");
        self.out.has_guidance = true;
        if self.own_wait().is_some() {
            self.explain(self.looks);
        }
    }

    /// Begins a look because a person has asked for it. If there is one already, its places are the answer. If these are
    /// shown already, another look follows.
    pub(super) fn note_look_request(&mut self, now: Instant) {
        let Some(running) = self.job.phase.running_mut() else { return };
        let shown = running.places.as_ref().map(|places| places.1.number);
        match &mut running.look {
            Some(look) if shown == Some(look.look().number) => running.is_look_due = true,
            Some(look) => look.want(),
            None => {
                self.begin_look(now);
                let Some(Running { look: Some(look), .. }) = self.job.phase.running_mut() else {
                    return;
                };
                look.want();
            }
        }
        self.send_new_guidance(now);
    }

    /// Handles the answer of a node to a look.
    pub(super) fn handle_digest(&mut self, now: Instant, id: &NodeId, mut digest: Digest) {
        let Some(running) = self.job.phase.running_mut() else { return };
        let (group, Some(look)) = (&running.group, &mut running.look) else { return };
        let Some(member) = group.held(id).filter(|_| digest.round == group.round) else { return };
        let ranks = group
            .table
            .as_ref()
            .and_then(|table| table.member_ranks().get(usize::try_from(member.rank.0).ok()?));
        let Some(ranks) = ranks else { return };
        restrict(&mut digest, &ranked(ranks));
        let step = look.record(id, digest);
        self.follow_look(now, step);
        // A worker may have been named.
        self.send_new_guidance(now);
    }

    /// Applies the deadlines of the look.
    pub(super) fn step_of_look(&mut self, now: Instant) {
        let Some(Running { look: Some(look), .. }) = self.job.phase.running_mut() else { return };
        let step = look.handle_timeout(now);
        self.follow_look(now, step);
    }

    /// Returns the time at which the look changes, if there is one.
    pub(super) fn look_deadline(&self) -> Option<Instant> {
        Some(self.job.phase.running()?.look.as_ref()?.deadline())
    }

    fn follow_look(&mut self, now: Instant, step: LookStep) {
        let Some(Running { look: Some(look), .. }) = self.job.phase.running() else { return };
        let number = look.look().number;
        self.out.has_guidance |= step.is_changed;
        if step.is_explained {
            self.explain(number);
        }
        if step.is_over {
            self.name_stopped(now);
            self.record_explanation();
            let Some(running) = self.job.phase.running_mut() else { return };
            running.look = None;
            if running.is_look_due {
                self.note_look_request(now);
            }
        }
    }

    /// Records the newest explanation of the stall as an event.
    pub(super) fn record_explanation(&mut self) {
        let Some(running) = self.job.phase.running_mut() else { return };
        let Some(stall) = &mut running.stall else { return };
        let Some(explanation) = stall.unrecorded.take() else { return };
        let kind = EventKind::StallExplained { text: explanation.text, rank: explanation.rank };
        let event = stall.event;
        self.out.event(&self.job, Some(event), None, kind);
    }

    /// Shows the places of the workers and the sentence, and explains the stall, by the answers so far.
    fn explain(&mut self, number: u64) {
        let Some(own) = self.own_facts(number) else { return };
        let Phase::Running(Running { stall, places: shown, look: Some(look), .. }) =
            &mut self.job.phase
        else {
            return;
        };
        let explanation = explain_stall(look.digests(), &own);
        if !look.digests().is_empty() {
            let places = places(look.digests(), &own);
            // Such a sentence only repeats the list of places.
            let is_repeated = |text: &String| match &places.places[..] {
                [only] => {
                    let sentence = text.split_once(" (unchanged").map_or(&**text, |(text, _)| text);
                    sentence.ends_with(&only.text)
                }
                _ => false,
            };
            let is_news = |text: &&String| *text != NOTHING_KNOWN && !is_repeated(text);
            let text = Some(&explanation.text).filter(is_news).cloned();
            *shown = Some(Box::new((look.since(), JobLook { text, ..places })));
        }
        if let Some(stall) = stall {
            stall.explain(explanation);
        }
    }

    /// Returns the places of the workers at the newest look, for people.
    pub(super) fn shown_look(&self, now: Instant) -> Option<JobLook> {
        let (since, look) = self.job.phase.running()?.places.as_deref()?;
        let age_ms = millis(now.saturating_duration_since(*since));
        Some(JobLook { age_ms, ..look.clone() })
    }

    /// Returns what this coordinator itself knows about the running round.
    fn own_facts(&self, look: u64) -> Option<Own> {
        let group = &self.job.phase.running()?.group;
        let members = group.table.as_ref()?.member_ranks();
        Some(Own {
            round: group.round,
            look,
            nodes: members.iter().map(ranked).collect(),
            store: store(group),
            refused: group.refused_clients().first().copied(),
            wait: self.own_wait(),
        })
    }

    /// Returns the reason for which ragent itself makes the workers wait, if there is one.
    pub(super) fn own_wait(&self) -> Option<OwnWait> {
        let running = self.job.phase.running()?;
        if let Some((id, rank)) = self.memory.waits_for_buffer() {
            let to = running.group.member(id).and_then(|member| self.buddy_host(member.rank));
            return Some(OwnWait::Memory { rank, to });
        }
        let saves = running.notice.as_ref().is_some_and(NoticePhase::ends_round);
        saves.then_some(OwnWait::Notice)
    }
}

/// Returns a member as the explanation needs it.
fn ranked(ranks: &MemberRanks) -> RankedNode {
    RankedNode {
        host: ranks.node.host_name.clone(),
        first: ranks.first_global_rank,
        workers: ranks.node.local_world_size.get(),
    }
}

/// Returns the address and port of the round's store.
fn store(group: &Group) -> Option<String> {
    let (address, port) = group.table.as_ref()?.store();
    let is_v6 = address.parse::<Ipv6Addr>().is_ok();
    Some(if is_v6 { format!("[{address}]:{port}") } else { format!("{address}:{port}") })
}
