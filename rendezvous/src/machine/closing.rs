//! How a job, or only this coordinator of it, comes to its end.

use tracing::info;

use crate::{
    effect::Effect,
    group::Fate,
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
            restarts_used: self.memory.restarts_used,
        };
        let group = self.phase.take_group();
        self.enter(Phase::Closed(Closed { outcome, group }));
        self.finish_once_acknowledged();
    }

    /// Ends the coordinator of a closed job when no node is left to hear of it.
    pub(super) fn finish_once_acknowledged(&mut self) {
        if self.roster.is_empty() {
            self.finish();
        }
    }

    /// Ends this coordinator.
    pub(super) fn finish(&mut self) {
        if self.tenure != Tenure::Gone {
            info!("coordinator has finished");
            self.tenure = Tenure::Gone;
            self.effects.push_back(Effect::Finish);
        }
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
}
