//! The keeper's promise: when the agent is gone or its lease is over, everything is dead in time.

use std::time::Duration;

use ragent_rendezvous::ids::{NodeId, RoundId};

use super::{Event, LEASES, World};
use crate::sabotage::Sabotage;

/// The processes of a round on one node, while any of them lives.
#[derive(Debug)]
pub(super) struct Processes {
    /// The round.
    pub(super) round: RoundId,
    is_killed: bool,
}

/// How long killing takes at most.
const KILLING_MS: u64 = 500;

impl World {
    /// Starts the workers of `round`.
    pub(super) fn start_workers(&mut self, node: &NodeId, round: RoundId) {
        self.ran.insert(node.clone(), round.round);
        self.processes.insert(node.clone(), Processes { round, is_killed: false });
        self.schedule(Duration::ZERO, Event::Lease(node.clone()));
    }

    /// Stops the workers with SIGTERM; some ignore it until their grace is over.
    pub(super) fn stop_workers(&mut self, node: &NodeId) {
        let grace = self.shared.timeouts.stop_grace;
        let takes = if self.random.chance(15) {
            grace + self.random.millis(1, 100)
        } else {
            self.random.millis(1, 500)
        };
        self.reap_after(node, takes);
    }

    /// Kills the workers.
    pub(super) fn kill_workers(&mut self, node: &NodeId, within_ms: u64) {
        if let Some(processes) = self.processes.get_mut(node) {
            processes.is_killed = true;
            let takes = self.random.millis(0, within_ms);
            self.reap_after(node, takes);
        }
    }

    fn reap_after(&mut self, node: &NodeId, takes: Duration) {
        if let Some(processes) = self.processes.get(node) {
            let round = processes.round;
            self.schedule(takes, Event::Reaped { node: node.clone(), round });
        }
    }

    /// Kills the workers of an agent whose lease is over or that is gone.
    pub(super) fn look_at_lease(&mut self, node: &NodeId) {
        if self.sabotage == Sabotage::NoKeeper {
            return;
        }
        let is_needed = self.processes.get(node).is_some_and(|processes| !processes.is_killed);
        let Some(agent) = self.agents.get_mut(node).filter(|_| is_needed) else {
            return;
        };
        let until = agent.echoed + LEASES.agent;
        if until <= self.now {
            agent.standing.was_cut_off = true;
            self.kill_workers(node, KILLING_MS);
        } else {
            self.schedule_at(until, Event::Lease(node.clone()));
        }
    }

    /// What the keeper of an agent that has died does: it kills, reaps, and perhaps is heard.
    pub(super) fn outlive_agent(&mut self, node: &NodeId, is_heard: bool) {
        if self.sabotage == Sabotage::NoKeeper {
            return;
        }
        self.kill_workers(node, 300);
        if is_heard {
            let delay = Duration::from_millis(300) + self.random.millis(1, 200);
            self.schedule(delay, Event::Obituary(node.clone()));
        }
    }

    /// Takes note that the last process of `round` is gone from `node`.
    pub(super) fn reap(&mut self, node: &NodeId, round: RoundId) {
        if self.processes.get(node).is_some_and(|processes| processes.round == round) {
            self.processes.remove(node);
            self.heed_reaped(node, round);
        }
    }
}
