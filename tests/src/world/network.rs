//! Simulates the network: messages between voters, which may be lost, and streams between agents and voters.

use std::time::{Duration, Instant};

use ragent_rendezvous::ids::{NodeId, Peer, Term};

use super::{
    Event, Input, World,
    port::{Down, Up},
    rules::Stage,
};
use crate::addresses::Place;

/// A stream from an agent to a voter. Messages arrive in order, and losses delay them.
#[derive(Debug)]
pub(super) struct Stream {
    /// The place of the voter.
    pub(super) to: Place,
    /// The process on that host that has accepted the connection.
    process: Option<NodeId>,
    pub(super) server: Server,
    /// True if it is, or was, the agent's current stream.
    pub(super) is_welcomed: bool,
    /// True if the agent still reads it.
    is_read: bool,
    /// True if messages still arrive.
    is_whole: bool,
    /// The time of the first connection request.
    dialed: Instant,
    up_free_at: Instant,
    down_free_at: Instant,
}

/// The state of a stream at the port.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Server {
    /// The connection is not made yet.
    Connecting,
    /// The registration has not arrived yet.
    Connected,
    /// The registration waits for a leader.
    Held,
    /// The messages go to the coordinator of this term.
    Coordinator(Term),
    /// The stream was ended.
    Closed,
}

/// The time after which a lost connection request is sent again.
const SYN_AGAIN: Duration = Duration::from_secs(1);

/// The time after which an agent gives up a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1_800);

impl World {
    /// Returns the time that a message between voters takes. `None` if it is lost.
    pub(super) fn transit(&mut self, from: usize, to: usize) -> Option<Duration> {
        let is_cut = self.cuts.get(&(from, to)).is_some_and(|until| self.now < *until);
        let (percent, until) = self.loss;
        let is_lost = self.now < until && self.random.chance(percent);
        (!is_cut && !is_lost).then(|| self.latency(from, to))
    }

    fn latency(&mut self, from: usize, to: usize) -> Duration {
        if from == to {
            return Duration::from_micros(self.random.between(20, 100));
        }
        if self.stage == Stage::Faulty && self.random.chance(1) {
            self.random.millis(0, if self.loses_states { 400 } else { 5_000 })
        } else {
            Duration::from_micros(self.random.between(50, 4_000))
        }
    }

    /// Returns when a message on a stream arrives. If it is lost, it is sent again.
    pub(super) fn arrival(&mut self, from: usize, to: usize) -> Instant {
        let mut at = self.now + self.latency(from, to);
        if let Some(until) = self.cuts.get(&(from, to)).copied().filter(|until| self.now < *until) {
            at = until + self.random.millis(0, 1_000);
        }
        let (percent, until) = self.loss;
        if self.now < until && from != to && self.random.chance(percent) {
            at += self.random.millis(200, 900);
        }
        at
    }

    /// Begins to open a stream to the voter of a host.
    pub(super) fn open_stream(&mut self, peer: Peer, to: Place) {
        let stream = Stream {
            to,
            process: None,
            server: Server::Connecting,
            is_welcomed: false,
            is_read: true,
            is_whole: true,
            dialed: self.now,
            up_free_at: self.now,
            down_free_at: self.now,
        };
        self.streams.insert(peer.clone(), stream);
        self.dial(peer);
    }

    /// Sends a connection request, if the agent still waits for the connection.
    pub(super) fn dial(&mut self, peer: Peer) {
        let Some(from) = self.processes.get(&peer.node).map(|process| process.host) else { return };
        let Some(stream) = self.streams.get(&peer).filter(|stream| stream.is_read) else { return };
        let to = stream.to;
        if stream.dialed + CONNECT_TIMEOUT <= self.now {
            let node = peer.node.clone();
            return self.wake(&node, Duration::ZERO, Input::Down(peer, Down::End));
        }
        match self.transit(from, to.host) {
            Some(delay) => self.schedule(delay, Event::Dial(peer)),
            None => self.schedule(SYN_AGAIN, Event::Redial(peer)),
        }
    }

    /// Accepts or refuses a connection. The system accepts it even for a frozen process.
    pub(super) fn arrive_dial(&mut self, peer: Peer) {
        let Some(stream) = self.streams.get_mut(&peer).filter(|stream| stream.is_read) else {
            return;
        };
        let host = &self.hosts[stream.to.host];
        if host.is_off || host.is_suspended(self.now) {
            return self.schedule(SYN_AGAIN, Event::Redial(peer));
        }
        let is_there = host.port() == stream.to.port;
        let Some(process) = host.process.clone().filter(|_| is_there) else {
            return self.hang_up(&peer);
        };
        stream.process = Some(process);
        stream.server = Server::Connected;
        self.send_down(&peer, Down::Connected);
    }

    /// Sends a message to the port of a voter.
    pub(super) fn send_up(&mut self, peer: &Peer, message: Up) {
        let Some(from) = self.processes.get(&peer.node).map(|process| process.host) else { return };
        self.send_up_from(from, peer, message);
    }

    fn send_up_from(&mut self, from: usize, peer: &Peer, message: Up) {
        let Some(stream) = self.streams.get(peer).filter(|stream| stream.is_whole) else { return };
        let at = self.arrival(from, stream.to.host);
        let Some(stream) = self.streams.get_mut(peer) else { return };
        stream.up_free_at = stream.up_free_at.max(at);
        let (at, process) = (stream.up_free_at, stream.process.clone());
        if let Some(process) = process {
            self.schedule_at(at, Event::Process(process, Input::Up(peer.clone(), message)));
        }
    }

    /// Sends a message to an agent.
    pub(super) fn send_down(&mut self, peer: &Peer, message: Down) {
        let Some(to) = self.processes.get(&peer.node).map(|process| process.host) else { return };
        let Some(stream) = self.streams.get(peer).filter(|stream| stream.is_whole) else { return };
        let at = self.arrival(stream.to.host, to);
        let Some(stream) = self.streams.get_mut(peer) else { return };
        stream.down_free_at = stream.down_free_at.max(at);
        let at = stream.down_free_at;
        self.schedule_at(at, Event::Process(peer.node.clone(), Input::Down(peer.clone(), message)));
    }

    /// Ends a stream at the side of the voter. Messages that were sent still arrive, and then its end.
    pub(super) fn hang_up(&mut self, peer: &Peer) {
        self.set_server(peer, Server::Closed);
        self.send_down(peer, Down::End);
    }

    pub(super) fn set_server(&mut self, peer: &Peer, server: Server) {
        if let Some(stream) = self.streams.get_mut(peer) {
            stream.server = server;
        }
    }

    /// Returns true if the agent reads a stream.
    pub(super) fn is_read(&self, peer: &Peer) -> bool {
        self.streams.get(peer).is_some_and(|stream| stream.is_read)
    }

    /// Ends a stream at the side of the agent. Returns the voter to which it was opened.
    pub(super) fn close_stream(&mut self, peer: &Peer) -> Option<Place> {
        let stream = self.streams.get_mut(peer).filter(|stream| stream.is_read)?;
        stream.is_read = false;
        let to = stream.to;
        if stream.server == Server::Connecting {
            self.streams.remove(peer);
        } else {
            self.send_up(peer, Up::End);
        }
        Some(to)
    }

    /// Ends all streams of a process that has ended. The other side learns it, unless the host has no power.
    pub(super) fn end_streams(&mut self, id: &NodeId, host: usize) {
        let is_off = self.hosts[host].is_off;
        for peer in self.streams.keys().cloned().collect::<Vec<_>>() {
            let is_own = peer.node == *id;
            let is_served = self.streams.get(&peer).is_some_and(|s| s.process.as_ref() == Some(id));
            if !is_own && !is_served {
                continue;
            }
            if !is_off && is_served {
                self.send_down(&peer, Down::End);
            }
            if !is_off && is_own {
                self.send_up_from(host, &peer, Up::End);
            }
            if let Some(stream) = self.streams.get_mut(&peer) {
                stream.is_whole = false;
            }
        }
    }

    /// Breaks a stream, so that both sides notice it.
    pub(super) fn break_stream(&mut self, peer: &Peer) {
        self.send_down(peer, Down::End);
        self.send_up(peer, Up::End);
        if let Some(stream) = self.streams.get_mut(peer) {
            stream.is_whole = false;
        }
    }
}
