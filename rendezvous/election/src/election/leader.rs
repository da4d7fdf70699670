//! Renews the leases of a leader, and counts what a majority has granted.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use ragent_rendezvous::{
    ids::{NodeId, Term, VoterAddress, VoterId},
    settings::JobState,
};
use tracing::info;

use crate::{
    election::{
        Answers, Effect, Election, NewLeadership, Role,
        membership::Membership,
        message::{Answer, Lists, Replica, Request, Version, VoterMessage, VoterSlot},
        poll::Inheritance,
        timers::Timers,
    },
    limits::RENEWALS_UNDER_WAY_MAX,
};

/// Before the first round, a voter without a grant or answer for this long counts as lost: a few
/// renewals.
const RECENT: Duration = Duration::from_secs(1);

/// The leadership of one term.
#[derive(Debug)]
pub(super) struct ElectionLeader {
    pub(super) term: Term,
    pub(super) inheritance: Inheritance,
    /// The end of the leadership; `None` until a majority has granted the first lease.
    pub(super) until: Option<Instant>,
    /// The leader resigns at this time if no majority has granted the first lease.
    pub(super) deadline: Instant,
    pub(super) next_renewal: Instant,
    /// The renewals whose answers still count.
    sent: VecDeque<Renewal>,
    /// The newest grant of each voter and learner, by address.
    pub(super) grants: BTreeMap<VoterAddress, VoterGrant>,
    pub(super) copied: Version,
    /// The version with the first round of the job, until a majority has it.
    pub(super) first_round: Option<Version>,
    /// The time since which the job neither runs nor has enough nodes to run; `None` if it does.
    pub(super) lacks_nodes: Option<Instant>,
    pub(super) membership: Membership,
}

/// A renewal that was sent.
#[derive(Clone, Copy, Debug)]
struct Renewal {
    sequence: u64,
    at: Instant,
    version: Version,
}

/// The newest grant of one voter.
#[derive(Clone, Debug)]
pub(super) struct VoterGrant {
    pub(super) voter: VoterId,
    pub(super) process: NodeId,
    /// The time at which the newest renewal that it has granted was sent.
    pub(super) sent: Instant,
    version: Version,
    /// The time of its newest answer.
    pub(super) answered: Instant,
    /// True if it has a connection of its own to this process.
    pub(super) is_connected: bool,
}

impl ElectionLeader {
    pub(super) fn new(
        now: Instant,
        deadline: Instant,
        term: Term,
        inheritance: Inheritance,
    ) -> Self {
        Self {
            term,
            inheritance,
            until: None,
            deadline,
            next_renewal: now,
            sent: VecDeque::new(),
            grants: BTreeMap::new(),
            copied: Version::default(),
            first_round: None,
            lacks_nodes: Some(now),
            membership: Membership::new(now),
        }
    }

    /// Records a renewal that is being sent, and forgets those whose lease is over.
    fn send(&mut self, now: Instant, timers: Timers, sequence: u64, version: Version) {
        while self.sent.len() >= RENEWALS_UNDER_WAY_MAX
            || self.sent.front().is_some_and(|renewal| renewal.at + timers.leader_lease <= now)
        {
            self.sent.pop_front();
        }
        self.sent.push_back(Renewal { sequence, at: now, version });
        self.next_renewal = now + timers.renewal;
    }

    /// Records that a voter has granted a renewal. Returns false if the lease that began when it
    /// was sent is over.
    pub(super) fn handle_granted(&mut self, now: Instant, message: &VoterMessage<Answer>) -> bool {
        let is_answered = |renewal: &&Renewal| renewal.sequence == message.sequence;
        let Some(renewal) = self.sent.iter().find(is_answered).copied() else { return false };
        let VoterMessage { voter, address, process, body, .. } = message;
        let grant = VoterGrant {
            voter: *voter,
            process: process.clone(),
            sent: renewal.at,
            version: renewal.version,
            answered: now,
            is_connected: body.is_connected,
        };
        self.grant(address, grant);
        true
    }

    fn grant(&mut self, address: &VoterAddress, mut grant: VoterGrant) {
        // A grant of another voter at this address does not count for this one.
        if let Some(before) = self.grants.get(address).filter(|known| known.voter == grant.voter) {
            grant.sent = grant.sent.max(before.sent);
            grant.version = grant.version.max(before.version);
        }
        self.grants.insert(address.clone(), grant);
    }

    /// Returns the newest grant of the voter in this slot.
    pub(super) fn grant_of(&self, replica: &Replica, slot: &VoterSlot) -> Option<&VoterGrant> {
        let is_of_slot = |grant: &&VoterGrant| replica.is_slot_of(slot, grant.voter, &slot.address);
        self.grants.get(&slot.address).filter(is_of_slot)
    }

    /// Returns the time at which the newest renewal that a majority of these lists has granted was
    /// sent.
    pub(super) fn granted_by(&self, replica: &Replica, lists: &Lists) -> Option<Instant> {
        lists.of_majority(|slot| self.grant_of(replica, slot).map(|grant| grant.sent)).flatten()
    }

    /// Extends the leadership as far as a majority has granted it. Returns true if it became
    /// longer.
    fn extend(&mut self, timers: Timers, replica: &Replica) -> bool {
        let until = self.granted_by(replica, &replica.lists).map(|sent| sent + timers.leader_lease);
        let is_longer = until > self.until;
        if is_longer {
            self.until = until;
        }
        is_longer
    }

    /// Returns the newest version that a majority has, if it is newer than at the last call.
    fn newly_copied(&mut self, replica: &Replica) -> Option<Version> {
        let version = |slot: &VoterSlot| self.grant_of(replica, slot).map(|grant| grant.version);
        let version = replica.lists.of_majority(version)??;
        let is_new = version > self.copied && version.term == self.term;
        is_new.then(|| {
            self.copied = version;
            self.first_round.take_if(|first| *first <= version);
            version
        })
    }

    /// Returns the voters of a job whose first round begins. Every voter that has answered in the
    /// last second is known by its identity, even if it has just started and grants no leases yet.
    /// Returns `None` if fewer than a majority grant leases: a voter that has left could then be
    /// missing permanently.
    pub(super) fn listed(&self, now: Instant, lists: &Lists, answers: &Answers) -> Option<Lists> {
        let is_recent = |at: Instant| at + RECENT >= now;
        let grant = |slot: &VoterSlot| {
            self.grants.get(&slot.address).filter(|grant| is_recent(grant.answered))
        };
        let answer = |slot: &VoterSlot| answers.get(&slot.address).filter(|one| is_recent(one.at));
        let listed = |slot: &VoterSlot| VoterSlot {
            address: slot.address.clone(),
            voter: answer(slot)
                .map(|answer| answer.voter)
                .or_else(|| grant(slot).map(|grant| grant.voter)),
        };
        let last = lists.last.iter().map(listed).collect();
        let has_majority = lists.has_majority(|slot| grant(slot).is_some());
        has_majority.then_some(Lists { before: None, last })
    }
}

impl Election {
    /// Sends a renewal to all other voters, and to learners.
    pub(super) fn renew(&mut self, now: Instant) {
        self.grant_own(now);
        self.sequence += 1;
        let (timers, sequence) = (self.settings.timers, self.sequence);
        let replica = self.voter.replica().clone();
        let mut to = self.others();
        let Role::Leader(leader) = &mut self.role else { return };
        to.extend(leader.learners(&replica).map(|member| member.address.clone()));
        leader.send(now, timers, sequence, replica.version);
        let own = VoterGrant {
            voter: self.settings.voter,
            process: self.settings.process.clone(),
            sent: now,
            version: replica.version,
            answered: now,
            is_connected: true,
        };
        leader.grant(&self.settings.address, own);
        let term = leader.term;
        let is_copied = leader.copied == replica.version;
        for address in to {
            let replica = Box::new(replica.clone());
            self.send(now, address, sequence, Request::Renew { term, replica, is_copied });
        }
        self.extend(now);
    }

    /// Writes the inherited state in this process's own term, so that a majority has it in this
    /// term.
    pub(super) fn write_in_own_term(&mut self, now: Instant) {
        let Role::Leader(leader) = &self.role else { return };
        let Replica { lists, job_state, .. } = self.voter.replica().clone();
        let version = Version { term: leader.term, number: 0 };
        self.voter.take(&Replica { version, lists, job_state });
        self.renew(now);
    }

    /// Writes the next version of the state, copies it to the voters, and returns it.
    pub(super) fn write(
        &mut self,
        now: Instant,
        lists: Lists,
        job_state: Option<JobState>,
    ) -> Version {
        let Version { term, number } = self.voter.replica().version;
        let version = Version { term, number: number.saturating_add(1) };
        if self.voter.replica().lists != lists {
            self.effects.push_back(Effect::Store);
        }
        self.voter.take(&Replica { version, lists, job_state });
        self.forget_addresses();
        self.renew(now);
        version
    }

    /// Grants a lease to this process itself, as any other voter does.
    fn grant_own(&mut self, now: Instant) {
        let (process, timers) = (self.settings.process.clone(), self.settings.timers);
        if let Role::Leader(leader) = &self.role {
            let replica = self.voter.replica().clone();
            self.voter.renew(now, timers, (&process, leader.term), &replica);
        }
    }

    /// Extends the leadership by the grants so far. It begins with the first majority.
    pub(super) fn extend(&mut self, now: Instant) {
        let timers = self.settings.timers;
        let replica = self.voter.replica();
        let Role::Leader(leader) = &mut self.role else { return };
        let is_new = leader.until.is_none();
        let is_longer = leader.extend(timers, replica);
        let Some(until) = leader.until else { return };
        if is_new {
            let term = leader.term;
            let leadership = NewLeadership {
                term,
                until,
                workers_until: leader.inheritance.workers_until,
                former: leader.inheritance.former.clone(),
                job_state: replica.job_state.clone(),
                voters: replica.lists.last.clone(),
            };
            self.effects.push_back(Effect::Lead(Box::new(leadership)));
            self.failures = 0;
            self.leader = Some((self.settings.address.clone(), term));
            self.has_had_leader |= !self.voter.replica().is_closed();
            self.leaderless = None;
            info!(%term, "elected");
        } else if is_longer {
            self.effects.push_back(Effect::Extend(until));
        }
        let is_closed = replica.is_closed();
        let Some(version) = leader.newly_copied(replica) else { return };
        self.copied = version;
        if version.number > 0 {
            self.effects.push_back(Effect::Copied(version));
        }
        if is_closed {
            // Voters that wait for the end of the job need not wait for the next renewal.
            self.renew(now);
        }
        self.review(now);
    }

    /// Ends the leadership, and releases the leases so that a successor need not wait for their
    /// end.
    pub(super) fn step_down(&mut self, now: Instant, reason: &str) {
        let Role::Leader(leader) = &self.role else { return };
        let (term, has_led) = (leader.term, leader.until.is_some());
        // Its coordinator, which would have ended the process, is gone. Without a leader, the
        // process may have to end later.
        self.has_yielded = false;
        if has_led {
            info!(%term, reason, "the leadership has ended");
        }
        if has_led {
            // Before others learn of it and elect a successor.
            self.leader = None;
            self.leaderless = Some(now);
            self.effects.push_back(Effect::Follow { leader: None });
        }
        let process = self.settings.process.clone();
        self.voter.release(now, &process, None);
        self.sequence += 1;
        for address in self.connections() {
            self.send(now, address, self.sequence, Request::Release { term });
        }
        if has_led {
            self.follow(now);
        } else {
            self.pause(now);
        }
    }
}
