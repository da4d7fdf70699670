//! Runs the worker groups of agents: the real [`Supervisor`] of each.

use std::time::Duration;

use ragent_core::{
    saves::SaveWatch,
    supervisor::{self, GroupEnd, Supervisor},
};
use ragent_rendezvous::{
    ids::{GlobalRank, LocalRank, NodeId, RoundId},
    message::{NodeDescription, WorkerEnd, WorkerFailure},
};

use super::{World, node::AgentInput};

/// The worker group of a round.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) round: RoundId,
    pub(super) supervisor: Supervisor,
    /// The checkpoints of its workers.
    pub(super) saves: SaveWatch,
}

impl World {
    /// Begins to start the workers of an admission.
    pub(super) fn prepare_group(&mut self, id: &NodeId, round: RoundId) {
        let grace = self.shared.timeouts.stop_grace;
        let Some(agent) = self.agent(id) else { return };
        let size = agent.description.local_world_size.get();
        agent.group = Some(Group {
            round,
            supervisor: Supervisor::new(size, grace),
            saves: SaveWatch::new(size),
        });
        let takes = self.random.millis(0, 100);
        self.wake_agent(id, takes, AgentInput::Prepared(round));
    }

    pub(super) fn order_group(&mut self, id: &NodeId, order: supervisor::Input) {
        let Some(now) = self.local(id) else { return };
        if let Some(group) = self.agent(id).and_then(|agent| agent.group.as_mut()) {
            group.supervisor.handle(now, order);
        }
    }

    /// Starts the workers of a group, unless it was stopped meanwhile or the lease is over.
    pub(super) fn start_group(&mut self, id: &NodeId, round: RoundId) {
        let Some(now) = self.local(id) else { return };
        let is_leased = self.is_leased(id);
        let Some(agent) = self.agent(id) else { return };
        let group = agent.group.as_mut().filter(|group| group.round == round);
        let Some(group) = group.filter(|group| group.supervisor.is_running()) else { return };
        if is_leased {
            self.start_workers(id, round);
        } else {
            // The keeper starts nothing in this case, and reports that the lease is over.
            group.supervisor.handle(now, supervisor::Input::Kill);
        }
    }

    pub(super) fn carry_out_of_group(&mut self, id: &NodeId, effect: supervisor::Effect) {
        let Some(now) = self.local(id) else { return };
        let is_failure = matches!(effect, supervisor::Effect::Failed(..));
        let is_final = self.fixed.is_some() && is_failure && self.random.chance(2);
        let Some(agent) = self.agent(id) else { return };
        let Some(round) = agent.group.as_ref().map(|group| group.round) else { return };
        match effect {
            supervisor::Effect::Failed(local_rank, end) => {
                let failed = failure(&agent.description, round, local_rank, is_final);
                agent
                    .node
                    .tell(now, |agent| agent.handle_failed(now, WorkerFailure { end, ..failed }));
            }
            supervisor::Effect::Signal(_) => self.stop_workers(id, round),
            supervisor::Effect::CleanUp => self.clean_up_workers(id, round),
            // All processes of a worker have received the signal already.
            supervisor::Effect::SignalRest | supervisor::Effect::KillKeeper => {}
            supervisor::Effect::Finish(end) => self.end_group(id, end),
        }
    }

    fn end_group(&mut self, id: &NodeId, end: GroupEnd) {
        let Some(now) = self.local(id) else { return };
        let is_cause = self.fixed.is_some() && end == GroupEnd::Stopped && self.random.chance(5);
        let Some(agent) = self.agent(id) else { return };
        if let Some(group) = agent.group.take().filter(|_| is_cause) {
            // This worker was not the first to exit, but it had written its error file before.
            let mut cause = failure(&agent.description, group.round, LocalRank(0), false);
            cause.error_file_age = Some(Duration::from_secs(3));
            agent.node.tell(now, |agent| agent.handle_cause(now, cause));
        }
        agent.node.tell(now, |agent| agent.handle_finished(now, end));
    }

    /// Makes a worker of `round` fail on a node. Does nothing if none runs there.
    pub(super) fn fail_worker(&mut self, id: &NodeId, round: RoundId) {
        if self.runs_workers_of(id, round) {
            self.note_failed(round);
            self.close_worker_socket(id, round, LocalRank(0));
            let ended = supervisor::Input::Ended(LocalRank(0), WorkerEnd::Exited(1));
            self.wake_agent(id, Duration::ZERO, AgentInput::Group(round, ended));
        }
    }

    /// Makes all workers of `round` exit with 0 on a node. Does nothing if none runs there.
    pub(super) fn finish_workers(&mut self, id: &NodeId, round: RoundId) {
        if !self.runs_workers_of(id, round) {
            return;
        }
        let Some(size) = self.agent(id).map(|agent| agent.description.local_world_size.get())
        else {
            return;
        };
        self.end_workers(id);
        self.close_worker_sockets(id, round);
        self.note_exited(id, round);
        for local_rank in (0..size).map(LocalRank) {
            let ended = supervisor::Input::Ended(local_rank, WorkerEnd::Exited(0));
            self.wake_agent(id, Duration::ZERO, AgentInput::Group(round, ended));
        }
    }
}

/// Returns a failure that has just occurred on a node.
fn failure(
    node: &NodeDescription,
    round: RoundId,
    local_rank: LocalRank,
    is_final: bool,
) -> WorkerFailure {
    WorkerFailure {
        is_final,
        ..WorkerFailure::new(
            node.host_name.clone(),
            round,
            (GlobalRank(local_rank.0), local_rank),
            1,
            WorkerEnd::Exited(1),
        )
    }
}
