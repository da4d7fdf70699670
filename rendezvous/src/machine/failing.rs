//! Judges a round that a worker's failure has ended: is it charged to the job, and which node is
//! quarantined?
//!
//! A failure may be the consequence of something else, so all members stop at once, but the verdict
//! waits:
//!
//! 1. It may be the consequence of a lost node. So every member must first give a sign of life. If
//!    one is lost, leaving or evicted instead, the round was ended by its membership, which is
//!    free.
//! 2. It may be the consequence of another worker's failure that is not reported yet, because that
//!    worker has not ended. So the first failure is determined when all members have stopped.
//!
//! A charged failure makes a node suspect: the one that a look at a stalled round has named, else the result of
//! [`suspect`]. A spare then takes its place (`gathering.rs`).

use std::{
    collections::{BTreeSet, btree_map::Entry},
    time::Instant,
};

use tracing::{info, warn};

use crate::{
    event::{EventKind, FreeReason},
    group::GroupMember,
    ids::{GroupRank, NodeId, RoundId},
    limits::{EARLY, QUIET_TIME, SAME_TIME, after},
    machine::{Rendezvous, closing::Failures},
    message::{JobResult, RestartReason, ToNode, WorkerEnd, WorkerFailure},
    phase::{PendingVerdict, RoundEnd},
    roster::SentAssignment,
    settings::SharedSettings,
    training::ChargedRound,
};

/// A round that has ended because of a failure, with the first failure.
struct FailedRound {
    round: RoundId,
    started: Instant,
    node: NodeId,
    is_newcomer: bool,
    happened: Instant,
    failure: WorkerFailure,
    suspect: Option<NodeId>,
    failures: Failures,
}

/// The meaning of a failure for the job.
enum Judgment {
    /// A standby did not fit the script. The failure is not charged.
    Standby,
    /// The machine is unhealthy, and the job can go on without it. The failure is not charged, but counted for the node.
    BadMachine(RestartReason),
    /// A new node has failed early, and the job can go on without it. It is quarantined, and the failure is not charged.
    NewNode,
    /// The failure is charged, unless one of the same round or of a later one is already.
    Charge { is_quarantined: bool },
    /// Another start would fail in the same way.
    Final,
}

impl Rendezvous {
    /// Ends the running round because a worker on `id` failed, and opens the verdict.
    pub(super) fn fail(&mut self, now: Instant, id: &NodeId, failure: WorkerFailure) {
        let Some(node) = self.job.roster.get_mut(id) else { return };
        let reason = RestartReason::WorkerFailed {
            host_name: node.description.host_name.clone(),
            global_rank: failure.global_rank,
            end: failure.end.clone(),
            oom: failure.oom,
            hardware: failure.hardware_lines(),
        };
        let Some(group) = self.job.phase.group() else { return };
        // The node stops by itself and needs no restart message.
        node.sent = Some(SentAssignment::Restart(group.round));
        // A member that had succeeded is not missed by any worker, so its loss does not explain a
        // failure. The exception is group rank 0, which serves the round's store.
        let is_missed = |other: &NodeId, member: &GroupMember| {
            let serves_store = member.rank == GroupRank(0);
            !member.state.stays() && (serves_store || !group.has_succeeded(other))
        };
        let by_membership = group.members().any(|(other, member)| is_missed(other, &member));
        let round = group.round;
        let awaited: BTreeSet<NodeId> = group
            .members()
            .filter(|(other, member)| *other != id && member.state.stays())
            .map(|(other, _)| other.clone())
            .collect();
        let blamed = self.stalls.blamed(&self.job);
        let verdict = (!by_membership).then(|| PendingVerdict {
            failures: [].into(),
            awaited: awaited.clone(),
            blamed,
        });
        self.out.record_failure(&self.job, id, &failure);
        self.end_round(now, RoundEnd { verdict, ..reason.into() });
        self.record(id, Some(failure));
        if by_membership {
            return;
        }
        for other in &awaited {
            if let Some(node) = self.job.roster.get(other) {
                self.out.send(node.peer(), ToNode::Probe { round });
            }
        }
    }

    /// Records a failure on `id` in the round that will be judged.
    pub(super) fn record(&mut self, id: &NodeId, failure: Option<WorkerFailure>) {
        let now = self.job.clock;
        let Some(regathering) = self.job.phase.regathering_mut() else { return };
        let (Some(verdict), Some(failure)) = (&mut regathering.verdict, failure) else { return };
        // The time is not before the start of the round: a node claims the age, which cannot be
        // trusted.
        let is_first = !verdict.failures.contains_key(id);
        let happened =
            now.checked_sub(failure.event_age()).max(regathering.group.started).unwrap_or(now);
        let recorded = failure.clone();
        match verdict.failures.entry(id.clone()) {
            Entry::Vacant(entry) => {
                entry.insert((happened, failure));
            }
            // The node has read its error files since, and has found an older event.
            Entry::Occupied(mut entry) if happened < entry.get().0 => {
                entry.insert((happened, failure));
            }
            // Its hardware has reported more since.
            Entry::Occupied(mut entry) => {
                let known = &mut entry.get_mut().1;
                if (known.global_rank, known.pid) == (failure.global_rank, failure.pid) {
                    (known.age, known.hardware) = (failure.age, failure.hardware);
                }
            }
        }
        if is_first {
            self.out.record_failure(&self.job, id, &recorded);
        }
    }

    /// Records a sign of life: the answer of `id` to a probe about `round`.
    pub(super) fn record_sign_of_life(&mut self, id: &NodeId, round: RoundId) {
        if self.job.phase.group().is_some_and(|group| group.round == round) {
            self.record_sign_of_life_by_report(id);
        }
    }

    /// Records a sign of life: the report of `id` about its state.
    pub(super) fn record_sign_of_life_by_report(&mut self, id: &NodeId) {
        if let Some(regathering) = self.job.phase.regathering_mut()
            && let Some(verdict) = &mut regathering.verdict
        {
            verdict.awaited.remove(id);
        }
    }

    /// Drops the verdict, because the round was ended by its membership: `id` is lost or leaves.
    ///
    /// Keeps it if this member has given a sign of life since the failure. A member that is lost
    /// now, while the members stop, did not cause it.
    pub(super) fn drop_verdict(&mut self, id: &NodeId) {
        if let Some(regathering) = self.job.phase.regathering_mut()
            && regathering.verdict.take_if(|verdict| verdict.awaited.contains(id)).is_some()
        {
            info!(round = %regathering.group.round, "failure not charged: a member was lost");
            self.out.record_free_failure(&self.job, FreeReason::MemberLost);
        }
    }

    /// Judges the round once every member has given a sign of life, and has stopped or is lost.
    /// Returns true if this closed the job.
    ///
    /// The first failure is known only then: a node reads its workers' error files when they have
    /// ended. The next round waits for the same, so this does not delay a restart.
    pub(super) fn judge(&mut self, now: Instant, shared: SharedSettings) -> bool {
        let Some(failed) = self.take_failed_round() else { return false };
        let (round, node) = (failed.round, failed.node.clone());
        match self.verdict(&failed, shared) {
            Judgment::Standby => {
                info!(%round, %node, "failure not charged: a standby did not fit the script");
                self.out.record_free_failure(&self.job, FreeReason::StandbyUnfit);
            }
            Judgment::BadMachine(reason) => self.free_bad_machine(now, &failed, reason),
            Judgment::NewNode => {
                warn!(%round, %node, "new node failed: quarantined, failure not charged");
                self.quarantine(now, &node);
            }
            Judgment::Charge { is_quarantined } => {
                if round.round > self.job.state.charged_through
                    && self.charge(now, failed, is_quarantined, shared)
                {
                    return true;
                }
                if is_quarantined {
                    warn!(%round, %node, "node failed repeatedly: quarantined");
                    self.quarantine(now, &node);
                }
            }
            Judgment::Final => {
                self.close(JobResult::FinalFailure, failed.failures);
                return true;
            }
        }
        false
    }

    /// Takes the round that is to be judged, once its failures are complete.
    fn take_failed_round(&mut self) -> Option<FailedRound> {
        let regathering = self.job.phase.regathering_mut()?;
        if !regathering.group.unstopped().is_empty() {
            return None;
        }
        let verdict = regathering.verdict.take_if(|verdict| verdict.awaited.is_empty())?;
        let mut failures: Vec<_> = verdict.failures.into_iter().collect();
        failures.sort_by_key(|(_, (happened, _))| *happened);
        let (node, (happened, failure)) = failures.first().cloned()?;
        let suspect = verdict.blamed.or_else(|| suspect(&failures).cloned());
        let failures = Failures::new(failures.into_iter().map(|(_, failure)| failure));
        let group = &regathering.group;
        let (round, is_newcomer, started) = (group.round, group.is_newcomer(&node), group.started?);
        Some(FailedRound {
            round,
            started,
            node,
            is_newcomer,
            happened,
            failure,
            suspect,
            failures,
        })
    }

    /// Decides what the first failure of a round means. The first rule that applies decides, and a failure that may be charged is counted for
    /// the node.
    fn verdict(&mut self, failed: &FailedRound, shared: SharedSettings) -> Judgment {
        let FailedRound { node: id, failure, happened, started, .. } = failed;
        if matches!(failure.end, WorkerEnd::StandbyUnfit(_)) {
            return Judgment::Standby;
        }
        if !failure.is_final
            && let Some(reason) = self.health.why_free(&self.job, id)
        {
            return Judgment::BadMachine(reason);
        }
        let is_early = happened.saturating_duration_since(*started) < EARLY;
        let is_dispensable = self.can_do_without(id, shared);
        if failed.is_newcomer && is_early && is_dispensable {
            return Judgment::NewNode;
        }
        if failure.is_final {
            return Judgment::Final;
        }
        let node = self.job.roster.get_mut(id);
        let is_third = node.is_some_and(|node| node.tally.failed(*happened, *started));
        Judgment::Charge { is_quarantined: is_third && is_dispensable }
    }

    /// Notes a failure that is not charged, because the machine is unhealthy.
    fn free_bad_machine(&mut self, now: Instant, failed: &FailedRound, reason: RestartReason) {
        let FailedRound { round, node: id, happened, started, .. } = failed;
        info!(%round, node = %id, "failure not charged: the machine is unhealthy");
        if let Some(regathering) = self.job.phase.regathering_mut() {
            (regathering.reason, regathering.last_loss) = (reason, now);
        }
        self.out.record_free_failure(&self.job, FreeReason::BadMachine);
        // A machine that is healthy again after each failure costs free rounds.
        let node = self.job.roster.get_mut(id);
        if node.is_some_and(|node| node.tally.failed(*happened, *started)) {
            self.quarantine(now, id);
        }
    }

    /// Charges the job with a failure, and suspects a node. Returns true if this closed the job.
    fn charge(
        &mut self,
        now: Instant,
        failed: FailedRound,
        is_quarantined: bool,
        shared: SharedSettings,
    ) -> bool {
        let FailedRound { round, node: id, failure, suspect, failures, .. } = failed;
        if self.charges_left(shared) == 0 {
            self.close(JobResult::BudgetSpent, failures);
            return true;
        }
        let has_read = self.charge_training(now, round, &failure);
        // Without the node, or without a checkpoint that was not read, another start may help.
        if !is_quarantined
            && let Some(result) = self.without_progress(shared)
            && (has_read || !self.memory.void_unread(&self.job, round, &mut self.out))
        {
            self.close(result, failures);
            return true;
        }
        // An unhealthy or excluded node gets a place last anyway.
        let suspect = suspect.filter(|_| !shared.as_torchrun && !shared.fixed_ranks);
        let suspect = suspect.and_then(|id| self.job.roster.get_mut(&id));
        if let Some(node) = suspect.filter(|node| !node.is_unfit()) {
            node.tally.suspect(now);
        }
        self.job.state.restarts_used = self.job.state.restarts_used.saturating_add(1);
        self.job.state.charged_through = round.round;
        let (others, restarts) = (failures.others, self.job.state.restarts_used);
        let (host, rank) = (&failure.host_name, failure.global_rank);
        info!(%round, node = %id, %host, %rank, others, restarts, "failure charged");
        let kind = EventKind::FailureCharged {
            restarts_used: shared.max_restarts.saturating_sub(self.charges_left(shared)),
            max_restarts: shared.max_restarts,
            others,
        };
        let cause = self.out.failures.get(&id).copied();
        self.out.event_of(&self.job, cause, &id, kind);
        self.out.remember();
        false
    }

    /// Returns the number of failures that may still be charged.
    fn charges_left(&self, shared: SharedSettings) -> u32 {
        let forgiven = self.progress.training().restarts_forgiven;
        let counted = self.job.state.restarts_used.saturating_sub(forgiven);
        shared.max_restarts.saturating_sub(counted)
    }

    /// Forgives the charged failures once a round has run for [`QUIET_TIME`], if the job has since saved a later step.
    pub(super) fn forgive_charges(&mut self, now: Instant) {
        let started = self.job.phase.group().and_then(|group| group.started);
        let is_long = started.is_some_and(|started| after(started, QUIET_TIME) <= now);
        let as_torchrun = self.job.settings.shared.is_none_or(|shared| shared.as_torchrun);
        if is_long && !as_torchrun {
            self.progress.forgive(self.job.state.restarts_used, self.newest_saved());
        }
    }

    /// Returns the newest step that all ranks have saved, or that is whole in memory.
    fn newest_saved(&self) -> Option<u64> {
        self.memory.newest_whole_step().max(self.progress.training().saved_step)
    }

    /// Remembers where the charged round has failed. Returns false if it began with a checkpoint in memory that the failed worker had not
    /// received. That says nothing about the checkpoint.
    fn charge_training(&mut self, now: Instant, round: RoundId, failure: &WorkerFailure) -> bool {
        let step = self.progress.reached_step(round);
        let has_read = step.is_some() || !failure.before_load;
        let charged = ChargedRound {
            round: round.round,
            step,
            rank: failure.global_rank,
            end: failure.end.without_text(),
            at: self.progress.account.seen(now).age(),
            began_from_memory: has_read && self.memory.began_from_memory(round),
        };
        self.progress.charge(charged, self.newest_saved());
        if has_read {
            self.memory.strike(&self.job, round, &mut self.out);
        }
        has_read
    }

    /// Returns the result of a job that has failed again and again before a new step; `None` if another start may
    /// help.
    fn without_progress(&self, shared: SharedSettings) -> Option<JobResult> {
        let training = self.progress.training();
        let charged = training.without_progress(shared.no_progress_limit, shared.hang_auto)?;
        let rounds = charged.iter().map(|charged| charged.round).collect();
        let step = charged.iter().filter_map(|charged| charged.step).max();
        Some(JobResult::NoProgress { rounds, step })
    }

    /// Counts the loss of a node, if it is still a member.
    pub(super) fn count_loss(&mut self, now: Instant, id: &NodeId) {
        let Some(group) = self.job.phase.group() else { return };
        let Some(started) = group.started else { return };
        let is_lost = group.held(id).is_some_and(|member| member.state.stays());
        let Some(node) = self.job.roster.get_mut(id).filter(|_| is_lost) else { return };
        if node.tally.lost(now, started) {
            warn!(node = %id, "node was lost repeatedly: quarantined");
            node.tally.quarantine(now);
            self.out.event_of(&self.job, None, id, EventKind::NodeQuarantined);
        }
    }

    /// Counts members whose leases ended on their own side. Like losses, these are free.
    pub(super) fn count_expired(&mut self, now: Instant) {
        let Some(regathering) = self.job.phase.regathering_mut() else { return };
        let Some(started) = regathering.group.started else { return };
        for (id, at) in regathering.group.take_expired() {
            let is_third =
                self.job.roster.get_mut(&id).is_some_and(|node| node.tally.lost(at, started));
            if is_third {
                warn!(node = %id, "node was disconnected repeatedly: quarantined");
                self.quarantine(now, &id);
            } else {
                self.index_readiness(&id);
            }
        }
    }

    /// Returns true if the job has its fewest nodes without `id`.
    fn can_do_without(&self, id: &NodeId, shared: SharedSettings) -> bool {
        self.job.phase.group().is_some() && self.job.fit_without(id) >= shared.nodes.min() as usize
    }

    /// Quarantines a node. This counts like the loss of a member.
    fn quarantine(&mut self, now: Instant, id: &NodeId) {
        if let Some(node) = self.job.roster.get_mut(id) {
            node.tally.quarantine(now);
        }
        if let Some(regathering) = self.job.phase.regathering_mut() {
            regathering.last_loss = now;
        }
        let cause = self.out.failures.get(id).copied();
        self.out.event_of(&self.job, cause, id, EventKind::NodeQuarantined);
        self.index_readiness(id);
        self.sync(id);
    }

    /// Takes back all quarantined nodes that may be recalled, because the job cannot continue
    /// without them. Those whose machines are unhealthy may still get no place.
    pub(super) fn recall(&mut self, shared: SharedSettings) {
        for id in &self.job.roster.quarantined().recallable().clone() {
            info!(node = %id, "quarantine ended early: the job needs the node");
            if let Some(node) = self.job.roster.get_mut(id) {
                node.tally.recall();
            }
            self.out.event_of(&self.job, None, id, EventKind::NodeReleased { early: true });
            self.index_readiness(id);
        }
        self.set_aside(shared);
    }

    /// Takes back nodes whose quarantine has lasted for a quiet time.
    pub(super) fn forgive(&mut self, now: Instant) {
        while let Some((_, id)) =
            self.job.roster.quarantined().first().filter(|(at, _)| *at <= now).cloned()
        {
            if let Some(node) = self.job.roster.get_mut(&id) {
                node.tally.forgive();
            }
            self.out.event_of(&self.job, None, &id, EventKind::NodeReleased { early: false });
            self.index_readiness(&id);
            self.sync(&id);
        }
    }
}

/// Returns the node that has probably caused a failure: the first to fail. Of those that failed within [`SAME_TIME`] after it, one with
/// a report of its hardware comes first, and then one whose worker was killed by a signal that no library sends.
///
/// `None` if several nodes have aborted: a time-out of NCCL aborts all ranks but the one that is missing. `None` also after a hang, because
/// ragent has chosen the worker that was killed.
pub(super) fn suspect(failures: &[(NodeId, (Instant, WorkerFailure))]) -> Option<&NodeId> {
    let (_, (first, _)) = failures.first()?;
    let near = || {
        failures.iter().take_while(|(_, (at, _))| at.saturating_duration_since(*first) <= SAME_TIME)
    };
    let is_signaled = |failure: &WorkerFailure, signals: &[i32]| matches!(failure.end, WorkerEnd::Signaled(signal) if signals.contains(&signal));
    let with_fact = near().find(|(_, (_, failure))| !failure.hardware.is_empty());
    let killed = || near().find(|(_, (_, failure))| is_signaled(failure, &KILLING));
    let (id, _) = match with_fact.or_else(killed) {
        Some(found) => found,
        None if near().filter(|(_, (_, failure))| is_signaled(failure, &[SIGABRT])).count() > 1 => {
            return None;
        }
        None if matches!(failures.first()?.1.1.end, WorkerEnd::Hung(_)) => return None,
        None => failures.first()?,
    };
    Some(id)
}

/// SIGABRT, which `abort()` sends. Signals have these numbers on all of Linux's common architectures.
const SIGABRT: i32 = 6;

/// SIGILL, SIGBUS, SIGFPE, SIGKILL and SIGSEGV.
const KILLING: [i32; 5] = [4, 7, 8, 9, 11];
