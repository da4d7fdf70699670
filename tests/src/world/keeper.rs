//! The keepers: if an agent is gone or its lease is over, its workers die in time.

use std::time::{Duration, Instant};

use ragent_core::supervisor;
use ragent_rendezvous::ids::{NodeId, RoundId};

use super::{Event, World, node::Input};
use crate::sabotage::Sabotage;

/// The processes of a round on one node, while any of them is alive.
#[derive(Debug)]
pub(super) struct Processes {
    /// The round.
    pub(super) round: RoundId,
    is_killed: bool,
}

/// The longest time that killing takes.
const KILLING_MS: u64 = 500;

/// The longest time that killing takes if an agent is gone and its lease continues.
const SLOW_KILLING_MS: u64 = 2_000;

impl World {
    /// Starts the workers of `round`.
    pub(super) fn start_workers(&mut self, id: &NodeId, round: RoundId) {
        self.ran.insert(id.clone(), round.round);
        self.processes.insert(id.clone(), Processes { round, is_killed: false });
    }

    /// Returns true if workers of `round` run on a node and were not killed.
    pub(super) fn runs_workers_of(&self, id: &NodeId, round: RoundId) -> bool {
        let processes = self.processes.get(id);
        processes.is_some_and(|processes| processes.round == round && !processes.is_killed)
    }

    /// Sends the workers SIGTERM; some ignore it until their grace period is over.
    pub(super) fn stop_workers(&mut self, id: &NodeId, round: RoundId) {
        let grace = self.shared.timeouts.stop_grace;
        let takes = if self.random.chance(15) {
            grace + self.random.millis(1, 100)
        } else {
            self.random.millis(1, 500)
        };
        self.schedule(takes, Event::Gone { node: id.clone(), round, is_swept: false });
    }

    /// Kills the remaining workers of `round`, on the agent's order.
    pub(super) fn sweep_workers(&mut self, id: &NodeId, round: RoundId) {
        if let Some(processes) = self.processes.get_mut(id) {
            processes.is_killed = true;
        }
        let takes = self.random.millis(0, 100);
        self.schedule(takes, Event::Gone { node: id.clone(), round, is_swept: true });
    }

    /// Kills the workers without an order.
    pub(super) fn kill_workers(&mut self, id: &NodeId, within_ms: u64) {
        if let Some(processes) = self.processes.get_mut(id) {
            processes.is_killed = true;
            let round = processes.round;
            let takes = self.random.millis(0, within_ms);
            self.schedule(takes, Event::Gone { node: id.clone(), round, is_swept: false });
        }
    }

    /// Kills the workers of an agent whose lease is over.
    pub(super) fn look_at_lease(&mut self, id: &NodeId) {
        if self.sabotage == Sabotage::NoKeeper {
            return;
        }
        let is_over =
            self.agents.get(id).is_some_and(|agent| agent.lease.is_some_and(|at| at <= self.now));
        let Some(round) = self.processes.get(id).map(|processes| processes.round) else {
            return;
        };
        if is_over && self.runs_workers_of(id, round) {
            self.kill_workers(id, KILLING_MS);
            self.wake(id, Duration::ZERO, Input::CutOff(round));
        }
    }

    /// Models the keeper of a dead agent: it kills the workers, reaps them, and its obituary may
    /// arrive.
    pub(super) fn outlive_agent(&mut self, id: &NodeId, is_reported: bool, lease: Option<Instant>) {
        if self.sabotage == Sabotage::NoKeeper {
            return;
        }
        // A tree with much memory takes the kernel seconds to free.
        let takes = if self.random.chance(20) {
            self.random.millis(300, SLOW_KILLING_MS)
        } else {
            self.random.millis(0, 300)
        };
        // A coordinator that waits for the lease waits half a second longer for the killing.
        let left = lease.map_or(Duration::ZERO, |at| at.saturating_duration_since(self.now));
        let takes = takes.min(left + Duration::from_millis(KILLING_MS));
        if let Some(processes) = self.processes.get_mut(id) {
            processes.is_killed = true;
            let round = processes.round;
            self.schedule(takes, Event::Gone { node: id.clone(), round, is_swept: false });
        }
        if is_reported {
            let delay = takes + self.random.millis(1, 200);
            self.schedule(delay, Event::Obituary(id.clone()));
        }
    }

    /// Records that the last process of `round` on a node has ended; the keeper reports it.
    pub(super) fn remove_processes(&mut self, id: &NodeId, round: RoundId, is_swept: bool) {
        if self.processes.get(id).is_some_and(|processes| processes.round == round) {
            self.processes.remove(id);
        }
        let report = if is_swept { supervisor::Input::Reaped } else { supervisor::Input::Quiet };
        self.input(id, Input::Group(round, report));
    }
}
