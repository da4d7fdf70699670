//! Collects the answers to a look at the workers of a round.
//!
//! 1. All nodes look at once (part 1), and again ten seconds later (part 2).
//! 2. A part is over when all nodes have answered it, or after ten seconds. Then the answers so far are explained.
//!
//! A node has one answer for each part, so the memory is bounded by the number of nodes. It is freed with the look.

use std::{
    collections::BTreeMap,
    mem,
    time::{Duration, Instant},
};

use crate::{
    ids::NodeId,
    limits::after,
    message::{Digest, Look, LookPart},
};

/// The time between the parts of a look, and the time for an answer.
pub(crate) const PART: Duration = Duration::from_secs(10);

/// A look at the workers of a round, until it is over.
#[derive(Debug)]
pub(crate) struct Looking {
    look: Look,
    /// The time of its beginning.
    since: Instant,
    /// True if a person waits for it.
    is_wanted: bool,
    /// The number of nodes in the round.
    nodes: u32,
    /// The time at which the newest part was requested.
    part_since: Instant,
    /// True if no further answer to the newest part is awaited.
    is_part_over: bool,
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
    /// True if the second part begins: the nodes must receive the look again.
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
            look: Look { number, part: LookPart::First },
            since: now,
            is_wanted: false,
            nodes,
            part_since: now,
            is_part_over: false,
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

    /// Returns the time of its beginning.
    pub(crate) fn since(&self) -> Instant {
        self.since
    }

    /// Returns the answers so far.
    pub(crate) fn digests(&self) -> &[Digest] {
        &self.digests
    }

    /// Records the answer of a node. It replaces an earlier answer to the same part. An answer to another look, or to
    /// a part that is not due, does not count.
    pub(crate) fn record(&mut self, node: &NodeId, digest: Digest) -> LookStep {
        if digest.look != self.look.number || digest.part > self.look.part {
            return LookStep::default();
        }
        let is_newest = digest.part == self.look.part;
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
        // A node may answer again and again.
        if self.is_part_over || self.answered < self.nodes {
            return LookStep::default();
        }
        self.is_part_over = true;
        self.settled()
    }

    /// Returns what follows when the newest part may be over.
    fn settled(&mut self) -> LookStep {
        let is_last = self.look.part == LookPart::Second;
        LookStep {
            is_changed: false,
            is_explained: self.is_part_over && mem::take(&mut self.has_news),
            is_over: is_last && self.is_part_over,
        }
    }

    /// Returns the time of the next change.
    pub(crate) fn deadline(&self) -> Instant {
        after(self.part_since, PART)
    }

    /// Handles all deadlines that have passed.
    pub(crate) fn handle_timeout(&mut self, now: Instant) -> LookStep {
        if now < self.deadline() {
            return LookStep::default();
        }
        self.is_part_over = true;
        let mut step = self.settled();
        if self.look.part == LookPart::First {
            (self.look.part, self.part_since) = (LookPart::Second, now);
            (self.is_part_over, self.answered) = (false, 0);
            step.is_changed = true;
        }
        step
    }
}

#[cfg(test)]
mod tests;
