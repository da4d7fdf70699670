//! Reports clients that a round's store has refused, to all members and in the snapshot.

use crate::{
    event::EventKind,
    group::Group,
    ids::NodeId,
    machine::Rendezvous,
    message::{RefusedClients, ToNode},
};

impl Rendezvous {
    /// Records the clients that the store of `node` has refused. Reports new ones to the other members of its
    /// round.
    pub(super) fn note_refused_clients(&mut self, node: &NodeId, refused: &RefusedClients) {
        let Some(running) = self.job.phase.running_mut() else { return };
        if !running.group.add_refused_clients(node, refused) {
            return;
        }
        let addresses = running.group.refused_clients().iter().map(ToString::to_string).collect();
        let members = running.group.members().map(|(member, _)| member.clone());
        let others: Vec<NodeId> = members.filter(|member| member != node).collect();
        self.out.event(&self.job, None, None, EventKind::StoreClientsRefused { addresses });
        for member in others {
            self.repeat_refused_clients(&member);
        }
    }

    /// Sends a member all clients that the store of its round has refused, if any.
    pub(super) fn repeat_refused_clients(&mut self, id: &NodeId) {
        let Some(running) = self.job.phase.running() else { return };
        let refused = refused_clients(&running.group);
        if refused.addresses.is_empty() || running.group.held(id).is_none() {
            return;
        }
        if let Some(peer) = self.job.attached(id) {
            self.out.send(peer, ToNode::RefusedClients(refused));
        }
    }
}

fn refused_clients(group: &Group) -> RefusedClients {
    RefusedClients { round: group.round, addresses: group.refused_clients().to_vec() }
}
