//! The promises of one voter: to whom it has granted a lease, and the memory that it keeps.

use std::time::{Duration, Instant};

use crate::{
    election::{
        message::{Answer, Replica, Version},
        timers::Timers,
    },
    ids::{NodeId, Term},
};

/// What a voter has promised, and what it remembers for the next leader.
#[derive(Debug)]
pub(super) struct Voter {
    /// The highest term that it has voted for, or granted a lease to.
    promised: Term,
    lease: Option<Lease>,
    /// The end of the longest lease ever granted; a lease that is returned early does not shorten it.
    shadow_until: Instant,
    /// The end of the silence after the start: what this voter may have forgotten is over by then.
    mute_until: Instant,
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
    pub(super) fn new(now: Instant, timers: Timers, replica: Replica) -> Self {
        Self {
            promised: Term(0),
            lease: None,
            shadow_until: now,
            mute_until: now + timers.voter_lease,
            replica,
            former: None,
        }
    }

    /// Returns the lease that is in force.
    pub(super) fn lease(&self, now: Instant) -> Option<&Lease> {
        self.lease.as_ref().filter(|lease| now < lease.until)
    }

    /// Returns true if this voter may have forgotten a promise of the process before it.
    pub(super) fn is_fresh(&self, now: Instant) -> bool {
        now < self.mute_until
    }

    pub(super) fn mute_until(&self) -> Instant {
        self.mute_until
    }

    pub(super) fn replica(&self) -> &Replica {
        &self.replica
    }

    /// Returns true if no lease of another process is in force.
    pub(super) fn is_free_for(&self, now: Instant, process: &NodeId) -> bool {
        self.lease(now).is_none_or(|lease| lease.process == *process)
    }

    /// Votes for `process`, if nothing that was promised forbids it.
    pub(super) fn vote(&mut self, now: Instant, process: &NodeId, term: Term) -> bool {
        let is_granted = term > self.promised && self.is_free_for(now, process);
        if is_granted {
            self.promised = term;
        }
        is_granted
    }

    /// Grants or renews the lease of a leader, and keeps its memory.
    pub(super) fn renew(
        &mut self,
        now: Instant,
        timers: Timers,
        (process, term): (&NodeId, Term),
        replica: &Replica,
    ) -> bool {
        if term < self.promised || !self.is_free_for(now, process) {
            return false;
        }
        self.promised = term;
        let until = now + timers.voter_lease;
        self.lease = Some(Lease { process: process.clone(), term, until });
        self.shadow_until = self.shadow_until.max(until);
        self.former = Some((term, process.clone()));
        if replica.version >= self.replica.version {
            self.replica = replica.clone();
        }
        true
    }

    /// Ends the silence after the start: all voters were started at the same time.
    ///
    /// Workers under a forgotten lease may run for as long as before.
    pub(super) fn end_silence(&mut self, now: Instant) {
        self.shadow_until = self.shadow_until.max(self.mute_until);
        self.mute_until = self.mute_until.min(now);
    }

    /// Ends the lease of `process`, if `term` is the lease's or `None`. Returns true if there was one.
    pub(super) fn release(&mut self, now: Instant, process: &NodeId, term: Option<Term>) -> bool {
        let is_held = self.lease(now).is_some_and(|lease| {
            lease.process == *process && term.is_none_or(|term| term == lease.term)
        });
        if is_held {
            self.lease = None;
        }
        is_held
    }

    /// Returns the answer to a request.
    pub(super) fn answer(&self, now: Instant, is_granted: bool, shows_memory: bool) -> Answer {
        Answer {
            is_granted,
            shadow_left: self.shadow_left(now),
            former: self.former.clone(),
            replica: shows_memory.then(|| Box::new(self.replica.clone())),
            version: self.version(),
        }
    }

    pub(super) fn version(&self) -> Version {
        self.replica.version
    }

    /// Returns the time for which workers of leaders that this voter knew, or may have forgotten, can run.
    fn shadow_left(&self, now: Instant) -> Duration {
        self.shadow_until.max(self.mute_until).saturating_duration_since(now)
    }
}
