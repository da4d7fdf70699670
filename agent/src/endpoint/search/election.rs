//! Decides which agent hosts a job's endpoint, among agents that know of each other only by
//! datagrams.
//!
//! ```text
//!            the endpoint is known
//! Looking ─────────────────────────────────▶ Found (joins there)
//!    │  this is the lowest candidate, and all agents agree for a while
//!    └─────────────────────────────────────▶ Found (hosts)
//! ```
//!
//! A candidate hosts only if no lower one was seen for [`Pace::agreement`] and all agents that it
//! sees report no lower one. So all choose the same host, in any order of their starts, unless the
//! network delivers nothing for that long. Agents that have found the endpoint continue to answer
//! agents that still look, members too: so a restarted host finds its own endpoint.
//!
//! Two agents may host nevertheless, if the network was not up yet when they started; they learn of
//! each other later. The state of their jobs decides which of them gives way ([`super::rivals`]).

use std::{
    collections::{BTreeMap, VecDeque},
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use super::datagram::{Candidate, Message};
use crate::{endpoint::limits, spec::Eligible};

/// The intervals and time limits of an election.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Pace {
    /// The time for which no lower candidate may be seen before a candidate hosts.
    pub agreement: Duration,
    /// The pause between two datagrams until there could be agreement; afterwards it doubles.
    pub first_pause: Duration,
    /// The longest pause between two datagrams.
    pub last_pause: Duration,
    /// A candidate that was silent for this long is gone.
    pub patience: Duration,
    /// Minimum interval between two answers to agents that look.
    pub answer: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            agreement: Duration::from_secs(1),
            first_pause: Duration::from_millis(100),
            last_pause: Duration::from_secs(3),
            patience: Duration::from_secs(10),
            answer: Duration::from_millis(100),
        }
    }
}

/// An action for the driver.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Effect {
    /// Send this to all agents.
    Broadcast(Message),
    /// Host the endpoint, and report its address to [`Election::handle_hosting`].
    Host,
    /// Join the coordinator at this address.
    Join(SocketAddr),
    /// Send this to the agent at this address, if datagrams to all do not reach it.
    Answer(SocketAddr, Message),
    /// Ask the host at this address, of the same job: one of the two is to give way.
    AskRival(SocketAddr),
}

#[derive(Clone, Debug)]
enum State {
    Looking {
        since: Instant,
        next_message: Instant,
        pause: Duration,
    },
    /// The agent was chosen to host, and does not do so yet.
    Chosen,
    Found {
        at: SocketAddr,
        is_host: bool,
        next_answer: Option<Instant>,
        may_answer: Instant,
    },
}

impl State {
    /// Another agent hosts, at this address.
    fn joined(at: SocketAddr, may_answer: Instant) -> Self {
        Self::Found { at, is_host: false, next_answer: None, may_answer }
    }
}

/// The last datagram of another agent that looks.
#[derive(Clone, Copy, Debug)]
struct LastMessage {
    at: Instant,
    may_host: bool,
    lowest: Option<Candidate>,
}

/// One agent's part in the election.
#[derive(Debug)]
pub(crate) struct Election {
    own: Candidate,
    eligible: Eligible,
    pace: Pace,
    state: State,
    others: BTreeMap<Candidate, LastMessage>,
    /// The time of the last change of the lowest candidate.
    lowest_since: Instant,
    /// Other hosts of the job, with the time before which they are not asked again.
    rivals: BTreeMap<SocketAddr, Instant>,
    effects: VecDeque<Effect>,
}

impl Election {
    /// Creates an agent that begins to look.
    pub(crate) fn new(now: Instant, own: Candidate, eligible: Eligible, pace: Pace) -> Self {
        Self {
            own,
            eligible,
            pace,
            state: State::Looking { since: now, next_message: now, pause: pace.first_pause },
            others: BTreeMap::new(),
            lowest_since: now,
            rivals: BTreeMap::new(),
            effects: VecDeque::new(),
        }
    }

    /// Returns the next effect; `None` if there are none.
    pub(crate) fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Returns the earliest deadline.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        match &self.state {
            State::Looking { next_message, .. } => {
                let ends = self.others.values().map(|last| last.at + self.pace.patience);
                ends.chain([*next_message]).chain(self.agreed_at()).min()
            }
            State::Chosen => None,
            State::Found { next_answer, .. } => *next_answer,
        }
    }

    /// Applies every deadline that has passed.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        let patience = self.pace.patience;
        let before = self.lowest();
        self.others.retain(|_, last| now < last.at + patience);
        self.note_lowest(now, before);
        match &mut self.state {
            State::Looking { since, next_message, pause } => {
                if now >= *next_message {
                    *next_message = now + *pause;
                    // On a lossy network all agents receive some of the first datagrams.
                    if now >= *since + self.pace.agreement {
                        *pause = (*pause * 2).min(self.pace.last_pause);
                    }
                    self.broadcast_looking();
                }
                if self.agreed_at().is_some_and(|at| now >= at) {
                    self.state = State::Chosen;
                    self.effects.push_back(Effect::Host);
                }
            }
            State::Chosen => {}
            State::Found { at, is_host, next_answer, may_answer } => {
                if next_answer.is_some_and(|due| now >= due) {
                    *may_answer = now + self.pace.answer;
                    *next_answer = is_host.then(|| now + self.pace.last_pause);
                    let by = self.own.number;
                    let message = Message::Hosted { by, at: *at, by_host: *is_host };
                    self.effects.push_back(Effect::Broadcast(message));
                }
            }
        }
    }

    /// Notes a datagram from `peer`.
    pub(crate) fn handle_message(&mut self, now: Instant, message: &Message, peer: SocketAddr) {
        match *message {
            Message::Looking { by, may_host, lowest } if by != self.own => {
                let before = self.others.get(&by).map(|last| last.at);
                self.note_agent(now, by, LastMessage { at: now, may_host, lowest });
                // A datagram soon after the last one may itself be an answer, and is not answered.
                let is_news = before.is_none_or(|at| now >= at + self.pace.answer);
                if is_news && self.others.contains_key(&by) {
                    self.answer(peer);
                }
            }
            Message::Hosted { by, at, by_host } if by != self.own.number => {
                let at = if by_host { SocketAddr::new(peer.ip(), at.port()) } else { at };
                if is_reachable(at.ip()) {
                    self.note_host(now, at, peer);
                }
            }
            // This agent's own datagram, looped back by the network.
            Message::Looking { .. } | Message::Hosted { .. } => {}
        }
    }

    /// Returns true if an agent is known that may host, this one included.
    pub(crate) fn has_candidate(&self) -> bool {
        self.lowest().is_some()
    }

    /// Returns true if an agent that hosts is known, this one included.
    pub(crate) fn has_found(&self) -> bool {
        matches!(self.state, State::Found { .. })
    }

    /// Returns true if no other agent that searches is known.
    pub(crate) fn is_alone(&self) -> bool {
        self.others.is_empty()
    }

    /// Notes that this agent now hosts, at this address.
    pub(crate) fn handle_hosting(&mut self, now: Instant, at: SocketAddr) {
        self.state = State::Found { at, is_host: true, next_answer: Some(now), may_answer: now };
    }

    /// Notes that this agent is sent to another host: it, or the host that it had joined, has given
    /// way.
    pub(crate) fn handle_sent_elsewhere(&mut self, now: Instant, at: SocketAddr) {
        self.state = State::joined(at, now);
    }

    /// Notes that this agent could not host, or found no host at the address: it looks again.
    pub(crate) fn handle_failed(&mut self, now: Instant) {
        self.lowest_since = now;
        self.state = State::Looking { since: now, next_message: now, pause: self.pace.first_pause };
    }

    fn note_agent(&mut self, now: Instant, by: Candidate, message: LastMessage) {
        let before = self.lowest();
        let is_new = !self.others.contains_key(&by);
        if is_new && self.others.len() >= limits::MAX_CANDIDATES {
            return;
        }
        self.others.insert(by, message);
        self.note_lowest(now, before);
        let (first_pause, last_pause) = (self.pace.first_pause, self.pace.last_pause);
        let lowest = self.lowest();
        // If a newcomer is now the lowest candidate, it must learn soon that this agent agrees; if
        // this agent is, the newcomer must learn of it. No other datagram is urgent.
        let is_news = lowest != before || (lowest == Some(self.own) && message.lowest != lowest);
        match &mut self.state {
            State::Looking { next_message, pause, .. } if is_new && is_news => {
                *pause = first_pause;
                *next_message = (*next_message).min(now + first_pause);
            }
            State::Looking { .. } | State::Chosen => {}
            State::Found { is_host, next_answer, may_answer, .. } => {
                // Members leave the answer to the host, if there is one.
                let due = if *is_host { now } else { now + last_pause / 4 };
                let due = due.max(*may_answer);
                *next_answer = Some(next_answer.map_or(due, |earlier| earlier.min(due)));
            }
        }
    }

    /// Notes that the agent at `peer` names `host` as the host.
    fn note_host(&mut self, now: Instant, host: SocketAddr, peer: SocketAddr) {
        match &mut self.state {
            State::Looking { .. } | State::Chosen => {
                self.state = State::joined(host, now + self.pace.answer);
                self.effects.push_back(Effect::Join(host));
            }
            State::Found { at, is_host, next_answer, .. } => {
                let (at, is_host) = (*at, *is_host);
                if !is_host {
                    // The host or another member has answered.
                    *next_answer = None;
                }
                if at != host && self.is_due(now, host) {
                    if is_host {
                        self.effects.push_back(Effect::AskRival(host));
                    }
                    // The sender and the other host may have no other way to learn of this agent's
                    // host.
                    self.answer(peer);
                    if host.ip() != peer.ip() {
                        self.answer((host.ip(), peer.port()).into());
                    }
                }
            }
        }
    }

    /// Returns true if another host is to be asked now; if so, it is not asked again for a while.
    fn is_due(&mut self, now: Instant, host: SocketAddr) -> bool {
        self.rivals.retain(|_, until| now < *until);
        let is_due = !self.rivals.contains_key(&host) && self.rivals.len() < limits::MAX_RIVALS;
        if is_due {
            self.rivals.insert(host, now + self.pace.last_pause);
        }
        is_due
    }

    /// Sends to `peer` alone what this agent sends to all.
    fn answer(&mut self, peer: SocketAddr) {
        let message = match self.state {
            State::Looking { .. } => self.looking(),
            State::Chosen => return,
            State::Found { at, is_host, .. } => {
                Message::Hosted { by: self.own.number, at, by_host: is_host }
            }
        };
        self.effects.push_back(Effect::Answer(peer, message));
    }

    /// Returns the lowest known candidate, this agent included.
    fn lowest(&self) -> Option<Candidate> {
        let own = (self.eligible != Eligible::Never).then_some(self.own);
        let others = self.others.iter().filter(|(_, last)| last.may_host);
        others.map(|(candidate, _)| *candidate).chain(own).min()
    }

    fn note_lowest(&mut self, now: Instant, before: Option<Candidate>) {
        if self.lowest() != before {
            self.lowest_since = now;
        }
    }

    /// Returns the time at which this candidate may host, unless another datagram arrives.
    fn agreed_at(&self) -> Option<Instant> {
        let State::Looking { since, .. } = self.state else { return None };
        let quiet = self.lowest_since.max(since) + self.pace.agreement;
        match self.eligible {
            Eligible::Never => None,
            Eligible::Always => Some(since + self.pace.agreement),
            Eligible::IfLowest => {
                let own = Some(self.own);
                let agree = self.others.values().all(|last| last.lowest == own);
                (self.lowest() == own && agree).then_some(quiet)
            }
        }
    }

    fn broadcast_looking(&mut self) {
        let message = self.looking();
        self.effects.push_back(Effect::Broadcast(message));
    }

    fn looking(&self) -> Message {
        let may_host = self.eligible != Eligible::Never;
        Message::Looking { by: self.own, may_host, lowest: self.lowest() }
    }
}

/// Returns true if `ip` can belong to one machine, the same one from every point of the network.
fn is_reachable(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(v4) => !(v4.is_unspecified() || v4.is_multicast() || v4.is_broadcast()),
        IpAddr::V6(v6) => !(v6.is_unspecified() || v6.is_multicast() || v6.is_unicast_link_local()),
    }
}

#[cfg(test)]
mod tests;
