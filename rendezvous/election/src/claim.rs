//! Chooses the coordinator by one key in an external store, such as etcd.
//!
//! This is a lock by compare-and-swap: a change of the key succeeds only if the key still has the
//! revision that the sender has seen. So of two processes that replace a record, one succeeds, and
//! a record that was renewed meanwhile stays.
//!
//! 1. The leader writes its [`Record`] to the key every half second.
//! 2. Its lease runs from the *sending* of the newest change that the store has made.
//! 3. Another process replaces the record after a *silence*: a time longer than that lease, by its
//!    own clock, in which it has seen no new revision.
//!
//! ```text
//!            silence over, stagger           record written
//!  Follower ───────────────────────▶ Candidate ────────────▶ Leader
//!     ▲  ▲      another record is there  │                     │
//!     │  └───────────────────────────────┘                     │
//!     └────────────────────────────────────────────────────────┘
//!         lease over, record replaced, or the process resigns
//! ```
//!
//! The key may lose the record: a user deletes it, or the store comes back empty or as an older
//! copy. Every process keeps the newest record that it has seen. The leader writes its own again at
//! once, while its lease lasts. Without a leader:
//!
//! 1. A process writes a *placeholder*, which has the state of the job. A process that has seen a
//!    newer record replaces the placeholder by one with the newer state.
//! 2. After a silence, no leader has changed the key, so all leases are over. The placeholder is
//!    then replaced like the record of a lost leader.
//!
//! A new job begins in the same way, because its first process cannot know whether the key was
//! deleted just before. A value that is not a record, written by another program, is treated as no
//! record.
//!
//! When a job is over, its record stays in the key, marked as such, with the outcome. A process
//! that took part and missed the outcome finds it there, and ends. Any other process replaces the
//! record, and begins another job.
//!
//! Leases of the store itself are not used as a lock: an old leader of the store that hangs may
//! extend such a lease without the consent of its majority.
//!
//! A change without an answer may have been made, may be made later, or never. The next change has
//! the same condition. So it is made only if the former one is not. Otherwise the store answers
//! with the record of the former one, and the number in that record identifies it.
//!
//! After each call of a `handle_*` method, carry out [`Claim::poll_effect`] until it returns
//! `None`. Then set one timer for [`Claim::poll_timeout`]. The clock must include the time for
//! which the machine is suspended.

mod candidate;
mod interface;
mod known;
mod leader;
#[cfg(test)]
mod tests;

use std::{collections::VecDeque, time::Instant};

use ragent_rendezvous::{
    heir::Successor,
    ids::{JobUid, NodeId, Term},
    jitter::{Jitter, Pauses},
    limits::AGENT_TERM_MAX,
    settings::JobState,
};
use tracing::{debug, info};

pub use self::interface::{
    ChangeOutcome, ClaimSettings, ClaimTimers, Effect, Entry, KeyContent, Record, RecordKind,
    Revision, Stamp,
};
use candidate::InheritedState;
use known::{Content, Known};
use leader::{ClaimLeader, Release, SentChange};

/// One process that may lead: it watches the record, replaces it, and renews its own.
#[derive(Debug)]
pub struct Claim {
    settings: ClaimSettings,
    role: Role,
    known: Known,
    /// The highest revision of the store that is known.
    store: Revision,
    /// The change that was sent, and has no result yet.
    pending: Option<Pending>,
    /// Changes of this process whose records may be in the store, and count for its lease.
    sent: VecDeque<SentChange>,
    /// The time at which a change without an answer is repeated.
    retry_at: Option<Instant>,
    /// The pauses between changes without an answer.
    pauses: Pauses,
    /// The release of this process's record, until it is completed.
    release: Option<Release>,
    /// The highest term that is known.
    highest: Term,
    /// The leader that was reported with [`Effect::Follow`].
    announced: Option<(String, Term)>,
    /// The process that has ended, according to the last death notice.
    ended: Option<NodeId>,
    /// While this process is a follower: the time at which it becomes a candidate or writes a
    /// placeholder.
    stands_at: Option<Instant>,
    /// The number of the last change by which this process tried to create the key. The store may
    /// carry it out late, after another process has led.
    created: u64,
    is_leaving: bool,
    /// True if the job in which this process took part has ended, so that this process ends.
    has_outlived: bool,
    number: u64,
    jitter: Jitter,
    effects: VecDeque<Effect>,
    clock: Instant,
}

#[derive(Debug)]
enum Role {
    /// Watches the record.
    Follower,
    /// Tries to replace the record.
    Candidate { term: Term, expected: Stamp, inheritance: Box<InheritedState> },
    /// Renews its record.
    Leader(Box<ClaimLeader>),
}

#[derive(Debug)]
struct Pending {
    number: u64,
    record: Box<Record>,
    replaces_garbage: bool,
}

impl Claim {
    /// Starts a process that knows nothing of the key.
    pub fn new(now: Instant, settings: ClaimSettings) -> Self {
        let mut jitter = Jitter::new(settings.seed);
        let ClaimTimers { pause, pause_max, .. } = settings.timers;
        let pauses = Pauses::new(pause, pause_max, jitter.bits());
        Self {
            settings,
            role: Role::Follower,
            known: Known::default(),
            store: Revision::default(),
            pending: None,
            sent: VecDeque::new(),
            retry_at: None,
            pauses,
            release: None,
            highest: Term(0),
            announced: None,
            ended: None,
            stands_at: None,
            created: 0,
            is_leaving: false,
            has_outlived: false,
            number: 0,
            jitter,
            effects: VecDeque::new(),
            clock: now,
        }
    }

    /// Handles the content of the key, as it was read or as a watch has reported it.
    pub fn handle_value(&mut self, now: Instant, value: KeyContent) {
        self.begin(now);
        self.note_watched(&value);
        self.observe(now, value);
        self.proceed(now);
    }

    /// Handles the result of a change.
    pub fn handle_outcome(&mut self, now: Instant, number: u64, outcome: ChangeOutcome) {
        self.begin(now);
        let Some(pending) = self.pending.take_if(|pending| pending.number == number) else {
            return;
        };
        match outcome {
            ChangeOutcome::Made(stamp) => {
                self.pauses.reset();
                if pending.replaces_garbage {
                    self.effects.push_back(Effect::GarbageReplaced);
                }
                let entry = Some(Entry { stamp, record: *pending.record });
                self.observe(now, KeyContent { revision: stamp.revision, entry, garbage: None });
            }
            ChangeOutcome::Refused(value) => {
                self.pauses.reset();
                self.note_refused(&value);
                self.observe(now, *value);
                match &mut self.role {
                    Role::Leader(leader) => leader.next_renewal = now,
                    Role::Candidate { .. } => self.handle_loss(now),
                    Role::Follower => {}
                }
            }
            ChangeOutcome::Unknown => self.fail(now),
        }
        self.proceed(now);
    }

    /// Handles a death notice: no process of this agent is left, so its record may be replaced.
    pub fn handle_death_notice(&mut self, now: Instant, process: &NodeId) {
        self.begin(now);
        self.ended = Some(process.clone());
        let record = self.known.content.record();
        let is_leader = record.is_some_and(|record| record.process == *process);
        if is_leader && *process != self.settings.process {
            info!(%process, "the leader's process has ended");
            self.follow(now);
        }
        self.proceed(now);
    }

    /// Handles a term that an agent has reported. A leader of a lower term resigns, because the
    /// next leader's term must be higher.
    pub fn handle_highest(&mut self, now: Instant, term: Term) {
        self.begin(now);
        if term.0 > AGENT_TERM_MAX || term <= self.highest {
            return;
        }
        self.highest = term;
        if matches!(self.role, Role::Leader(_)) {
            self.resign(now, "a higher term exists", RecordKind::Resigned);
        }
        self.proceed(now);
    }

    /// Changes the state of the job, and returns the number of the change. [`Effect::Stored`]
    /// reports when the store has it. Returns `None` if this process does not lead.
    pub fn handle_remember(&mut self, now: Instant, job_state: JobState) -> Option<u64> {
        self.begin(now);
        let Role::Leader(leader) = &mut self.role else { return None };
        let number = leader.remember(job_state);
        self.proceed(now);
        Some(number)
    }

    /// Replaces the list of successors, which is written with the next change.
    pub fn handle_successors(&mut self, now: Instant, successors: Vec<Successor>) {
        self.begin(now);
        if let Role::Leader(leader) = &mut self.role {
            leader.successors = successors;
        }
    }

    /// Resigns if this process leads in `term`, because its coordinator has ended.
    pub fn handle_resigned(&mut self, now: Instant, term: Term) {
        self.begin(now);
        if self.leads_in(term) {
            self.resign(now, "the coordinator has ended", RecordKind::Resigned);
        }
        self.proceed(now);
    }

    /// Marks the job as over in the record, if this process leads in `term`: all nodes have the
    /// outcome.
    pub fn handle_job_over(&mut self, now: Instant, term: Term) {
        self.begin(now);
        if self.leads_in(term) {
            // It never leads another job.
            self.has_outlived = true;
            self.resign(now, "the job has ended", RecordKind::JobOver);
        }
        self.proceed(now);
    }

    /// Records that the agent of this process is registered for a job: this process ends with it.
    pub fn handle_registered(&mut self, now: Instant, job: JobUid) {
        self.begin(now);
        self.known.own_job = Some(job);
        if self.is_job_over() {
            self.end_with_the_job();
        }
    }

    /// Resigns if this process leads. It is shutting down, so it no longer becomes a candidate.
    /// [`Effect::Released`] follows.
    pub fn handle_leaving(&mut self, now: Instant) {
        self.begin(now);
        self.is_leaving = true;
        match self.role {
            Role::Leader(_) => self.resign(now, "the agent leaves", RecordKind::Resigned),
            Role::Candidate { .. } => {
                self.role = Role::Follower;
                self.follow(now);
            }
            Role::Follower => self.follow(now),
        }
        if self.release.is_none() {
            self.effects.push_back(Effect::Released);
        }
        self.proceed(now);
    }

    /// Handles all deadlines that have passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.begin(now);
        self.proceed(now);
    }

    /// Returns the earliest deadline.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let until = self.leads_until();
        let follows = self.announced.is_some() && !matches!(self.role, Role::Leader(_));
        let silent = self.silent_at().filter(|_| follows);
        [until, silent, self.release.map(|release| release.until), self.next_change()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Returns the next effect to be carried out.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Returns the end of this process's leadership, unless it is extended; `None` if it does not
    /// lead.
    pub fn leads_until(&self) -> Option<Instant> {
        match &self.role {
            Role::Leader(leader) => Some(leader.until),
            Role::Follower | Role::Candidate { .. } => None,
        }
    }

    /// Returns the newest record that this process has seen in the store.
    pub fn record(&self) -> Option<&Record> {
        self.known.newest.as_deref()
    }

    /// Returns the highest term that this process knows.
    pub fn highest(&self) -> Term {
        self.highest
    }

    /// Returns the time of the next change that depends on a deadline; `None` while a change has no
    /// result.
    fn next_change(&self) -> Option<Instant> {
        if self.pending.is_some() {
            return None;
        }
        let due = match &self.role {
            _ if self.release.is_some() => Some(self.clock),
            Role::Follower => self.stands_at.filter(|_| !self.is_leaving && !self.has_outlived),
            Role::Candidate { .. } => Some(self.clock),
            Role::Leader(leader) => Some(leader.next_change(self.clock)),
        };
        due.map(|due| self.retry_at.map_or(due, |retry| due.max(retry)))
    }

    /// Records the time, and ends an expired leadership before anything else is handled: a process
    /// that was stopped for a while must not act on a lease that is over.
    fn begin(&mut self, now: Instant) {
        debug_assert!(self.clock <= now, "time does not go back");
        self.clock = self.clock.max(now);
        if self.leads_until().is_some_and(|until| until <= now) {
            self.end_leadership("the store has made no change in time");
            self.follow(now);
        }
        let follows = self.announced.is_some() && !matches!(self.role, Role::Leader(_));
        if follows && self.silent_at().is_none_or(|at| at <= now) {
            self.announce(None);
        }
    }

    /// Requests the change that is due, unless one has no result yet.
    fn proceed(&mut self, now: Instant) {
        if self.release.is_some() {
            self.check_release(now);
        }
        if self.next_change().is_none_or(|at| now < at) {
            return;
        }
        self.retry_at = None;
        match &self.role {
            _ if self.release.is_some() => self.write_release(now),
            Role::Follower => self.stand(now),
            Role::Candidate { .. } => self.write_claim(now),
            Role::Leader(_) => self.write_renewal(now),
        }
    }

    /// Sends a change.
    fn change(&mut self, now: Instant, expected: Stamp, record: Record) {
        self.number += 1;
        let number = self.number;
        let record = Box::new(match record.kind {
            RecordKind::Placeholder => record,
            RecordKind::Leads | RecordKind::Resigned | RecordKind::JobOver => {
                Record { number, ..record }
            }
        });
        if expected == Stamp::default() {
            self.created = number;
        }
        self.note_sent(now, number);
        let replaces_garbage = matches!(self.known.content, Content::Garbage { .. });
        self.pending = Some(Pending { number, record: record.clone(), replaces_garbage });
        self.effects.push_back(Effect::Change { number, expected, record });
    }

    /// Repeats the change after a pause.
    fn fail(&mut self, now: Instant) {
        // A leader repeats it soon, because its lease runs out.
        if matches!(self.role, Role::Leader(_)) {
            self.pauses.reset();
        }
        self.retry_at = Some(now + self.pauses.after_failure());
        debug!("no answer to a change of the leader's record");
    }

    /// Reports the leader, if it has changed.
    fn announce(&mut self, leader: Option<(String, Term)>) {
        if self.announced != leader {
            self.announced.clone_from(&leader);
            self.effects.push_back(Effect::Follow { leader });
        }
    }

    fn leads_in(&self, term: Term) -> bool {
        matches!(&self.role, Role::Leader(leader) if leader.term == term)
    }
}
