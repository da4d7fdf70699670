//! The changes of the voters: the leader replaces voters that are lost, and a voter whose process ends asks for it.
//!
//! A change has two steps. First the list before and the next list count both, and the leader needs a majority of each;
//! when both majorities know of the change, only the next list counts. Members that are to become voters grant leases
//! before they count, so that a change never ends a leadership.

use std::{
    mem,
    time::{Duration, Instant},
};

use ragent_rendezvous::{
    heir::{Member, MembersReport},
    ids::{NodeId, VoterAddress, VoterId},
    limits::VOTERS_MAX,
};
use tracing::info;

use crate::{
    election::{
        Answers, Effect, Election, Role,
        leader::ElectionLeader,
        message::{Answer, Lists, Replica, Request, VoterMessage, VoterSlot},
    },
    limits::LEARNERS_MAX,
};

/// The process ends, and never becomes a candidate again.
#[derive(Debug)]
pub(super) struct Leaving {
    next_request: Instant,
    /// True if this voter is not to be replaced.
    is_refused: bool,
}

/// The time without a grant after which a voter is replaced: longer than a host takes to restart its agent.
const SILENT: Duration = Duration::from_secs(30);

/// The age of the last grant of a member that may become a voter.
const LEARNER_SILENT: Duration = Duration::from_secs(1);

/// The time for which the lease of the leader must last under both lists at the beginning of a change.
const LEASE_LEFT: Duration = Duration::from_millis(1_500);

/// The time within which members register with a new leader, unless it has received two reports of them: the first one has the members
/// that were there first.
const MEMBERS_WITHIN: Duration = Duration::from_secs(3);

/// The time between two changes of the voters, except those for voters that leave: two processes at one address could otherwise
/// replace each other as fast as the network allows.
const CHANGE_INTERVAL: Duration = Duration::from_secs(1);

/// The interval at which a voter asks the leader to replace it.
const LEAVE_INTERVAL: Duration = Duration::from_millis(50);

impl ElectionLeader {
    /// Returns the learners, which are non-voting: members that may replace a voter. They already receive the state and
    /// grant leases, but these do not count yet.
    pub(super) fn learners(&self, replica: &Replica) -> impl Iterator<Item = &Member> {
        let is_voter = |member: &&Member| {
            let mut slots = replica.lists.slots();
            slots.any(|slot| replica.is_slot_of(slot, member.voter, &member.address))
        };
        let has_begun = replica.has_round() && self.first_round.is_none();
        let members = self.membership.members.iter().filter(move |_| has_begun);
        members.filter(move |member| !is_voter(member)).take(LEARNERS_MAX)
    }

    /// Returns the members that can become voters at once: there are connections in both directions, and their host
    /// has no voter that is to stay.
    fn candidates<'a>(
        &'a self,
        now: Instant,
        replica: &'a Replica,
    ) -> impl Iterator<Item = VoterSlot> {
        let is_ready = move |member: &&Member| {
            self.grants.get(&member.address).is_some_and(|grant| {
                let is_recent = grant.answered + LEARNER_SILENT > now;
                grant.voter == member.voter && grant.is_connected && is_recent
            }) && !self.is_leaving(Some(member.voter))
        };
        self.learners(replica)
            .filter(is_ready)
            .map(|member| VoterSlot { address: member.address.clone(), voter: Some(member.voter) })
    }

    fn is_leaving(&self, voter: Option<VoterId>) -> bool {
        self.membership.leaving.iter().any(|(leaving, _)| Some(*leaving) == voter)
    }

    /// Returns the next list of voters; `None` if nothing can be improved.
    fn next_list(
        &self,
        now: Instant,
        replica: &Replica,
        own: VoterId,
        answers: &Answers,
    ) -> Option<Vec<VoterSlot>> {
        let list = &replica.lists.last;
        let is_free = |slot: &VoterSlot| list.iter().all(|other| other.address != slot.address);
        let wanted = self.membership.wanted.min(VOTERS_MAX);
        let missing = wanted.saturating_sub(list.len());
        let added: Vec<VoterSlot> =
            self.candidates(now, replica).filter(is_free).take(missing).collect();
        if missing > 0 && added.len() == missing {
            return Some(list.iter().cloned().chain(added).collect());
        }
        let has_changed =
            self.membership.changed.is_some_and(|changed| now < changed + CHANGE_INTERVAL);
        let is_bad = |slot: &&VoterSlot| {
            let may_change = !has_changed || self.is_leaving(slot.voter);
            may_change && slot.voter != Some(own) && self.is_bad(now, replica, slot, answers)
        };
        let mut bad: Vec<&VoterSlot> = list.iter().filter(is_bad).collect();
        // A voter that leaves is replaced first: its process waits for it.
        bad.sort_by_key(|slot| !self.is_leaving(slot.voter));
        let replacement = |bad: &VoterSlot| {
            let is_at_its_host = |slot: &VoterSlot| slot.address == bad.address;
            let at_its_host = self.candidates(now, replica).find(is_at_its_host);
            at_its_host.or_else(|| self.candidates(now, replica).find(is_free))
        };
        let (bad, next) = bad.into_iter().find_map(|slot| Some((slot, replacement(slot)?)))?;
        let replace = |slot: &VoterSlot| if slot == bad { next.clone() } else { slot.clone() };
        Some(list.iter().map(replace).collect())
    }

    /// Returns true if a voter is to be replaced: it was never there, it leaves, another process at its host has not
    /// its state, or it is silent.
    fn is_bad(&self, now: Instant, replica: &Replica, slot: &VoterSlot, answers: &Answers) -> bool {
        let Some(voter) = slot.voter else { return true };
        let is_at_host = |member: &&Member| member.address == slot.address;
        let mut at_host = self.membership.members.iter().filter(is_at_host);
        let answer = answers.get(&slot.address).filter(|answer| answer.at + LEARNER_SILENT > now);
        let is_other = match answer {
            Some(answer) => answer.voter != voter,
            None => at_host.any(|member| member.voter != voter),
        };
        let answered = self.grant_of(replica, slot).map(|grant| grant.answered);
        let last = answered.unwrap_or(self.membership.since);
        self.is_leaving(Some(voter)) || is_other || last + SILENT <= now
    }
}

impl Election {
    /// Handles a report of the members of the job.
    pub fn handle_members(&mut self, now: Instant, report: MembersReport) {
        self.begin(now);
        if let Role::Leader(leader) = &mut self.role {
            leader.membership.members = report.members;
            leader.membership.wanted = report.wanted;
            leader.membership.reports = leader.membership.reports.saturating_add(1);
            leader.has_nodes = report.has_nodes;
            self.review(now);
        }
    }

    /// Resigns if this process leads, and never becomes a candidate again, because the process will end. Asks the next
    /// leader to replace this voter; [`Election::may_end`] returns true when it is replaced.
    pub fn handle_leaving(&mut self, now: Instant) {
        self.begin(now);
        if self.leaving.is_none() {
            self.leaving = Some(Leaving { next_request: now, is_refused: false });
        }
        match self.role {
            Role::Leader(_) => self.step_down(now, "the agent leaves"),
            Role::PreCandidate(_) | Role::Candidate { .. } => self.follow(now),
            Role::Follower { .. } => {}
        }
        self.ask_to_leave(now);
    }

    /// Returns true if the job needs this voter's state: it is a voter, and the job has not ended. An end that no
    /// majority knows may be forgotten.
    pub fn is_needed(&self) -> bool {
        let is_own = |slot: &VoterSlot| slot.voter == Some(self.settings.voter);
        self.voter.replica().lists.slots().any(is_own) && self.ended_job().is_none()
    }

    /// Returns true if the process of this voter, which leaves, may end: the job does not need it, or no other process
    /// can replace it.
    pub fn may_end(&self) -> bool {
        let is_refused = self.leaving.as_ref().is_some_and(|leaving| leaving.is_refused);
        let is_alone = self.voter.replica().lists.slots().count() == 1;
        !self.is_needed() || is_refused || is_alone
    }

    /// Returns the time of the next request to be replaced.
    pub(super) fn asks_to_leave_at(&self) -> Option<Instant> {
        self.leaving.as_ref().filter(|_| !self.may_end()).map(|leaving| leaving.next_request)
    }

    /// Asks the leader to replace this voter, if it is time to.
    pub(super) fn ask_to_leave(&mut self, now: Instant) {
        if self.asks_to_leave_at().is_none_or(|at| now < at) {
            return;
        }
        if let Some(leaving) = &mut self.leaving {
            leaving.next_request = now + LEAVE_INTERVAL;
        }
        let leader = self.leader.clone().map(|(address, _)| address);
        if let Some(leader) = leader.filter(|address| *address != self.settings.address) {
            self.sequence += 1;
            self.send(now, leader, self.sequence, Request::Leave);
        }
    }

    /// Records that this voter is not replaced. An answer to any other request has another number.
    pub(super) fn handle_answer_to_leave(&mut self, message: &VoterMessage<Answer>) {
        let is_of_leader = self.leader.as_ref().is_some_and(|(at, _)| *at == message.address);
        let is_newest = message.sequence == self.sequence;
        if let Some(leaving) = &mut self.leaving
            && is_of_leader
            && is_newest
        {
            leaving.is_refused |= !message.body.is_granted;
        }
    }

    /// Records that a voter leaves. Returns true while it is being replaced.
    pub(super) fn handle_leave(&mut self, now: Instant, voter: VoterId, process: &NodeId) -> bool {
        let Role::Leader(leader) = &mut self.role else { return true };
        if !leader.is_leaving(Some(voter)) && leader.membership.leaving.len() < VOTERS_MAX {
            leader.membership.leaving.push((voter, process.clone()));
        }
        self.review(now);
        let replica = self.voter.replica();
        let Role::Leader(leader) = &self.role else { return true };
        let has_slot_here = replica.lists.slots().any(|slot| slot.voter == Some(voter));
        let is_changing = replica.lists.before.is_some() || replica.version != leader.copied;
        // A leader that was just elected does not know the members yet.
        let may_know_more =
            leader.membership.reports < 2 && now < leader.membership.since + MEMBERS_WITHIN;
        let has_learner = || leader.learners(replica).any(|m| !leader.is_leaving(Some(m.voter)));
        has_slot_here && (is_changing || may_know_more || has_learner())
    }

    /// Returns true if this process leads, and a majority knows that a voter has no slot. The leader does
    /// not know the address of such a voter any more.
    pub(super) fn has_replaced(&self, voter: VoterId) -> bool {
        let Role::Leader(leader) = &self.role else { return false };
        let replica = self.voter.replica();
        let is_copied = leader.until.is_some() && leader.copied == replica.version;
        is_copied && replica.lists.slots().all(|slot| slot.voter.is_some_and(|v| v != voter))
    }

    /// Begins, continues or completes a change of the voters, if one is needed and possible.
    pub(super) fn review(&mut self, now: Instant) {
        let replica = self.voter.replica().clone();
        let lease = self.settings.timers.leader_lease;
        let Role::Leader(leader) = &mut self.role else { return };
        // Only a list that a majority has in this term can be changed.
        if leader.until.is_none() || !replica.has_round() || leader.copied != replica.version {
            return;
        }
        leader.forget_returned();
        if replica.lists.before.is_some() {
            leader.membership.is_completing = true;
            self.write(now, replica.lists.without_before(), replica.job_state);
            return;
        }
        if mem::take(&mut leader.membership.is_completing) {
            // Before, the voters of the list before were still needed.
            let voters = replica.lists.last.clone();
            info!(voters = ?addresses(&voters), "the voters have changed");
            self.effects.push_back(Effect::Voters(voters));
        }
        let next = leader.next_list(now, &replica, self.settings.voter, &self.answers);
        let Some(next) = next else { return };
        let lists = replica.lists.changing_to(next);
        let lasts = leader
            .granted_by(&replica, &lists)
            .is_some_and(|sent| now + LEASE_LEFT <= sent + lease);
        if lasts {
            leader.membership.changed = Some(now);
            self.write(now, lists, replica.job_state);
        }
    }

    /// Steps down for another process that leads the job: this one ends its leadership, and is not a voter any more, unless
    /// the job has a round here. The process at `listed` counts as the first voter instead.
    pub fn handle_stepping_down(&mut self, now: Instant, listed: VoterAddress) {
        self.begin(now);
        if self.voter.replica().has_round() || listed == self.settings.address {
            return;
        }
        if self.is_leading() {
            self.step_down(now, "another process leads the job");
        }
        self.settings.listed = vec![listed];
        self.voter.forget(Lists::listed(&self.settings.listed));
        self.forget_addresses();
        self.follow(now);
    }
}

impl ElectionLeader {
    /// Forgets voters that wanted to leave, and whose next process has granted a lease.
    fn forget_returned(&mut self) {
        let grants = &self.grants;
        self.membership.leaving.retain(|(voter, process)| {
            grants.values().filter(|g| g.voter == *voter).all(|g| g.process == *process)
        });
    }
}

fn addresses(list: &[VoterSlot]) -> Vec<&str> {
    list.iter().map(|slot| slot.address.as_str()).collect()
}
