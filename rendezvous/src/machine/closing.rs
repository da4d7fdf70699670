//! How a job, or only this coordinator of it, comes to its end.

use std::time::Instant;

use tracing::info;

use crate::{
    effect::Effect,
    group::{Fate, Group},
    ids::{Round, Term},
    limits::{FURTHER_FAILURES_MAX, FURTHER_MESSAGE_MAX, SAME_TIME, after},
    machine::{Rendezvous, Tenure},
    message::{JobResult, Outcome, WorkerFailure},
    phase::{Closed, Phase},
};

impl Rendezvous {
    /// Closes the job and tells everyone.
    pub(super) fn close(&mut self, result: JobResult, failures: Failures) {
        info!(round = %self.memory.round, nodes = self.roster.len(), result = result.kind(), "job closed");
        let outcome = Outcome {
            result,
            first_failure: failures.first,
            other_failures: failures.others,
            further_failures: failures.further,
            restarts_used: self.memory.restarts_used,
        };
        let group = self.phase.take_group();
        // Before anyone is told: some may go at once, and others must hear it from a successor.
        self.memory.closed = Some(outcome.clone());
        self.remember();
        self.enter_closed(outcome, group, self.clock);
        self.finish_once_acknowledged(self.clock);
    }

    /// Closes a job that an earlier coordinator had closed, as an agent of its run is there still.
    pub(super) fn close_again(&mut self) {
        let (Phase::Recovering(recovering), Some(outcome)) = (&self.phase, &self.memory.closed)
        else {
            return;
        };
        info!(result = outcome.result.kind(), "the job was closed before");
        let stays_until = recovering.goes_on_at(self.leases());
        self.enter_closed(outcome.clone(), None, stays_until);
    }

    /// Begins a new run if no node of the earlier coordinator's run is left: with a fresh budget if that
    /// run was closed, or was not restarted by a service manager.
    ///
    /// A member of that run that attends later restores the charges.
    pub(super) fn reopen(&mut self) {
        let was_closed = self.memory.closed.take().is_some();
        if was_closed {
            info!("nobody is left of the job that was closed");
        }
        if !was_closed && self.settings.keeps_charges {
            return;
        }
        self.memory.restarts_used = 0;
        self.memory.charged_through = Round(0);
        self.memory.free_rounds = 0;
        self.memory.early_free_rounds = 0;
        self.roster.forget_tallies();
        self.remember();
    }

    fn enter_closed(&mut self, outcome: Outcome, group: Option<Group>, stays_until: Instant) {
        let timeouts = self.settings.shared.map(|shared| shared.timeouts).unwrap_or_default();
        let goes_at = after(self.clock, timeouts.rejoin()).max(stays_until);
        // A member that was cut off after all its workers had succeeded may come back for the result of
        // the job; without an answer it waits for the join timeout, and fails.
        let awaits_success = group.as_ref().is_some_and(Group::has_lost_success);
        let stays_until = if awaits_success { goes_at } else { stays_until };
        self.enter(Phase::Closed(Closed { outcome, group, stays_until, goes_at }));
    }

    pub(super) fn closed_deadline(&self, closed: &Closed) -> Instant {
        if self.roster.is_empty() { closed.stays_until } else { closed.goes_at }
    }

    /// Ends the coordinator of a closed job when no node is left to hear of it, or one that is
    /// there had the time to stop its workers and go, and did not.
    pub(super) fn finish_once_acknowledged(&mut self, now: Instant) {
        if let Phase::Closed(closed) = &self.phase
            && self.closed_deadline(closed) <= now
        {
            self.finish();
        }
    }

    /// Ends this coordinator.
    pub(super) fn finish(&mut self) {
        if self.tenure != Tenure::Gone {
            info!("coordinator has finished");
            self.tenure = Tenure::Gone;
            let is_over = matches!(self.phase, Phase::Closed(_));
            self.effects.push_back(Effect::Finish { is_over });
        }
    }

    /// Another coordinator of the same job is there: gives way if no round was formed here, and says
    /// which term has ended so.
    ///
    /// Then nothing binds the nodes that are here to this coordinator, and they may be sent there.
    pub fn handle_rival(&mut self, now: Instant) -> Option<Term> {
        let is_bound = self.memory.round != Round(0) || !matches!(self.phase, Phase::Gathering(_));
        if !self.begin(now) || is_bound || self.tenure != Tenure::Stays {
            return None;
        }
        info!("coordinator gives way to another one");
        self.tenure = Tenure::Gone;
        self.effects.push_back(Effect::Finish { is_over: true });
        Some(self.memory.term)
    }

    /// Whether every member and every node that waits was told to leave.
    ///
    /// Not if a member was lost: its agent may be started again, and the job goes on.
    pub(super) fn have_all_left(&self) -> bool {
        let Some(group) = self.phase.group() else {
            return false;
        };
        (self.roster.is_empty() || self.roster.all_leaving())
            && !group.leavers().is_empty()
            && !group.seats().any(|(_, seat)| matches!(seat.fate, Fate::Lost(_)))
    }
}

/// The failures of a round that an [`Outcome`] reports.
#[derive(Debug, Default)]
pub(super) struct Failures {
    /// The first that counted.
    pub(super) first: Option<WorkerFailure>,
    /// How many others there were.
    pub(super) others: u32,
    /// Those of them within [`SAME_TIME`] of the first.
    pub(super) further: Vec<WorkerFailure>,
}

impl Failures {
    /// The failures of a round and when they happened, oldest first.
    pub(super) fn new(failures: impl IntoIterator<Item = (Instant, WorkerFailure)>) -> Self {
        let mut failures = failures.into_iter();
        let Some((begin, first)) = failures.next() else {
            return Self::default();
        };
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

/// A failure shortened for a list.
fn shortened(failure: WorkerFailure) -> WorkerFailure {
    let message = failure.message.map(|mut message| {
        let end = (0..=FURTHER_MESSAGE_MAX.min(message.len()))
            .rev()
            .find(|end| message.is_char_boundary(*end));
        message.truncate(end.unwrap_or(0));
        message
    });
    WorkerFailure { message, stderr_tail: String::new(), ..failure }
}
