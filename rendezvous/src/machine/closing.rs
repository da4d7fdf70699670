//! Ends a job, or only this coordinator.

use std::time::Instant;

use tracing::info;

use crate::{
    effect::Effect,
    event::{EventKind, RestartCause},
    grant::Grant,
    group::{Group, MemberState},
    ids::{Round, Term},
    job::Availability,
    limits::{FURTHER_FAILURES_MAX, FURTHER_TEXT_MAX, SAME_TIME, TAKEOVER_COURTESY, after},
    machine::Rendezvous,
    memory::JobMemory,
    message::{JobResult, Outcome, WorkerEnd, WorkerFailure},
    notices::JobNotices,
    phase::{Closed, Phase},
    progress::TrainingProgress,
    snapshot::PhaseName,
    stall::cut,
};

impl Rendezvous {
    /// Closes the job. Every node receives the outcome.
    pub(super) fn close(&mut self, result: JobResult, failures: Failures) {
        info!(round = %self.job.state.round, nodes = self.job.roster.len(), result = result.name(), "job closed");
        let outcome = Outcome {
            result,
            first_failure: failures.first,
            other_failures: failures.others,
            further_failures: failures.further,
            restarts_used: self.job.state.restarts_used,
            complete_step: self.progress.training().complete_step,
        };
        self.end_features();
        let group = self.job.phase.take_group();
        // Stored before any node receives it: some may exit at once, and the others must receive it
        // from a successor.
        self.job.state.closed = Some(outcome.clone());
        self.out.remember();
        let stays_until = self.informs_until(group.as_ref());
        self.enter_closed(outcome, group, stays_until);
        self.finish_once_acknowledged(self.job.clock);
    }

    /// Returns the time until which an elected coordinator waits at the end of the job for members
    /// that are not registered. They may be about to register after the loss of an earlier leader,
    /// and a successor of this coordinator would not know whether they have the outcome.
    fn informs_until(&self, group: Option<&Group>) -> Instant {
        let are_registered = group.is_some_and(|group| {
            let registered = group.members().filter(|(id, _)| self.job.roster.get(id).is_some());
            registered.count() == group.size as usize
        });
        if self.job.grant.is_none() || are_registered {
            return self.job.clock;
        }
        after(after(self.job.clock, self.leases().coordinator), TAKEOVER_COURTESY)
    }

    /// Closes the job again for a while if an earlier leader of these voters had closed it, so that
    /// the remaining nodes receive the outcome. Returns true if it was closed.
    ///
    /// This is done only while no node is registered. A registered node that does not belong to the
    /// closed run begins a new one.
    pub(super) fn stay_closed(&mut self, now: Instant) -> bool {
        let Some(Grant { former: Some(_), .. }) = &self.job.grant else { return false };
        let Some(outcome) = self.job.state.closed.clone() else { return false };
        info!(result = outcome.result.name(), "the job was already closed; waiting for its nodes");
        let stays_until = after(after(now, self.leases().coordinator), TAKEOVER_COURTESY);
        self.enter_closed(outcome, None, stays_until);
        true
    }

    /// Closes a job again that an earlier coordinator had closed, because an agent of its run has
    /// registered.
    pub(super) fn close_again(&mut self) {
        let (Phase::Recovering(recovering), Some(outcome)) =
            (&self.job.phase, &self.job.state.closed)
        else {
            return;
        };
        info!(result = outcome.result.name(), "the job was already closed");
        let stays_until = recovering.goes_on_at(
            self.leases(),
            self.job.grant.as_ref(),
            self.welcomed.last_until(),
        );
        self.enter_closed(outcome.clone(), None, stays_until);
    }

    /// Ends this coordinator of a job that had ended before. The next job of its name begins like
    /// any other, because hosts that know of none could already have begun one.
    pub(super) fn forget(&mut self) {
        info!("no node of the closed job is left; it is forgotten");
        self.job.availability = Availability::Ended;
        self.out.coordinator_ended(&self.job, false);
        self.out.queue.push_back(Effect::Forget);
    }

    /// Begins a new run if no node of the earlier coordinator's run is left. It has a new budget if
    /// that run was closed, or was not restarted by a service manager.
    ///
    /// A member of the earlier run that registers later restores the charges.
    pub(super) fn reopen(&mut self) {
        let was_closed = self.job.state.closed.take().is_some();
        if was_closed {
            info!("no node of the closed job is left; starting a new run");
        }
        if !was_closed && self.job.settings.keeps_charges {
            return;
        }
        self.job.state.restarts_used = 0;
        self.job.state.charged_through = Round(0);
        self.job.state.free_rounds = 0;
        self.job.state.early_free_rounds = 0;
        self.memory = JobMemory::default();
        self.notices = JobNotices::new(&self.job.state);
        self.job.roster.forget_tallies();
        let now = self.job.clock;
        self.progress = TrainingProgress::new(now, &mut self.job.state);
        let began = self.out.event(&self.job, None, None, EventKind::RunBegan { restarts_used: 0 });
        self.out.began = Some(began);
        self.progress.begin_restart(now, RestartCause::FirstStart, Some(began));
        self.out.remember();
    }

    /// Takes a step of a coordinator that knows no settings of the job, because no node has
    /// registered yet. An elected one closes the job again if it was closed before.
    pub(super) fn step_without_nodes(&mut self, now: Instant) -> bool {
        match &self.job.phase {
            Phase::Recovering(recovering) => {
                let welcomed = self.welcomed.last_until();
                let is_due =
                    recovering.goes_on_at(self.leases(), self.job.grant.as_ref(), welcomed) <= now;
                is_due && self.stay_closed(now)
            }
            Phase::Closed(_) => {
                self.finish_once_acknowledged(now);
                false
            }
            Phase::Gathering(_) | Phase::Running(_) | Phase::Regathering(_) => false,
        }
    }

    pub(super) fn deadline_without_nodes(&self) -> Option<Instant> {
        match &self.job.phase {
            Phase::Recovering(recovering) if self.job.state.closed.is_some() => {
                let welcomed = self.welcomed.last_until();
                let is_elected = self.job.grant.is_some();
                let due = recovering.goes_on_at(self.leases(), self.job.grant.as_ref(), welcomed);
                // After that, nothing happens before a node registers.
                Some(due).filter(|due| is_elected && *due > self.job.advanced)
            }
            Phase::Closed(closed) => Some(self.closed_deadline(closed)),
            Phase::Recovering(_)
            | Phase::Gathering(_)
            | Phase::Running(_)
            | Phase::Regathering(_) => None,
        }
    }

    fn enter_closed(&mut self, outcome: Outcome, group: Option<Group>, stays_until: Instant) {
        let timeouts = self.job.settings.shared.map(|shared| shared.timeouts).unwrap_or_default();
        let goes_at = after(self.job.clock, timeouts.rejoin()).max(stays_until);
        // A member that was unreachable after all its workers had succeeded may come back for the
        // result. Without an answer, it waits for the join timeout, and fails.
        let awaits_success = group.as_ref().is_some_and(Group::has_lost_success);
        let stays_until = if awaits_success { goes_at } else { stays_until };
        self.enter(Phase::Closed(Closed { outcome, group, stays_until, goes_at }));
        let now = self.job.clock;
        self.progress.account.close(now);
        if let Some(outcome) = &self.job.state.closed {
            let kind = EventKind::JobClosed { result: outcome.result.clone() };
            self.out.event(&self.job, self.out.trigger.or(self.out.began), None, kind);
            self.job.shown = (PhaseName::Closed, now);
        }
    }

    pub(super) fn closed_deadline(&self, closed: &Closed) -> Instant {
        if self.job.roster.is_empty() { closed.stays_until } else { closed.goes_at }
    }

    /// Ends the coordinator of a closed job when no node is left to receive the outcome, or when
    /// the remaining nodes have had time to stop their workers and disconnect.
    pub(super) fn finish_once_acknowledged(&mut self, now: Instant) {
        if let Phase::Closed(closed) = &self.job.phase
            && self.closed_deadline(closed) <= now
        {
            self.finish();
        }
    }

    /// Ends this coordinator.
    pub(super) fn finish(&mut self) {
        if self.job.availability != Availability::Ended {
            info!("coordinator has finished");
            self.job.availability = Availability::Ended;
            let is_over = matches!(self.job.phase, Phase::Closed(_));
            self.out.coordinator_ended(&self.job, false);
            self.out.queue.push_back(Effect::Finish { is_over });
        }
    }

    /// Handles another coordinator of the same job: steps down if no round was formed here, and
    /// returns the term that has ended in this way.
    ///
    /// Without a round, the nodes here are not bound to this coordinator, and may be sent to the
    /// other one.
    pub fn handle_rival(&mut self, now: Instant) -> Option<Term> {
        let is_bound =
            self.job.state.round != Round(0) || !matches!(self.job.phase, Phase::Gathering(_));
        if !self.begin(now) || is_bound || self.job.availability != Availability::Available {
            return None;
        }
        info!("coordinator ends in favor of another one");
        self.job.availability = Availability::Ended;
        self.out.coordinator_ended(&self.job, true);
        self.out.queue.push_back(Effect::Finish { is_over: true });
        Some(self.job.state.term)
    }

    /// Returns true if every member and every waiting node is leaving.
    ///
    /// Returns false if a member was lost: its agent may be started again, and the job continues.
    pub(super) fn have_all_left(&self) -> bool {
        let Some(group) = self.job.phase.group() else { return false };
        (self.job.roster.is_empty() || self.job.roster.all_leaving())
            && !group.leavers().is_empty()
            && !group.members().any(|(_, member)| matches!(member.state, MemberState::Lost(_)))
    }
}

/// The failures of a round that an [`Outcome`] reports.
#[derive(Debug, Default)]
pub(super) struct Failures {
    /// The first failure that counted.
    pub(super) first: Option<WorkerFailure>,
    /// The number of other failures.
    pub(super) others: u32,
    /// The other failures within [`SAME_TIME`] of the first.
    pub(super) further: Vec<WorkerFailure>,
}

impl Failures {
    /// Collects the failures of a round with their times, oldest first.
    pub(super) fn new(failures: impl IntoIterator<Item = (Instant, WorkerFailure)>) -> Self {
        let mut failures = failures.into_iter();
        let Some((begin, first)) = failures.next() else { return Self::default() };
        let mut further = Vec::new();
        let mut others: u32 = 0;
        for (happened, failure) in failures {
            others = others.saturating_add(1);
            if happened <= after(begin, SAME_TIME) && further.len() < FURTHER_FAILURES_MAX {
                further.push(shortened(failure));
            }
        }
        Self { first: Some(first), others, further }
    }
}

/// Shortens a failure for a list.
fn shortened(failure: WorkerFailure) -> WorkerFailure {
    let cut = |text| cut(text, FURTHER_TEXT_MAX);
    let end = match failure.end {
        WorkerEnd::NotStarted(reason) => WorkerEnd::NotStarted(cut(reason)),
        WorkerEnd::StandbyUnfit(reason) => WorkerEnd::StandbyUnfit(cut(reason.into()).into()),
        end @ (WorkerEnd::Exited(_)
        | WorkerEnd::Signaled(_)
        | WorkerEnd::KeeperLost
        | WorkerEnd::Hung(_)) => end,
    };
    let message = failure.message.map(cut);
    // The beginning of a path would be another path.
    let error_file = failure.error_file.filter(|path| path.len() <= FURTHER_TEXT_MAX);
    WorkerFailure { end, message, error_file, stderr_tail: String::new(), ..failure }
}
