//! Reports to the coordinator what is not the state of the node: the workers' training and progress text, the
//! standbys, and the clients that the round's store has refused.

use std::{net::IpAddr, time::Instant};

use ragent_rendezvous::{
    ids::{GroupRank, Round},
    message::{
        Checkpoint, FromNode, REFUSED_CLIENTS_MAX, RefusedClients, StandbyCounts, StoreUnreached,
    },
    snapshot::Explanation,
};

use super::{Action, Agent, AgentState, Effect, News};
use crate::{limits, saves::NodeSaves, steps::NodeSteps, wait_reports::NodeWait};

/// The progress text of the workers.
#[derive(Debug, Default)]
pub(super) struct ProgressText {
    pub(super) text: String,
    /// True if the coordinator has not received the text yet.
    pub(super) is_due: bool,
    pub(super) quiet_until: Option<Instant>,
}

/// The standbys of this node.
#[derive(Debug, Default)]
pub(super) struct StandbyReports {
    counts: Option<StandbyCounts>,
    /// True if the coordinator has not received the counts yet.
    pub(super) is_due: bool,
    pub(super) quiet_until: Option<Instant>,
}

/// What the workers of this round have reported about their training.
#[derive(Debug, Default)]
pub(super) struct TrainingReports {
    steps: Option<NodeSteps>,
    /// The newest checkpoint.
    checkpoint: Option<Checkpoint>,
    /// The reason why the last checkpoint could not be written.
    save_failed: Option<String>,
}

impl Agent {
    /// Notes that the store which this node serves to `round` has refused a client.
    pub fn handle_client_refused(&mut self, round: Round, address: IpAddr) {
        if round == self.round.round && self.add_refused_client(address) {
            self.send_refused_clients();
        }
    }

    /// Notes the clients that the store of a round has refused, as the coordinator reports them.
    pub(crate) fn handle_refused_clients(&mut self, refused: RefusedClients) {
        if refused.round == self.round {
            refused.addresses.into_iter().for_each(|address| {
                self.add_refused_client(address);
            });
        }
    }

    /// Notes that this node does not reach a round's store. Returns false if that round has ended.
    pub fn handle_store_unreached(&mut self, unreached: StoreUnreached) -> bool {
        let counts = unreached.round == self.round && self.state == AgentState::Running;
        if counts {
            self.unreached_store = Some(unreached);
            self.send_unreached_store();
        }
        counts
    }

    pub(super) fn send_unreached_store(&mut self) {
        if let Some(unreached) = self.unreached_store.clone() {
            self.effects.push_back(Effect::Send(FromNode::StoreUnreached(unreached)));
        }
    }

    /// Notes the workers' progress text. Only the newest text is sent, at intervals.
    pub fn handle_progress(&mut self, now: Instant, text: String) {
        if self.state == AgentState::Running && self.progress.text != text {
            self.progress.text = text;
            if self.progress.quiet_until.is_none_or(|until| until <= now) {
                self.send_progress(now);
            } else {
                self.progress.is_due = true;
            }
        }
    }

    /// Notes the training steps of the workers, which the next keep-alives carry.
    pub fn handle_steps(&mut self, steps: NodeSteps) {
        self.training.steps = Some(steps);
    }

    /// Notes a checkpoint of the workers: the newest one, and the answer to the newest notice.
    pub fn handle_saves(&mut self, now: Instant, saves: NodeSaves) {
        self.training.checkpoint = saves.newest.or(self.training.checkpoint);
        self.training.save_failed.clone_from(&saves.failed);
        self.answer_notice(now, saves);
    }

    /// Returns a keep-alive with what the workers have reported about their training.
    pub(crate) fn keep_alive(&self, now: Instant, sequence: u64, asks_reason: bool) -> FromNode {
        let TrainingReports { steps, checkpoint, save_failed } = &self.training;
        let progress = steps.map(|steps| steps.progress(now));
        let (checkpoint, save_failed) = (*checkpoint, save_failed.clone());
        FromNode::KeepAlive { sequence, asks_reason, progress, checkpoint, save_failed }
    }

    /// Sends the newest steps and checkpoint before the report that the round has failed. With the next keep-alive,
    /// they would be late: the coordinator decides by them whether another start can help.
    pub(super) fn send_last_steps(&mut self, now: Instant) {
        if self.training.steps.is_some() {
            // An echo with the number of no keep-alive changes nothing.
            let message = self.keep_alive(now, 0, false);
            self.effects.push_back(Effect::Send(message));
        }
    }

    /// Returns true if the keep-alive `sequence`, sent at `now`, should request the reason why the next round
    /// is not complete.
    pub(crate) fn asks_reason(&mut self, now: Instant, sequence: u64) -> bool {
        let wait = |has_succeeded| Some(NodeWait { round: self.round, has_succeeded });
        let wait = match self.state {
            AgentState::Preparing | AgentState::Ready { .. } => wait(false),
            AgentState::Succeeded => wait(true),
            AgentState::Running
            | AgentState::Stopping
            | AgentState::Leaving { .. }
            | AgentState::Closing(_)
            | AgentState::Finished => None,
        };
        self.wait_reports.handle_keep_alive(now, sequence, wait)
    }

    /// Notes the echo of a keep-alive, with the reason why the next round is not complete.
    pub(crate) fn handle_echo(&mut self, now: Instant, sequence: u64, reason: Option<Explanation>) {
        if let Some(report) = self.wait_reports.handle_echo(now, sequence, reason) {
            self.act(Action::ReportWait(report));
        }
    }

    /// Notes the standbys of this node. Only the newest counts are sent, at intervals.
    pub fn handle_standbys(&mut self, now: Instant, counts: StandbyCounts) {
        if self.standbys.counts.as_ref() != Some(&counts) {
            self.memory.set_standbys(counts.ready.saturating_add(counts.importing));
            self.standbys.counts = Some(counts);
            if self.standbys.quiet_until.is_none_or(|until| until <= now) {
                self.send_standbys(now);
            } else {
                self.standbys.is_due = true;
            }
        }
    }

    pub(super) fn send_standbys(&mut self, now: Instant) {
        self.standbys.is_due = false;
        if let Some(counts) = self.standbys.counts.clone() {
            self.standbys.quiet_until = Some(now + limits::PROGRESS_INTERVAL);
            self.effects.push_back(Effect::Send(FromNode::Standbys(counts)));
        }
    }

    pub(super) fn send_progress(&mut self, now: Instant) {
        self.progress.is_due = false;
        self.progress.quiet_until = Some(now + limits::PROGRESS_INTERVAL);
        let text = self.progress.text.clone();
        self.effects.push_back(Effect::Send(FromNode::Progress { text }));
    }

    /// Returns true if this node is group rank 0 of its newest round.
    pub(super) fn serves_the_store(&self) -> bool {
        self.known_round.round == self.round && self.known_round.group_rank == Some(GroupRank(0))
    }

    /// Adds a refused client. Returns true if its address is new.
    fn add_refused_client(&mut self, address: IpAddr) -> bool {
        let is_new = self.refused_clients.len() < REFUSED_CLIENTS_MAX
            && !self.refused_clients.contains(&address);
        if is_new {
            self.refused_clients.push(address);
            self.announce(News::ClientRefused(self.round, address));
        }
        is_new
    }

    pub(super) fn send_refused_clients(&mut self) {
        let addresses = self.refused_clients.clone();
        let refused = RefusedClients { round: self.round, addresses };
        self.effects.push_back(Effect::Send(FromNode::RefusedClients(refused)));
    }
}
