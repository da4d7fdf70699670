//! Streams between agents and the coordinator: ordered, delayed, and sometimes lost.

use std::time::{Duration, Instant};

use ragent_rendezvous::{
    ids::Peer,
    message::{Attend, FromNode, ToNode},
};

use super::{Alarm, Event, World};

/// One stream.
#[derive(Debug)]
pub(super) struct Link {
    is_open: bool,
    /// Nothing gets through before.
    black_until: Option<Instant>,
    up_free_at: Instant,
    down_free_at: Instant,
}

/// What an agent says.
#[derive(Debug)]
pub(super) enum FromAgent {
    /// First.
    Attend(Box<Attend>),
    /// After that.
    Message(FromNode),
}

impl World {
    /// Opens a stream for `peer`.
    pub(super) fn open_link(&mut self, peer: &Peer) {
        let black_until = self.agents.get(&peer.node).and_then(|agent| agent.black_until);
        let link =
            Link { is_open: true, black_until, up_free_at: self.now, down_free_at: self.now };
        self.links.insert(peer.clone(), link);
    }

    /// Says something to the coordinator.
    pub(super) fn send_up(&mut self, from: Peer, message: FromAgent) {
        let delay = self.delay();
        let Some(link) = self.links.get_mut(&from).filter(|link| link.is_open) else {
            return;
        };
        if link.black_until.is_some_and(|until| self.now < until) {
            return self.lose_later(&from);
        }
        let at = link.up_free_at.max(self.now + delay);
        link.up_free_at = at;
        self.schedule_at(at, Event::Up { from, message });
    }

    /// Says something to an agent.
    pub(super) fn send_down(&mut self, to: Peer, message: ToNode) {
        let delay = self.delay();
        let Some(link) = self.links.get_mut(&to).filter(|link| link.is_open) else {
            return;
        };
        if link.black_until.is_some_and(|until| self.now < until) {
            return self.lose_later(&to);
        }
        let at = link.down_free_at.max(self.now + delay);
        link.down_free_at = at;
        self.schedule_at(at, Event::Down { to, message });
    }

    /// Whether what was under way on a stream still arrives.
    pub(super) fn is_open(&self, peer: &Peer) -> bool {
        self.links.get(peer).is_some_and(|link| link.is_open)
    }

    /// Breaks a stream; both ends notice, each in its time.
    pub(super) fn break_link(&mut self, peer: &Peer) {
        let Some(link) = self.links.get_mut(peer).filter(|link| link.is_open) else {
            return;
        };
        link.is_open = false;
        let (here, there) = (self.random.millis(0, 400), self.random.millis(0, 400));
        let alarm = Alarm::LinkDown(peer.attend);
        self.schedule(here, Event::Alarm { node: peer.node.clone(), alarm });
        self.schedule(there, Event::Detached(peer.clone()));
    }

    /// Lets nothing through to or from an agent for a while.
    pub(super) fn black_out(&mut self, peer: &Peer, duration: Duration) {
        let until = self.now + duration;
        if let Some(link) = self.links.get_mut(peer) {
            link.black_until = Some(until);
        }
        if let Some(agent) = self.agents.get_mut(&peer.node) {
            agent.black_until = Some(until);
        }
    }

    /// What a stream has lost, it never delivers: it breaks, though nobody may notice for long.
    fn lose_later(&mut self, peer: &Peer) {
        if let Some(link) = self.links.get_mut(peer) {
            link.is_open = false;
        }
        let delay = self.random.millis(200, 3_000);
        let alarm = Alarm::LinkDown(peer.attend);
        self.schedule(delay, Event::Alarm { node: peer.node.clone(), alarm });
    }

    fn delay(&mut self) -> Duration {
        if self.random.chance(2) {
            self.random.millis(20, 900)
        } else {
            Duration::from_micros(self.random.between(50, 3_000))
        }
    }
}
