//! Decides which agent hosts a job's endpoint. The agents know each other only by datagrams.
//!
//! ```text
//!            the endpoint is known
//! Looking ─────────────────────────────────▶ Found (joins there)
//!    │  this is the lowest candidate, and all agents agree for a while
//!    └─────────────────────────────────────▶ Found (hosts)
//! ```
//!
//! As in a bully election, the order of the candidates decides. The lowest one hosts once
//!
//! - no lower candidate was seen for [`Pace::agreement`], and
//! - all agents that it sees report no lower one.
//!
//! So all agents choose the same host, in any order of their starts, unless the network delivers nothing for that long. Agents that have
//! found the endpoint continue to answer agents that still search. Members do that, too, so a restarted host finds its own endpoint.
//!
//! Another process may replay datagrams. So an agent waits for another one only if that one answers a question ([`super::challenges`]). An
//! address in a datagram is only a place to try ([`super::places`]): the search continues until a host of the job has answered at one.
//!
//! Two agents may still host, if the network was not up when they started. They learn of each other later. Then the state of their jobs
//! decides which of them steps down ([`super::rivals`]).

mod claims;
mod doubts;
mod effect;
mod pace;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

pub(crate) use self::{effect::Effect, pace::Pace};
use ragent_base::spec::Eligible;

use super::{
    challenges::{Answers, Challenges},
    datagram::{Candidate, SearchMessage},
    places::Places,
};
use crate::endpoint::limits;

#[derive(Clone, Debug)]
enum ChoiceState {
    Looking {
        since: Instant,
        next_message: Instant,
        pause: Duration,
    },
    /// This agent was chosen to host, but does not host yet.
    Chosen,
    Found {
        at: SocketAddr,
        is_host: bool,
        next_answer: Option<Instant>,
        may_answer: Instant,
    },
}

impl ChoiceState {
    /// Returns the state in which another agent hosts at `at`.
    fn joined(at: SocketAddr, may_answer: Instant) -> Self {
        Self::Found { at, is_host: false, next_answer: None, may_answer }
    }
}

/// The last two source addresses of one agent's datagrams. One may belong to a process that replays them.
#[derive(Clone, Copy, Debug)]
struct Sources(SocketAddr, Option<SocketAddr>);

impl Sources {
    /// Returns the addresses after a datagram from `peer`. `before` are the earlier ones.
    fn after(peer: SocketAddr, before: Option<Self>) -> Self {
        match before {
            Some(same) if same.0 == peer => same,
            Some(Self(other, _)) => Self(peer, Some(other)),
            None => Self(peer, None),
        }
    }

    fn iter(self) -> impl Iterator<Item = SocketAddr> {
        [Some(self.0), self.1].into_iter().flatten()
    }
}

/// Another agent that searches, by its last datagram.
#[derive(Clone, Copy, Debug)]
struct OtherSearcher {
    /// The time of its first datagram.
    since: Instant,
    last: Instant,
    sources: Sources,
    may_host: bool,
    lowest: Option<Candidate>,
}

/// An agent that names a host, by its last datagram.
#[derive(Clone, Copy, Debug)]
struct NamedHost {
    last: Instant,
    sources: Sources,
    host: SocketAddr,
}

/// One agent's part in the choice.
#[derive(Debug)]
pub(crate) struct HostChoice {
    own: Candidate,
    eligible: Eligible,
    pace: Pace,
    state: ChoiceState,
    others: BTreeMap<Candidate, OtherSearcher>,
    /// Agents that name a host at which no coordinator has answered yet.
    claims: BTreeMap<u64, NamedHost>,
    /// No agent becomes silent before this time. Only then are all agents checked, instead of after each datagram.
    silent_at: Option<Instant>,
    places: Places,
    /// Places on this machine at which no process answers.
    own_places: BTreeSet<SocketAddr>,
    /// The place that has refused this agent, and the time of the refusal.
    refused: Option<(SocketAddr, Instant)>,
    /// The time of the first claim of this search.
    first_claim: Option<Instant>,
    /// The questions to agents that search.
    challenges: Challenges,
    /// The questions to agents that name a host.
    claimants: Challenges,
    answers: Answers,
    /// The next time at which other agents are asked.
    next_doubt: Option<Instant>,
    /// The time of the last change of the lowest candidate.
    lowest_since: Instant,
    /// Other hosts of the job, and the time before which each is not asked again.
    rivals: BTreeMap<SocketAddr, Instant>,
    effects: VecDeque<Effect>,
}

impl HostChoice {
    /// Creates an agent that starts to search.
    pub(crate) fn new(now: Instant, own: Candidate, eligible: Eligible, pace: Pace) -> Self {
        let challenges =
            |nonce, at_once| Challenges::new(nonce, at_once, pace.agreement, pace.patience);
        Self {
            own,
            eligible,
            pace,
            state: ChoiceState::Looking { since: now, next_message: now, pause: pace.first_pause },
            others: BTreeMap::new(),
            claims: BTreeMap::new(),
            silent_at: None,
            places: Places::new(pace.agreement),
            own_places: BTreeSet::new(),
            refused: None,
            // Usually the lowest candidate answers, so one question at a time is enough.
            challenges: challenges(own.number, 1),
            claimants: challenges(own.number.wrapping_add(1 << 32), limits::MAX_CHALLENGES),
            first_claim: None,
            answers: Answers::new(pace.presence),
            next_doubt: None,
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
        let due = match &self.state {
            ChoiceState::Looking { next_message, .. } => {
                let refused = self.refused.map(|(_, since)| since + self.pace.refusal);
                let questions = [&self.challenges, &self.claimants].map(Challenges::poll_timeout);
                let rest = [self.silent_at, self.next_doubt, refused].into_iter().chain(questions);
                rest.chain([self.agreed_at()]).flatten().chain([*next_message]).min()
            }
            ChoiceState::Chosen => None,
            ChoiceState::Found { next_answer, .. } => *next_answer,
        };
        [due, self.answers.poll_timeout()].into_iter().flatten().min()
    }

    /// Applies every deadline that has passed.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        self.forget_silent(now);
        let present = self.answers.handle_timeout(now);
        if !present.is_empty() {
            self.effects.push_back(Effect::Present(present));
        }
        if matches!(self.state, ChoiceState::Looking { .. }) {
            self.handle_absence(now);
            self.judge_own_places(now);
        }
        if matches!(self.state, ChoiceState::Looking { .. }) {
            self.handle_refusal_end(now);
        }
        match &mut self.state {
            ChoiceState::Looking { since, next_message, pause } => {
                if now >= *next_message {
                    *next_message = now + *pause;
                    // At first the pause does not grow, so that on a lossy network all agents receive some datagrams.
                    if now >= *since + self.pace.agreement {
                        *pause = (*pause * 2).min(self.pace.last_pause);
                    }
                    self.broadcast_looking();
                }
                if self.agreed_at().is_some_and(|at| now >= at) {
                    self.state = ChoiceState::Chosen;
                    self.effects.push_back(Effect::Host);
                }
                if self.next_doubt.is_some_and(|due| now >= due) {
                    self.doubt(now);
                }
            }
            ChoiceState::Chosen => {}
            ChoiceState::Found { at, is_host, next_answer, may_answer } => {
                if next_answer.is_some_and(|due| now >= due) {
                    *may_answer = now + self.pace.answer;
                    *next_answer = is_host.then(|| now + self.pace.last_pause);
                    let by = self.own.number;
                    let message = SearchMessage::Hosted { by, at: *at, by_host: *is_host };
                    self.effects.push_back(Effect::Broadcast(message));
                }
            }
        }
    }

    /// Notes a datagram from `peer`.
    pub(crate) fn handle_message(
        &mut self,
        now: Instant,
        message: &SearchMessage,
        peer: SocketAddr,
    ) {
        match *message {
            SearchMessage::Looking { by, may_host, lowest } if by != self.own => {
                let before = self.others.get(&by).copied();
                let since = before.map_or(now, |other| other.since);
                let sources = Sources::after(peer, before.map(|other| other.sources));
                let other = OtherSearcher { since, last: now, sources, may_host, lowest };
                self.note_agent(now, by, other);
                // A datagram that comes soon after the last one may itself be an answer, so it is not answered.
                let is_news = before.is_none_or(|other| now >= other.last + self.pace.answer);
                if is_news && self.others.contains_key(&by) {
                    self.answer(peer);
                }
            }
            SearchMessage::Hosted { by, at, by_host } if by != self.own.number => {
                let at = if by_host { SocketAddr::new(peer.ip(), at.port()) } else { at };
                if is_reachable(at.ip()) && at.port() != 0 {
                    self.note_host(now, by, at, peer);
                }
            }
            SearchMessage::Ask { by, to, nonce }
                if to == self.own.number && by != self.own.number =>
            {
                self.answers.handle_question(now, peer, nonce);
                self.schedule_answer(now);
            }
            SearchMessage::Answer { by, ref nonces } => {
                let is_claimant = self.claimants.handle_answer(now, by, nonces);
                let is_candidate = self.challenges.handle_answer(now, by, nonces);
                // An agent that merely has not agreed yet does not renew the patience.
                if is_candidate && self.lower().any(|(lower, _)| lower.number == by) {
                    self.challenges.renew_patience();
                }
                if is_claimant || is_candidate {
                    self.doubt_at(now);
                }
                if is_claimant && matches!(self.state, ChoiceState::Looking { .. }) {
                    self.judge_own_places(now);
                }
            }
            // This is this agent's own datagram, looped back by the network, or a question to another agent.
            SearchMessage::Looking { .. }
            | SearchMessage::Hosted { .. }
            | SearchMessage::Ask { .. } => {}
        }
    }

    /// Returns true if an agent is known that may host, including this one.
    pub(crate) fn has_candidate(&self) -> bool {
        self.lowest().is_some()
    }

    /// Returns true if the host is known, which may be this agent.
    pub(crate) fn has_found(&self) -> bool {
        matches!(self.state, ChoiceState::Found { .. })
    }

    /// Returns true if no other searching agent is known.
    pub(crate) fn is_alone(&self) -> bool {
        self.others.is_empty()
    }

    /// Notes that this agent now hosts, at this address.
    pub(crate) fn handle_hosting(&mut self, now: Instant, at: SocketAddr) {
        self.state =
            ChoiceState::Found { at, is_host: true, next_answer: Some(now), may_answer: now };
    }

    /// Notes that this agent cannot listen at `at`, where it should continue the host. Another agent of this machine may be able to.
    pub(crate) fn handle_not_continued(&mut self, now: Instant, at: SocketAddr) {
        self.places.handle_failed(now, at);
        self.state =
            ChoiceState::Looking { since: now, next_message: now, pause: self.pace.first_pause };
    }

    /// Notes that this agent is redirected to another host: itself, or the host that it had joined, has stepped down.
    pub(crate) fn handle_sent_elsewhere(&mut self, now: Instant, at: SocketAddr) {
        self.state = ChoiceState::joined(at, now);
    }

    /// Notes that a coordinator of the job has answered at `at`.
    pub(crate) fn handle_joined(&mut self, now: Instant, at: SocketAddr) {
        self.state = ChoiceState::joined(at, now + self.pace.answer);
    }

    /// Notes that no coordinator of the job has answered at `at`.
    pub(crate) fn handle_not_joined(&mut self, now: Instant, at: SocketAddr) {
        self.places.handle_failed(now, at);
    }

    /// Notes that the coordinator at `at` and this agent do not accept each other. Returns true if the search may end for this reason.
    pub(crate) fn handle_refused(&mut self, now: Instant, at: SocketAddr) -> bool {
        self.places.handle_failed(now, at);
        let is_first = self.refused.is_none();
        self.refused.get_or_insert((at, now));
        is_first
    }

    /// Notes that `at` belongs to this machine, but no process answers there.
    pub(crate) fn handle_own_place(&mut self, now: Instant, at: SocketAddr) {
        self.own_places.insert(at);
        self.judge_own_places(now);
    }

    fn note_agent(&mut self, now: Instant, by: Candidate, other: OtherSearcher) {
        let before = self.lowest();
        let is_new = !self.others.contains_key(&by);
        if is_new && self.others.len() >= limits::MAX_CANDIDATES {
            return;
        }
        self.others.insert(by, other);
        self.silent_at.get_or_insert(other.last + self.pace.patience);
        self.note_lowest(now, before);
        let lowest = self.lowest();
        // If a newcomer is now the lowest candidate, it must soon learn that this agent agrees. If
        // this agent is the lowest, the newcomer must learn of it. No other datagram is urgent.
        let is_news = lowest != before || (lowest == Some(self.own) && other.lowest != lowest);
        if is_new && is_news {
            self.hasten(now + self.pace.first_pause);
        }
        if is_new {
            self.doubt_at(now + self.pace.doubt);
        }
        self.schedule_answer(now);
    }

    /// Sends the next datagram of a searching agent at `at`, or earlier if it is due.
    fn hasten(&mut self, at: Instant) {
        if let ChoiceState::Looking { next_message, pause, .. } = &mut self.state {
            *pause = self.pace.first_pause;
            *next_message = (*next_message).min(at);
        }
    }

    /// Sends the address of the host soon, if it is known.
    fn schedule_answer(&mut self, now: Instant) {
        if let ChoiceState::Found { is_host, next_answer, may_answer, .. } = &mut self.state {
            // Members leave the answer to the host, if there is one.
            let due = if *is_host { now } else { now + self.pace.last_pause / 4 };
            let due = due.max(*may_answer);
            *next_answer = Some(next_answer.map_or(due, |earlier| earlier.min(due)));
        }
    }

    /// Forgets agents that have been silent for long.
    fn forget_silent(&mut self, now: Instant) {
        if self.silent_at.is_none_or(|at| now < at) {
            return;
        }
        let (before, patience) = (self.lowest(), self.pace.patience);
        let known = self.others.len() + self.claims.len();
        self.others.retain(|_, other| now < other.last + patience);
        self.claims.retain(|_, claim| now < claim.last + patience);
        let last = self.others.values().map(|other| other.last);
        let last = last.chain(self.claims.values().map(|claim| claim.last)).min();
        self.silent_at = last.map(|last| last + patience);
        if self.others.len() + self.claims.len() == known {
            return;
        }
        self.note_lowest(now, before);
        let others: BTreeSet<u64> = self.others.keys().map(|other| other.number).collect();
        self.challenges.retain(|number| others.contains(&number));
        self.claimants.retain(|number| self.claims.contains_key(&number));
    }

    /// Sends the message for all agents to `peer` alone.
    fn answer(&mut self, peer: SocketAddr) {
        let message = match self.state {
            ChoiceState::Looking { .. } => self.looking(),
            ChoiceState::Chosen => return,
            ChoiceState::Found { at, is_host, .. } => {
                SearchMessage::Hosted { by: self.own.number, at, by_host: is_host }
            }
        };
        self.effects.push_back(Effect::Answer(peer, message));
    }

    /// Returns the lowest known candidate that is not absent. It may be this agent.
    fn lowest(&self) -> Option<Candidate> {
        let own = (self.eligible != Eligible::Never).then_some(self.own);
        let mut lower = self.lower().map(|(by, _)| *by);
        lower.find(|by| !self.challenges.is_absent(by.number)).or(own)
    }

    fn note_lowest(&mut self, now: Instant, before: Option<Candidate>) {
        if self.lowest() != before {
            self.lowest_since = now;
        }
    }

    /// Returns the time at which this candidate may host, unless another datagram arrives first.
    fn agreed_at(&self) -> Option<Instant> {
        let ChoiceState::Looking { since, .. } = self.state else { return None };
        let may_be_present = |number| self.challenges.may_be_present(number);
        if self.claims.keys().any(|number| self.claimants.is_present(*number)) {
            // The host may be restarting.
            return None;
        }
        // Agents that name a host have this much time to answer.
        let since = self.first_claim.map_or(since, |claim| claim.max(since));
        match self.eligible {
            Eligible::Never => None,
            Eligible::Always => Some(since + self.pace.agreement),
            Eligible::IfLowest => {
                let mut waits_for = self.lower().chain(self.disagreeing());
                let quiet = self.lowest_since.max(since) + self.pace.agreement;
                (!waits_for.any(|(by, _)| may_be_present(by.number))).then_some(quiet)
            }
        }
    }

    fn broadcast_looking(&mut self) {
        let message = self.looking();
        self.effects.push_back(Effect::Broadcast(message));
    }

    fn looking(&self) -> SearchMessage {
        let may_host = self.eligible != Eligible::Never;
        SearchMessage::Looking { by: self.own, may_host, lowest: self.lowest() }
    }
}

/// Returns true if `ip` can belong to one machine, and to the same one in the whole network.
fn is_reachable(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(v4) => !(v4.is_unspecified() || v4.is_multicast() || v4.is_broadcast()),
        IpAddr::V6(v6) => !(v6.is_unspecified() || v6.is_multicast() || v6.is_unicast_link_local()),
    }
}

#[cfg(test)]
mod tests;
