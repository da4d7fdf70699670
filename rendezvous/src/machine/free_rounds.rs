//! Limits the number of free rounds without a quiet time. A job that exceeds it is closed.

use std::time::Instant;

use tracing::warn;

use crate::{
    group::Group,
    ids::{NodeId, Round},
    limits::{EARLY, EARLY_FREE_ROUNDS_MAX, FREE_ROUNDS_MAX, QUIET_TIME, after},
    machine::{Rendezvous, closing::Failures},
    message::{JobResult, RestartReason},
    phase::{Phase, Running},
};

/// The end of the last round, for the limit of free rounds.
enum RoundEnding {
    /// The end was requested, or there was no round.
    Voluntary,
    /// The failure was charged, so the number of restarts is limited already.
    Charged,
    /// The end was free: a node or the coordinator was lost or unreachable.
    Free { is_early: bool },
}

impl Rendezvous {
    /// Counts the next round. Returns true if it would exceed a limit, so that the job is closed.
    pub(super) fn count_free_round(&mut self) -> bool {
        match self.ending() {
            RoundEnding::Voluntary => return false,
            RoundEnding::Charged => {
                self.job.state.free_rounds = 0;
                self.job.state.early_free_rounds = 0;
                return false;
            }
            RoundEnding::Free { is_early } => {
                let early = if is_early { self.job.state.early_free_rounds + 1 } else { 0 };
                self.job.state.early_free_rounds = early;
                self.job.state.free_rounds += 1;
            }
        }
        let rounds = if self.job.state.early_free_rounds > EARLY_FREE_ROUNDS_MAX {
            self.job.state.early_free_rounds
        } else if self.job.state.free_rounds > FREE_ROUNDS_MAX {
            self.job.state.free_rounds
        } else {
            return false;
        };
        self.close(JobResult::RestartLoop { rounds: rounds - 1 }, Failures::default());
        true
    }

    fn ending(&self) -> RoundEnding {
        match &self.job.phase {
            // No registered node was a member of the last round, and its coordinator was lost.
            Phase::Gathering(_) if self.job.state.round == Round(0) => RoundEnding::Voluntary,
            Phase::Gathering(_) => RoundEnding::Free { is_early: self.job.state.is_early },
            Phase::Regathering(regathering) => match regathering.reason {
                RestartReason::NodesWaiting { .. }
                | RestartReason::Notice { .. }
                | RestartReason::NodeLeft { .. }
                | RestartReason::HostLeft => RoundEnding::Voluntary,
                RestartReason::CoordinatorLost { .. }
                | RestartReason::CoordinatorRestarted
                | RestartReason::NodeLost { .. }
                | RestartReason::BadMachine { .. }
                | RestartReason::MemoryUnusable { .. }
                | RestartReason::WorkerFailed { .. } => {
                    let group = &regathering.group;
                    if group.round.round <= self.job.state.charged_through {
                        return RoundEnding::Charged;
                    }
                    let is_early = match group.started {
                        Some(at) => regathering.since.saturating_duration_since(at) < EARLY,
                        None => self.job.state.is_early,
                    };
                    RoundEnding::Free { is_early }
                }
            },
            Phase::Recovering(_) | Phase::Running(_) | Phase::Closed(_) => RoundEnding::Voluntary,
        }
    }

    /// Resets the count of free rounds when the running round has lasted for a quiet time.
    ///
    /// Also records when the round is no longer early, because a restarted coordinator cannot know
    /// how long it has run.
    pub(super) fn calm_down(&mut self, now: Instant) {
        let Some(Running { group, .. }) = self.job.phase.running() else { return };
        let (is_settled, is_quiet) = (has_run(group, now, EARLY), has_run(group, now, QUIET_TIME));
        let has_free_rounds = self.job.state.free_rounds > 0;
        if is_settled && self.job.state.is_early || is_quiet && has_free_rounds {
            self.job.state.is_early = false;
            self.job.state.early_free_rounds = 0;
            if is_quiet {
                self.job.state.free_rounds = 0;
            }
            self.out.remember();
        }
    }

    pub(super) fn calms_down_at(&self, running: &Running) -> Option<Instant> {
        let started = running.group.started?;
        if self.job.state.is_early {
            return Some(after(started, EARLY));
        }
        (self.job.state.free_rounds > 0).then(|| after(started, QUIET_TIME))
    }

    /// Counts the loss of the host whose coordinator ended shortly after a start. It counts against
    /// the first agent of that host that registers again.
    pub(super) fn count_loss_of_host(&mut self, now: Instant, id: &NodeId) {
        if !self.job.has_lost_host || !self.job.is_host(id) {
            return;
        }
        self.job.has_lost_host = false;
        if let Some(node) = self.job.roster.get_mut(id)
            && node.tally.lost(now, now)
        {
            warn!(node = %id, "the coordinator's node was lost repeatedly: quarantined");
            node.tally.quarantine(now);
        }
    }
}

fn has_run(group: &Group, now: Instant, time: std::time::Duration) -> bool {
    group.started.is_some_and(|started| after(started, time) <= now)
}
