//! The time between a notice and the end of its round, in which all ranks may save.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use crate::{
    ids::NodeId,
    message::{NOTICE_HOSTS_MAX, Notice, NoticeKind, Saved},
    progress::saved_steps::SavedSteps,
};

/// A phase that ends earlier by less than this time is not worth another message.
const CHANGE_MIN: Duration = Duration::from_secs(1);

/// The newest notice of a round.
#[derive(Clone, Debug)]
pub(crate) struct NoticePhase {
    pub(crate) number: u64,
    pub(crate) kind: NoticeKind,
    /// The nodes that leave, with their host names.
    pub(crate) leavers: BTreeSet<(String, NodeId)>,
    /// The time of the notice.
    pub(crate) since: Instant,
    /// The time at which the round ends in any case; `None` if it goes on.
    pub(crate) until: Option<Instant>,
    /// The source, for people.
    pub(crate) text: String,
    /// True if all workers of a member have exited with 0 after they had saved.
    pub(crate) has_exits: bool,
    saved: SavedSteps<NodeId>,
}

impl NoticePhase {
    /// Begins with a notice.
    pub(crate) fn new(
        now: Instant,
        number: u64,
        kind: NoticeKind,
        until: Option<Instant>,
        text: String,
    ) -> Self {
        let (leavers, saved) = (BTreeSet::new(), SavedSteps::default());
        Self { number, kind, leavers, since: now, until, text, has_exits: false, saved }
    }

    /// Adds another notice. The phase keeps its number, has the strongest kind, and ends at the earliest time.
    /// Returns true if this has changed what the nodes know.
    pub(crate) fn join(
        &mut self,
        kind: NoticeKind,
        until: Instant,
        leavers: BTreeSet<(String, NodeId)>,
        text: String,
    ) -> bool {
        // Each report of a node repeats the time that is left, in whole milliseconds. So the end varies a little.
        let is_shorter = self.until.is_none_or(|now| until + CHANGE_MIN < now);
        let has_changed = kind > self.kind || is_shorter || !leavers.is_subset(&self.leavers);
        if kind > self.kind {
            self.kind = kind;
            self.text = text;
        }
        if is_shorter {
            self.until = Some(until);
        }
        self.leavers.extend(leavers);
        has_changed
    }

    /// Notes that all workers of a node have exited with 0. Returns true if they have saved before, because the
    /// round ends: then they have not succeeded.
    pub(crate) fn note_exit(&mut self, node: &NodeId) -> bool {
        let is_saved = self.ends_round() && self.has_answer_of(node);
        self.has_exits |= is_saved;
        is_saved
    }

    /// Records the answer of a node. An answer to another notice does not count.
    pub(crate) fn record(&mut self, node: &NodeId, saved: &Saved) {
        if saved.notice == self.number {
            self.saved.record(node.clone(), saved.step, saved.is_whole);
        }
    }

    /// Returns the newest step that all nodes of a round of this size have saved for the notice.
    pub(crate) fn saved_step(&self, size: u32) -> Option<u64> {
        self.saved.newest(size as usize)
    }

    /// Returns true if the node has saved anything for the notice.
    pub(crate) fn has_answer_of(&self, node: &NodeId) -> bool {
        self.saved.has(node)
    }

    /// Returns true if the round ends with the phase.
    pub(crate) fn ends_round(&self) -> bool {
        self.until.is_some()
    }

    /// Returns the host names of nodes that leave.
    pub(crate) fn hosts(&self) -> Vec<String> {
        self.leavers.iter().map(|(host, _)| host.clone()).take(NOTICE_HOSTS_MAX).collect()
    }

    /// Returns the notice, as it is sent at `now`.
    pub(crate) fn notice(&self, now: Instant) -> Notice {
        Notice {
            number: self.number,
            kind: self.kind,
            hosts: self.hosts(),
            left: self.until.map(|until| until.saturating_duration_since(now)),
            text: self.text.clone(),
        }
    }
}
