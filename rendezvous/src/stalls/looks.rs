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

use super::{
    JobStalls,
    explain::{NOTHING_KNOWN, Own, OwnWait, RankedNode, explain_stall, places, restrict},
    looking::{LookStep, Looking},
};
use crate::{
    effects::Effects, event::EventKind, group::Group, ids::NodeId, job::Job, limits::millis,
    message::Digest, snapshot::JobLook, table::MemberRanks,
};

impl JobStalls {
    /// Begins a look at the workers of the running round.
    pub(super) fn begin_look(&mut self, job: &Job, out: &mut Effects) {
        let Some(running) = job.phase.running() else { return };
        self.looks = self.looks.saturating_add(1);
        self.look = Some(Looking::new(job.clock, self.looks, running.group.size));
        self.is_look_due = false;
        debug!(number = self.looks, "look at the workers");
        out.has_guidance = true;
        if self.wait.is_some() {
            self.explain(job);
        }
    }

    /// Begins a look because a person has asked for it. If there is one already, its places are the answer. If these are
    /// shown already, another look follows.
    pub(crate) fn request_look(&mut self, job: &Job, out: &mut Effects) {
        let shown = self.places.as_ref().map(|(_, places)| places.number);
        match &mut self.look {
            Some(look) if shown == Some(look.look().number) => self.is_look_due = true,
            Some(look) => look.want(),
            None => {
                self.begin_look(job, out);
                self.look.iter_mut().for_each(Looking::want);
            }
        }
    }

    /// Handles the answer of a node to a look.
    pub(crate) fn handle_digest(
        &mut self,
        job: &Job,
        id: &NodeId,
        mut digest: Digest,
        out: &mut Effects,
    ) {
        let (Some(running), Some(look)) = (job.phase.running(), &mut self.look) else { return };
        let group = &running.group;
        let Some(member) = group.held(id).filter(|_| digest.round == group.round) else { return };
        let ranks = group
            .table
            .as_ref()
            .and_then(|table| table.member_ranks().get(usize::try_from(member.rank.0).ok()?));
        let Some(ranks) = ranks else { return };
        restrict(&mut digest, &ranked(ranks));
        let step = look.record(id, digest);
        self.follow_look(job, step, out);
    }

    /// Applies the deadlines of the look.
    pub(super) fn step_of_look(&mut self, job: &Job, out: &mut Effects) {
        if let Some(look) = &mut self.look {
            let step = look.handle_timeout(job.clock);
            self.follow_look(job, step, out);
        }
    }

    fn follow_look(&mut self, job: &Job, step: LookStep, out: &mut Effects) {
        out.has_guidance |= step.is_changed;
        if step.is_explained {
            self.explain(job);
        }
        if step.is_over {
            self.name_stopped(job, out);
            self.record_explanation(job, out);
            self.look = None;
            if self.is_look_due {
                self.request_look(job, out);
            }
        }
    }

    /// Records the newest explanation of the stall as an event.
    pub(super) fn record_explanation(&mut self, job: &Job, out: &mut Effects) {
        let Some(stall) = &mut self.stall else { return };
        let Some(explanation) = stall.unrecorded.take() else { return };
        let kind = EventKind::StallExplained { text: explanation.text, rank: explanation.rank };
        out.event(job, Some(stall.event), None, kind);
    }

    /// Shows the places of the workers and the sentence, and explains the stall, by the answers so far.
    fn explain(&mut self, job: &Job) {
        let Some(look) = &self.look else { return };
        let Some(own) = own_facts(job, look.look().number, self.wait.clone()) else { return };
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
            self.places = Some((look.since(), JobLook { text, ..places }));
        }
        if let Some(stall) = &mut self.stall {
            stall.explain(explanation);
        }
    }

    /// Returns the places of the workers at the newest look, for people.
    pub(crate) fn shown_look(&self, now: Instant) -> Option<JobLook> {
        let (since, look) = self.places.as_ref()?;
        let age_ms = millis(now.saturating_duration_since(*since));
        Some(JobLook { age_ms, ..look.clone() })
    }
}

/// Returns what this coordinator itself knows about the running round.
fn own_facts(job: &Job, look: u64, wait: Option<OwnWait>) -> Option<Own> {
    let group = &job.phase.running()?.group;
    let members = group.table.as_ref()?.member_ranks();
    Some(Own {
        round: group.round,
        look,
        nodes: members.iter().map(ranked).collect(),
        store: store(group),
        refused: group.refused_clients().first().copied(),
        wait,
    })
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
