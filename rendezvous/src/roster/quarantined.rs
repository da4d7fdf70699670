//! Keeps the nodes that are ready but quarantined.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use crate::ids::NodeId;

/// The nodes that are ready but quarantined, with the end of each quarantine.
#[derive(Debug, Default)]
pub(crate) struct Quarantined {
    ends: BTreeMap<NodeId, Instant>,
    by_end: BTreeSet<(Instant, NodeId)>,
    recallable: BTreeSet<NodeId>,
}

impl Quarantined {
    /// Adds a node whose quarantine ends at `until`.
    pub(super) fn insert(&mut self, id: &NodeId, until: Instant, may_be_recalled: bool) {
        self.remove(id);
        self.ends.insert(id.clone(), until);
        self.by_end.insert((until, id.clone()));
        if may_be_recalled {
            self.recallable.insert(id.clone());
        }
    }

    /// Removes a node, if it is there.
    pub(super) fn remove(&mut self, id: &NodeId) {
        if let Some((id, until)) = self.ends.remove_entry(id) {
            self.recallable.remove(&id);
            self.by_end.remove(&(until, id));
        }
    }

    /// Returns all of them.
    pub(super) fn ids(&self) -> impl Iterator<Item = &NodeId> {
        self.ends.keys()
    }

    /// Returns the number of nodes.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns the node whose quarantine ends first, with the time of that end.
    pub(crate) fn first(&self) -> Option<&(Instant, NodeId)> {
        self.by_end.first()
    }

    /// Returns the nodes that may be taken back if the job needs them.
    pub(crate) fn recallable(&self) -> &BTreeSet<NodeId> {
        &self.recallable
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test needs some instant to begin with")]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A node has one quarantine, the newest. When it is removed, nothing of it is left.
    #[test]
    fn one_quarantine_for_each_node() {
        let (mut quarantined, now) = (Quarantined::default(), Instant::now());
        let later = now + Duration::from_secs(1);
        let [a, b] = ["a", "b"].map(NodeId::new);
        quarantined.insert(&a, now, true);
        quarantined.insert(&b, later, true);
        assert_eq!(quarantined.first(), Some(&(now, a.clone())));
        quarantined.insert(&a, later + Duration::from_secs(1), false);
        assert_eq!(quarantined.first(), Some(&(later, b.clone())));
        assert_eq!((quarantined.len(), quarantined.recallable()), (2, &[b.clone()].into()));
        quarantined.remove(&b);
        quarantined.remove(&a);
        assert_eq!((quarantined.len(), quarantined.first()), (0, None));
        assert!(quarantined.recallable().is_empty() && quarantined.by_end.is_empty());
    }
}
