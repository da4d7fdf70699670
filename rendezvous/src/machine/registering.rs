//! The registration of a node that was not refused; with an elected coordinator it has two steps.
//!
//! A registration may be old: another voter may have held it until this process was elected, and the node may have been
//! admitted to a round by another leader since. So the node is welcomed, and registered when it reports its
//! standing on the same stream: from its welcome on it ignores leaders of lower terms.

use std::time::Instant;

use tracing::debug;

use crate::{
    effect::Effect,
    ids::Peer,
    machine::{Availability, Rendezvous},
    message::{Attend, FromNode, ToNode},
    tenure::Tenure,
};

/// A node that was welcomed, and is to report its standing.
#[derive(Debug)]
pub(super) struct Asked {
    attend: Attend,
    until: Instant,
}

impl Rendezvous {
    /// Registers a node: welcomes it, unless it was welcomed before, and sends its assignment.
    pub(super) fn register(&mut self, now: Instant, attend: Attend) {
        let peer = attend.peer();
        let is_of_this_run = self.is_of_this_run(&attend);
        let known_round = attend.known_round;
        let leases = self.leases();
        let counts = self.roster.attend(now, attend, leases.coordinator);
        let id = peer.node.clone();
        self.count_loss_of_host(now, &id);
        if self.tenure == Tenure::Sole {
            self.send(peer.clone(), ToNode::Welcome(self.welcome(leases)));
        }
        if self.availability != Availability::Available {
            self.send(peer, ToNode::HostLeaving);
        }
        if is_of_this_run {
            self.close_again();
        }
        // The agent of this process has read the state file, and learns the run from the welcome.
        if is_of_this_run || self.is_host(&id) {
            self.claim(&id, known_round);
        }
        if counts {
            self.on_standing(now, &id);
        } else {
            self.record_sign_of_life_by_standing(&id);
        }
        self.advance(now);
        self.sync(&id);
        self.repeat_refused_clients(&id);
    }

    /// Welcomes a node, which reports its standing then. An earlier stream of it is forgotten.
    pub(super) fn ask_for_standing(&mut self, now: Instant, attend: Attend) {
        let peer = attend.peer();
        let leases = self.leases();
        if self.asked.get(&peer.node).is_some_and(|asked| asked.attend.attend > peer.attend) {
            debug!(node = %peer.node, attend = %peer.attend, "outdated registration dropped");
            return;
        }
        let asked = Asked { attend, until: now + leases.coordinator };
        self.asked.insert(peer.node.clone(), asked);
        self.send(peer, ToNode::Welcome(self.welcome(leases)));
    }

    /// Registers a node that reports its standing after its welcome. Returns the message if it is to be handled as
    /// any other.
    pub(super) fn register_asked(
        &mut self,
        now: Instant,
        from: &Peer,
        message: FromNode,
    ) -> Option<FromNode> {
        let is_asked = |asked: &&Asked| asked.attend.peer() == *from;
        if self.asked.get(&from.node).filter(is_asked).is_none() {
            return Some(message);
        }
        match message {
            FromNode::Standing(standing) => {
                let asked = self.asked.remove(&from.node)?;
                self.register(now, Attend { standing, ..asked.attend });
                None
            }
            FromNode::KeepAlive { sequence, .. } => {
                let lease_left = self.tenure.left(now);
                self.send(from.clone(), ToNode::Echo { sequence, reason: None, lease_left });
                None
            }
            // Each of them follows a standing, and is repeated with it.
            FromNode::Alive { .. }
            | FromNode::Progress { .. }
            | FromNode::Standbys(_)
            | FromNode::RefusedClients(_)
            | FromNode::Goodbye => None,
        }
    }

    /// Forgets a welcomed node whose stream has ended.
    pub(super) fn forget_asked(&mut self, peer: &Peer) {
        if self.asked.get(&peer.node).is_some_and(|asked| asked.attend.attend == peer.attend) {
            self.asked.remove(&peer.node);
        }
    }

    /// Ends the streams of welcomed nodes that have reported nothing for a lease.
    pub(super) fn drop_silent(&mut self, now: Instant) {
        let silent = self.asked.values().filter(|asked| asked.until <= now);
        for peer in silent.map(|asked| asked.attend.peer()).collect::<Vec<_>>() {
            self.asked.remove(&peer.node);
            self.effects.push_back(Effect::HangUp { to: peer });
        }
    }

    /// Returns the time at which the first of these streams is ended.
    pub(super) fn first_silent(&self) -> Option<Instant> {
        self.asked.values().map(|asked| asked.until).min()
    }
}
