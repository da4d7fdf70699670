//! Recovers the last round after a restart of the coordinator: finds out which of its members are left.
//!
//! Workers that the coordinator does not know may run until a lease has passed. After that, every worker that
//! runs has an agent that has registered.
//!
//! A new agent that takes over the rank of its machine proves nothing about the old agent. So its claim fills
//! the rank, but does not shorten the wait. The exception: the old agent's keeper has reported that no
//! process is left.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    time::{Duration, Instant},
};

use tracing::{info, warn};

use crate::{
    event::EventKind,
    grant::Grant,
    group::Group,
    ids::{GroupRank, NodeId, Round, RoundId},
    job::Availability,
    limits::{RECOVERY_MARGIN, TAKEOVER_COURTESY, after},
    machine::{Rendezvous, closing::Failures},
    message::{
        Assignment, JobResult, KnownRound, NodeReport, NodeState, Registration, RestartReason,
        WaitReason,
    },
    phase::{Gathering, Phase, Recovering, RecoveryStage},
    roster::RosterNode,
    settings::{JobState, Leases, SharedSettings},
    snapshot::PhaseName,
};

impl Recovering {
    /// Starts the wait for the members of `round`.
    pub(super) fn new(now: Instant, round: RoundId, size: u32) -> Self {
        Self {
            round,
            size,
            members: BTreeMap::new(),
            ranks: BTreeMap::new(),
            claimants: BTreeSet::new(),
            confirmed_claimants: BTreeSet::new(),
            left: BTreeSet::new(),
            dead: BTreeSet::new(),
            has_member: false,
            has_earlier_member: false,
            since: now,
            stage: RecoveryStage::Listening,
        }
    }

    /// Returns the number of members that can be in no other group: they are back, or have left in order.
    fn accounted_for(&self) -> usize {
        self.members.len() + self.left.len()
    }

    /// Returns the number of members that are back, plus the nodes that replace others. These are agents of
    /// new machines, and of machines whose earlier agents died while there was no coordinator.
    pub(super) fn present(&self, newcomers: usize) -> u32 {
        u32::try_from(self.accounted_for() + newcomers).unwrap_or(u32::MAX)
    }

    /// Returns the smallest majority of the round.
    pub(super) fn majority(&self) -> u32 {
        self.size / 2 + 1
    }

    /// Returns true if no other member can come back.
    fn is_complete(&self) -> bool {
        self.size > 0 && self.accounted_for() == self.size as usize
    }

    /// Makes `round` the last round, unless a later one is known. Ranks of earlier rounds are given up.
    /// Returns true if it is the last round now.
    ///
    /// Only members know the term of a round. A state file has the term of the coordinator that wrote it
    /// last, and this may be a later coordinator that completed no round.
    fn takes(&mut self, round: RoundId, is_member: bool) -> bool {
        if round.round != self.round.round {
            if round.round < self.round.round {
                return false;
            }
            self.members.clear();
            self.ranks.clear();
            self.claimants.clear();
            self.confirmed_claimants.clear();
            self.left.clear();
            self.dead.clear();
            self.round = round;
        } else if is_member && round.term != self.round.term {
            if self.has_member {
                if round.term < self.round.term {
                    return false;
                }
                let claimants = self.claimants.clone();
                self.retain(|id| claimants.contains(id));
                self.left.clear();
                self.dead.clear();
            }
            self.round = round;
        }
        true
    }

    /// Returns the time at which the recovery may continue:
    ///
    /// - at once, if every member itself is back
    /// - at the end of all leases, if every rank is taken again
    /// - a margin later, if members are still missing
    ///
    /// An elected coordinator knows when all workers of earlier leaders have ended. It also knows this of
    /// nodes that it has welcomed, whose workers may run until `welcomed`. It waits [`TAKEOVER_COURTESY`]
    /// longer for members whose registration was lost.
    pub(super) fn goes_on_at(
        &self,
        leases: Leases,
        grant: Option<&Grant>,
        welcomed: Option<Instant>,
    ) -> Instant {
        if let Some(elected) = grant {
            let back = self.ranks.len() - self.claimants.len();
            if self.size > 0 && back + self.left.len() + self.dead.len() >= self.size as usize {
                return self.since;
            }
            let courtesy = if self.is_complete() { Duration::ZERO } else { TAKEOVER_COURTESY };
            let workers_until = elected.workers_until.max(welcomed.unwrap_or(self.since));
            return workers_until.max(after(self.since, courtesy));
        }
        if self.is_complete() && self.claimants == self.confirmed_claimants {
            return self.since;
        }
        let margin = if self.is_complete() { Duration::ZERO } else { RECOVERY_MARGIN };
        after(self.since, leases.coordinator + margin)
    }

    fn enter(&mut self, rank: GroupRank, id: &NodeId, is_claimant: bool) {
        self.give_up_rank(id);
        self.dead.remove(id);
        if let Some(other) = self.members.insert(rank, id.clone()) {
            self.ranks.remove(&other);
            self.claimants.remove(&other);
            self.confirmed_claimants.remove(&other);
        }
        self.ranks.insert(id.clone(), rank);
        if is_claimant {
            self.claimants.insert(id.clone());
        }
    }

    /// Gives up the ranks of all nodes that are gone.
    fn retain(&mut self, is_here: impl Fn(&NodeId) -> bool) {
        let gone: Vec<NodeId> = self.ranks.keys().filter(|id| !is_here(id)).cloned().collect();
        for id in &gone {
            self.give_up_rank(id);
        }
    }

    /// Gives up the rank of a node that is gone.
    pub(super) fn give_up_rank(&mut self, id: &NodeId) {
        self.claimants.remove(id);
        self.confirmed_claimants.remove(id);
        if let Some(rank) = self.ranks.remove(id) {
            self.members.remove(&rank);
        }
    }

    /// Gives up the rank of a node that has left in order.
    pub(super) fn let_go(&mut self, id: &NodeId) {
        let was_member = self.ranks.contains_key(id) && !self.claimants.contains(id);
        self.give_up_rank(id);
        if was_member {
            self.dead.remove(id);
            self.left.insert(id.clone());
        }
    }

    /// Returns the assignment of `node`, a member of the last round, which has ended for `reason`.
    ///
    /// A member that has succeeded receives none yet, because all may have.
    pub(super) fn assignment(
        &self,
        node: &RosterNode,
        reason: RestartReason,
        complete_step: Option<u64>,
    ) -> Option<Assignment> {
        match node.report.state {
            NodeState::Running | NodeState::Stopping | NodeState::Preparing => {
                let (round, memory_step) = (self.round, None);
                Some(Assignment::Restart { round, reason, complete_step, memory_step })
            }
            NodeState::Ready { .. } => {
                let (round, reason) = (self.round, WaitReason::Recovering);
                Some(Assignment::Wait { round, reason, memory: None })
            }
            NodeState::Succeeded | NodeState::Leaving { .. } => None,
        }
    }
}

impl Rendezvous {
    /// Enters `id` with the rank that it had in the last round, if it had one.
    ///
    /// A node that was a member itself takes precedence over a new agent of the same machine, which knows the
    /// rank only from its state file.
    pub(super) fn claim(&mut self, id: &NodeId, known_round: KnownRound) {
        let is_credible = self.is_credible(known_round.round);
        let nodes_max = self.job.settings.shared.map_or(0, |shared| shared.nodes.max());
        let Phase::Recovering(recovering) = &mut self.job.phase else { return };
        if self.job.state.closed.is_some() {
            // Only agents of that run can recover it, and they receive its outcome instead.
            return;
        }
        let is_member =
            self.job.roster.get(id).is_some_and(|node| node.report.round == known_round.round);
        if !is_credible {
            return;
        }
        if !recovering.takes(known_round.round, is_member) {
            recovering.has_earlier_member |= is_member && known_round.round.round != Round(0);
            return;
        }
        let size = known_round.size_by_member(nodes_max);
        if let Some(size) = size.filter(|_| recovering.accounted_for() == 0) {
            recovering.size = size;
        }
        // A claim from a state file does not come from a member.
        recovering.has_member |= is_member;
        let Some(rank) = known_round.group_rank.filter(|rank| rank.0 < recovering.size) else {
            return;
        };
        let is_free = match recovering.members.get(&rank) {
            Some(holder) => is_member && recovering.claimants.contains(holder),
            None => true,
        };
        if is_free || recovering.ranks.get(id) == Some(&rank) {
            recovering.enter(rank, id, !is_member);
            let is_confirmed_dead = self.job.state.host.as_ref().is_some_and(|host| {
                let is_of_it = host.rank == rank && self.job.state.round == recovering.round.round;
                is_of_it && host.is_confirmed_dead
            });
            if !is_member && is_confirmed_dead {
                recovering.confirmed_claimants.insert(id.clone());
            }
        }
    }

    /// Returns the reason why the last round has ended.
    pub(super) fn why_last_round_ended(&self) -> RestartReason {
        let Some(Grant { former: Some(former), .. }) = &self.job.grant else {
            return RestartReason::CoordinatorRestarted;
        };
        if self.job.is_host(former) || former.as_str() == self.job.settings.coordinator {
            return RestartReason::CoordinatorRestarted;
        }
        let host = self.job.state.host.as_ref().filter(|host| host.node == *former);
        let host_name = host.map(|host| host.host_name.clone()).filter(|name| !name.is_empty());
        RestartReason::CoordinatorLost { host_name }
    }

    /// Records that no process is left of the agent that hosted the last round, if `id` is that agent.
    ///
    /// Not if it ran a later round than the known one, because others may still run that round.
    pub(super) fn confirm_predecessor_dead(&mut self, id: &NodeId, round: Round) {
        let is_host = self.job.is_host(id) || round > self.job.state.round;
        let Some(host) = self.job.state.host.as_mut() else { return };
        if is_host || host.node != *id || host.is_confirmed_dead {
            return;
        }
        host.is_confirmed_dead = true;
        info!(node = %id, "the previous host's agent and all of its processes have ended");
        if let Phase::Recovering(recovering) = &mut self.job.phase
            && recovering.round.round == self.job.state.round
            && let Some(claimant) = recovering.members.get(&host.rank)
            && recovering.claimants.contains(claimant)
        {
            recovering.confirmed_claimants.insert(claimant.clone());
        }
        self.out.remember();
    }

    /// Notes that no process is left of a member of the last round, if an elected coordinator recovers it.
    ///
    /// A coordinator at a single endpoint waits for the end of all leases instead, because the members could
    /// belong to a round that it does not know.
    pub(super) fn note_dead_member(&mut self, id: &NodeId, round: Round) {
        let is_elected = self.job.grant.is_some();
        let Phase::Recovering(recovering) = &mut self.job.phase else { return };
        let is_member = round == recovering.round.round && !recovering.left.contains(id);
        if is_elected && is_member && recovering.dead.len() < recovering.size as usize {
            recovering.give_up_rank(id);
            recovering.dead.insert(id.clone());
        }
    }

    /// Recovers the last round after all, if `registration` comes from one of its members.
    ///
    /// Agents that know the round only from a state file do not suffice: a job that was killed as a whole and
    /// is started again must continue without the agents that are gone.
    pub(super) fn recall_round(&mut self, now: Instant, registration: &Registration) {
        let Phase::Gathering(gathering) = &mut self.job.phase else { return };
        let (known_round, round) = (registration.known_round, registration.report.round);
        let nodes_max = registration.settings.nodes.max();
        let is_member =
            round == known_round.round && known_round.size_by_member(nodes_max).is_some();
        if !is_member || round.round == Round(0) || round.round != self.job.state.round {
            return;
        }
        let mut recovering = Recovering::new(now, round, self.job.state.round_size);
        if let Some(forgotten) = gathering.forgotten.take()
            && forgotten.round.round == round.round
        {
            recovering = Recovering { since: now, ..forgotten };
            recovering.takes(round, true);
            recovering.retain(|id| self.job.roster.get(id).is_some());
        }
        info!(
            %round, node = %registration.node.node_id,
            "a member of the last round has registered late; recovering the round"
        );
        self.enter(Phase::Recovering(recovering));
    }

    /// Leaves the recovery when every member is back, or no other can come back.
    pub(super) fn step_in_recovering(&mut self, now: Instant, shared: SharedSettings) -> bool {
        if !self.may_step() {
            return false;
        }
        let leases = self.leases();
        let Phase::Recovering(recovering) = &mut self.job.phase else { return false };
        let welcomed = self.welcomed.last_until();
        if now < recovering.goes_on_at(leases, self.job.grant.as_ref(), welcomed) {
            return false;
        }
        // The process that completed the last round may have ended before any node was admitted to it.
        let is_run_left = recovering.has_earlier_member && !self.job.state.is_adopted;
        if !recovering.has_member && !is_run_left {
            if self.job.roster.is_empty() && self.stay_closed(now) {
                return true;
            }
            if self.has_voters() && self.job.state.closed.is_some() {
                self.forget();
                return false;
            }
            self.reopen();
            info!("no node knows the last round; forming a new one");
            let forgotten = self.job.phase.take_recovering();
            self.enter(Phase::Gathering(Gathering { forgotten, ..Gathering::default() }));
            return true;
        }
        let (present, needed) = (self.present_in_recovery(), self.needed_in_recovery(shared));
        let is_only_one = !self.job.state.is_adopted || self.job.grant.is_some();
        if present >= needed || is_only_one {
            if present < needed {
                warn!(present, needed, "too few nodes for a round; waiting for more");
            }
            self.recover();
            return true;
        }
        self.wait_for_majority(now, shared, present, needed)
    }

    /// Returns the number of nodes that must be present for the recovery to continue with a round.
    ///
    /// If the round is in the coordinator's own state file, no other coordinator can continue it. If it was
    /// learned from a node, another coordinator may have learned it as well (`docs/rendezvous.md`,
    /// *Recovery*).
    pub(super) fn needed_in_recovery(&self, shared: SharedSettings) -> u32 {
        match &self.job.phase {
            // An elected coordinator is the only one, even if it has adopted the job.
            Phase::Recovering(recovering)
                if self.job.state.is_adopted && self.job.grant.is_none() =>
            {
                recovering.majority()
            }
            Phase::Recovering(_)
            | Phase::Gathering(_)
            | Phase::Running(_)
            | Phase::Regathering(_)
            | Phase::Closed(_) => shared.nodes.min(),
        }
    }

    /// Returns the number of members that are back, plus the nodes that replace others.
    pub(super) fn present_in_recovery(&self) -> u32 {
        let Phase::Recovering(recovering) = &self.job.phase else { return 0 };
        let is_new = |id: &&NodeId| !recovering.ranks.contains_key(*id);
        recovering.present(self.job.roster.ready().iter().filter(is_new).count())
    }

    /// Waits for more members. Closes the job when the join timeout has passed.
    fn wait_for_majority(
        &mut self,
        now: Instant,
        shared: SharedSettings,
        present: u32,
        needed: u32,
    ) -> bool {
        let Phase::Recovering(recovering) = &mut self.job.phase else { return false };
        if recovering.stage == RecoveryStage::Listening {
            warn!(
                present,
                needed,
                size = recovering.size,
                "too few nodes of a round that this coordinator has no state of; waiting for more"
            );
        }
        recovering.stage = RecoveryStage::Outnumbered;
        let since = recovering.since;
        if now < after(since, shared.timeouts.join) {
            return false;
        }
        let waited = now.saturating_duration_since(since);
        self.close(JobResult::RecoveryTimeout { present, needed, waited }, Failures::default());
        true
    }

    pub(super) fn recovery_deadline(
        &self,
        recovering: &Recovering,
        shared: SharedSettings,
    ) -> Option<Instant> {
        if self.job.availability != Availability::Available {
            return None;
        }
        Some(match recovering.stage {
            RecoveryStage::Listening => recovering.goes_on_at(
                self.leases(),
                self.job.grant.as_ref(),
                self.welcomed.last_until(),
            ),
            RecoveryStage::Outnumbered => after(recovering.since, shared.timeouts.join),
        })
    }

    /// Returns the time until the recovery continues, if no other node comes.
    pub(super) fn recovery_left(&self, now: Instant, recovering: &Recovering) -> Duration {
        recovering
            .goes_on_at(self.leases(), self.job.grant.as_ref(), self.welcomed.last_until())
            .saturating_duration_since(now)
    }

    /// Waits for the members that are back, as after any other end of a round.
    fn recover(&mut self) {
        let now = self.job.clock;
        let Phase::Recovering(recovering) = &mut self.job.phase else { return };
        let members = mem::take(&mut recovering.members);
        let (round, since) = (recovering.round, recovering.since);
        let size = recovering
            .size
            .saturating_sub(u32::try_from(recovering.left.len()).unwrap_or(u32::MAX));
        info!(%round, nodes = members.len(), "recovered");
        let back = u32::try_from(members.len()).unwrap_or(u32::MAX);
        let kind = EventKind::Recovered { back, nodes: size };
        self.out.event(&self.job, self.out.began, None, kind);
        self.job.shown = (PhaseName::Stopping, now);
        self.memory.await_parts();
        if members.is_empty() && (self.job.roster.is_empty() || self.job.roster.all_leaving()) {
            self.close(JobResult::AllLeft, Failures::default());
            return;
        }
        if self.have_succeeded(&members, size) {
            self.close(JobResult::Succeeded, Failures::default());
            return;
        }
        let is_incomplete = members.len() < size as usize;
        let group = Group::recovered(round, size, members);
        let reason = self.why_last_round_ended();
        self.regather(now, group, reason.into());
        if is_incomplete && let Some(regathering) = self.job.phase.regathering_mut() {
            regathering.last_loss = since;
        }
    }

    /// Returns true if the last round had succeeded on all members before its coordinator announced it. Members
    /// that have saved and exited because of a notice have not succeeded.
    fn have_succeeded(&self, members: &BTreeMap<GroupRank, NodeId>, size: u32) -> bool {
        let mut reports = members.values().map(|id| Some(&self.job.roster.get(id)?.report));
        let has_succeeded =
            |report: &NodeReport| report.state == NodeState::Succeeded && report.saved.is_none();
        !members.is_empty()
            && members.len() == size as usize
            && reports.all(|report| report.is_some_and(has_succeeded))
    }
}

/// Notes at the start of a recovery that the former leader's own agent is gone, if its lease expired without
/// a release: its workers ended before the lease.
pub(super) fn without_former(
    mut phase: Phase,
    now: Instant,
    job_state: &JobState,
    grant: Option<&Grant>,
) -> Phase {
    if let (Phase::Recovering(recovering), Some(elected)) = (&mut phase, grant)
        && let Some(host) = job_state.host.as_ref()
        && elected.former.as_ref() == Some(&host.node)
        && elected.workers_until <= now
    {
        recovering.dead.insert(host.node.clone());
    }
    phase
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fixture::{SECOND, some_instant},
        ids::Term,
    };

    fn round(term: u64, round: u64) -> RoundId {
        RoundId { term: Term(term), round: Round(round) }
    }

    /// The recovery of round 5 of term 3, with these members.
    fn with(size: u32, members: &[&str]) -> Recovering {
        let mut recovering = Recovering::new(some_instant(), round(3, 5), size);
        for (rank, name) in (0..).zip(members) {
            recovering.enter(GroupRank(rank), &NodeId::new(*name), false);
        }
        recovering
    }

    /// The ranks of an earlier round are given up for a later one, and for the same one of a later term if a member knows it. Claims from
    /// state files stay in the latter case.
    #[test]
    fn last_round_is_the_latest_that_is_known() {
        for (other, is_member, takes, left) in [
            (round(3, 4), true, false, 3),
            (round(3, 6), false, true, 0),
            (round(4, 5), false, true, 3),
            (round(2, 5), true, false, 3),
            (round(3, 5), true, true, 3),
            (round(4, 5), true, true, 1),
        ] {
            let mut recovering = with(4, &["a", "b"]);
            recovering.enter(GroupRank(2), &NodeId::new("claimant"), true);
            recovering.has_member = true;
            assert_eq!(recovering.takes(other, is_member), takes, "{other}");
            assert_eq!(recovering.ranks.len(), left, "{other}");
        }
    }

    /// A recovery is over at once if all members are back, or have left. If only a claimant has a rank, it lasts for the leases. If a member
    /// is missing, it lasts for a margin longer.
    #[test]
    fn recovery_waits_for_what_is_unknown() {
        let leases = Leases::default();
        let ends =
            |recovering: &Recovering| recovering.goes_on_at(leases, None, None) - recovering.since;
        let mut recovering = with(3, &["a", "b"]);
        assert_eq!(ends(&recovering), leases.coordinator + RECOVERY_MARGIN);
        recovering.enter(GroupRank(2), &NodeId::new("c"), true);
        assert_eq!(ends(&recovering), leases.coordinator);
        recovering.enter(GroupRank(2), &NodeId::new("c"), false);
        assert_eq!(ends(&recovering), Duration::ZERO, "c itself is back");
        let mut recovering = with(3, &["a", "b", "c"]);
        assert_eq!(ends(&recovering), Duration::ZERO);
        recovering.let_go(&NodeId::new("c"));
        assert_eq!((recovering.members.len(), ends(&recovering)), (2, Duration::ZERO));
        recovering.retain(|id| id.as_str() == "a");
        assert_eq!((recovering.members.len(), recovering.ranks.len()), (1, 1));
        assert_eq!(
            ends(&with(0, &[])),
            leases.coordinator + RECOVERY_MARGIN,
            "the size is unknown"
        );
    }

    /// An elected coordinator waits until all workers of earlier leaders have ended. It does not wait if each member is back, dead or has
    /// left. A claim of a rank is not the member itself.
    #[test]
    fn elected_coordinator_waits_for_the_workers() {
        let now = some_instant();
        let (former, until) = (None, now + 60 * SECOND);
        let grant = Grant { term: Term(9), until, workers_until: now + 10 * SECOND, former };
        let ends = |recovering: &Recovering, welcomed: Option<Instant>| {
            recovering.goes_on_at(Leases::default(), Some(&grant), welcomed).duration_since(now)
        };
        let at = |members: &[&str]| Recovering { since: now, ..with(3, members) };
        assert_eq!(ends(&at(&["a", "b"]), None), 10 * SECOND);
        assert_eq!(ends(&at(&["a", "b"]), Some(now + 12 * SECOND)), 12 * SECOND);
        let mut recovering = at(&["a", "b"]);
        recovering.enter(GroupRank(2), &NodeId::new("c"), true);
        assert_eq!(ends(&recovering, None), 10 * SECOND, "c has only claimed the rank");
        recovering.give_up_rank(&NodeId::new("c"));
        recovering.dead.insert(NodeId::new("c"));
        assert_eq!(ends(&recovering, None), Duration::ZERO);
        assert_eq!(ends(&at(&["a", "b", "c"]), None), Duration::ZERO);
    }

    /// A member that leaves in order is not waited for. A claimant that leaves is not the member itself.
    #[test]
    fn only_members_leave_in_order() {
        let mut recovering = with(3, &["a"]);
        recovering.enter(GroupRank(1), &NodeId::new("claimant"), true);
        for name in ["a", "claimant", "unknown"] {
            recovering.let_go(&NodeId::new(name));
        }
        assert_eq!(recovering.left, [NodeId::new("a")].into());
    }
}
