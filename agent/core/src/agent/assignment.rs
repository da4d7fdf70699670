//! Carries out the coordinator's assignments: the node waits, is admitted, restarts, is evicted, is
//! dismissed, or receives the outcome.

use std::time::Instant;

use ragent_rendezvous::{
    ids::RoundId,
    message::{
        Admission, Assignment, EvictReason, FromNode, KnownRound, Outcome, RestartReason,
        WaitReason,
    },
};

use super::{Action, Agent, AgentState, Effect, News, node_round::NodeRound};
use crate::signal::Signal;

impl Agent {
    /// Applies the coordinator's assignment for this node.
    pub(crate) fn handle_assignment(&mut self, now: Instant, assignment: Assignment) {
        match assignment {
            Assignment::Wait { round, reason, memory } => {
                self.change_memory(now, |keeper| keeper.handle_wait(now, round, memory));
                self.wait(now, round, reason);
            }
            Assignment::Admit(admission) => self.admit(now, admission),
            Assignment::Restart { round, reason, complete_step, memory_step } => {
                // A restarted coordinator names the round under its own term.
                let concerns_this = round.round == self.round.id.round;
                if concerns_this {
                    self.end_notice(now, complete_step, memory_step);
                }
                self.restart(now, round, reason, concerns_this)
            }
            Assignment::Evict { round, reason } => self.evict(now, round, reason),
            Assignment::Dismiss => {
                if let AgentState::Leaving { signal, reaped: true } = self.state {
                    self.effects.push_back(Effect::Send(FromNode::Goodbye));
                    self.finish_left(signal);
                }
            }
            Assignment::Close(outcome) => {
                self.end_notice(now, outcome.complete_step, None);
                self.close(outcome);
            }
        }
    }

    fn wait(&mut self, now: Instant, round: RoundId, reason: WaitReason) {
        if round.round > self.round.id.round {
            // The job goes on without this node.
            self.notices.complete_step = None;
        }
        self.handle_wait_at_gate(now, reason);
        if self.round.waiting != Some((round, reason)) {
            self.round.waiting = Some((round, reason));
            self.announce(News::Waiting(round, reason));
        }
    }

    fn admit(&mut self, now: Instant, admission: Admission) {
        match self.state {
            AgentState::Ready { .. } if admission.round > self.round.id => {
                self.round = NodeRound::new(&admission, self.settings.memory.is_secured);
                self.remove_notice();
                self.notices.begin_round(admission.first_global_rank);
                self.known_round = KnownRound {
                    round: admission.round,
                    size: admission.group_world_size,
                    group_rank: Some(admission.group_rank),
                };
                self.state = AgentState::Running;
                self.announce(News::Admitted(Box::new(admission.clone())));
                // This forgets what was unusable in the last round, so the report comes after it.
                self.change_memory(now, |memory| memory.handle_admission(now, &admission));
                self.send_report(now);
                self.act(Action::Start(Box::new(admission)));
            }
            // This is a repetition, or was sent before this node's last report was received. A repeated
            // report resolves both.
            AgentState::Ready { .. } | AgentState::Preparing | AgentState::Leaving { .. } => {
                self.send_report(now)
            }
            AgentState::Running
            | AgentState::Stopping
            | AgentState::Succeeded
            | AgentState::Closing(_)
            | AgentState::Finished => {}
        }
    }

    fn restart(
        &mut self,
        now: Instant,
        round: RoundId,
        reason: RestartReason,
        concerns_this: bool,
    ) {
        match self.state {
            AgentState::Running if concerns_this => {
                self.announce(News::Restarting(round, reason));
                self.state = if self.notices.is_leaving() {
                    AgentState::Leaving { signal: Signal::TERM, reaped: false }
                } else {
                    AgentState::Stopping
                };
                self.send_report(now);
                let grace = self.settings.shared.timeouts.stop_grace;
                self.act(Action::Stop { signal: Signal::TERM, grace });
            }
            AgentState::Succeeded if concerns_this => {
                self.announce(News::Restarting(round, reason));
                self.prepare(now);
            }
            AgentState::Preparing
            | AgentState::Ready { .. }
            | AgentState::Running
            | AgentState::Stopping
            | AgentState::Succeeded
            | AgentState::Leaving { .. } => self.send_report(now),
            AgentState::Closing(_) | AgentState::Finished => {}
        }
    }

    fn evict(&mut self, now: Instant, round: RoundId, reason: EvictReason) {
        match self.state {
            AgentState::Running => {
                self.announce(News::Evicted(round, reason));
                self.state = AgentState::Stopping;
                self.act(Action::Kill);
                self.send_report(now);
            }
            AgentState::Stopping => self.act(Action::Kill),
            AgentState::Succeeded => {
                self.announce(News::Evicted(round, reason));
                self.prepare(now);
            }
            AgentState::Leaving { reaped: false, .. } => self.act(Action::Kill),
            // This node may have been in that round without its knowledge.
            AgentState::Ready { .. } if round > self.round.id => {
                self.replace_offered_store();
                self.send_report(now);
            }
            // No worker runs, and the coordinator has been informed.
            AgentState::Preparing
            | AgentState::Ready { .. }
            | AgentState::Leaving { reaped: true, .. }
            | AgentState::Closing(_)
            | AgentState::Finished => {}
        }
    }

    pub(super) fn close(&mut self, outcome: Outcome) {
        match self.state {
            AgentState::Running => {
                let grace = self.settings.shared.timeouts.stop_grace;
                self.act(Action::Stop { signal: Signal::TERM, grace });
                self.state = AgentState::Closing(Box::new(outcome));
            }
            AgentState::Stopping | AgentState::Leaving { reaped: false, .. } => {
                self.state = AgentState::Closing(Box::new(outcome));
            }
            AgentState::Preparing
            | AgentState::Ready { .. }
            | AgentState::Succeeded
            | AgentState::Leaving { reaped: true, .. } => self.finish_closed(outcome),
            AgentState::Closing(_) | AgentState::Finished => {}
        }
    }
}
