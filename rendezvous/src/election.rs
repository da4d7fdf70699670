//! The election of a job's coordinator among a few voters, without a log, a disk or an external
//! service.
//!
//! Three or five agents are *voters*. One of them leads for as long as a majority renews its lease;
//! its process runs the [`Rendezvous`](crate::Rendezvous). When the leases end without renewal,
//! another voter is elected. A change of the job's persistent state ([`Memory`]) is copied to a
//! majority before it takes effect.
//!
//! ```text
//!             lease over,                   a majority                 a majority
//!             stagger                       would vote                 has voted
//!  Follower ───────────────▶ PreCandidate ───────────────▶ Candidate ───────────────▶ Leader
//!      ▲                           │                           │                         │
//!      └───────────────────────────┴───────────────────────────┘                         │
//!      ▲       no majority within `poll`                                                 │
//!      └─────────────────────────────────────────────────────────────────────────────────┘
//!              lease over, a higher term exists, or the voter resigns
//! ```
//!
//! A leadership begins with the first renewal that a majority has granted, and lasts
//! [`Timers::leader_lease`] from the *sending* of the newest one. A voter votes for no other
//! process for [`Timers::voter_lease`] from the receipt of a renewal, which is longer. So at most
//! one process leads.
//!
//! A voter that has just started may have forgotten a lease. It is *fresh* until such a lease must
//! have ended. Votes of fresh voters count only in a *cold* election, in which all voters are
//! fresh: then no earlier leader is left.
//!
//! A candidate first holds a pre-vote, as in Raft: it asks whether others would vote for it, and
//! nothing changes. So a voter that cannot receive the leader's messages does not depose the
//! leader.
//!
//! [`Election::handle_request`] returns the answer. After each call of a `handle_*` method, and
//! before that answer is sent, carry out [`Election::poll_effect`] until it returns `None`; then set
//! one timer for [`Election::poll_timeout`]. The clock must include the time for which the machine is
//! suspended.
//!
//! [`Timers::leader_lease`]: timers::Timers::leader_lease
//! [`Timers::voter_lease`]: timers::Timers::voter_lease

mod candidate;
mod follower;
mod interface;
mod leader;
pub mod message;
mod poll;
#[cfg(test)]
mod tests;
pub mod timers;
mod voter;

use std::{collections::VecDeque, time::Instant};

use tracing::info;

pub use self::interface::{Effect, Leadership, Settings};
use crate::{
    ids::{NodeId, Term},
    jitter::Jitter,
    limits::{AGENT_TERM_MAX, NUMBER_MAX},
    settings::Memory,
};
use leader::Leader;
use message::{Answer, Place, Replica, Request, Version, VoterMessage};
use poll::Poll;
use voter::Voter;

/// One voter: it votes, becomes a candidate, and leads.
#[derive(Debug)]
pub struct Election {
    settings: Settings,
    voter: Voter,
    role: Role,
    /// The highest term that is known.
    highest: Term,
    /// The place of the process that holds this voter's lease, and its term.
    leader: Option<(Place, Term)>,
    /// The processes that have answered or led, by place.
    processes: Vec<Option<NodeId>>,
    /// The times of the last answers to requests of this process, by place.
    answered: Vec<Option<Instant>>,
    /// The number of failed candidacies since the last leader.
    failures: u32,
    is_leaving: bool,
    sequence: u64,
    jitter: Jitter,
    effects: VecDeque<Effect>,
    clock: Instant,
}

#[derive(Debug)]
enum Role {
    /// Waits for the end of the leader's lease.
    Follower { stands_at: Instant },
    /// Asks who would vote for it.
    PreCandidate(Poll),
    /// Asks for votes. In a cold election, `cold` has the processes whose votes count, by place;
    /// otherwise it is empty.
    Candidate { poll: Poll, term: Term, cold: Vec<Option<NodeId>> },
    /// Sends renewals; leads once a majority has granted one.
    Leader(Box<Leader>),
}

impl Election {
    /// Starts a voter. `replica` is the copy of the memory that an earlier process at this place
    /// has stored, and `highest` the highest term that it knew.
    pub fn new(now: Instant, settings: Settings, replica: Replica, highest: Term) -> Self {
        let voter = Voter::new(now, settings.timers, replica, highest);
        let jitter = Jitter::new(settings.seed);
        let processes = vec![None; settings.voters];
        let mut election = Self {
            voter,
            role: Role::Follower { stands_at: now },
            highest,
            leader: None,
            processes,
            answered: vec![None; settings.voters],
            failures: 0,
            is_leaving: false,
            sequence: 0,
            jitter,
            effects: VecDeque::new(),
            clock: now,
            settings,
        };
        election.follow(now);
        election
    }

    /// Handles a request of another voter, and returns the answer; `None` if it has none, or if the sender's place
    /// is not that of another voter.
    pub fn handle_request(
        &mut self,
        now: Instant,
        message: VoterMessage<Request>,
    ) -> Option<VoterMessage<Answer>> {
        self.begin(now);
        let VoterMessage { place, process, highest, sequence, body, .. } = message;
        if place.0 >= self.settings.voters || place == self.settings.place {
            return None;
        }
        self.learn(now, highest);
        let answer = match body {
            Request::PreVote => {
                let would = !self.is_leading() && self.voter.is_free_for(now, &process);
                self.voter.answer(now, would, false)
            }
            Request::Vote { term, cold } => self.handle_vote(now, &process, term, cold),
            Request::Renew { term, cold, replica } => {
                self.handle_renewal(now, place, (&process, term), cold, &replica)
            }
            Request::Release { term } => {
                if self.voter.release(now, &process, Some(term)) {
                    self.follow(now);
                }
                return None;
            }
        };
        Some(self.message(now, sequence, answer))
    }

    /// Handles the answer to a request. Its `place` must be that of the voter to which the request was sent,
    /// whatever the answer contains: two names in the list may lead to one process.
    pub fn handle_answer(&mut self, now: Instant, message: VoterMessage<Answer>) {
        self.begin(now);
        self.learn(now, message.highest);
        self.note_process(message.place, &message.process);
        if let Some(answered) = self.answered.get_mut(message.place.0) {
            *answered = Some(now);
        }
        match &mut self.role {
            Role::Follower { .. } => {}
            Role::PreCandidate(poll) | Role::Candidate { poll, .. } => {
                if poll.record(now, self.settings.timers, message) {
                    self.count(now);
                }
            }
            Role::Leader(leader) => {
                let VoterMessage { place, process, is_fresh, sequence, body, .. } = message;
                // A fresh process that took no part in this election may have forgotten a vote.
                let counts = !is_fresh || leader.cold(place).as_ref() == Some(&process);
                if body.is_granted && counts && leader.handle_granted(place, sequence, body.version)
                {
                    self.extend();
                }
            }
        }
    }

    /// Handles a new connection to a voter that could not be reached: repeats the request that it
    /// has missed.
    pub fn handle_connected(&mut self, now: Instant, place: Place) {
        self.begin(now);
        let is_missing = |poll: &Poll| !poll.has_answer_of(place);
        let (sequence, request) = match &self.role {
            Role::Follower { .. } => return,
            Role::PreCandidate(poll) if is_missing(poll) => (poll.sequence, Request::PreVote),
            Role::Candidate { poll, term, cold } if is_missing(poll) => {
                let cold = cold.get(place.0).cloned().flatten();
                (poll.sequence, Request::Vote { term: *term, cold })
            }
            Role::PreCandidate(_) | Role::Candidate { .. } => return,
            Role::Leader(_) => {
                self.renew(now);
                return;
            }
        };
        self.send(now, place, sequence, request);
    }

    /// Handles an obituary: no process of this agent is left, so the agent's lease ends.
    pub fn handle_obituary(&mut self, now: Instant, process: &NodeId) {
        self.begin(now);
        if self.voter.release(now, process, None) {
            info!(%process, "the leader's process has ended");
            self.follow(now);
        }
    }

    /// Handles a term that an agent has reported. A leader of a lower term resigns, and then stands for
    /// election in a higher one.
    pub fn handle_highest(&mut self, now: Instant, term: Term) {
        self.begin(now);
        if term.0 <= AGENT_TERM_MAX {
            self.learn(now, term);
        }
    }

    /// Changes the memory, and returns its version; [`Effect::Copied`] reports when a majority has
    /// it. Returns `None` if this voter does not lead.
    pub fn handle_remember(&mut self, now: Instant, memory: Memory) -> Option<Version> {
        self.begin(now);
        let Role::Leader(leader) = &self.role else { return None };
        leader.until?;
        let number = self.voter.version().number.saturating_add(1);
        let version = Version { term: leader.term, number };
        let replica = Replica { version, memory: Some(memory) };
        self.grant_own(now, &replica);
        self.renew(now);
        Some(version)
    }

    /// Resigns if this process leads in `term`, because its coordinator has ended in that term.
    pub fn handle_resigned(&mut self, now: Instant, term: Term) {
        self.begin(now);
        if matches!(&self.role, Role::Leader(leader) if leader.term == term) {
            self.step_down(now, "the coordinator has ended");
        }
    }

    /// Resigns if this process leads, and never becomes a candidate again, because the process will end.
    pub fn handle_leaving(&mut self, now: Instant) {
        self.begin(now);
        self.is_leaving = true;
        match self.role {
            Role::Leader(_) => self.step_down(now, "the agent leaves"),
            Role::PreCandidate(_) | Role::Candidate { .. } => self.follow(now),
            Role::Follower { .. } => {}
        }
    }

    /// Handles all deadlines that have passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.begin(now);
        match &self.role {
            Role::Follower { stands_at } if *stands_at <= now && !self.is_leaving => {
                self.stand(now)
            }
            Role::Leader(leader) if leader.next_renewal <= now => self.renew(now),
            Role::Follower { .. }
            | Role::PreCandidate(_)
            | Role::Candidate { .. }
            | Role::Leader(_) => {}
        }
    }

    /// Returns the earliest deadline.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match &self.role {
            Role::Follower { stands_at } => {
                let lease = self.voter.lease(self.clock).map(|lease| lease.until);
                [lease, Some(*stands_at).filter(|_| !self.is_leaving)].into_iter().flatten().min()
            }
            Role::PreCandidate(poll) | Role::Candidate { poll, .. } => Some(poll.deadline),
            Role::Leader(leader) => {
                let end = leader.until.unwrap_or(leader.deadline);
                Some(leader.next_renewal.min(end))
            }
        }
    }

    /// Returns the next effect to be carried out.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Returns the time until which this process leads; `None` if it does not.
    pub fn leads_until(&self) -> Option<Instant> {
        match &self.role {
            Role::Leader(leader) => leader.until,
            Role::Follower { .. } | Role::PreCandidate(_) | Role::Candidate { .. } => None,
        }
    }

    /// Returns the term of the leader to which this voter has granted a lease; `None` if it has granted none.
    pub fn lease_term(&self) -> Option<Term> {
        self.voter.lease(self.clock).map(|lease| lease.term)
    }

    /// Returns, by place, the time at which each other voter last answered a request of this process; `None` if
    /// it has never answered.
    pub fn answered(&self) -> &[Option<Instant>] {
        &self.answered
    }

    /// Returns the highest term that this voter knows, to be stored for the next process at its
    /// place.
    pub fn highest(&self) -> Term {
        self.highest
    }

    /// Returns the newest copy of the memory that this voter has, to be stored in the same way.
    pub fn replica(&self) -> &Replica {
        self.voter.replica()
    }

    /// Records the time, and applies the end of leases and polls before anything else is handled: a
    /// process that was stopped for a while must not act on a lease that is over, or on old answers.
    fn begin(&mut self, now: Instant) {
        debug_assert!(self.clock <= now, "time does not go back");
        self.clock = self.clock.max(now);
        match &self.role {
            Role::PreCandidate(poll) | Role::Candidate { poll, .. } if poll.deadline <= now => {
                self.pause(now);
            }
            Role::Leader(leader) if leader.until.is_some_and(|until| until <= now) => {
                self.step_down(now, "no majority has renewed the lease");
            }
            Role::Leader(leader) if leader.until.is_none() && leader.deadline <= now => {
                self.step_down(now, "no majority has granted the first lease");
            }
            Role::Follower { .. }
            | Role::PreCandidate(_)
            | Role::Candidate { .. }
            | Role::Leader(_) => {}
        }
        if self.leader.is_some() && self.voter.lease(now).is_none() && !self.is_leading() {
            self.announce(None);
        }
    }

    /// Returns true if this process leads, or was elected and waits for its first lease.
    fn is_leading(&self) -> bool {
        matches!(self.role, Role::Leader(_))
    }

    /// Records a term that exists. A candidacy or leadership in a lower one ends: its rounds would
    /// be lower than those of the higher term.
    fn learn(&mut self, now: Instant, term: Term) {
        if term <= self.highest || term.0 > NUMBER_MAX {
            return;
        }
        self.highest = term;
        match self.role {
            Role::Follower { .. } | Role::PreCandidate(_) => {}
            Role::Candidate { .. } => self.pause(now),
            Role::Leader(_) => self.step_down(now, "a higher term exists"),
        }
    }

    /// Records the process at a place, and reports a process that answers at two places.
    fn note_process(&mut self, place: Place, process: &NodeId) {
        let is_other = |other: usize| Place(other) != place;
        let elsewhere = self.processes.iter().enumerate();
        let is_elsewhere = elsewhere
            .filter(|(other, _)| is_other(*other))
            .any(|(_, known)| known.as_ref() == Some(process));
        let is_own = *process == self.settings.process && place != self.settings.place;
        if is_own || is_elsewhere {
            self.effects.push_back(Effect::Duplicate { place });
        }
        if let Some(known) = self.processes.get_mut(place.0) {
            *known = Some(process.clone());
        }
    }

    /// Reports the leader, if it or its term has changed.
    fn announce(&mut self, leader: Option<(Place, Term)>) {
        if self.leader != leader {
            self.leader = leader;
            self.effects.push_back(Effect::Follow { leader: leader.map(|(place, _)| place) });
        }
    }

    fn others(&self) -> Vec<Place> {
        (0..self.settings.voters).map(Place).filter(|place| *place != self.settings.place).collect()
    }

    fn send(&mut self, now: Instant, to: Place, sequence: u64, request: Request) {
        let message = self.message(now, sequence, request);
        self.effects.push_back(Effect::Send { to, message });
    }

    fn message<Body>(&self, now: Instant, sequence: u64, body: Body) -> VoterMessage<Body> {
        VoterMessage {
            place: self.settings.place,
            process: self.settings.process.clone(),
            is_fresh: self.voter.is_fresh(now),
            highest: self.highest,
            sequence,
            body,
        }
    }
}
