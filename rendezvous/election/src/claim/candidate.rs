//! Decides when a follower becomes a candidate, and writes the record of a candidate.

use std::time::{Duration, Instant};

use ragent_rendezvous::{
    heir::Successor,
    ids::{NodeId, Term},
    settings::JobState,
};
use tracing::info;

use crate::{
    claim::{
        Claim, ClaimTimers, Effect, Record, RecordKind, Role, Stamp,
        known::Content,
        leader::{ClaimLeader, Release},
    },
    election::NewLeadership,
};

/// The state that a candidate takes over from the record that it replaces.
#[derive(Clone, Debug)]
pub(super) struct InheritedState {
    /// The time until which workers of earlier leaders may run. It is an upper bound: a renewal is
    /// sent before its revision is received here.
    pub(super) workers_until: Instant,
    pub(super) former: Option<NodeId>,
    pub(super) successors: Vec<Successor>,
    pub(super) job_state: Option<JobState>,
}

impl Claim {
    /// Reports the leader, and sets the time at which this process becomes a candidate or writes a
    /// placeholder.
    pub(super) fn follow(&mut self, now: Instant) {
        let is_silent = self.silent_at().is_none_or(|at| at <= now);
        let leader = match self.known.content.record() {
            Some(record) if !is_silent && !self.is_vacant(record) && !self.is_over(record) => {
                Some((record.endpoint.clone(), record.term))
            }
            Some(_) | None => None,
        };
        self.announce(leader);
        if self.is_job_over() {
            self.end_with_the_job();
        }
        self.stands_at = self.candidacy(now);
        // The record of a candidacy may arrive after this process has begun to leave: release it.
        if self.is_leaving && self.release.is_none() && self.unreleased().is_some() {
            let until = self.silent_at().unwrap_or(now);
            self.release = Some(Release { kind: RecordKind::Resigned, until });
        }
    }

    /// Returns true if the leader of `record` no longer leads.
    fn is_over(&self, record: &Record) -> bool {
        // If it led, this process would not be a follower.
        let is_own = record.process == self.settings.process;
        let has_resigned = match record.kind {
            RecordKind::Resigned | RecordKind::JobOver => true,
            RecordKind::Leads | RecordKind::Placeholder => false,
        };
        has_resigned || is_own || self.ended.as_ref() == Some(&record.process)
    }

    /// Returns true if another process may have led after the leader of `record`.
    fn is_vacant(&self, record: &Record) -> bool {
        let is_late = record.process == self.settings.process && record.number <= self.created;
        record.kind == RecordKind::Placeholder || is_late || self.known.is_outdated(record)
    }

    /// Returns true if a placeholder is needed: the key has no record, or an older one than this
    /// process has seen.
    fn lacks_record(&self) -> bool {
        match &self.known.content {
            Content::Nothing => false,
            Content::Absent { .. } | Content::Garbage { .. } => true,
            Content::Present { entry, .. } => self.known.is_outdated(&entry.record),
        }
    }

    /// Ends this process if its job has ended according to the newest record.
    pub(super) fn end_with_the_job(&mut self) {
        let Some(outcome) = self.known.outcome_of_own_job() else { return };
        if !self.has_outlived && !self.is_leaving {
            self.has_outlived = true;
            info!("the job has ended, according to its record");
            self.effects.push_back(Effect::Outlived(Box::new(outcome.clone())));
        }
    }

    /// Returns true if the newest record is that of a job that is over.
    pub(super) fn is_job_over(&self) -> bool {
        let record = self.known.content.record().filter(|record| !self.known.is_outdated(record));
        record.is_some_and(|record| record.kind == RecordKind::JobOver)
    }

    /// Returns true if the newest record is that of another job than the one of this process, and that job has ended.
    fn has_another_job_ended(&self) -> bool {
        self.is_job_over() || self.is_deleted() || !self.lacks_record() && self.known.has_ended()
    }

    /// Returns true if the key was deleted after the end of the job.
    fn is_deleted(&self) -> bool {
        matches!(self.known.content, Content::Absent { .. }) && self.known.has_ended()
    }

    /// Returns the time at which this process becomes a candidate, or writes a placeholder.
    fn candidacy(&mut self, now: Instant) -> Option<Instant> {
        let timers = self.settings.timers;
        let random = self.jitter.fraction();
        let (record, seen) = match &self.known.content {
            Content::Nothing => return None,
            Content::Present { entry, seen } => (&entry.record, *seen),
            Content::Absent { seen, .. } | Content::Garbage { seen, .. } => {
                return Some(match &self.known.newest {
                    None => now + timers.stagger.mul_f64(random),
                    // If the key is still absent then, this process begins another job.
                    Some(newest) if self.is_deleted() => {
                        let free = (*seen + self.silence(newest)).max(now);
                        free + timers.spread.mul_f64(random)
                    }
                    Some(_) => self.restoration(now, *seen, random),
                });
            }
        };
        if let Some(since) = self.known.outdated_since {
            return Some(self.restoration(now, since, random));
        }
        let is_free = self.is_over(record) && !self.is_vacant(record);
        let free = if is_free { now } else { (seen + self.silence(record)).max(now) };
        Some(free + self.turn(record, random))
    }

    /// Returns the time at which this process may write a placeholder, if the key has lacked the
    /// record since `since`. A leader that reaches the store writes its record again before.
    fn restoration(&self, now: Instant, since: Instant, random: f64) -> Instant {
        let ClaimTimers { renewal, spread, .. } = self.settings.timers;
        (since + renewal).max(now) + spread.mul_f64(random)
    }

    /// Returns the time that this process waits after the leader of `record` has ended, so that
    /// candidates do not collide.
    fn turn(&self, record: &Record, random: f64) -> Duration {
        let timers = self.settings.timers;
        let process = &self.settings.process;
        if record.process == *process {
            // A leader that could not renew its record comes first, and a leader that has resigned
            // comes last.
            return match record.kind {
                RecordKind::Resigned | RecordKind::JobOver => timers.silence,
                RecordKind::Leads | RecordKind::Placeholder => Duration::ZERO,
            };
        }
        if record.kind == RecordKind::JobOver {
            return timers.spread.mul_f64(random);
        }
        let place = record.successors.iter().position(|one| one.process == *process);
        match place.and_then(|place| u32::try_from(place).ok()) {
            Some(place) => timers.stagger * place + timers.stagger.mul_f64(random),
            None if record.successors.is_empty() => timers.spread.mul_f64(random),
            None => timers.silence + timers.spread.mul_f64(random),
        }
    }

    /// Becomes a candidate, or writes a placeholder first.
    pub(super) fn stand(&mut self, now: Instant) {
        if self.is_deleted() {
            self.end_with_the_job();
        }
        if self.has_outlived {
            return;
        }
        // This process begins another job. A process of the job that has ended goes on instead, to inform the others.
        if self.has_another_job_ended() && self.known.outcome_of_own_job().is_none() {
            self.known.newest = None;
        }
        let Some(expected) = self.known.content.expected() else { return };
        if self.lacks_record() {
            return self.write_placeholder(now, expected);
        }
        // Workers of earlier leaders may run until then.
        let workers_until = self.silent_at().unwrap_or(now);
        let inheritance = match self.known.newest.as_deref() {
            None => InheritedState {
                workers_until,
                former: None,
                successors: Vec::new(),
                job_state: None,
            },
            Some(Record { process, successors, job_state, .. }) => {
                let is_other = |one: &&Successor| one.process != self.settings.process;
                InheritedState {
                    workers_until,
                    former: Some(process.clone()),
                    successors: successors.iter().filter(is_other).cloned().collect(),
                    job_state: job_state.clone(),
                }
            }
        };
        let nonce = u16::try_from(self.jitter.bits() >> 48).unwrap_or(u16::MAX);
        let term = self.highest.max(Term::of_revision(self.store.0)).proposed(nonce);
        self.sent.clear();
        self.role = Role::Candidate { term, expected, inheritance: Box::new(inheritance) };
        self.write_claim(now);
    }

    /// Writes the newest known record to the key, without leading.
    fn write_placeholder(&mut self, now: Instant, expected: Stamp) {
        let newest = self.known.newest.as_deref().cloned();
        let record = newest.unwrap_or_else(|| self.new_record(Term(0), Vec::new(), None));
        self.change(now, expected, Record { kind: RecordKind::Placeholder, ..record });
    }

    /// Requests to replace the record by this process's own.
    pub(super) fn write_claim(&mut self, now: Instant) {
        let Role::Candidate { term, expected, inheritance } = &self.role else { return };
        let InheritedState { successors, job_state, .. } = &**inheritance;
        let (expected, record) =
            (*expected, self.new_record(*term, successors.clone(), job_state.clone()));
        self.change(now, expected, record);
    }

    /// Handles that the store has the record which change `number` has written.
    pub(super) fn confirm(&mut self, now: Instant, number: u64) {
        let sent = self.sent.iter().find(|sent| sent.number == number).copied();
        let timers = self.settings.timers;
        let until = sent.map(|sent| sent.at + timers.leader_lease);
        match &mut self.role {
            Role::Follower => {}
            Role::Candidate { term, inheritance, .. } => {
                let Some(until) = until.filter(|until| now < *until) else {
                    // The answer came too late: the lease that runs from its sending is over.
                    self.role = Role::Follower;
                    return self.follow(now);
                };
                let (term, inheritance) = (*term, inheritance.clone());
                self.lead(now, term, until, *inheritance);
            }
            Role::Leader(leader) => {
                let Some((sent, until)) = sent.zip(until) else { return };
                if leader.until < until {
                    leader.until = until;
                    self.effects.push_back(Effect::Extend(until));
                }
                if leader.stored < sent.job_state {
                    leader.stored = sent.job_state;
                    self.effects.push_back(Effect::Stored(sent.job_state));
                }
            }
        }
    }

    fn lead(&mut self, now: Instant, term: Term, until: Instant, inheritance: InheritedState) {
        let InheritedState { workers_until, former, successors, job_state } = inheritance;
        info!(%term, "the record of this process is in the store; leading");
        let next_renewal = now + self.settings.timers.renewal;
        self.role = Role::Leader(Box::new(ClaimLeader {
            term,
            until,
            next_renewal,
            successors,
            job_state: job_state.clone(),
            changes: 0,
            stored: 0,
        }));
        self.announced = Some((self.settings.endpoint.clone(), term));
        let leadership =
            NewLeadership { term, until, workers_until, former, job_state, voters: Vec::new() };
        self.effects.push_back(Effect::Lead(Box::new(leadership)));
    }

    /// Returns a record of this process. Its number is set when it is sent.
    pub(super) fn new_record(
        &self,
        term: Term,
        successors: Vec<Successor>,
        job_state: Option<JobState>,
    ) -> Record {
        Record {
            process: self.settings.process.clone(),
            endpoint: self.settings.endpoint.clone(),
            term,
            number: 0,
            silence: self.settings.timers.silence,
            kind: RecordKind::Leads,
            successors,
            job_state,
        }
    }
}
