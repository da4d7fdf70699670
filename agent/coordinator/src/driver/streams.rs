//! Keeps the open streams of a coordinator, and publishes their addresses to its port.

use std::{collections::BTreeMap, mem};

use ragent_base::net::{connection::PeerAddress, port::RegisteredNodes};
use ragent_proto::convert::{CoordinatorAddress, FromCoordinator};
use ragent_rendezvous::{
    ids::Peer,
    limits::NODES_MAX,
    message::{Assignment, ToNode},
};
use tokio::sync::{mpsc, watch};
use tracing::{debug, info};

use super::proofs::Proofs;
use crate::limits;

/// The open streams.
#[derive(Debug)]
pub(super) struct OpenStreams {
    open: BTreeMap<Peer, OpenStream>,
    /// The addresses of welcomed nodes, published to the port.
    registered_nodes: watch::Sender<RegisteredNodes>,
    /// The proofs that nodes receive with their welcome.
    pub proofs: Proofs,
}

/// An open stream: a bounded queue, which another task writes to the connection.
#[derive(Debug)]
pub(super) struct OpenStream {
    /// The queue of messages to the agent.
    pub answers: mpsc::Sender<FromCoordinator>,
    /// The source address of the stream.
    pub from: Option<PeerAddress>,
    /// True for a node that was never in a round, until it is admitted.
    pub is_new: bool,
}

impl OpenStreams {
    pub(super) fn new(registered_nodes: watch::Sender<RegisteredNodes>, proofs: Proofs) -> Self {
        Self { open: BTreeMap::new(), registered_nodes, proofs }
    }

    /// Adds a stream.
    pub(super) fn open(&mut self, peer: Peer, stream: OpenStream) {
        self.open.insert(peer, stream);
    }

    /// Returns true if the stream is open.
    pub(super) fn is_open(&self, peer: &Peer) -> bool {
        self.open.contains_key(peer)
    }

    /// Returns true if the node was never in a round before. Returns it only once.
    pub(super) fn take_newcomer(&mut self, peer: &Peer) -> bool {
        self.open.get_mut(peer).is_some_and(|stream| mem::take(&mut stream.is_new))
    }

    /// Ends a stream. Its task drops the connection when it finds the queue closed.
    pub(super) fn close(&mut self, peer: &Peer) {
        self.open.remove(peer);
    }

    /// Sends a message. A full queue drops the stream, and so does a refusal.
    pub(super) fn send(&mut self, to: &Peer, message: ToNode) {
        let Some(stream) = self.open.get(to) else { return };
        let refused = matches!(message, ToNode::Refuse(_));
        if let ToNode::Refuse(reason) = &message {
            let from = stream.from.map(|from| from.ip.to_string()).unwrap_or_default();
            info!(node = %to.node, %from, reason = reason.name(), "registration refused");
        }
        publish(&self.registered_nodes, stream.from, &message);
        if let ToNode::Assignment(Assignment::Admit(_)) = message {
            self.proofs.handle_admission();
        }
        let message = match message {
            ToNode::Welcome(welcome) => {
                let proof = self.proofs.of(&welcome.job_uid, &to.node);
                FromCoordinator::Welcomed(welcome, proof)
            }
            message => FromCoordinator::Message(message),
        };
        let failed = stream.answers.try_send(message).is_err();
        if failed {
            debug!(node = %to.node, "stream dropped: its queue is full or closed");
        }
        if failed || refused {
            self.open.remove(to);
        }
    }

    /// Sends the coordinator's new endpoint to all agents.
    pub(super) fn send_elsewhere(&mut self, elsewhere: &CoordinatorAddress) {
        // An agent that does not keep up registers again, and receives the endpoint then.
        self.open.retain(|_, stream| {
            stream.answers.try_send(FromCoordinator::Elsewhere(elsewhere.clone())).is_ok()
        });
    }

    /// Waits until the last messages are sent.
    pub(super) async fn close_all(self) {
        let closed = async {
            for stream in self.open.values() {
                // The capacity is full again once all messages are taken.
                let _ = stream.answers.reserve_many(limits::STREAM_QUEUE).await;
            }
        };
        let _ = tokio::time::timeout(limits::FLUSH_TIMEOUT, closed).await;
    }
}

/// Publishes the source address of a welcomed node, and the world size of a round, to the port.
fn publish(
    registered_nodes: &watch::Sender<RegisteredNodes>,
    from: Option<PeerAddress>,
    message: &ToNode,
) {
    if let (ToNode::Welcome(_), Some(PeerAddress { ip, is_here: false, .. })) = (message, from) {
        registered_nodes.send_if_modified(|registered_nodes| {
            // Limited by the number of nodes. Connections from further addresses count as unknown.
            registered_nodes.addresses.len() < NODES_MAX && registered_nodes.addresses.insert(ip)
        });
    }
    if let ToNode::Assignment(Assignment::Admit(admission)) = message {
        registered_nodes.send_if_modified(|registered_nodes| {
            let before = mem::replace(&mut registered_nodes.world_size, admission.world_size);
            before != admission.world_size
        });
    }
}
