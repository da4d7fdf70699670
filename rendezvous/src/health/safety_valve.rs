//! Limits how many nodes are set aside for one kind of reason, because such a reason may be wrong.
//!
//! Example: a fabric manager is restarted, and seven of eight nodes report XID 119 within two minutes. Their machines are
//! not all broken. In a job of `--nnodes 6:8`, two of them are set aside, and the others keep their places.

use std::{collections::BTreeMap, time::Instant};

use crate::{
    ids::NodeId,
    limits::{SET_ASIDE_MAX, SET_ASIDE_TIME, after},
};

/// The nodes that were set aside in the last [`SET_ASIDE_TIME`], by the kind of reason.
#[derive(Clone, Debug, Default)]
pub(crate) struct SafetyValve {
    kinds: BTreeMap<String, BTreeMap<NodeId, Instant>>,
}

impl SafetyValve {
    /// Returns true if a node was set aside for this kind of reason lately.
    pub(crate) fn has(&self, now: Instant, node: &NodeId, kind: &str) -> bool {
        let at = self.kinds.get(kind).and_then(|nodes| nodes.get(node));
        at.is_some_and(|at| is_recent(now, *at))
    }

    /// Returns the number of nodes that were set aside for this kind of reason lately.
    pub(crate) fn count(&self, now: Instant, kind: &str) -> usize {
        let nodes = self.kinds.get(kind).into_iter().flatten();
        nodes.filter(|(_, at)| is_recent(now, **at)).count()
    }

    /// Notes that a node is set aside. If too many are known, this one is not.
    pub(crate) fn note(&mut self, now: Instant, node: &NodeId, kind: &str) {
        for nodes in self.kinds.values_mut() {
            nodes.retain(|_, at| is_recent(now, *at));
        }
        self.kinds.retain(|_, nodes| !nodes.is_empty());
        if self.kinds.values().map(BTreeMap::len).sum::<usize>() < SET_ASIDE_MAX {
            let nodes = self.kinds.entry(kind.to_owned()).or_default();
            nodes.entry(node.clone()).or_insert(now);
        }
    }
}

fn is_recent(now: Instant, at: Instant) -> bool {
    now < after(at, SET_ASIDE_TIME)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test needs some instant to begin with")]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Nodes are counted for each kind of reason, for a while.
    #[test]
    fn kinds_are_counted_for_a_while() {
        let now = Instant::now();
        let [a, b] = ["a", "b"].map(NodeId::new);
        let mut valve = SafetyValve::default();
        valve.note(now, &a, "xid_79");
        let later = now + Duration::from_secs(60);
        valve.note(later, &b, "xid_79");
        valve.note(later, &b, "xid_119");
        // A node that is noted again does not count longer.
        valve.note(later, &a, "xid_79");
        let counts = |at| (valve.count(at, "xid_79"), valve.count(at, "xid_119"));
        assert_eq!((counts(later), valve.count(later, "xid_48")), ((2, 1), 0));
        assert!(valve.has(later, &a, "xid_79") && !valve.has(later, &a, "xid_119"));
        assert_eq!(counts(now + SET_ASIDE_TIME), (1, 1));
        assert_eq!(counts(later + SET_ASIDE_TIME), (0, 0));
        assert!(!valve.has(now + SET_ASIDE_TIME, &a, "xid_79"));
    }

    /// A node that invents new kinds of reasons does not fill the memory. After a while, there is room again.
    #[test]
    fn nodes_are_bounded() {
        let now = Instant::now();
        let (mut valve, a) = (SafetyValve::default(), NodeId::new("a"));
        for number in 0..=SET_ASIDE_MAX {
            let nodes = valve.kinds.entry(format!("xid_{number}")).or_default();
            nodes.insert(a.clone(), now);
        }
        valve.note(now, &a, "another");
        assert_eq!(valve.count(now, "another"), 0);
        valve.note(now + SET_ASIDE_TIME, &a, "another");
        assert_eq!((valve.count(now + SET_ASIDE_TIME, "another"), valve.kinds.len()), (1, 1));
    }
}
