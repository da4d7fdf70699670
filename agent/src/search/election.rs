//! Decides who hosts a job's endpoint among agents that only hear of each other.
//!
//! ```text
//!            somebody knows the endpoint
//! Looking ─────────────────────────────────▶ Found (joins there)
//!    │  the lowest candidate, agreed by all that were heard, for a while
//!    └─────────────────────────────────────▶ Found (hosts)
//! ```
//!
//! A candidate hosts only after nobody lower was heard for [`Pace::agreement`], and when all whom it
//! hears say that they know of none lower than it. So all come to the same host, whoever starts first,
//! unless the network delivers nothing for that long. Whoever has found the endpoint goes on answering
//! those who look, members too: a host that is started again finds its own endpoint so.
//!
//! Two that host all the same, on a network that was not there yet when they started, hear of each
//! other later. Which of them gives way is seen in how their jobs stand ([`super::rivals`]).

use std::{
    collections::{BTreeMap, VecDeque},
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use super::datagram::{Candidate, Saying};
use crate::limits;

/// How fast agents talk.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Pace {
    /// For how long nobody lower may have been heard before a candidate hosts.
    pub agreement: Duration,
    /// The pause between two sayings until there could be agreement; afterwards it doubles.
    pub first_pause: Duration,
    /// The longest pause between two sayings.
    pub last_pause: Duration,
    /// A candidate that was not heard for this long is gone.
    pub patience: Duration,
    /// How often at most those who look are answered.
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

/// What must be done.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Effect {
    /// Say this to all.
    Say(Saying),
    /// Host the endpoint, and tell where with [`Election::handle_hosting`].
    Host,
    /// Join the coordinator there.
    Join(SocketAddr),
    /// Say this to the one who was heard from there, if what is said to all does not get to it.
    Answer(SocketAddr, Saying),
    /// Another agent hosts the same job, there: one of the two is to give way.
    Meet(SocketAddr),
}

/// Whether an agent may host.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Eligible {
    /// It hosts, whoever else is there, unless somebody hosts already.
    Always,
    /// It hosts if it is the lowest candidate.
    IfLowest,
    /// It waits for a host.
    Never,
}

#[derive(Clone, Debug)]
enum State {
    Looking {
        since: Instant,
        next_saying: Instant,
        pause: Duration,
    },
    /// Told to host, and not doing so yet.
    Chosen,
    Found {
        at: SocketAddr,
        is_host: bool,
        next_answer: Option<Instant>,
        may_answer: Instant,
    },
}

impl State {
    /// There is a host, and it is another one.
    fn joined(at: SocketAddr, may_answer: Instant) -> Self {
        Self::Found { at, is_host: false, next_answer: None, may_answer }
    }
}

/// What is known of another agent that looks.
#[derive(Clone, Copy, Debug)]
struct Heard {
    at: Instant,
    may_host: bool,
    lowest: Option<Candidate>,
}

/// One agent's part.
#[derive(Debug)]
pub struct Election {
    own: Candidate,
    eligible: Eligible,
    pace: Pace,
    state: State,
    heard: BTreeMap<Candidate, Heard>,
    /// Since when the lowest candidate is the one it is.
    lowest_since: Instant,
    /// Other hosts of the job, and from when on they are worth another look.
    rivals: BTreeMap<SocketAddr, Instant>,
    effects: VecDeque<Effect>,
}

impl Election {
    /// An agent that begins to look.
    pub fn new(now: Instant, own: Candidate, eligible: Eligible, pace: Pace) -> Self {
        Self {
            own,
            eligible,
            pace,
            state: State::Looking { since: now, next_saying: now, pause: pace.first_pause },
            heard: BTreeMap::new(),
            lowest_since: now,
            rivals: BTreeMap::new(),
            effects: VecDeque::new(),
        }
    }

    /// The next thing to do.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// When [`Self::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match &self.state {
            State::Looking { next_saying, .. } => {
                let ends = self.heard.values().map(|heard| heard.at + self.pace.patience);
                ends.chain([*next_saying]).chain(self.agreed_at()).min()
            }
            State::Chosen => None,
            State::Found { next_answer, .. } => *next_answer,
        }
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        let patience = self.pace.patience;
        let before = self.lowest();
        self.heard.retain(|_, heard| now < heard.at + patience);
        self.note_lowest(now, before);
        match &mut self.state {
            State::Looking { since, next_saying, pause } => {
                if now >= *next_saying {
                    *next_saying = now + *pause;
                    // On a network that loses a part, some of the first ones are heard by all.
                    if now >= *since + self.pace.agreement {
                        *pause = (*pause * 2).min(self.pace.last_pause);
                    }
                    self.say_looking();
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
                    let saying = Saying::Hosted { by, at: *at, by_host: *is_host };
                    self.effects.push_back(Effect::Say(saying));
                }
            }
        }
    }

    /// Somebody was heard, from `peer`.
    pub fn handle_saying(&mut self, now: Instant, saying: &Saying, peer: SocketAddr) {
        match *saying {
            Saying::Looking { by, may_host, lowest } if by != self.own => {
                let before = self.heard.get(&by).map(|heard| heard.at);
                self.hear(now, by, Heard { at: now, may_host, lowest });
                // Not what may itself be an answer.
                let is_news = before.is_none_or(|at| now >= at + self.pace.answer);
                if is_news && self.heard.contains_key(&by) {
                    self.answer(peer);
                }
            }
            Saying::Hosted { by, at, by_host } if by != self.own.number => {
                let at = if by_host { SocketAddr::new(peer.ip(), at.port()) } else { at };
                if is_reachable(at.ip()) {
                    self.hear_of_host(now, at, peer);
                }
            }
            // Its own, which comes back to it.
            Saying::Looking { .. } | Saying::Hosted { .. } => {}
        }
    }

    /// This agent hosts now, there.
    pub fn handle_hosting(&mut self, now: Instant, at: SocketAddr) {
        self.state = State::Found { at, is_host: true, next_answer: Some(now), may_answer: now };
    }

    /// This agent has been sent to another host: it, or the host that it had joined, has given way.
    pub fn handle_sent_elsewhere(&mut self, now: Instant, at: SocketAddr) {
        self.state = State::joined(at, now);
    }

    /// This agent could not host after all, or nobody was where it was sent: it looks again.
    pub fn handle_in_vain(&mut self, now: Instant) {
        self.lowest_since = now;
        self.state = State::Looking { since: now, next_saying: now, pause: self.pace.first_pause };
    }

    fn hear(&mut self, now: Instant, by: Candidate, heard: Heard) {
        let before = self.lowest();
        let is_new = !self.heard.contains_key(&by);
        if is_new && self.heard.len() >= limits::MAX_CANDIDATES {
            return;
        }
        self.heard.insert(by, heard);
        self.note_lowest(now, before);
        let (first_pause, last_pause) = (self.pace.first_pause, self.pace.last_pause);
        let lowest = self.lowest();
        // A newcomer is to know soon whom there is to wait for, and the lowest one that it is the
        // lowest for this agent too. Nobody else needs to hear anything now.
        let is_news = lowest != before || (lowest == Some(self.own) && heard.lowest != lowest);
        match &mut self.state {
            State::Looking { next_saying, pause, .. } if is_new && is_news => {
                *pause = first_pause;
                *next_saying = (*next_saying).min(now + first_pause);
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

    /// Somebody, at `peer`, says that `host` hosts.
    fn hear_of_host(&mut self, now: Instant, host: SocketAddr, peer: SocketAddr) {
        match &mut self.state {
            State::Looking { .. } | State::Chosen => {
                self.state = State::joined(host, now + self.pace.answer);
                self.effects.push_back(Effect::Join(host));
            }
            State::Found { at, is_host, next_answer, .. } => {
                let (at, is_host) = (*at, *is_host);
                if !is_host {
                    // It was answered.
                    *next_answer = None;
                }
                if at != host && self.is_due(now, host) {
                    if is_host {
                        self.effects.push_back(Effect::Meet(host));
                    }
                    // Whoever says so, and that host itself, may hear of this one from nobody else.
                    self.answer(peer);
                    if host.ip() != peer.ip() {
                        self.answer((host.ip(), peer.port()).into());
                    }
                }
            }
        }
    }

    /// Whether another host is worth a look; then it is not for a while.
    fn is_due(&mut self, now: Instant, host: SocketAddr) -> bool {
        self.rivals.retain(|_, until| now < *until);
        let is_due = !self.rivals.contains_key(&host) && self.rivals.len() < limits::MAX_RIVALS;
        if is_due {
            self.rivals.insert(host, now + self.pace.last_pause);
        }
        is_due
    }

    /// Tells the one at `peer` alone what this agent says to all.
    fn answer(&mut self, peer: SocketAddr) {
        let saying = match self.state {
            State::Looking { .. } => self.looking(),
            State::Chosen => return,
            State::Found { at, is_host, .. } => {
                Saying::Hosted { by: self.own.number, at, by_host: is_host }
            }
        };
        self.effects.push_back(Effect::Answer(peer, saying));
    }

    /// The lowest candidate that is known, this one included.
    fn lowest(&self) -> Option<Candidate> {
        let own = (self.eligible != Eligible::Never).then_some(self.own);
        let heard = self.heard.iter().filter(|(_, heard)| heard.may_host);
        heard.map(|(candidate, _)| *candidate).chain(own).min()
    }

    fn note_lowest(&mut self, now: Instant, before: Option<Candidate>) {
        if self.lowest() != before {
            self.lowest_since = now;
        }
    }

    /// When this candidate may host, if nothing else is heard.
    fn agreed_at(&self) -> Option<Instant> {
        let State::Looking { since, .. } = self.state else { return None };
        let quiet = self.lowest_since.max(since) + self.pace.agreement;
        match self.eligible {
            Eligible::Never => None,
            Eligible::Always => Some(since + self.pace.agreement),
            Eligible::IfLowest => {
                let own = Some(self.own);
                let agree = self.heard.values().all(|heard| heard.lowest == own);
                (self.lowest() == own && agree).then_some(quiet)
            }
        }
    }

    fn say_looking(&mut self) {
        let saying = self.looking();
        self.effects.push_back(Effect::Say(saying));
    }

    fn looking(&self) -> Saying {
        let may_host = self.eligible != Eligible::Never;
        Saying::Looking { by: self.own, may_host, lowest: self.lowest() }
    }
}

/// Whether `ip` can be one machine's, and the same one from wherever it is looked at.
fn is_reachable(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(v4) => !(v4.is_unspecified() || v4.is_multicast() || v4.is_broadcast()),
        IpAddr::V6(v6) => !(v6.is_unspecified() || v6.is_multicast() || v6.is_unicast_link_local()),
    }
}

#[cfg(test)]
mod tests;
