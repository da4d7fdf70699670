//! A leadership: its renewals, and its end as a majority has granted it.

use std::{collections::VecDeque, time::Instant};

use tracing::info;

use crate::{
    election::{
        Effect, Election, Leadership, Role,
        message::{Place, Replica, Request, Version},
        poll::{Inheritance, majority},
        timers::Timers,
    },
    ids::{NodeId, Term},
    limits::RENEWALS_UNDER_WAY_MAX,
};

/// The leadership of one term.
#[derive(Debug)]
pub(super) struct Leader {
    pub(super) term: Term,
    /// The processes whose silence this term ends, by place; empty unless the election was cold.
    pub(super) cold: Vec<Option<NodeId>>,
    pub(super) inheritance: Inheritance,
    /// The end of the leadership; `None` until a majority has granted the first lease.
    pub(super) until: Option<Instant>,
    /// The time at which the leader resigns if no majority has granted the first lease.
    pub(super) deadline: Instant,
    pub(super) next_renewal: Instant,
    /// The renewals whose answers still count: number, and time of sending.
    sent: VecDeque<(u64, Instant)>,
    grants: Vec<Grant>,
    copied: Version,
}

/// The newest grant of one voter.
#[derive(Clone, Copy, Debug, Default)]
struct Grant {
    /// The time of sending of the newest renewal that it has granted.
    sent: Option<Instant>,
    version: Version,
}

impl Leader {
    pub(super) fn new(
        now: Instant,
        deadline: Instant,
        term: Term,
        cold: Vec<Option<NodeId>>,
        inheritance: Inheritance,
        voters: usize,
    ) -> Self {
        Self {
            term,
            cold,
            inheritance,
            until: None,
            deadline,
            next_renewal: now,
            sent: VecDeque::new(),
            grants: vec![Grant::default(); voters],
            copied: Version::default(),
        }
    }

    /// Returns the process at `place` whose vote counted in a cold election.
    pub(super) fn cold(&self, place: Place) -> Option<NodeId> {
        self.cold.get(place.0).cloned().flatten()
    }

    /// Records a renewal that is being sent, and the grant of the leader's own voter.
    pub(super) fn send(
        &mut self,
        now: Instant,
        timers: Timers,
        own: (Place, Version),
        sequence: u64,
    ) {
        while self.sent.len() >= RENEWALS_UNDER_WAY_MAX
            || self.sent.front().is_some_and(|(_, sent)| *sent + timers.leader_lease <= now)
        {
            self.sent.pop_front();
        }
        self.sent.push_back((sequence, now));
        self.next_renewal = now + timers.renewal;
        let (place, version) = own;
        self.grant(place, now, version);
    }

    /// Records that the voter at `place` has granted a renewal. Returns false if the lease that
    /// began when it was sent is over.
    pub(super) fn handle_granted(&mut self, place: Place, sequence: u64, version: Version) -> bool {
        let sent = self.sent.iter().find(|(number, _)| *number == sequence);
        let Some((_, sent)) = sent.copied() else { return false };
        self.grant(place, sent, version);
        true
    }

    fn grant(&mut self, place: Place, sent: Instant, version: Version) {
        if let Some(grant) = self.grants.get_mut(place.0) {
            grant.sent = grant.sent.max(Some(sent));
            grant.version = grant.version.max(version);
        }
    }

    /// Extends the leadership as far as a majority has granted it; returns true if it became
    /// longer.
    pub(super) fn extend(&mut self, timers: Timers) -> bool {
        let granted = self.of_majority(|grant| grant.sent).flatten();
        let until = granted.map(|sent| sent + timers.leader_lease);
        let is_longer = until > self.until;
        if is_longer {
            self.until = until;
        }
        is_longer
    }

    /// Returns the newest version that a majority has, if it is newer than at the last call.
    pub(super) fn newly_copied(&mut self) -> Option<Version> {
        let version = self.of_majority(|grant| grant.version)?;
        let is_new = version > self.copied && version.term == self.term;
        is_new.then(|| {
            self.copied = version;
            version
        })
    }

    /// Returns the greatest value that a majority has reached.
    fn of_majority<T: Ord>(&self, value: impl Fn(&Grant) -> T) -> Option<T> {
        let mut values: Vec<T> = self.grants.iter().map(value).collect();
        values.sort();
        let index = values.len().checked_sub(majority(values.len()))?;
        values.into_iter().nth(index)
    }
}

impl Election {
    /// Sends a renewal to all other voters.
    pub(super) fn renew(&mut self, now: Instant) {
        let replica = self.voter.replica().clone();
        self.grant_own(now, &replica);
        self.sequence += 1;
        let (timers, sequence, place) = (self.settings.timers, self.sequence, self.settings.place);
        let Role::Leader(leader) = &mut self.role else { return };
        leader.send(now, timers, (place, replica.version), sequence);
        let term = leader.term;
        let cold: Vec<_> = (0..self.settings.voters).map(|n| leader.cold(Place(n))).collect();
        for (place, cold) in self.others().into_iter().map(|place| (place, cold[place.0].clone())) {
            let replica = Box::new(replica.clone());
            self.send(now, place, sequence, Request::Renew { term, cold, replica });
        }
        self.extend();
    }

    /// Grants a lease to this process itself, as any other voter does.
    pub(super) fn grant_own(&mut self, now: Instant, replica: &Replica) {
        let (process, timers) = (self.settings.process.clone(), self.settings.timers);
        if let Role::Leader(leader) = &self.role {
            self.voter.renew(now, timers, (&process, leader.term), replica);
        }
    }

    /// Extends the leadership by the renewals that were granted; it begins with the first majority.
    pub(super) fn extend(&mut self) {
        let timers = self.settings.timers;
        let Role::Leader(leader) = &mut self.role else { return };
        let is_new = leader.until.is_none();
        let is_longer = leader.extend(timers);
        let Some(until) = leader.until else { return };
        if is_new {
            let term = leader.term;
            let leadership = Leadership {
                term,
                until,
                workers_until: leader.inheritance.workers_until,
                former: leader.inheritance.former.clone(),
                memory: self.voter.replica().memory.clone(),
            };
            self.effects.push_back(Effect::Lead(Box::new(leadership)));
            self.failures = 0;
            self.leader = Some((self.settings.place, term));
            info!(%term, "elected");
        } else if is_longer {
            self.effects.push_back(Effect::Extend(until));
        }
        if let Some(version) = leader.newly_copied().filter(|version| version.number > 0) {
            self.effects.push_back(Effect::Copied(version));
        }
    }

    /// Ends the leadership, and releases the leases, so that a successor does not wait for their
    /// end.
    pub(super) fn step_down(&mut self, now: Instant, reason: &str) {
        let Role::Leader(leader) = &self.role else { return };
        let (term, has_led) = (leader.term, leader.until.is_some());
        if has_led {
            info!(%term, reason, "the leadership has ended");
        }
        if has_led {
            // Before others learn of it and elect a successor.
            self.leader = None;
            self.effects.push_back(Effect::Follow { leader: None });
        }
        let process = self.settings.process.clone();
        self.voter.release(now, &process, None);
        self.sequence += 1;
        for place in self.others() {
            self.send(now, place, self.sequence, Request::Release { term });
        }
        if has_led {
            self.follow(now);
        } else {
            self.pause(now);
        }
    }
}
