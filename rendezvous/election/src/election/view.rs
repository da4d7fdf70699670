//! Reads the state of a voter, for its driver and for the other steps.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use ragent_rendezvous::ids::{Term, VoterAddress};

use crate::election::{
    Election, ElectionSettings, Role,
    message::{Replica, VoterSlot},
};

impl Election {
    /// Returns the end of this process's leadership, unless it is extended; `None` if it does not
    /// lead.
    pub fn leads_until(&self) -> Option<Instant> {
        match &self.role {
            Role::Leader(leader) => leader.until,
            Role::Follower { .. } | Role::PreCandidate(_) | Role::Candidate { .. } => None,
        }
    }

    /// Returns the term of the leader to which this voter has granted its lease; `None` if no lease
    /// is in force.
    pub fn lease_term(&self) -> Option<Term> {
        self.voter.lease(self.clock).map(|lease| lease.term)
    }

    /// Returns, by address, the time at which each other voter last answered a request of this
    /// process.
    pub fn answered(&self) -> BTreeMap<VoterAddress, Instant> {
        self.answers.iter().map(|(address, answer)| (address.clone(), answer.at)).collect()
    }

    /// Returns the addresses to which this voter sends requests.
    pub fn connections(&self) -> BTreeSet<VoterAddress> {
        let mut addresses = self.greeted(self.clock);
        // A process without a slot follows its leader, and needs no other voter.
        if !self.is_outside() {
            let slots = self.voter.replica().lists.slots().map(|slot| slot.address.clone());
            addresses.extend(slots);
        }
        if let Role::Leader(leader) = &self.role {
            addresses.extend(leader.learners(self.voter.replica()).map(|m| m.address.clone()));
        }
        if let Some((leader, _)) = &self.leader {
            addresses.insert(leader.clone());
        }
        addresses.remove(&self.settings.address);
        addresses
    }

    /// Returns the highest term that this voter knows, to be stored for the next process at its
    /// place.
    pub fn highest(&self) -> Term {
        self.highest
    }

    /// Returns the newest copy of the state that this voter has, to be stored in the same way.
    pub fn replica(&self) -> &Replica {
        self.voter.replica()
    }

    /// Returns true if a leader is known.
    pub fn has_leader(&self) -> bool {
        self.leaderless.is_none()
    }

    /// Returns true if this process is not a voter, and cannot become a candidate.
    pub fn is_outside(&self) -> bool {
        let ElectionSettings { voter, address, .. } = &self.settings;
        !self.voter.replica().has_slot_of(*voter, address)
    }

    /// Returns true if this process leads, or was elected and waits for its first lease.
    pub(super) fn is_leading(&self) -> bool {
        matches!(self.role, Role::Leader(_))
    }

    pub(super) fn is_connection(&self, address: &VoterAddress) -> bool {
        self.connections().contains(address)
    }

    /// Returns true if this process may become a candidate: it is on the newest list, does not
    /// leave, and was not shown a job that is led.
    pub(super) fn is_eligible(&self) -> bool {
        let ElectionSettings { voter, address, .. } = &self.settings;
        let replica = self.voter.replica();
        let is_own = |slot: &VoterSlot| replica.is_slot_of(slot, *voter, address);
        let has_slot_here = replica.lists.last.iter().any(is_own);
        self.leaving.is_none() && has_slot_here && !self.is_to_join()
    }

    /// Returns true if an earlier process of this voter may have made a promise that this one does
    /// not know. Before the first round, the voter is the host, which may have lost its state file.
    pub(super) fn has_just_started(&self, now: Instant) -> bool {
        let has_promised = !self.settings.is_new || !self.voter.replica().has_round();
        has_promised && self.voter.has_just_started(now)
    }

    /// Returns the addresses of the other voters.
    pub(super) fn others(&self) -> BTreeSet<VoterAddress> {
        let slots = self.voter.replica().lists.slots().map(|slot| slot.address.clone());
        slots.filter(|address| *address != self.settings.address).collect()
    }
}
