//! Keeps the promises of one voter: its votes, and the lease that it has granted.

use std::time::{Duration, Instant};

use ragent_rendezvous::ids::{NodeId, Term};

use crate::election::{
    message::{Answer, Knowledge, Lists, Replica},
    timers::Timers,
};

/// The promises of a voter, and its copy of the leader's state of the job.
#[derive(Debug)]
pub(super) struct Voter {
    /// The highest term that it has voted for, or granted a lease to.
    promised: Term,
    lease: Option<Lease>,
    /// The time until which workers of earlier leaders may run. It is the end of the longest lease
    /// that this voter has granted, even if the leader has released it.
    workers_until: Instant,
    /// The end of the silence after the start. By then, every lease that this voter may have
    /// forgotten is over.
    silent_until: Instant,
    replica: Replica,
    former: Option<(Term, NodeId)>,
}

/// A lease that the voter has granted.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Lease {
    pub(super) process: NodeId,
    pub(super) term: Term,
    pub(super) until: Instant,
}

impl Voter {
    /// Starts a voter. It may have voted in any term up to `highest`, and does not vote before
    /// `silent_until`.
    pub(super) fn new(
        now: Instant,
        silent_until: Instant,
        replica: Replica,
        highest: Term,
    ) -> Self {
        Self {
            promised: highest,
            lease: None,
            workers_until: now,
            silent_until,
            replica,
            former: None,
        }
    }

    /// Returns the lease that is in force.
    pub(super) fn lease(&self, now: Instant) -> Option<&Lease> {
        self.lease.as_ref().filter(|lease| now < lease.until)
    }

    /// Returns true if an earlier process at this place may have made a promise that this one does
    /// not know.
    pub(super) fn has_just_started(&self, now: Instant) -> bool {
        now < self.silent_until
    }

    pub(super) fn silent_until(&self) -> Instant {
        self.silent_until
    }

    pub(super) fn replica(&self) -> &Replica {
        &self.replica
    }

    /// Takes over a newer copy of the state. Returns true if it replaces this one.
    ///
    /// A promised term of a job without a round does not count in a job with one. The lease still
    /// counts, because its holder may lead.
    pub(super) fn take(&mut self, replica: &Replica) -> bool {
        let is_newer = replica.knowledge() > self.replica.knowledge();
        if !is_newer || !replica.lists.is_valid() || !replica.is_of_same_job(&self.replica) {
            return false;
        }
        if replica.has_round() && !self.replica.has_round() {
            self.promised = Term(0);
        }
        self.replica = replica.clone();
        true
    }

    /// Forgets the job, and takes these lists.
    pub(super) fn forget(&mut self, lists: Lists) {
        self.replica = Replica { lists, ..Replica::default() };
    }

    /// Returns true if no lease of another process is in force.
    pub(super) fn is_free_for(&self, now: Instant, process: &NodeId) -> bool {
        self.lease(now).is_none_or(|lease| lease.process == *process)
    }

    /// Returns true if a candidate that knows this much may be elected by this voter.
    pub(super) fn accepts(&self, now: Instant, process: &NodeId, knows: Knowledge) -> bool {
        knows >= self.replica.knowledge() && self.is_free_for(now, process)
    }

    /// Votes for `process`, if no earlier promise forbids it. Returns true if it has voted.
    pub(super) fn vote(
        &mut self,
        now: Instant,
        (process, knows): (&NodeId, Knowledge),
        term: Term,
    ) -> bool {
        let is_granted = term > self.promised && self.accepts(now, process, knows);
        if is_granted {
            self.promised = term;
        }
        is_granted
    }

    /// Grants or renews the lease of a leader, and takes over its state. Returns true if the lease
    /// was granted.
    pub(super) fn renew(
        &mut self,
        now: Instant,
        timers: Timers,
        (process, term): (&NodeId, Term),
        replica: &Replica,
    ) -> bool {
        self.take(replica);
        let is_known = replica.knowledge() == self.replica.knowledge();
        if term < self.promised || !is_known || !self.is_free_for(now, process) {
            return false;
        }
        self.promised = term;
        let until = now + timers.voter_lease;
        self.lease = Some(Lease { process: process.clone(), term, until });
        self.workers_until = self.workers_until.max(until);
        self.former = Some((term, process.clone()));
        true
    }

    /// Ends the lease of `process`, in `term` if it is given. Returns true if there was one.
    pub(super) fn release(&mut self, now: Instant, process: &NodeId, term: Option<Term>) -> bool {
        let is_held = self.lease(now).is_some_and(|lease| {
            lease.process == *process && term.is_none_or(|term| term == lease.term)
        });
        if is_held {
            self.lease = None;
        }
        is_held
    }

    /// Returns the answer to a request of a voter that knows `knows`.
    pub(super) fn answer(&self, now: Instant, is_granted: bool, knows: Knowledge) -> Answer {
        let is_newer = self.replica.knowledge() > knows;
        Answer {
            is_granted,
            is_connected: false,
            workers_for: self.workers_for(now),
            former: self.former.clone(),
            replica: is_newer.then(|| Box::new(self.replica.clone())),
        }
    }

    /// Returns how long workers may still run under a leader that this voter knew, or may have
    /// forgotten.
    fn workers_for(&self, now: Instant) -> Duration {
        self.workers_until.max(self.silent_until).saturating_duration_since(now)
    }
}
