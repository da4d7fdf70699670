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

#[cfg(test)]
mod tests {
    use super::*;

    /// If too many nodes have departed, the first of them is forgotten.
    #[test]
    fn departed_streams_are_bounded() {
        let mut streams = DepartedStreams::default();
        let id = |number: usize| NodeId::new(number.to_string());
        for number in 0..DEPARTED_STREAMS_MAX {
            streams.insert(&id(number), StreamNumber(1));
        }
        assert_eq!(streams.newest(&id(0)), Some(StreamNumber(1)));
        streams.insert(&id(DEPARTED_STREAMS_MAX), StreamNumber(2));
        assert_eq!(streams.newest(&id(0)), None);
        assert_eq!(streams.newest(&id(1)), Some(StreamNumber(1)));
    }
}
