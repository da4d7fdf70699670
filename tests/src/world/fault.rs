//! The faults of a world, and their frequencies.

use std::time::Duration;

use ragent_rendezvous::{
    ids::{NodeId, RoundId},
    message::NodeState,
};

use super::{Event, World, node::Input};
use crate::random::Random;

/// A fault, or another event of a job.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// A worker fails, and perhaps others because of it.
    WorkerFails,
    /// An agent is killed; its keeper remains, and its obituary may arrive.
    AgentCrashes { is_reported: bool },
    /// A machine loses power.
    PowerLoss,
    /// An agent is frozen for a while.
    Freeze,
    /// A stream breaks.
    LinkBreaks,
    /// No message gets to or from a node for a while.
    BlackOut,
    /// The coordinator's process is killed between two inputs.
    CoordinatorCrashes,
    /// The coordinator's process is killed while it carries out effects.
    CoordinatorDiesHalfWay,
    /// A machine is added.
    Joins,
    /// A node is asked to leave.
    Leaves,
    /// The workers of a node succeed, and soon those of the others.
    Succeeds,
}

impl Fault {
    /// Returns a random fault.
    pub(super) fn roll(random: &mut Random) -> Self {
        match random.between(1, 100) {
            1..=20 => Self::WorkerFails,
            21..=35 => Self::AgentCrashes { is_reported: true },
            36..=42 => Self::AgentCrashes { is_reported: false },
            43..=48 => Self::PowerLoss,
            49..=57 => Self::Freeze,
            58..=66 => Self::LinkBreaks,
            67..=73 => Self::BlackOut,
            74..=80 => Self::CoordinatorCrashes,
            81..=85 => Self::CoordinatorDiesHalfWay,
            86..=93 => Self::Joins,
            94..=97 => Self::Leaves,
            _ => Self::Succeeds,
        }
    }
}

impl World {
    pub(super) fn go_wrong(&mut self, fault: Fault) {
        let nodes: Vec<NodeId> = self.agents.keys().cloned().collect();
        let Some(node) = self.random.pick(&nodes) else {
            return;
        };
        let is_host = self.host_node.as_ref() == Some(&node);
        match fault {
            Fault::WorkerFails => self.fail_worker(&node),
            Fault::AgentCrashes { .. } | Fault::PowerLoss | Fault::CoordinatorCrashes
                if is_host =>
            {
                self.kill_coordinator();
            }
            Fault::AgentCrashes { is_reported } => {
                self.kill_agent(&node, is_reported);
                self.start_again(&node, 80);
            }
            Fault::PowerLoss => {
                self.kill_agent(&node, false);
                self.processes.remove(&node);
                self.start_again(&node, 50);
            }
            Fault::Freeze => {
                let until = self.now + self.random.millis(100, 6_000);
                if let Some(agent) = self.agents.get_mut(&node) {
                    agent.frozen_until = agent.frozen_until.max(Some(until));
                }
            }
            Fault::LinkBreaks => self.break_streams(&node),
            Fault::BlackOut => {
                let duration = self.random.millis(200, 6_000);
                self.black_out(&node, duration);
            }
            Fault::CoordinatorCrashes => self.kill_coordinator(),
            Fault::CoordinatorDiesHalfWay => self.dies_after = Some(self.random.between(0, 40)),
            Fault::Joins => {
                let machine = self.new_machine();
                self.schedule(Duration::ZERO, Event::StartAgent { machine });
            }
            Fault::Leaves => self.input(&node, Input::Terminate),
            Fault::Succeeds => self.succeed(&node),
        }
    }

    fn fail_worker(&mut self, node: &NodeId) {
        let Some(round) = self.round_of(node) else {
            return;
        };
        self.fail_a_worker(node, round);
        self.echo_failure(round);
    }

    /// Makes workers of other nodes fail because a peer of theirs is gone.
    fn echo_failure(&mut self, round: RoundId) {
        for other in self.agents.keys().cloned().collect::<Vec<_>>() {
            if self.random.chance(40) {
                let delay = self.random.millis(0, 100);
                self.schedule(delay, Event::WorkerFails(other, round));
            }
        }
    }

    /// Starts an agent again on the machine of `node`, as a service manager does.
    pub(super) fn start_again(&mut self, node: &NodeId, percent: u64) {
        if let Some(round) = self.processes.get(node).map(|processes| processes.round) {
            self.echo_failure(round);
        }
        let machine = node.as_str().trim_start_matches('m').split('-').next();
        let machine = machine.and_then(|machine| machine.parse().ok());
        if let Some(machine) = machine.filter(|_| self.random.chance(percent)) {
            let delay = self.random.millis(200, 5_000);
            self.schedule(delay, Event::StartAgent { machine });
        }
    }

    fn succeed(&mut self, node: &NodeId) {
        let Some(round) = self.round_of(node) else {
            return;
        };
        self.finish_workers(node, round);
        for other in self.agents.keys().cloned().collect::<Vec<_>>() {
            let delay = self.random.millis(1, 4_000);
            self.schedule(delay, Event::Succeeds(other, round));
        }
    }

    /// Completes the success of a job that has succeeded on some nodes: all workers have done the
    /// same steps.
    pub(super) fn finish_what_has_begun_to_succeed(&mut self) {
        let mut standings = self.agents.values().map(|agent| agent.standing(self.now));
        let succeeded = standings.find(|standing| standing.state == NodeState::Succeeded);
        if let Some(round) = succeeded.map(|standing| standing.round) {
            for node in self.agents.keys().cloned().collect::<Vec<_>>() {
                self.schedule(Duration::from_secs(1), Event::Succeeds(node, round));
            }
        }
    }

    fn round_of(&self, node: &NodeId) -> Option<RoundId> {
        self.processes.get(node).map(|processes| processes.round)
    }
}
