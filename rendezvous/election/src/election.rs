//! Elects a job's coordinator among a few voters, without a log, a disk or an external service.
//!
//! It works like Raft's election with leader leases. Instead of a log there is one small value: the
//! job's persistent state ([`JobState`]), which is copied to a majority before a change of it takes
//! effect. Three or five agents are *voters*. The leader's process runs the
//! [`Rendezvous`](ragent_rendezvous::Rendezvous).
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
//! 1. *Pre-vote.* A candidate first asks whether the others would vote for it, and changes nothing.
//!    So a voter that cannot receive the leader's messages does not depose the leader.
//! 2. *Vote.* It asks for votes in a new term.
//! 3. *Lease.* Its leadership begins with the first renewal that a majority grants. It lasts for
//!    [`Timers::leader_lease`] from the *sending* of the newest granted renewal.
//! 4. A voter votes for no other process for [`Timers::voter_lease`] from the *receipt* of a
//!    renewal. This lease is longer than the leader's, so at most one process leads.
//!
//! A voter that has just started may have forgotten a lease that it granted. Its votes do not count
//! until such a lease must have ended. So the first election of a job also takes a voter's lease.
//! In that time, voters of an earlier job of the same name can show that it exists
//! (`other_jobs.rs`). Only if no earlier job can exist is there no such wait
//! ([`ElectionSettings::is_first_start`]).
//!
//! A voter is identified by its state file ([`VoterId`]). The list of voters ([`Lists`]) is copied
//! together with the state. Until the first round, it has the endpoints that the user gave. After
//! that, the leader replaces lost voters by members of the job (`change.rs`).
//!
//! [`Election::handle_request`] returns the answer. After each call of a `handle_*` method, and
//! before that answer is sent, carry out [`Election::poll_effect`] until it returns `None`. Then
//! set one timer for [`Election::poll_timeout`]. The clock must include the time for which the
//! machine is suspended.
//!
//! [`Lists`]: message::Lists
//! [`Timers::leader_lease`]: timers::Timers::leader_lease
//! [`Timers::voter_lease`]: timers::Timers::voter_lease

mod candidate;
mod change;
mod follower;
mod interface;
mod leader;
mod lists;
mod membership;
pub mod message;
mod other_jobs;
mod poll;
#[cfg(test)]
mod tests;
pub mod timers;
mod view;
mod voter;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use ragent_rendezvous::{
    ids::{JobUid, NodeId, Round, Term, VoterAddress, VoterId},
    jitter::Jitter,
    limits::{AGENT_TERM_MAX, NUMBER_MAX},
    settings::JobState,
};
use tracing::info;

pub use self::{
    interface::{Effect, ElectionSettings, NewLeadership},
    other_jobs::OtherJob,
};
use change::Leaving;
use leader::ElectionLeader;
use message::{Answer, Knowledge, Lists, Replica, Request, Version, VoterMessage};
use other_jobs::{OtherJobs, Source};
use poll::Poll;
use voter::Voter;

/// One voter: it votes, becomes a candidate, and leads.
#[derive(Debug)]
pub struct Election {
    settings: ElectionSettings,
    voter: Voter,
    /// The newest version of the state that a majority is known to have.
    copied: Version,
    role: Role,
    /// The highest term that is known.
    highest: Term,
    /// The leader to which this voter has granted its lease, and the leader's term.
    leader: Option<(VoterAddress, Term)>,
    /// The process at each address that has answered or led.
    processes: BTreeMap<VoterAddress, NodeId>,
    /// The last answers to requests of this process, by address.
    answers: Answers,
    /// The addresses to which this process has a connection.
    connected: BTreeSet<VoterAddress>,
    /// Jobs of the same name that other processes have shown.
    other_jobs: OtherJobs,
    /// True if the agent of this process is registered with a coordinator.
    is_registered: bool,
    /// The job for which it was last registered.
    joined: Option<JobUid>,
    /// True if this process had a leader of a job that had not ended.
    has_had_leader: bool,
    /// The time since which no leader is known.
    leaderless: Option<Instant>,
    /// True if another job goes on instead of this process's job.
    has_yielded: bool,
    /// The number of failed candidacies since the last leader.
    failures: u32,
    leaving: Option<Leaving>,
    sequence: u64,
    jitter: Jitter,
    effects: VecDeque<Effect>,
    clock: Instant,
}

/// The last answers to requests of a process, by address.
type Answers = BTreeMap<VoterAddress, LastAnswer>;

/// The last answer of the process at an address.
#[derive(Debug)]
struct LastAnswer {
    voter: VoterId,
    at: Instant,
}

#[derive(Debug)]
enum Role {
    /// Waits until the leader's lease ends, and then becomes a candidate.
    Follower { stands_at: Instant },
    /// Asks whether others would vote for it.
    PreCandidate(Poll),
    /// Asks for votes.
    Candidate { poll: Poll, term: Term },
    /// Sends renewals. It leads once a majority has granted one.
    Leader(Box<ElectionLeader>),
}

impl Election {
    /// Starts a voter. `replica` and `highest` are the stored state and the highest term of an
    /// earlier process of this voter.
    pub fn new(
        now: Instant,
        settings: ElectionSettings,
        mut replica: Replica,
        highest: Term,
    ) -> Self {
        let has_ended =
            other_jobs::job_uid(&replica).is_some_and(|uid| settings.ended.contains(uid));
        if has_ended {
            replica = Replica::default();
        }
        if !replica.has_round() {
            replica.lists = Lists::listed(&settings.listed);
        }
        let silence =
            if settings.is_first_start { Duration::ZERO } else { settings.timers.voter_lease };
        let voter = Voter::new(now, now + silence, replica, highest);
        let mut other_jobs = OtherJobs::default();
        other_jobs.know_ended(&settings.ended);
        let jitter = Jitter::new(settings.seed);
        let mut election = Self {
            voter,
            copied: Version::default(),
            role: Role::Follower { stands_at: now },
            highest,
            leader: None,
            processes: BTreeMap::new(),
            answers: Answers::new(),
            connected: BTreeSet::new(),
            other_jobs,
            is_registered: false,
            joined: None,
            has_had_leader: false,
            leaderless: Some(now),
            has_yielded: false,
            failures: 0,
            leaving: None,
            sequence: 0,
            jitter,
            effects: VecDeque::new(),
            clock: now,
            settings,
        };
        election.follow(now);
        election.schedule_hello(now);
        election
    }

    /// Handles a request of another voter, and returns the answer, if the request has one.
    pub fn handle_request(
        &mut self,
        now: Instant,
        message: VoterMessage<Request>,
    ) -> Option<VoterMessage<Answer>> {
        self.begin(now);
        if self.is_of_other_job(&message) {
            return self.handle_stranger(now, message);
        }
        if message.voter != self.settings.voter {
            self.note_message(now, &message.address, &message, Source::Voter);
        }
        let VoterMessage { voter, address, process, highest, knows, sequence, body, .. } = message;
        if voter == self.settings.voter {
            // Another address leads to this process itself. The answer reveals it, and
            // `note_process` reports it.
            let is_own = process == self.settings.process;
            let answer = self.voter.answer(now, false, knows);
            return is_own.then(|| self.message(now, sequence, answer));
        }
        if let Request::Renew { replica, .. } = &body {
            self.take(now, replica, highest);
        }
        self.learn_from(now, highest, knows);
        let mut answer = match body {
            Request::PreVote => {
                let would = !self.is_leading() && self.voter.accepts(now, &process, knows);
                self.voter.answer(now, would, knows)
            }
            Request::Vote { term } => self.handle_vote(now, (&process, knows), term),
            Request::Renew { term, replica, is_copied } => {
                let answer = self.handle_renewal(now, &address, (&process, term), &replica);
                if answer.is_granted && is_copied {
                    self.copied = replica.version;
                }
                answer
            }
            Request::Release { term } => {
                if self.voter.release(now, &process, Some(term)) {
                    self.follow(now);
                }
                return None;
            }
            Request::Leave => {
                let is_replaced = self.handle_leave(now, voter, &process);
                self.voter.answer(now, is_replaced, knows)
            }
            Request::Hello => self.voter.answer(now, false, knows),
        };
        answer.is_connected = self.connected.contains(&address);
        Some(self.message(now, sequence, answer))
    }

    /// Handles a request of a process that is not known as a voter. The sender may lie, so only
    /// what it shows of a job counts: this process then asks at the addresses that it names.
    pub fn handle_stranger(
        &mut self,
        now: Instant,
        message: VoterMessage<Request>,
    ) -> Option<VoterMessage<Answer>> {
        self.begin(now);
        self.note_message(now, &message.address, &message, Source::Stranger);
        match message.body {
            Request::Release { .. } => return None,
            Request::PreVote
            | Request::Vote { .. }
            | Request::Renew { .. }
            | Request::Leave
            | Request::Hello => {}
        }
        let is_own_job = !self.is_of_other_job(&message);
        // If this were refused, the voter would leave without being replaced.
        let is_granted = matches!(message.body, Request::Leave)
            && !(is_own_job && self.has_replaced(message.voter));
        let answer = Answer { replica: None, ..self.voter.answer(now, is_granted, message.knows) };
        Some(self.message(now, message.sequence, answer))
    }

    /// Handles the answer to a request. `address` must be the address to which the request was
    /// sent, even if the answer contains another one: two names in the list may lead to one
    /// process.
    pub fn handle_answer(&mut self, now: Instant, message: VoterMessage<Answer>) {
        self.begin(now);
        if !self.is_connection(&message.address) {
            return;
        }
        self.note_message(now, &message.address, &message, Source::Answer);
        if self.is_of_other_job(&message) {
            return self.note_answer(now, &message);
        }
        if let Some(replica) = &message.body.replica
            && self.may_take(replica)
        {
            self.take(now, replica, message.highest);
        }
        self.learn_from(now, message.highest, message.knows);
        self.note_answer(now, &message);
        self.handle_answer_to_leave(&message);
        match &mut self.role {
            Role::Follower { .. } => {}
            Role::PreCandidate(poll) | Role::Candidate { poll, .. } => {
                if poll.record(now, self.settings.timers, message) {
                    self.count(now);
                }
            }
            Role::Leader(leader) => {
                // A process that has just started may have forgotten a vote.
                let counts = message.body.is_granted && !message.has_just_started;
                if counts && leader.handle_granted(now, &message) {
                    self.extend(now);
                }
            }
        }
    }

    /// Handles a new connection to a voter: repeats the request that the voter has missed.
    pub fn handle_connected(&mut self, now: Instant, address: &VoterAddress) {
        self.begin(now);
        if !self.is_connection(address) {
            return;
        }
        self.connected.insert(address.clone());
        self.forget_shown(address);
        self.greet(now, address);
        let is_missing = |poll: &Poll| !poll.has_answer_of(address);
        let (sequence, request) = match &self.role {
            Role::Follower { .. } => return,
            Role::PreCandidate(poll) if is_missing(poll) => (poll.sequence, Request::PreVote),
            Role::Candidate { poll, term } if is_missing(poll) => {
                (poll.sequence, Request::Vote { term: *term })
            }
            Role::PreCandidate(_) | Role::Candidate { .. } => return,
            Role::Leader(_) => {
                self.renew(now);
                return;
            }
        };
        self.send(now, address.clone(), sequence, request);
    }

    /// Handles the end of the connection to a voter.
    pub fn handle_disconnected(&mut self, address: &VoterAddress) {
        self.connected.remove(address);
        self.forget_shown(address);
        self.schedule_hello(self.clock);
    }

    /// Handles a death notice: no process of this agent is left, so the lease granted to it ends.
    pub fn handle_death_notice(&mut self, now: Instant, process: &NodeId) {
        self.begin(now);
        if self.voter.release(now, process, None) {
            info!(%process, "the leader's process has ended");
            self.follow(now);
        }
    }

    /// Handles a term that an agent has reported. A leader of a lower term resigns, and becomes a
    /// candidate in a higher one.
    pub fn handle_highest(&mut self, now: Instant, term: Term) {
        self.begin(now);
        if term.0 <= AGENT_TERM_MAX {
            self.learn(now, term);
        }
    }

    /// Changes the state of the job, and returns its version. [`Effect::Copied`] reports when a
    /// majority has it. Returns `None` if this voter does not lead.
    pub fn handle_remember(&mut self, now: Instant, job_state: JobState) -> Option<Version> {
        self.begin(now);
        let Role::Leader(leader) = &self.role else { return None };
        leader.until?;
        let replica = self.voter.replica();
        if replica.has_round() || job_state.round == Round(0) {
            let lists = replica.lists.clone();
            return Some(self.write(now, lists, Some(job_state)));
        }
        if !self.may_begin_a_job() {
            self.step_down(now, "another process knows a job of this name");
            return None;
        }
        let Some(lists) = leader.listed(now, &replica.lists, &self.answers) else {
            self.step_down(now, "no majority is there for the first round");
            return None;
        };
        let version = self.write(now, lists, Some(job_state));
        if let Role::Leader(leader) = &mut self.role {
            leader.first_round = Some(version).filter(|version| leader.copied < *version);
        }
        Some(version)
    }

    /// Resigns if this process leads in `term`, because its coordinator has ended in that term.
    pub fn handle_resigned(&mut self, now: Instant, term: Term) {
        self.begin(now);
        if matches!(&self.role, Role::Leader(leader) if leader.term == term) {
            self.step_down(now, "the coordinator has ended");
        }
    }

    /// Handles all deadlines that have passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.begin(now);
        match &self.role {
            Role::Follower { stands_at } if *stands_at <= now && self.is_eligible() => {
                self.stand(now)
            }
            Role::Leader(leader) if leader.next_renewal <= now => {
                self.renew(now);
                self.review(now);
            }
            Role::Follower { .. }
            | Role::PreCandidate(_)
            | Role::Candidate { .. }
            | Role::Leader(_) => {}
        }
        self.time_out_shown(now);
        self.ask_to_leave(now);
    }

    /// Returns the earliest deadline.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let of_role = match &self.role {
            Role::Follower { stands_at } => {
                let lease = self.voter.lease(self.clock).map(|lease| lease.until);
                let stands_at = Some(*stands_at).filter(|_| self.is_eligible());
                lease.into_iter().chain(stands_at).min()
            }
            Role::PreCandidate(poll) | Role::Candidate { poll, .. } => Some(poll.deadline),
            Role::Leader(leader) => {
                let end = leader.until.unwrap_or(leader.deadline);
                Some(leader.next_renewal.min(end))
            }
        };
        of_role.into_iter().chain(self.asks_to_leave_at()).chain(self.shown_deadline()).min()
    }

    /// Returns the next effect to be carried out.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Records the time, and ends expired leases and polls before anything else is handled: a
    /// process that was stopped for a while must not act on a lease that is over, or on old
    /// answers.
    fn begin(&mut self, now: Instant) {
        debug_assert!(self.clock <= now, "time does not go back");
        // With the clock of the last input, because the driver has applied that state.
        self.forget_connections();
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

    /// Records a term that exists. A candidacy or leadership in a lower term ends, because its
    /// rounds would be lower than those of the higher term.
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

    /// Records the highest term of another voter. A process that does not know the job cannot know
    /// its terms.
    fn learn_from(&mut self, now: Instant, highest: Term, knows: Knowledge) {
        if knows.has_round == self.voter.replica().has_round() {
            self.learn(now, highest);
        }
    }

    /// Returns true if this process may take over a replica that was not sent by its leader: a
    /// newer one of its own job, or one of a job in which it has a slot. Otherwise hosts could pass
    /// on the state of a job that no process can lead any more.
    fn may_take(&self, replica: &Replica) -> bool {
        let own = self.voter.replica();
        let ElectionSettings { voter, address, .. } = &self.settings;
        !replica.has_round() || own.has_round() || replica.has_slot_of(*voter, address)
    }

    /// Takes over the replica of another voter if it is newer. `highest` is that voter's highest
    /// term. A candidate begins again, because other voters may count now. A leader resigns.
    fn take(&mut self, now: Instant, replica: &Replica, highest: Term) {
        let had_round = self.voter.replica().has_round();
        let lists = self.voter.replica().lists.clone();
        if !self.voter.take(replica) {
            return;
        }
        if lists != replica.lists {
            self.effects.push_back(Effect::Store);
            self.forget_addresses();
        }
        match self.role {
            Role::Follower { .. } => {}
            Role::PreCandidate(_) | Role::Candidate { .. } => self.follow(now),
            Role::Leader(_) => self.step_down(now, "the job has a newer state"),
        }
        if !had_round && replica.has_round() {
            self.highest = replica.version.term.max(highest);
            self.follow(now);
        }
        self.schedule_hello(now);
    }

    /// Forgets the addresses to which requests are no longer sent.
    fn forget_addresses(&mut self) {
        let kept = self.connections();
        self.processes.retain(|address, _| kept.contains(address));
        self.answers.retain(|address, _| kept.contains(address));
    }

    /// Forgets the connections that were not needed after the last input: the driver has closed
    /// them. This must not happen while an input is handled: the leader which the same message
    /// makes known may need the connection.
    fn forget_connections(&mut self) {
        let needed = self.connections();
        self.connected.retain(|address| needed.contains(address));
    }

    /// Returns true if the sender belongs to another job than this process. The terms of two jobs
    /// cannot be compared.
    fn is_of_other_job<Body>(&self, message: &VoterMessage<Body>) -> bool {
        let own = other_jobs::job_uid(self.voter.replica());
        own.zip(message.job.as_ref()).is_some_and(|(own, job)| *own != job.uid)
    }

    /// Records the voter and the process that have answered at an address.
    fn note_answer(&mut self, now: Instant, message: &VoterMessage<Answer>) {
        self.note_process(&message.address, &message.process);
        let answer = LastAnswer { voter: message.voter, at: now };
        self.answers.insert(message.address.clone(), answer);
    }

    /// Records the process at an address. Reports a process that answers at two addresses.
    fn note_process(&mut self, address: &VoterAddress, process: &NodeId) {
        let mut elsewhere = self.processes.iter().filter(|(other, _)| *other != address);
        let is_elsewhere = elsewhere.any(|(_, known)| known == process);
        let is_own = *process == self.settings.process && *address != self.settings.address;
        if is_own || is_elsewhere {
            self.effects.push_back(Effect::Duplicate { address: address.clone() });
        }
        self.processes.insert(address.clone(), process.clone());
    }

    /// Reports the leader, if it or its term has changed.
    fn announce(&mut self, leader: Option<(VoterAddress, Term)>) {
        if self.leader != leader {
            self.has_had_leader |= leader.is_some() && !self.voter.replica().is_closed();
            self.leaderless = if leader.is_some() { None } else { Some(self.clock) };
            self.leader = leader.clone();
            self.effects.push_back(Effect::Follow { leader: leader.map(|(address, _)| address) });
            self.schedule_hello(self.clock);
        }
    }

    fn send(&mut self, now: Instant, to: VoterAddress, sequence: u64, request: Request) {
        let message = self.message(now, sequence, request);
        self.effects.push_back(Effect::Send { to, message });
    }

    fn message<Body>(&self, now: Instant, sequence: u64, body: Body) -> VoterMessage<Body> {
        VoterMessage {
            voter: self.settings.voter,
            address: self.settings.address.clone(),
            process: self.settings.process.clone(),
            has_just_started: self.has_just_started(now),
            highest: self.highest,
            knows: self.voter.replica().knowledge(),
            job: self.known_job().filter(|_| self.has_copied_round()),
            ended: self.ended(),
            sequence,
            body,
        }
    }
}
