//! The newest streams of nodes that are no longer known.

use std::collections::{BTreeMap, VecDeque};

use crate::{
    ids::{AttendNumber, NodeId},
    limits::FORMER_MAX,
};

/// The newest streams of former nodes, so that their delayed messages are ignored.
#[derive(Debug, Default)]
pub(super) struct Former {
    newest: BTreeMap<NodeId, AttendNumber>,
    order: VecDeque<NodeId>,
}

impl Former {
    pub(super) fn newest(&self, node: &NodeId) -> Option<AttendNumber> {
        self.newest.get(node).copied()
    }

    pub(super) fn insert(&mut self, node: &NodeId, attend: AttendNumber) {
        if self.newest.insert(node.clone(), attend).is_none() {
            self.order.push_back(node.clone());
        }
        while self.order.len() > FORMER_MAX {
            if let Some(oldest) = self.order.pop_front() {
                self.newest.remove(&oldest);
            }
        }
    }
}
