//! Streams between agents and the coordinator: ordered, delayed, and sometimes lost.

use std::time::{Duration, Instant};

use ragent_rendezvous::{
    ids::{AttendNumber, NodeId, Peer},
    message::{Attend, FromNode, ToNode},
};

use super::{Event, World, node::Input};

/// One stream.
#[derive(Debug)]
pub(super) struct Stream {
    /// True if messages in transit still arrive.
    is_whole: bool,
    /// True if the agent still reads the stream.
    is_read: bool,
    /// Messages are lost until then.
    black_until: Option<Instant>,
    up_free_at: Instant,
    down_free_at: Instant,
}

/// A message of an agent.
#[derive(Debug)]
pub(super) enum FromAgent {
    /// The first message.
    Attend(Box<Attend>),
    /// A later message.
    Message(FromNode),
}

/// The time for which an agent waits for a connection.
const DIAL_TIMEOUT: Duration = Duration::from_millis(1_800);

/// The time after which a lost SYN is sent again.
const SYN_AGAIN: Duration = Duration::from_secs(1);

impl World {
    /// Begins to open a stream for `peer`.
    pub(super) fn open_stream(&mut self, peer: Peer) {
        let black_until = self.agents.get(&peer.node).and_then(|agent| agent.black_until);
        let (up_free_at, down_free_at) = (self.now, self.now);
        let stream =
            Stream { is_whole: true, is_read: true, black_until, up_free_at, down_free_at };
        self.streams.insert(peer.clone(), stream);
        match black_until.filter(|until| self.now < *until) {
            Some(until) if self.now + SYN_AGAIN < until => {
                self.wake(&peer.node, DIAL_TIMEOUT, Input::Ended(peer.attend));
            }
            Some(_) => self.schedule(SYN_AGAIN, Event::Connect(peer)),
            None => {
                let delay = self.delay();
                self.schedule(delay, Event::Connect(peer));
            }
        }
    }

    /// Accepts or refuses a connection.
    pub(super) fn connect(&mut self, peer: &Peer) {
        if !self.is_whole(peer) {
            return;
        }
        let attend = peer.attend;
        if self.coordinator.is_some() {
            self.input(&peer.node, Input::Connected(attend));
        } else {
            self.streams.remove(peer);
            self.input(&peer.node, Input::Ended(attend));
        }
    }

    /// Sends a message to the coordinator.
    pub(super) fn send_up(&mut self, from: Peer, message: FromAgent) {
        let delay = self.delay();
        let Some(stream) = self.streams.get_mut(&from).filter(|stream| stream.is_whole) else {
            return;
        };
        if stream.black_until.is_some_and(|until| self.now < until) {
            return self.lose_later(&from);
        }
        let at = stream.up_free_at.max(self.now + delay);
        stream.up_free_at = at;
        self.schedule_at(at, Event::Up { from, message });
    }

    /// Sends a message to an agent.
    pub(super) fn send_down(&mut self, to: Peer, message: ToNode) {
        let delay = self.delay();
        let is_open = |stream: &&mut Stream| stream.is_whole && stream.is_read;
        let Some(stream) = self.streams.get_mut(&to).filter(is_open) else {
            return;
        };
        if stream.black_until.is_some_and(|until| self.now < until) {
            return self.lose_later(&to);
        }
        let at = stream.down_free_at.max(self.now + delay);
        stream.down_free_at = at;
        self.schedule_at(at, Event::Down { to, message });
    }

    /// Delivers an arrived message to an agent.
    pub(super) fn arrive_down(&mut self, to: Peer, message: ToNode) {
        if self.streams.get(&to).is_some_and(|stream| stream.is_whole && stream.is_read) {
            self.input(&to.node, Input::Message(to.attend, Box::new(message)));
        }
    }

    /// Returns true if messages in transit on a stream still arrive.
    pub(super) fn is_whole(&self, peer: &Peer) -> bool {
        self.streams.get(peer).is_some_and(|stream| stream.is_whole)
    }

    /// Closes a stream from the agent's side: sent messages still arrive, and then its end.
    pub(super) fn close_stream(&mut self, peer: &Peer) {
        let delay = self.delay();
        let Some(stream) = self.streams.get_mut(peer).filter(|stream| stream.is_read) else {
            return;
        };
        stream.is_read = false;
        let at = stream.up_free_at.max(self.now + delay);
        self.schedule_at(at, Event::Detached(peer.clone()));
    }

    /// Closes all streams of an agent whose process has ended in order.
    pub(super) fn close_streams(&mut self, id: &NodeId) {
        for peer in self.streams_of(id) {
            self.close_stream(&peer);
        }
    }

    /// Breaks all streams of an agent.
    pub(super) fn break_streams(&mut self, id: &NodeId) {
        for peer in self.streams_of(id) {
            self.break_stream(&peer);
        }
    }

    fn streams_of(&self, id: &NodeId) -> Vec<Peer> {
        let first = Peer { node: id.clone(), attend: AttendNumber(0) };
        let streams = self.streams.range(first..).map(|(peer, _)| peer);
        streams.take_while(|peer| peer.node == *id).cloned().collect()
    }

    /// Breaks a stream; both ends notice it, at different times.
    pub(super) fn break_stream(&mut self, peer: &Peer) {
        let Some(stream) = self.streams.get_mut(peer).filter(|stream| stream.is_whole) else {
            return;
        };
        stream.is_whole = false;
        let (here, there) = (self.random.millis(0, 400), self.random.millis(0, 400));
        self.wake(&peer.node, here, Input::Ended(peer.attend));
        self.schedule(there, Event::Detached(peer.clone()));
    }

    /// Loses all messages to and from an agent for a while.
    pub(super) fn black_out(&mut self, id: &NodeId, duration: Duration) {
        let until = self.now + duration;
        for peer in self.streams_of(id) {
            if let Some(stream) = self.streams.get_mut(&peer) {
                stream.black_until = Some(until);
            }
        }
        if let Some(agent) = self.agents.get_mut(id) {
            agent.black_until = Some(until);
        }
    }

    /// Marks a stream that has lost a message: it delivers nothing more and breaks, perhaps much
    /// later.
    fn lose_later(&mut self, peer: &Peer) {
        if let Some(stream) = self.streams.get_mut(peer) {
            stream.is_whole = false;
        }
        let delay = self.random.millis(200, 3_000);
        self.wake(&peer.node, delay, Input::Ended(peer.attend));
    }

    fn delay(&mut self) -> Duration {
        if self.random.chance(2) {
            self.random.millis(20, 900)
        } else {
            Duration::from_micros(self.random.between(50, 3_000))
        }
    }
}
