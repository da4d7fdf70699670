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

/// A report that is sent at most once in an interval, with its newest content.
#[derive(Debug, Default)]
pub(super) struct Paced<T> {
    pub(super) newest: T,
    /// True if the coordinator has not received the newest content yet.
    is_due: bool,
    quiet_until: Option<Instant>,
}

impl<T: Clone + PartialEq> Paced<T> {
    /// Replaces the content. Returns true if the caller must send it now: it has changed, and the interval is over.
    fn replace(&mut self, now: Instant, newest: T) -> bool {
        let has_changed = self.newest != newest;
        self.newest = newest;
        self.is_due |= has_changed;
        has_changed && self.quiet_until.is_none_or(|until| until <= now)
    }

    /// Returns the content, which is sent now.
    fn take(&mut self, now: Instant) -> T {
        self.is_due = false;
        self.quiet_until = Some(now + limits::PROGRESS_INTERVAL);
        self.newest.clone()
    }

    /// Returns the time at which the newest content is due.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.quiet_until.filter(|_| self.is_due)
    }
}

/// The reports of the workers about their training.
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
        if round == self.round.id.round && self.add_refused_client(address) {
            self.send_refused_clients();
        }
    }

    /// Notes the clients that the store of a round has refused, as the coordinator reports them.
    pub(crate) fn handle_refused_clients(&mut self, refused: RefusedClients) {
        if refused.round == self.round.id {
            refused.addresses.into_iter().for_each(|address| {
                self.add_refused_client(address);
            });
        }
    }

    /// Notes that this node does not reach a round's store. Returns false if that round has ended.
    pub fn handle_store_unreached(&mut self, unreached: StoreUnreached) -> bool {
        let counts = unreached.round == self.round.id && self.state == AgentState::Running;
        if counts {
            self.round.unreached_store = Some(unreached);
            self.send_unreached_store();
        }
        counts
    }

    pub(super) fn send_unreached_store(&mut self) {
        if let Some(unreached) = self.round.unreached_store.clone() {
            self.effects.push_back(Effect::Send(FromNode::StoreUnreached(unreached)));
        }
    }

    /// Notes the workers' progress text. Only the newest text is sent, at intervals.
    pub fn handle_progress(&mut self, now: Instant, text: String) {
        if self.state == AgentState::Running && self.progress.replace(now, text) {
            self.send_progress(now);
        }
    }

    /// Notes the training steps of the workers, which the next keep-alives carry.
    pub fn handle_steps(&mut self, steps: NodeSteps) {
        self.round.training.steps = Some(steps);
    }

    /// Notes a checkpoint of the workers: the newest one, and the answer to the newest notice.
    pub fn handle_saves(&mut self, now: Instant, saves: NodeSaves) {
        self.round.training.checkpoint = saves.newest.or(self.round.training.checkpoint);
        self.round.training.save_failed.clone_from(&saves.failed);
        self.answer_notice(now, saves);
    }

    /// Returns a keep-alive with what the workers have reported about their training.
    pub(crate) fn keep_alive(&self, now: Instant, sequence: u64, asks_reason: bool) -> FromNode {
        let TrainingReports { steps, checkpoint, save_failed } = &self.round.training;
        let progress = steps.map(|steps| steps.progress(now));
        let (checkpoint, save_failed) = (*checkpoint, save_failed.clone());
        FromNode::KeepAlive { sequence, asks_reason, progress, checkpoint, save_failed }
    }

    /// Sends the newest steps and checkpoint before the report that the round has failed. With the next keep-alive,
    /// they would be late: the coordinator decides by them whether another start can help.
    pub(super) fn send_last_steps(&mut self, now: Instant) {
        if self.round.training.steps.is_some() {
            // An echo with the number of no keep-alive changes nothing.
            let message = self.keep_alive(now, 0, false);
            self.effects.push_back(Effect::Send(message));
        }
    }

    /// Returns true if the keep-alive `sequence`, sent at `now`, should request the reason why the next round
    /// is not complete.
    pub(crate) fn asks_reason(&mut self, now: Instant, sequence: u64) -> bool {
        let wait = |has_succeeded| Some(NodeWait { round: self.round.id, has_succeeded });
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
        self.memory.set_standbys(counts.ready.saturating_add(counts.importing));
        if self.standbys.replace(now, Some(counts)) {
            self.send_standbys(now);
        }
    }

    pub(super) fn send_standbys(&mut self, now: Instant) {
        if self.standbys.newest.is_some()
            && let Some(counts) = self.standbys.take(now)
        {
            self.effects.push_back(Effect::Send(FromNode::Standbys(counts)));
        }
    }

    pub(super) fn send_progress(&mut self, now: Instant) {
        let text = self.progress.take(now);
        self.effects.push_back(Effect::Send(FromNode::Progress { text }));
    }

    /// Returns true if this node is group rank 0 of its newest round.
    pub(super) fn serves_the_store(&self) -> bool {
        self.known_round.round == self.round.id && self.known_round.group_rank == Some(GroupRank(0))
    }

    /// Adds a refused client. Returns true if its address is new.
    fn add_refused_client(&mut self, address: IpAddr) -> bool {
        let is_new = self.round.refused_clients.len() < REFUSED_CLIENTS_MAX
            && !self.round.refused_clients.contains(&address);
        if is_new {
            self.round.refused_clients.push(address);
            self.announce(News::ClientRefused(self.round.id, address));
        }
        is_new
    }

    pub(super) fn send_refused_clients(&mut self) {
        let addresses = self.round.refused_clients.clone();
        let refused = RefusedClients { round: self.round.id, addresses };
        self.effects.push_back(Effect::Send(FromNode::RefusedClients(refused)));
    }
}
