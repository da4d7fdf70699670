//! Reports to the coordinator what is not the state of the node: the workers' progress text, the standbys,
//! and the clients that the round's store has refused.

use std::{net::IpAddr, time::Instant};

use ragent_rendezvous::{
    ids::{GroupRank, Round},
    message::{FromNode, REFUSED_CLIENTS_MAX, RefusedClients, StandbyCounts, StoreUnreached},
    snapshot::Explanation,
};

use super::{Action, Agent, AgentState, Effect, News};
use crate::{limits, wait_reports::NodeWait};

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

impl Agent {
    /// Notes that the store which this node serves to `round` has refused a client.
    pub fn handle_client_refused(&mut self, round: Round, address: IpAddr) {
        if round == self.round.round && self.add_refused_client(address) {
            self.send_refused_clients();
        }
    }

    /// Notes the clients that the store of a round has refused, as the coordinator reports them.
    pub fn handle_refused_clients(&mut self, refused: RefusedClients) {
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

    /// Returns true if the keep-alive `sequence`, sent at `now`, should request the reason why the next round
    /// is not complete.
    pub fn asks_reason(&mut self, now: Instant, sequence: u64) -> bool {
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
    pub fn handle_echo(&mut self, now: Instant, sequence: u64, reason: Option<Explanation>) {
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
