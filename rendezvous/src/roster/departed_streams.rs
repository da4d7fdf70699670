//! Remembers the newest streams of departed nodes.

use std::collections::{BTreeMap, VecDeque};

use crate::{
    ids::{NodeId, StreamNumber},
    limits::DEPARTED_STREAMS_MAX,
};

/// The newest streams of departed nodes, so that their delayed messages are ignored.
#[derive(Debug, Default)]
pub(super) struct DepartedStreams {
    newest: BTreeMap<NodeId, StreamNumber>,
    order: VecDeque<NodeId>,
}

impl DepartedStreams {
    pub(super) fn newest(&self, node: &NodeId) -> Option<StreamNumber> {
        self.newest.get(node).copied()
    }

    pub(super) fn insert(&mut self, node: &NodeId, stream: StreamNumber) {
        if self.newest.insert(node.clone(), stream).is_none() {
            self.order.push_back(node.clone());
        }
        while self.order.len() > DEPARTED_STREAMS_MAX {
            if let Some(oldest) = self.order.pop_front() {
                self.newest.remove(&oldest);
            }
        }
    }
}
