//! Simulates the port of a voter. It treats a registration in one of three ways:
//!
//! - It passes it on to the coordinator of its process.
//! - It holds it while no leader is known.
//! - It redirects it to the leader.

use std::{
    collections::{BTreeMap, VecDeque},
    mem,
    time::Instant,
};

use ragent_election::election::NewLeadership;
use ragent_rendezvous::{
    ids::{NodeId, Peer, Round, Term, VoterAddress},
    message::{FromNode, Registration, ToNode},
};

use super::{
    Input, World, coordinator::Coordination, driver::Waiting, election::Command, network::Server,
};
use crate::addresses::Place;

/// The port of a process, and its coordinator.
#[derive(Debug)]
pub(super) struct Port {
    /// The leader, as the process knows it.
    pub(super) leader: Leader,
    /// The end of each leadership of this process, as its voter reports it.
    pub(super) until: BTreeMap<Term, Instant>,
    pub(super) coordination: Coordination,
    /// The coordinator, as the port knows it.
    pub(super) elected: Elected,
    /// Registrations that wait for a leader.
    pub(super) held: Vec<(Peer, Box<Registration>, Term)>,
    /// The death notices of the last minute.
    pub(super) recent: VecDeque<(Instant, NodeId, Round)>,
    pub(super) changes: u64,
}

/// The leader, as a voter reports it to its process.
#[derive(Clone, Debug)]
pub(super) enum Leader {
    Unknown,
    Other(VoterAddress, Term),
    Here(Box<NewLeadership>),
}

/// The coordinator, as a port knows it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Elected {
    Unknown,
    Here(Term),
    There(VoterAddress, Term),
}

impl Port {
    pub(super) fn new() -> Self {
        Self {
            leader: Leader::Unknown,
            until: BTreeMap::new(),
            coordination: Coordination::Idle,
            elected: Elected::Unknown,
            held: Vec::new(),
            recent: VecDeque::new(),
            changes: 0,
        }
    }
}

/// A message to a port.
#[derive(Debug)]
pub(super) enum Up {
    /// A registration, and the term of the leader that the agent has lost.
    Registration(Box<Registration>, Term),
    Message(Box<FromNode>),
    /// The agent has closed the stream.
    End,
}

/// A message to an agent.
#[derive(Debug)]
pub(super) enum Down {
    Connected,
    /// The answer begins.
    Accepted,
    /// The process does not lead. The leader and its term, if they are known.
    Elsewhere(Option<Place>, Term),
    Message(Box<ToNode>),
    /// The stream has ended, or could not be opened.
    End,
}

impl World {
    pub(super) fn port(&mut self, id: &NodeId) -> Option<&mut Port> {
        Some(&mut self.processes.get_mut(id)?.port)
    }

    /// Notes that a leadership of a process begins.
    pub(super) fn lead(&mut self, id: &NodeId, leadership: Box<NewLeadership>) {
        let Some(port) = self.port(id) else { return };
        port.until.insert(leadership.term, leadership.until);
        port.leader = Leader::Here(leadership);
        self.pass(id, Input::Leader);
    }

    /// Notes that the leadership of a process lasts longer.
    pub(super) fn extend(&mut self, id: &NodeId, until: Instant) {
        let Some(port) = self.port(id) else { return };
        if let Leader::Here(leadership) = &port.leader {
            port.until.insert(leadership.term, until);
        }
    }

    /// Notes the leader that a process follows.
    pub(super) fn follow(&mut self, id: &NodeId, leader: Leader) {
        if let Some(port) = self.port(id) {
            port.leader = leader;
        }
        self.pass(id, Input::Leader);
    }

    pub(super) fn arrive_up(&mut self, id: &NodeId, peer: Peer, message: Up) {
        let Some(server) = self.streams.get(&peer).map(|stream| stream.server) else { return };
        match (message, server) {
            (Up::Registration(registration, lost), Server::Connected) => {
                self.arrive_registration(id, peer, registration, lost);
            }
            (Up::Message(message), Server::Coordinator(term)) if self.coordinates(id, term) => {
                self.call_coordinator(id, Waiting::Message(peer, message));
            }
            (Up::End, server) => {
                if let Some(port) = self.port(id) {
                    port.held.retain(|(held, ..)| *held != peer);
                }
                self.streams.remove(&peer);
                if let Server::Coordinator(term) = server
                    && self.coordinates(id, term)
                {
                    self.call_coordinator(id, Waiting::Detached(peer));
                }
            }
            (Up::Registration(..) | Up::Message(_), _) => {}
        }
    }

    fn arrive_registration(
        &mut self,
        id: &NodeId,
        peer: Peer,
        registration: Box<Registration>,
        lost: Term,
    ) {
        let Some(elected) = self.port(id).map(|port| port.elected.clone()) else { return };
        let Some(voter) = self.voter(id) else {
            self.send_down(&peer, Down::Accepted);
            return self.answer_or_hold(id, peer, registration, lost, elected);
        };
        let replica = voter.election.replica();
        let own = replica
            .job_state
            .as_ref()
            .filter(|_| replica.has_round())
            .map(|job_state| job_state.job_uid.clone());
        let is_outside = voter.election.is_outside() && elected == Elected::Unknown;
        let slots = replica.lists.slots().map(|slot| slot.address.clone()).collect();
        self.send_down(&peer, Down::Accepted);
        if !registration.ended.is_empty() {
            self.pass(id, Input::Command(Command::Ended(registration.ended.clone())));
        }
        if let Some(job) = registration.job.clone().filter(|job| Some(&job.uid) != own.as_ref()) {
            // The node's voters lead a job that this process does not know, or another one.
            self.pass(id, Input::Command(Command::KnownJob(job)));
            if own.is_none() {
                return self.answer_registration(id, peer, registration, Elected::Unknown);
            }
        }
        if own.is_none() && self.send_to_other_job(id, &peer) {
            return;
        }
        // The terms of two jobs cannot be compared.
        let is_of_other_job =
            registration.job_uid.is_some() && own.is_some() && registration.job_uid != own;
        let lost = if is_of_other_job { Term(0) } else { lost };
        if is_outside {
            self.send_down(&peer, Down::Message(Box::new(ToNode::Voters(slots))));
            return self.answer_registration(id, peer, registration, Elected::Unknown);
        }
        self.answer_or_hold(id, peer, registration, lost, elected);
    }

    /// Answers a registration if its leader is known, and holds it otherwise.
    fn answer_or_hold(
        &mut self,
        id: &NodeId,
        peer: Peer,
        registration: Box<Registration>,
        lost: Term,
        elected: Elected,
    ) {
        if is_answered(&elected, lost) {
            return self.answer_registration(id, peer, registration, elected);
        }
        self.set_server(&peer, Server::Held);
        if let Some(port) = self.port(id) {
            port.held.push((peer, registration, lost));
        }
    }

    /// Sends an agent to the leader of a job that this process was shown. Returns false if there is none.
    fn send_to_other_job(&mut self, id: &NodeId, peer: &Peer) -> bool {
        let Some(voter) = self.voter(id) else { return false };
        let Some((leader, term)) = voter.election.other_jobs().find_map(|job| job.leader) else {
            return false;
        };
        self.send_down(peer, Down::Elsewhere(Place::of(&leader), term));
        self.hang_up(peer);
        true
    }

    /// Sends agents that wait for a leader elsewhere, if this process is no longer a voter, or was shown a job that is led.
    pub(super) fn release_held(&mut self, id: &NodeId) {
        let Some(voter) = self.voter(id) else { return };
        let replica = voter.election.replica();
        let is_to_join =
            !replica.has_round() && voter.election.other_jobs().any(|job| job.leader.is_some());
        let is_outside = voter.election.is_outside() && replica.has_round();
        if !is_to_join && !is_outside {
            return;
        }
        let slots: Vec<_> = replica.lists.slots().map(|slot| slot.address.clone()).collect();
        let Some(port) = self.port(id) else { return };
        for (peer, registration, _) in mem::take(&mut port.held) {
            if is_to_join {
                self.send_to_other_job(id, &peer);
            } else {
                let voters = ToNode::Voters(slots.clone());
                self.send_down(&peer, Down::Message(Box::new(voters)));
                self.answer_registration(id, peer, registration, Elected::Unknown);
            }
        }
    }

    fn answer_registration(
        &mut self,
        id: &NodeId,
        peer: Peer,
        registration: Box<Registration>,
        elected: Elected,
    ) {
        match elected {
            Elected::Here(term) if self.coordinates(id, term) => {
                self.set_server(&peer, Server::Coordinator(term));
                self.call_coordinator(id, Waiting::Registration(registration));
            }
            // The coordinator here has just ended.
            Elected::Here(_) => self.hang_up(&peer),
            Elected::There(address, term) => {
                self.send_down(&peer, Down::Elsewhere(Place::of(&address), term));
                self.hang_up(&peer);
            }
            Elected::Unknown => {
                self.send_down(&peer, Down::Elsewhere(None, Term(0)));
                self.hang_up(&peer);
            }
        }
    }

    /// Informs the port of the leader, and answers the registrations that were held for it.
    pub(super) fn publish(&mut self, id: &NodeId, elected: Elected) {
        let Some(port) = self.port(id) else { return };
        port.elected = elected.clone();
        let held = mem::take(&mut port.held);
        let (answered, held) =
            held.into_iter().partition(|(_, _, lost)| is_answered(&elected, *lost));
        port.held = held;
        let answered: Vec<(Peer, Box<Registration>, Term)> = answered;
        for (peer, registration, _) in answered {
            if self.streams.contains_key(&peer) {
                self.answer_registration(id, peer, registration, elected.clone());
            }
        }
    }

    fn coordinates(&mut self, id: &NodeId, term: Term) -> bool {
        self.port(id).is_some_and(|port| port.coordination.term() == Some(term))
    }
}

/// Returns true if a port that knows this leader answers a registration. The agent has lost the leader of the term `lost`.
fn is_answered(elected: &Elected, lost: Term) -> bool {
    match elected {
        Elected::Unknown => false,
        Elected::Here(_) => true,
        Elected::There(_, term) => *term > lost,
    }
}
