//! Replaces voters while the job runs.
//!
//! The leader replaces a voter that has been silent for 30 s, or that asks for it because its
//! process ends. One that returns without its state replaces the earlier one at its host. Like
//! Raft's joint consensus, a change has two steps, so that two leaders can never
//! be elected at once:
//!
//! 1. The old and the new list both count: the leader needs a majority of each.
//! 2. Once both majorities have stored the change, only the new list counts.
//!
//! A new voter grants leases before step 1, so a change never ends a leadership.

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
        membership::Membership,
        message::{Answer, Lists, Replica, Request, VoterMessage, VoterSlot},
    },
    limits::LEARNERS_MAX,
};

/// This process is shutting down, so it no longer becomes a candidate.
#[derive(Debug)]
pub(super) struct Leaving {
    next_request: Instant,
    /// True if the leader has answered that this voter will not be replaced.
    is_refused: bool,
}

/// A voter is replaced after this time without a grant. A host restarts its agent in less.
const SILENT: Duration = Duration::from_secs(30);

/// A member may become a voter if its last answer is not older.
const LEARNER_SILENT: Duration = Duration::from_secs(1);

/// The leader's lease must last this much longer under both lists when a change begins.
const LEASE_LEFT: Duration = Duration::from_millis(1_500);

/// The time that a new leader waits for members before it refuses to replace a leaving voter. It
/// waits no longer once it knows as many as the last round had.
const MEMBERS_WITHIN: Duration = Duration::from_secs(3);

/// The pause between two changes of the voters, except for voters that leave. Otherwise, two
/// processes at one address could replace each other as fast as the network allows.
const CHANGE_INTERVAL: Duration = Duration::from_secs(1);

/// A voter that leaves asks the leader this often to replace it.
const LEAVE_INTERVAL: Duration = Duration::from_millis(50);

impl ElectionLeader {
    /// Returns the learners: non-voting members that may replace a voter. They already receive the
    /// state and grant leases, but these do not count yet.
    pub(super) fn learners(&self, replica: &Replica) -> impl Iterator<Item = &Member> {
        let is_voter = |member: &&Member| {
            let mut slots = replica.lists.slots();
            slots.any(|slot| replica.is_slot_of(slot, member.voter, &member.address))
        };
        let has_begun = replica.has_round() && self.first_round.is_none();
        let members = self.membership.members.iter().filter(move |_| has_begun);
        members.filter(move |member| !is_voter(member)).take(LEARNERS_MAX)
    }

    /// Returns the learners that can become voters at once: they have answered recently, are
    /// connected in both directions, and do not leave.
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

    /// Returns the next list of voters; `None` if the present one cannot be improved.
    fn next_list(
        &self,
        now: Instant,
        replica: &Replica,
        own: VoterId,
        answers: &Answers,
    ) -> Option<Vec<VoterSlot>> {
        let list = &replica.lists.last;
        // A host gets a second place only if no other host has a candidate.
        let free = |list: &[VoterSlot]| {
            let is_free = |slot: &VoterSlot| list.iter().all(|other| other.address != slot.address);
            let at = |slot: &VoterSlot| {
                list.iter().filter(|other| other.address.host() == slot.address.host()).count()
            };
            self.candidates(now, replica).filter(is_free).min_by_key(at)
        };
        let wanted = self.membership.wanted.min(VOTERS_MAX);
        let mut longer = list.clone();
        while longer.len() < wanted
            && let Some(added) = free(&longer)
        {
            longer.push(added);
        }
        if longer.len() > list.len() && longer.len() == wanted {
            return Some(longer);
        }
        let has_changed =
            self.membership.changed.is_some_and(|changed| now < changed + CHANGE_INTERVAL);
        let is_bad = |slot: &&VoterSlot| {
            let may_change = !has_changed || self.is_leaving(slot.voter);
            may_change && slot.voter != Some(own) && self.is_bad(now, replica, slot, answers)
        };
        let mut bad: Vec<&VoterSlot> = list.iter().filter(is_bad).collect();
        // A voter that leaves comes first, because its process waits for it.
        bad.sort_by_key(|slot| !self.is_leaving(slot.voter));
        let replacement = |bad: &VoterSlot| {
            let is_at_its_host = |slot: &VoterSlot| self.is_successor(&slot.address, bad);
            let at_its_host = self.candidates(now, replica).find(is_at_its_host);
            at_its_host.or_else(|| free(list))
        };
        let (bad, next) = bad.into_iter().find_map(|slot| Some((slot, replacement(slot)?)))?;
        let replace = |slot: &VoterSlot| if slot == bad { next.clone() } else { slot.clone() };
        Some(list.iter().map(replace).collect())
    }

    /// Returns true if a voter should be replaced: it was never there, it leaves, it is silent, or
    /// another process at its host does not have its state.
    fn is_bad(&self, now: Instant, replica: &Replica, slot: &VoterSlot, answers: &Answers) -> bool {
        let Some(voter) = slot.voter else { return true };
        let answer = answers.get(&slot.address).filter(|answer| answer.at + LEARNER_SILENT > now);
        let answered = self.grant_of(replica, slot).map(|grant| grant.answered);
        let last = answered.unwrap_or(self.membership.since);
        let is_other = match answer {
            Some(answer) => answer.voter != voter,
            None => self.membership.members.iter().any(|member| {
                let is_silent = member.address == slot.address || last + LEARNER_SILENT <= now;
                member.voter != voter && is_silent && self.is_successor(&member.address, slot)
            }),
        };
        self.is_leaving(Some(voter)) || is_other || last + SILENT <= now
    }

    /// Returns true if the process at an address is at the host of a voter, in its place: it has the same port, or no
    /// other member is at that host. Several agents of one machine cannot be told apart.
    fn is_successor(&self, address: &VoterAddress, slot: &VoterSlot) -> bool {
        let host = address.host();
        let at_host = self.membership.members.iter().filter(|member| member.address.host() == host);
        *address == slot.address || host == slot.address.host() && at_host.count() == 1
    }
}

impl Election {
    /// Handles a report of the job's members.
    pub fn handle_members(&mut self, now: Instant, report: MembersReport) {
        self.begin(now);
        if let Role::Leader(leader) = &mut self.role {
            leader.membership.members = report.members;
            leader.membership.wanted = report.wanted;
            let since = leader.lacks_nodes.unwrap_or(now);
            leader.lacks_nodes = (!report.has_nodes).then_some(since);
            self.review(now);
        }
    }

    /// Resigns if this process leads. It is shutting down, so it no longer becomes a candidate.
    /// Asks the next leader to replace this voter. [`Election::may_end`] returns true when that is
    /// done.
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

    /// Returns true if the job needs this process: it is a voter, and the job is not known to have
    /// ended. An outcome that no majority has may be forgotten.
    pub fn is_needed(&self) -> bool {
        let is_own = |slot: &VoterSlot| slot.voter == Some(self.settings.voter);
        self.voter.replica().lists.slots().any(is_own) && self.ended_job().is_none()
    }

    /// Returns true if this process, which leaves, may end: the job does not need it, or no other
    /// process can replace it.
    pub fn may_end(&self) -> bool {
        let is_refused = self.leaving.as_ref().is_some_and(|leaving| leaving.is_refused);
        let is_alone = self.voter.replica().lists.slots().count() == 1;
        !self.is_needed() || is_refused || is_alone
    }

    /// Returns the time of the next request to be replaced.
    pub(super) fn asks_to_leave_at(&self) -> Option<Instant> {
        self.leaving.as_ref().filter(|_| !self.may_end()).map(|leaving| leaving.next_request)
    }

    /// Asks the leader to replace this voter, if the time has come.
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

    /// Records that this voter will not be replaced. An answer to any other request has another
    /// sequence number.
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
        // A leader that was just elected does not know all members yet.
        let stays = |member: &&Member| !leader.is_leaving(Some(member.voter));
        let Membership { members, leaving, since, .. } = &leader.membership;
        let known = members.iter().filter(stays).count() + leaving.len();
        let all = replica.job_state.as_ref().map_or(0, |job_state| job_state.round_size as usize);
        let may_know_more = known < all && now < *since + MEMBERS_WITHIN;
        let has_learner = || leader.learners(replica).any(|member| stays(&member));
        has_slot_here && (is_changing || may_know_more || has_learner())
    }

    /// Returns true if this process leads, and a majority knows that a voter has no slot any more.
    /// The leader no longer knows the address of such a voter.
    pub(super) fn has_replaced(&self, voter: VoterId) -> bool {
        let Role::Leader(leader) = &self.role else { return false };
        let replica = self.voter.replica();
        let is_copied = leader.until.is_some() && leader.copied == replica.version;
        is_copied && replica.lists.slots().all(|slot| slot.voter.is_some_and(|v| v != voter))
    }

    /// Takes the next step of a change of the voters, if one is needed and possible.
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
            // Until now, voters of the old list were still needed.
            let voters = replica.lists.last.clone();
            let addresses = voters.iter().map(|slot| &slot.address).collect::<Vec<_>>();
            info!(voters = ?addresses, "the voters have changed");
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

    /// Steps down because another process leads the job. This process also stops being a voter,
    /// unless the job has a round here. The process at `listed` becomes the first voter instead.
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
    /// Forgets a leaving voter once a new process of that voter has granted a lease.
    fn forget_returned(&mut self) {
        let grants = &self.grants;
        self.membership.leaving.retain(|(voter, process)| {
            grants.values().filter(|g| g.voter == *voter).all(|g| g.process == *process)
        });
    }
}
