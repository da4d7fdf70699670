//! The port of a voter: it passes registrations on to the coordinator of its process, holds them while no leader is
//! known, and redirects them to the leader otherwise.

use std::mem;

use ragent_rendezvous::{
    ids::{NodeId, Peer, Term},
    message::{Attend, FromNode, ToNode},
};

use super::{
    Input, World,
    driver::Waiting,
    election::{Command, Elected},
    network::Server,
};
use crate::addresses::host_of;

/// A message to a port.
#[derive(Debug)]
pub(super) enum Up {
    /// A registration, and the term of the leader that the agent has lost.
    Attend(Box<Attend>, Term),
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
    /// The process does not lead; the leader and its term, if known.
    NotHere(Option<usize>, Term),
    Message(Box<ToNode>),
    /// The stream has ended, or could not be opened.
    End,
}

impl World {
    pub(super) fn arrive_up(&mut self, id: &NodeId, peer: Peer, message: Up) {
        let Some(server) = self.streams.get(&peer).map(|stream| stream.server) else {
            return;
        };
        match (message, server) {
            (Up::Attend(attend, lost), Server::Connected) => {
                self.arrive_attend(id, peer, attend, lost);
            }
            (Up::Message(message), Server::Coordinator(term)) if self.coordinates(id, term) => {
                self.call_coordinator(id, Waiting::Message(peer, message));
            }
            (Up::End, server) => {
                if let Some(voter) = self.voter(id) {
                    voter.held.retain(|(held, ..)| *held != peer);
                }
                self.streams.remove(&peer);
                if let Server::Coordinator(term) = server
                    && self.coordinates(id, term)
                {
                    self.call_coordinator(id, Waiting::Detached(peer));
                }
            }
            (Up::Attend(..) | Up::Message(_), _) => {}
        }
    }

    fn arrive_attend(&mut self, id: &NodeId, peer: Peer, attend: Box<Attend>, lost: Term) {
        let Some(voter) = self.voter(id) else { return };
        let elected = voter.elected.clone();
        let replica = voter.election.replica();
        let knows_nothing = !replica.has_round() && !attend.voters.is_empty();
        let is_outside = voter.election.is_outside() && elected == Elected::Unknown;
        let seats = replica.lists.seats().map(|seat| seat.address.clone()).collect();
        self.send_down(&peer, Down::Accepted);
        if knows_nothing {
            // The node's voters lead the job, which this process has begun without its state file.
            self.pass(id, Input::Command(Command::Hint(attend.voters.clone())));
            return self.answer_attend(id, peer, attend, Elected::Unknown);
        }
        if is_outside {
            self.send_down(&peer, Down::Message(Box::new(ToNode::Voters(seats))));
            return self.answer_attend(id, peer, attend, Elected::Unknown);
        }
        if is_answered(&elected, lost) {
            return self.answer_attend(id, peer, attend, elected);
        }
        self.set_server(&peer, Server::Held);
        if let Some(voter) = self.voter(id) {
            voter.held.push((peer, attend, lost));
        }
    }

    fn answer_attend(&mut self, id: &NodeId, peer: Peer, attend: Box<Attend>, elected: Elected) {
        match elected {
            Elected::Here(term) if self.coordinates(id, term) => {
                self.set_server(&peer, Server::Coordinator(term));
                self.call_coordinator(id, Waiting::Attend(attend));
            }
            // Its coordinator has just ended.
            Elected::Here(_) => self.hang_up(&peer),
            Elected::There(address, term) => {
                self.send_down(&peer, Down::NotHere(host_of(&address), term));
                self.hang_up(&peer);
            }
            Elected::Unknown => {
                self.send_down(&peer, Down::NotHere(None, Term(0)));
                self.hang_up(&peer);
            }
        }
    }

    /// Informs the port of the leader, and answers the registrations that were held for it.
    pub(super) fn publish(&mut self, id: &NodeId, elected: Elected) {
        let Some(voter) = self.voter(id) else { return };
        voter.elected = elected.clone();
        let held = mem::take(&mut voter.held);
        let (answered, held) =
            held.into_iter().partition(|(_, _, lost)| is_answered(&elected, *lost));
        voter.held = held;
        let answered: Vec<(Peer, Box<Attend>, Term)> = answered;
        for (peer, attend, _) in answered {
            if self.streams.contains_key(&peer) {
                self.answer_attend(id, peer, attend, elected.clone());
            }
        }
    }

    fn coordinates(&mut self, id: &NodeId, term: Term) -> bool {
        self.voter(id).is_some_and(|voter| voter.coordination.term() == Some(term))
    }
}

/// Returns true if a port that knows this leader answers a registration of an agent that has lost the leader of the
/// term `lost`.
fn is_answered(elected: &Elected, lost: Term) -> bool {
    match elected {
        Elected::Unknown => false,
        Elected::Here(_) => true,
        Elected::There(_, term) => *term > lost,
    }
}
