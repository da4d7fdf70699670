//! Limits how many nodes are set aside for one kind of reason, because such a reason may be wrong.
//!
//! Example: a fabric manager is restarted, and seven of eight nodes report XID 119 within two minutes. Their machines are
//! not all broken. In a job of `--nnodes 6:8`, two of them are set aside, and the others keep their places.

use std::{collections::VecDeque, time::Instant};

use crate::{
    ids::NodeId,
    limits::{SET_ASIDE_MAX, SET_ASIDE_TIME, after},
};

/// The nodes that were set aside in the last [`SET_ASIDE_TIME`], oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct SafetyValve {
    entries: VecDeque<Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    at: Instant,
    node: NodeId,
    kind: String,
}

impl SafetyValve {
    /// Returns true if a node may be set aside for this kind of reason. `limit` is the most nodes in
    /// [`SET_ASIDE_TIME`], and `further` the number of nodes that are set aside for it at the same moment and were not
    /// noted yet.
    pub(crate) fn allows(
        &self,
        now: Instant,
        node: &NodeId,
        kind: &str,
        (limit, further): (usize, usize),
    ) -> bool {
        let recent = || self.entries.iter().filter(|entry| now < after(entry.at, SET_ASIDE_TIME));
        let of_kind = recent().filter(|entry| entry.kind == kind && entry.node != *node);
        self.entries.len() < SET_ASIDE_MAX && of_kind.count() + further < limit
    }

    /// Returns true if the node was set aside for this kind of reason lately.
    pub(crate) fn has(&self, now: Instant, node: &NodeId, kind: &str) -> bool {
        let is_recent = |entry: &Entry| now < after(entry.at, SET_ASIDE_TIME);
        self.entries
            .iter()
            .any(|entry| is_recent(entry) && entry.node == *node && entry.kind == kind)
    }

    /// Notes that a node is set aside.
    pub(crate) fn note(&mut self, now: Instant, node: &NodeId, kind: &str) {
        while self.entries.front().is_some_and(|entry| after(entry.at, SET_ASIDE_TIME) <= now) {
            self.entries.pop_front();
        }
        self.entries.retain(|entry| entry.node != *node || entry.kind != kind);
        self.entries.push_back(Entry { at: now, node: node.clone(), kind: kind.to_owned() });
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test needs some instant to begin with")]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Each kind of reason has its own limit, in each period of ten minutes.
    #[test]
    fn kinds_are_limited_for_a_while() {
        let now = Instant::now();
        let [a, b, c] = ["a", "b", "c"].map(NodeId::new);
        let mut valve = SafetyValve::default();
        valve.note(now, &a, "xid_79");
        let later = now + Duration::from_secs(60);
        valve.note(later, &b, "xid_119");
        assert!(!valve.allows(later, &c, "xid_79", (1, 0)));
        assert!(valve.allows(later, &c, "xid_79", (2, 0)));
        assert!(!valve.allows(later, &c, "xid_79", (2, 1)));
        assert!(valve.allows(later, &c, "xid_48", (1, 0)));
        // A node that is set aside already stays so.
        assert!(valve.allows(later, &a, "xid_79", (1, 0)));
        assert!(valve.has(later, &a, "xid_79") && !valve.has(later, &a, "xid_119"));
        assert!(!valve.allows(now + SET_ASIDE_TIME - Duration::from_secs(1), &c, "xid_79", (1, 0)));
        assert!(valve.allows(now + SET_ASIDE_TIME, &c, "xid_79", (1, 0)));
        assert!(!valve.allows(now + SET_ASIDE_TIME, &c, "xid_119", (1, 0)));
    }

    /// A node that invents new kinds of reasons cannot fill the memory.
    #[test]
    fn entries_are_bounded() {
        let now = Instant::now();
        let (mut valve, a) = (SafetyValve::default(), NodeId::new("a"));
        for number in 0..SET_ASIDE_MAX {
            let kind = format!("xid_{number}");
            assert!(valve.allows(now, &a, &kind, (1, 0)));
            valve.note(now, &a, &kind);
        }
        assert!(!valve.allows(now, &a, "another", (1, 0)));
    }
}
