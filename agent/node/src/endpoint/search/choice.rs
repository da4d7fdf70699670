//! Decides which agent hosts a job that has no configured address.
//!
//! ```text
//!            an agent answers as the host
//! Searching ──────────────────────────────────────▶ Found (joins there) ──▶ Settled
//!     │  for a second, no lower candidate has answered
//!     └──────────────────────────────────────────▶ Found (hosts) ─────────▶ Settled
//! ```
//!
//! A datagram only names addresses to try. All else follows from answers over TCP, where an agent authenticates itself:
//!
//! 1. A searching agent joins the first address that answers as a host.
//! 2. The lowest candidate hosts, once no lower one has answered for [`QUIET`]. A datagram of a lower one is not enough, because it may be
//!    an old one that was sent again. While a member of a job answers, no agent hosts: the host may be restarting.
//! 3. The host of a job without a round steps down if a lower host answers, or the leader of a job with a round.
//! 4. A voter of a job with a round shows it to each other host that answers. The election decides which of two such jobs goes on.
//! 5. A host sends its datagram to each other host that has answered, also if no list of hosts names it. The other one decides in the same
//!    way.
//!
//! So late parts of a network become one job, unless a part has begun meanwhile. Agents that have settled answer those that search.

mod effect;
mod places;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::SocketAddr,
    time::{Duration, Instant},
};

use ragent_coordinator::pages::identity::{Candidate, SearchStage, SearchStanding};
use ragent_options::spec::Eligible;

pub(crate) use self::effect::Effect;
use self::places::NamedPlace;
use super::datagram::Announcement;
use crate::endpoint::limits::MAX_PEERS;

/// The time without an answer of a lower candidate after which an agent hosts.
const QUIET: Duration = Duration::from_secs(1);
/// The pause between two attempts at an address that has answered. It fits into [`QUIET`], with time for the answer.
const RENEWAL: Duration = Duration::from_millis(500);
/// The pause after an attempt at an address where no agent of the job has answered.
const REST: Duration = Duration::from_secs(5);
/// The pause between two steps of an agent that searches, and between its first datagrams.
const STEP: Duration = Duration::from_millis(100);
/// The time in which a searching agent sends a datagram at each step. On a lossy network all agents receive some of them.
const EAGER: Duration = Duration::from_secs(2);
/// The longest pause between two datagrams.
const LAST_PAUSE: Duration = Duration::from_secs(3);
/// The longest delay of a member's answer to a searching agent.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);
/// The time for which an address counts after it was last named.
const PATIENCE: Duration = Duration::from_secs(10);
/// The time that an agent continues to search after a refusal. Another address may be the host of its job.
const REFUSAL: Duration = Duration::from_secs(3);

/// The result of an attempt at an address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum DialAnswer {
    /// An agent of the job has answered.
    Standing(SearchStanding),
    /// The address belongs to this machine, and no process answers there.
    Free,
    /// An agent has answered, but the two do not accept each other.
    Refused,
    /// No agent of the job has answered.
    Nobody,
}

/// The part of an agent that has settled, as its driver knows it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Settled {
    /// The part.
    pub stage: SearchStage,
    /// The address of the host with which the agent is registered, if known.
    pub home: Option<SocketAddr>,
    /// True if this agent is a voter of a job that has begun, or hosts.
    pub compares: bool,
}

#[derive(Clone, Copy, Debug)]
enum ChoiceState {
    Searching {
        since: Instant,
        pause: Duration,
    },
    /// The driver hosts or joins.
    Found,
    Settled(Settled),
}

/// One agent's part in the choice of a host.
#[derive(Debug)]
pub(crate) struct HostChoice {
    own: Candidate,
    eligible: Eligible,
    state: ChoiceState,
    places: BTreeMap<SocketAddr, NamedPlace>,
    /// True if an agent of the job has sent a datagram.
    has_company: bool,
    next_message: Option<Instant>,
    /// The next datagram is not sent before this time.
    may_send: Instant,
    /// Where the next datagram also goes: the sources of datagrams, and other hosts that have answered.
    peers: BTreeSet<SocketAddr>,
    next_step: Instant,
    /// The start of the search, or the last answer that keeps this agent from hosting.
    kept_at: Instant,
    /// The time of a refusal, unless an agent of the job has answered since.
    refused: Option<Instant>,
    effects: VecDeque<Effect>,
}

impl HostChoice {
    /// Creates an agent that starts to search.
    pub(crate) fn new(now: Instant, own: Candidate, eligible: Eligible) -> Self {
        Self {
            own,
            eligible,
            state: ChoiceState::Searching { since: now, pause: STEP },
            places: BTreeMap::new(),
            has_company: false,
            next_message: Some(now),
            may_send: now,
            peers: BTreeSet::new(),
            next_step: now,
            kept_at: now,
            refused: None,
            effects: VecDeque::new(),
        }
    }

    /// Returns the next effect; `None` if there are none.
    pub(crate) fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Returns the earliest deadline.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let step = self.steps().then_some(self.next_step);
        [step, self.next_message].into_iter().flatten().min()
    }

    /// Applies every deadline that has passed.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        if self.next_message.is_some_and(|due| due <= now) {
            self.send(now);
        }
        if self.steps() && self.next_step <= now {
            if now >= self.next_step + RENEWAL {
                // This process was paused, and has not asked any agent meanwhile.
                self.kept_at = now;
            }
            self.next_step = now + STEP;
            self.dial_hosts(now);
            self.dial_keeper(now);
            self.end_search(now);
        }
    }

    /// Notes a datagram from the address `from`.
    pub(crate) fn handle_announcement(
        &mut self,
        now: Instant,
        from: SocketAddr,
        message: &Announcement,
    ) {
        let Announcement { by, may_host, searches, port, home } = *message;
        if by.number == self.own.number {
            // The network has returned this agent's own datagram.
            return;
        }
        self.has_company = true;
        let (at, home) = (SocketAddr::new(from.ip(), port), home.filter(|_| !searches));
        if !searches || matches!(self.state, ChoiceState::Searching { .. }) {
            self.name(now, at, |place| {
                place.candidate = (searches && may_host).then_some(by);
                place.is_host = !searches && home.is_none();
                place.home = home;
            });
        }
        if let Some(home) = home {
            self.name(now, home, |place| place.is_host = true);
        }
        match self.state {
            ChoiceState::Found => {}
            ChoiceState::Searching { .. } => self.note_peer(from),
            ChoiceState::Settled(own) if home.is_some() && own.home == home => {
                // Another agent has answered.
                self.next_message = self.next_message.filter(|_| self.sends_always());
            }
            // The datagrams of the own host may not reach the agent that this one is about to answer.
            ChoiceState::Settled(own) if !searches && own.home == Some(at) => {}
            ChoiceState::Settled(_) => {
                // This agent's host is unknown to the sender.
                self.note_peer(from);
                if !self.sends_always() && home.is_none() {
                    // Of all members, one answers first.
                    let part = self.own.number as f64 / u64::MAX as f64;
                    self.send_by(now + ANSWER_WITHIN.mul_f64(part));
                } else if searches {
                    self.send_by(now);
                }
            }
        }
        if !searches {
            self.dial_hosts(now);
        }
    }

    /// Notes the result of the attempt at `at`.
    pub(crate) fn handle_answer(&mut self, now: Instant, at: SocketAddr, answer: DialAnswer) {
        let Some(place) = self.places.get_mut(&at) else { return };
        place.is_dialed = false;
        let is_own = |standing: &SearchStanding| standing.by.number == self.own.number;
        (place.is_free, place.keeps, place.may_dial) = (false, false, now + REST);
        match answer {
            DialAnswer::Standing(standing) if !is_own(&standing) => {
                place.may_dial = now + RENEWAL;
                self.refused = None;
                self.handle_standing(now, at, standing);
            }
            // This process may have another address, at which it has not announced itself.
            DialAnswer::Standing(_) | DialAnswer::Free => place.is_free = true,
            DialAnswer::Refused => self.refused = self.refused.or(Some(now)),
            DialAnswer::Nobody => {}
        }
        self.continue_host();
        self.dial_hosts(now);
    }

    /// Notes that this agent cannot listen at `at`, where it should continue the host.
    pub(crate) fn handle_not_continued(&mut self, now: Instant, at: SocketAddr) {
        self.state = ChoiceState::Searching { since: now, pause: STEP };
        (self.next_message, self.next_step, self.kept_at) = (Some(now), now, now);
        if let Some(place) = self.places.get_mut(&at) {
            (place.is_free, place.may_dial) = (false, now + REST);
        }
    }

    /// Notes the part of this agent after the search.
    pub(crate) fn handle_settled(&mut self, now: Instant, settled: Settled) {
        if matches!(self.state, ChoiceState::Settled(before) if before == settled) {
            return;
        }
        if let ChoiceState::Found = self.state {
            // The driver has ended all attempts.
            self.places.clear();
        }
        self.state = ChoiceState::Settled(settled);
        self.next_step = now;
        self.next_message = self.sends_always().then_some(now);
    }

    /// Returns what this agent announces, with its port; `None` if it knows no address of its job.
    pub(crate) fn announcement(&self, port: u16) -> Option<Announcement> {
        let (searches, home) = match self.state {
            ChoiceState::Searching { .. } | ChoiceState::Found => (true, None),
            ChoiceState::Settled(_) if self.sends_always() => (false, None),
            ChoiceState::Settled(Settled { home, .. }) => (false, Some(home?)),
        };
        let may_host = self.eligible != Eligible::Never;
        Some(Announcement { by: self.own, may_host, searches, port, home })
    }

    /// Returns the part of this agent, for agents that ask it.
    pub(crate) fn standing(&self) -> SearchStanding {
        let stage = match self.state {
            ChoiceState::Settled(settled) => settled.stage,
            _ if self.eligible == Eligible::Never => SearchStage::Guest,
            ChoiceState::Searching { .. } | ChoiceState::Found => SearchStage::Candidate,
        };
        SearchStanding { by: self.own, stage }
    }

    /// Returns true if no agent of the job has sent a datagram.
    pub(crate) fn is_alone(&self) -> bool {
        !self.has_company
    }

    /// Returns true if an agent has refused this one, and no agent of the job has answered since.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused.is_some()
    }

    /// Returns true if a datagram has named this address as that of a host.
    pub(crate) fn is_named_host(&self, at: SocketAddr) -> bool {
        self.places.get(&at).is_some_and(|place| place.is_host)
    }

    /// Returns true if an agent is known that may host, including this one.
    pub(crate) fn has_candidate(&self) -> bool {
        let is_candidate = |place: &NamedPlace| place.candidate.is_some() || place.is_host;
        self.eligible != Eligible::Never || self.places.values().any(is_candidate)
    }

    fn handle_standing(&mut self, now: Instant, at: SocketAddr, standing: SearchStanding) {
        let SearchStanding { by, stage } = standing;
        match self.state {
            ChoiceState::Searching { .. } => {
                let keeps = match stage {
                    SearchStage::Host | SearchStage::Leader => return self.find(Effect::Join(at)),
                    SearchStage::Member => true,
                    SearchStage::Candidate => self.eligible == Eligible::IfLowest && by < self.own,
                    SearchStage::Guest => false,
                };
                if keeps && let Some(place) = self.places.get_mut(&at) {
                    (place.keeps, self.kept_at) = (true, now);
                }
            }
            ChoiceState::Found => {}
            ChoiceState::Settled(own) => {
                use SearchStage::{Candidate, Guest, Host, Leader, Member};
                let effect = match (own.stage, stage) {
                    (_, Candidate | Guest | Member) | (Candidate | Guest, _) => return,
                    (Host, Host) if self.own < by => None,
                    (Host, Host | Leader) => Some(Effect::StepDown(at)),
                    (Member | Leader, _) => Some(Effect::Show(at, stage == Leader)),
                };
                self.effects.extend(effect);
                if self.sends_always() {
                    // The other one decides in the same way, once it has this datagram. A list of hosts may not name it. Its port for datagrams
                    // is usually the one for connections.
                    self.note_peer(at);
                    self.send_by(now);
                }
            }
        }
    }

    /// Continues the host at an address of this machine where no process answers, if a member of its job answers.
    fn continue_host(&mut self) {
        let ChoiceState::Searching { .. } = self.state else { return };
        let is_free = |home: &SocketAddr| self.places.get(home).is_some_and(|place| place.is_free);
        let mut members = self.places.values().filter(|place| place.keeps);
        if let Some(at) = members.find_map(|member| member.home.filter(is_free)) {
            self.find(Effect::Continue(at));
        }
    }

    fn find(&mut self, effect: Effect) {
        self.state = ChoiceState::Found;
        self.next_message = None;
        self.effects.push_back(effect);
    }

    /// Hosts if nothing has kept this agent from it for [`QUIET`]. Gives up after a refusal.
    fn end_search(&mut self, now: Instant) {
        let ChoiceState::Searching { .. } = self.state else { return };
        // An answer that is on its way from a slow machine counts.
        let is_awaited = |place: &NamedPlace| place.is_dialed && place.keeps;
        match self.refused {
            Some(since) if since + REFUSAL <= now => self.find(Effect::GiveUp),
            None if self.eligible != Eligible::Never
                && self.kept_at + QUIET <= now
                && !self.places.values().any(is_awaited) =>
            {
                self.find(Effect::Host);
            }
            Some(_) | None => {}
        }
    }

    /// Returns true if this agent dials others again and again, instead of only after their datagrams.
    fn steps(&self) -> bool {
        match self.state {
            ChoiceState::Searching { .. } => true,
            ChoiceState::Found => false,
            ChoiceState::Settled(settled) => settled.stage == SearchStage::Host,
        }
    }

    /// Returns true if this agent has settled and hosts, so it sends datagrams without being asked.
    fn sends_always(&self) -> bool {
        let ChoiceState::Settled(settled) = self.state else { return false };
        matches!(settled.stage, SearchStage::Host | SearchStage::Leader)
    }

    fn send(&mut self, now: Instant) {
        let next = match &mut self.state {
            ChoiceState::Searching { since, pause } => {
                if now >= *since + EAGER {
                    *pause = (*pause * 2).min(LAST_PAUSE);
                }
                Some(*pause)
            }
            ChoiceState::Found => None,
            ChoiceState::Settled(_) => self.sends_always().then_some(LAST_PAUSE),
        };
        self.next_message = next.map(|pause| now + pause);
        self.may_send = now + STEP;
        let peers = std::mem::take(&mut self.peers);
        self.effects.push_back(Effect::Send(peers));
    }

    /// Sends the next datagram at `at`, or earlier if it is due.
    fn send_by(&mut self, at: Instant) {
        let at = at.max(self.may_send);
        self.next_message = Some(self.next_message.map_or(at, |earlier| earlier.min(at)));
    }

    fn note_peer(&mut self, peer: SocketAddr) {
        if self.peers.len() < MAX_PEERS {
            self.peers.insert(peer);
        }
    }
}

#[cfg(test)]
mod tests;
