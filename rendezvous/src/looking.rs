//! Collects the answers to a look at the workers of a round.
//!
//! 1. All nodes look at once (part 1), and again ten seconds later (part 2).
//! 2. One node also asks NCCL, for each part: the one with group rank 0. If it has no answer, or none within ten seconds, the
//!    next one is asked, three at most.
//! 3. A part is over when all nodes have answered it, or after ten seconds. Then the answers so far are explained.
//!
//! A node has one answer for each part, so the memory is bounded by the number of nodes. It is freed with the look.

use std::{
    collections::BTreeMap,
    mem,
    time::{Duration, Instant},
};

use crate::{
    ids::{GroupRank, NodeId},
    limits::after,
    message::{Digest, Look, LookPart},
};

/// The time between the parts of a look, and the time for an answer.
pub(crate) const PART: Duration = Duration::from_secs(10);

/// The most nodes that ask NCCL in one look.
const ASKING_MAX: u32 = 3;

/// A look at the workers of a round, until it is over.
#[derive(Debug)]
pub(crate) struct Looking {
    look: Look,
    /// The time of its begin.
    since: Instant,
    /// True if a person waits for it.
    is_wanted: bool,
    /// The number of nodes in the round.
    nodes: u32,
    /// The time at which the newest part was requested.
    part_since: Instant,
    /// True if no further answer to the newest part is awaited.
    is_part_over: bool,
    /// The time at which a node was last asked to ask NCCL.
    asked_since: Instant,
    /// True until that node has answered.
    is_nccl_awaited: bool,
    digests: Vec<Digest>,
    /// The place of each answer in `digests`.
    places: BTreeMap<(LookPart, NodeId), usize>,
    /// The number of nodes that have answered the newest part.
    answered: u32,
    /// True if answers have come since the last explanation.
    has_news: bool,
}

/// The changes after some time, or after an answer.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct LookStep {
    /// True if the nodes must receive the look again.
    pub(crate) is_changed: bool,
    /// True if the answers so far are to be explained.
    pub(crate) is_explained: bool,
    /// True if no further answer is awaited.
    pub(crate) is_over: bool,
}

impl Looking {
    /// Begins a look at the workers of this number of nodes.
    pub(crate) fn new(now: Instant, number: u64, nodes: u32) -> Self {
        Self {
            look: Look { number, part: LookPart::First, ras_rank: GroupRank(0) },
            since: now,
            is_wanted: false,
            nodes,
            part_since: now,
            is_part_over: false,
            asked_since: now,
            is_nccl_awaited: true,
            digests: Vec::new(),
            places: BTreeMap::new(),
            answered: 0,
            has_news: false,
        }
    }

    /// Returns the look, as the nodes receive it.
    pub(crate) fn look(&self) -> Look {
        self.look
    }

    /// Notes that a person waits for the look.
    pub(crate) fn want(&mut self) {
        self.is_wanted = true;
    }

    /// Returns true if a person waits for the look.
    pub(crate) fn is_wanted(&self) -> bool {
        self.is_wanted
    }

    /// Returns true if NCCL has not answered in the first part, and this part is not over.
    pub(crate) fn awaits_first_of_nccl(&self) -> bool {
        self.look.part == LookPart::First && self.is_nccl_awaited
    }

    /// Returns the time of its begin.
    pub(crate) fn since(&self) -> Instant {
        self.since
    }

    /// Returns the answers so far.
    pub(crate) fn digests(&self) -> &[Digest] {
        &self.digests
    }

    /// Returns true if the node with this rank was asked to ask NCCL. Its answer may be late.
    pub(crate) fn asks_nccl(&self, rank: GroupRank) -> bool {
        rank <= self.look.ras_rank
    }

    /// Records the answer of a node. It replaces an earlier answer to the same part. An answer to another look, or to
    /// a part that is not due, does not count.
    pub(crate) fn record(
        &mut self,
        now: Instant,
        node: &NodeId,
        rank: GroupRank,
        digest: Digest,
    ) -> LookStep {
        if digest.look != self.look.number || digest.part > self.look.part {
            return LookStep::default();
        }
        let before = (self.is_part_over, self.is_nccl_awaited);
        let is_newest = digest.part == self.look.part;
        let is_asked = is_newest && rank == self.look.ras_rank;
        self.is_nccl_awaited &= !(is_asked && digest.has_asked_nccl);
        let is_silent = is_asked && self.is_nccl_awaited && digest.is_nccl_silent;
        let is_changed = is_silent && self.ask_next(now);
        self.has_news = true;
        let key = (digest.part, node.clone());
        match self.places.get(&key).and_then(|place| self.digests.get_mut(*place)) {
            Some(before) => *before = digest,
            None => {
                self.answered += u32::from(is_newest);
                self.places.insert(key, self.digests.len());
                self.digests.push(digest);
            }
        }
        self.is_part_over |= self.answered >= self.nodes;
        // A node may answer again and again.
        if before == (self.is_part_over, self.is_nccl_awaited) {
            return LookStep { is_changed, ..LookStep::default() };
        }
        LookStep { is_changed, ..self.settled() }
    }

    /// Lets the next node ask NCCL. Returns false if there is none.
    fn ask_next(&mut self, now: Instant) -> bool {
        let next = GroupRank(self.look.ras_rank.0 + 1);
        self.is_nccl_awaited = next.0 < self.nodes.min(ASKING_MAX);
        if self.is_nccl_awaited {
            (self.look.ras_rank, self.asked_since) = (next, now);
        }
        self.is_nccl_awaited
    }

    /// Returns what follows when the newest part may be over.
    fn settled(&mut self) -> LookStep {
        let is_last = self.look.part == LookPart::Second;
        LookStep {
            is_changed: false,
            is_explained: self.is_part_over && mem::take(&mut self.has_news),
            is_over: is_last && self.is_part_over && !self.is_nccl_awaited,
        }
    }

    /// Returns the time of the next change.
    pub(crate) fn deadline(&self) -> Instant {
        let part = after(self.part_since, PART);
        if self.look.part == LookPart::First {
            return part;
        }
        let part = (!self.is_part_over).then_some(part);
        let nccl = self.is_nccl_awaited.then(|| after(self.asked_since, PART));
        part.into_iter().chain(nccl).min().unwrap_or(self.part_since)
    }

    /// Handles all deadlines that have passed.
    pub(crate) fn handle_timeout(&mut self, now: Instant) -> LookStep {
        if now < self.deadline() {
            return LookStep::default();
        }
        self.is_part_over |= after(self.part_since, PART) <= now;
        let mut step = self.settled();
        if self.is_nccl_awaited && after(self.asked_since, PART) <= now {
            step.is_changed = self.ask_next(now);
        }
        if self.look.part == LookPart::First {
            (self.look.part, self.part_since) = (LookPart::Second, now);
            (self.is_part_over, self.answered) = (false, 0);
            // NCCL counts the collectives of both parts.
            (self.is_nccl_awaited, self.asked_since) = (true, now);
            step.is_changed = true;
        }
        step.is_over = self.settled().is_over;
        step
    }
}

#[cfg(test)]
mod tests;
