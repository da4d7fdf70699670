//! Applies the coordinator's assignments: the node waits, is admitted, restarts, is evicted, is dismissed,
//! or receives the outcome.

use std::time::Instant;

use ragent_rendezvous::{
    ids::RoundId,
    message::{
        Admission, Assignment, EvictReason, FromNode, KnownRound, Outcome, RestartReason,
        WaitReason,
    },
};

use super::{Action, Agent, Effect, Ending, News, State, owner_checks};
use crate::signal::Signal;

impl Agent {
    /// Applies the coordinator's assignment for this node.
    pub fn handle_assignment(&mut self, now: Instant, assignment: Assignment) {
        match assignment {
            Assignment::Wait { round, reason } => self.wait(now, round, reason),
            Assignment::Admit(admission) => self.admit(now, admission),
            Assignment::Restart { round, reason } => self.restart(now, round, reason),
            Assignment::Evict { round, reason } => self.evict(now, round, reason),
            Assignment::Dismiss => {
                if let State::Leaving { signal, reaped: true } = self.state {
                    self.effects.push_back(Effect::Send(FromNode::Goodbye));
                    self.finish(Ending::Left(signal));
                }
            }
            Assignment::Close(outcome) => self.close(outcome),
        }
    }

    fn wait(&mut self, now: Instant, round: RoundId, reason: WaitReason) {
        self.handle_wait_at_gate(now, reason);
        if self.waiting != Some((round, reason)) {
            self.waiting = Some((round, reason));
            self.announce(News::Waiting(round, reason));
        }
    }

    fn admit(&mut self, now: Instant, admission: Admission) {
        match self.state {
            State::Ready { .. } if admission.round > self.round => {
                self.round = admission.round;
                self.failure = None;
                self.lease_expired = false;
                self.refused_clients.clear();
                self.unreached_store = None;
                self.questions = owner_checks::questions();
                self.waiting = None;
                self.restarts_used = admission.restart_count;
                self.charged_through = admission.charged_through;
                self.known_round = KnownRound {
                    round: admission.round,
                    size: admission.group_world_size,
                    group_rank: Some(admission.group_rank),
                };
                self.state = State::Running;
                self.announce(News::Admitted(Box::new(admission.clone())));
                self.send_report(now);
                self.act(Action::Start(Box::new(admission)));
            }
            // Either a repetition, or it was sent before this node's last report was received; a
            // repeated report resolves both.
            State::Ready { .. } | State::Preparing | State::Leaving { .. } => self.send_report(now),
            State::Running
            | State::Stopping
            | State::Succeeded
            | State::Closing(_)
            | State::Finished => {}
        }
    }

    fn restart(&mut self, now: Instant, round: RoundId, reason: RestartReason) {
        // A restarted coordinator names the round under its own term.
        let concerns_this = round.round == self.round.round;
        match self.state {
            State::Running if concerns_this => {
                self.announce(News::Restarting(round, reason));
                self.state = State::Stopping;
                self.send_report(now);
                let grace = self.settings.stop_grace;
                self.act(Action::Stop { signal: Signal::TERM, grace });
            }
            State::Succeeded if concerns_this => {
                self.announce(News::Restarting(round, reason));
                self.prepare(now);
            }
            State::Preparing
            | State::Ready { .. }
            | State::Running
            | State::Stopping
            | State::Succeeded
            | State::Leaving { .. } => self.send_report(now),
            State::Closing(_) | State::Finished => {}
        }
    }

    fn evict(&mut self, now: Instant, round: RoundId, reason: EvictReason) {
        match self.state {
            State::Running => {
                self.announce(News::Evicted(round, reason));
                self.state = State::Stopping;
                self.act(Action::Kill);
                self.send_report(now);
            }
            State::Stopping => self.act(Action::Kill),
            State::Succeeded => {
                self.announce(News::Evicted(round, reason));
                self.prepare(now);
            }
            State::Leaving { reaped: false, .. } => self.act(Action::Kill),
            // No worker runs, and the coordinator has been informed.
            State::Preparing
            | State::Ready { .. }
            | State::Leaving { reaped: true, .. }
            | State::Closing(_)
            | State::Finished => {}
        }
    }

    pub(super) fn close(&mut self, outcome: Outcome) {
        match self.state {
            State::Running => {
                let grace = self.settings.stop_grace;
                self.act(Action::Stop { signal: Signal::TERM, grace });
                self.state = State::Closing(Box::new(outcome));
            }
            State::Stopping | State::Leaving { reaped: false, .. } => {
                self.state = State::Closing(Box::new(outcome));
            }
            State::Preparing
            | State::Ready { .. }
            | State::Succeeded
            | State::Leaving { reaped: true, .. } => self.finish_closed(outcome),
            State::Closing(_) | State::Finished => {}
        }
    }
}
