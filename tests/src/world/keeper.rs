//! Simulates the keepers, which kill the workers of an agent that is gone or whose lease is over.

use std::time::{Duration, Instant};

use ragent_core::supervisor;
use ragent_rendezvous::ids::{NodeId, Round, RoundId, Term};

use super::{Bug, Event, World, node::AgentInput};
use crate::addresses::Place;

/// The keeper of an agent, which outlives it.
#[derive(Debug)]
pub(super) struct Keeper {
    pub(super) host: usize,
    /// The end of the lease, by the clock of the host.
    lease: Option<Instant>,
    pub(super) workers: Option<Workers>,
    /// The voters to which it sends the death notice.
    pub(super) voters: Vec<Place>,
    /// The newest round that ran there.
    ran: Round,
    /// The term of the leader with which the agent has registered last.
    pub(super) registered: Term,
}

/// The workers of a round on one node, while any of them lives.
#[derive(Debug)]
pub(super) struct Workers {
    pub(super) round: RoundId,
    is_killed: bool,
}

/// The longest time that killing takes.
const KILLING_MS: u64 = 500;

/// The longest time that killing takes if an agent is gone and its lease continues.
const SLOW_KILLING_MS: u64 = 2_000;

impl World {
    pub(super) fn new_keeper(&mut self, id: &NodeId, host: usize) {
        let voters = (0..self.listed).map(Place::listed).collect();
        let keeper =
            Keeper { host, lease: None, workers: None, voters, ran: Round(0), registered: Term(0) };
        self.keepers.insert(id.clone(), keeper);
    }

    /// Returns the workers that run now, with their nodes.
    pub fn alive(&self) -> impl Iterator<Item = (&NodeId, RoundId)> {
        let runs = |keeper: &Keeper| !self.hosts[keeper.host].is_suspended(self.now);
        let keepers = self.keepers.iter().filter(move |(_, keeper)| runs(keeper));
        keepers.filter_map(|(id, keeper)| Some((id, keeper.workers.as_ref()?.round)))
    }

    pub(super) fn round_on(&self, id: &NodeId) -> Option<RoundId> {
        self.keepers.get(id)?.workers.as_ref().map(|workers| workers.round)
    }

    /// Returns true if workers of `round` run on a node and were not killed.
    pub(super) fn runs_workers_of(&self, id: &NodeId, round: RoundId) -> bool {
        let workers = self.keepers.get(id).and_then(|keeper| keeper.workers.as_ref());
        workers.is_some_and(|workers| workers.round == round && !workers.is_killed)
    }

    /// Returns true if the lease of a node is in force.
    pub(super) fn is_leased(&self, id: &NodeId) -> bool {
        let Some(keeper) = self.keepers.get(id) else { return false };
        let local = self.hosts[keeper.host].local(self.now);
        keeper.lease.is_some_and(|until| local < until)
    }

    pub(super) fn renew_lease(&mut self, id: &NodeId, until: Option<Instant>) {
        let Some(keeper) = self.keepers.get_mut(id) else { return };
        keeper.lease = until;
        if let Some(until) = until {
            let at = self.hosts[keeper.host].global(until);
            self.schedule_at(at, Event::Lease(id.clone()));
        }
    }

    pub(super) fn start_workers(&mut self, id: &NodeId, round: RoundId) {
        if let Some(keeper) = self.keepers.get_mut(id) {
            keeper.workers = Some(Workers { round, is_killed: false });
            keeper.ran = round.round;
            self.note_workers(id, round);
            self.begin_training(id, round);
            self.begin_memory(id, round);
        }
        if self.record.succeeded == Some(round) {
            // The workers that were started earlier have succeeded with the same steps.
            self.schedule(Duration::from_secs(1), Event::Succeeds(id.clone(), round));
        }
    }

    pub(super) fn end_workers(&mut self, id: &NodeId) {
        if let Some(keeper) = self.keepers.get_mut(id) {
            keeper.workers = None;
        }
    }

    /// Sends the workers SIGTERM; some ignore it until their grace period is over.
    pub(super) fn stop_workers(&mut self, id: &NodeId, round: RoundId) {
        let grace = self.shared.timeouts.stop_grace;
        let takes = if self.random.chance(15) {
            grace + self.random.millis(1, 100)
        } else {
            self.random.millis(1, 500)
        };
        self.schedule(takes, Event::Gone { node: id.clone(), round, is_by_cleanup: false });
    }

    /// Kills the remaining workers of `round`, on the agent's order.
    pub(super) fn clean_up_workers(&mut self, id: &NodeId, round: RoundId) {
        if let Some(workers) = self.keepers.get_mut(id).and_then(|keeper| keeper.workers.as_mut()) {
            workers.is_killed = true;
        }
        let takes = self.random.millis(0, 100);
        self.schedule(takes, Event::Gone { node: id.clone(), round, is_by_cleanup: true });
    }

    /// Kills the workers without an order.
    pub(super) fn kill_workers(&mut self, id: &NodeId, within_ms: u64) {
        let workers = self.keepers.get_mut(id).and_then(|keeper| keeper.workers.as_mut());
        if let Some(workers) = workers {
            workers.is_killed = true;
            let round = workers.round;
            let takes = self.random.millis(0, within_ms);
            self.schedule(takes, Event::Gone { node: id.clone(), round, is_by_cleanup: false });
        }
    }

    /// Kills the workers whose lease is over.
    pub(super) fn check_lease(&mut self, id: &NodeId) {
        let Some(keeper) = self.keepers.get(id) else { return };
        let host = &self.hosts[keeper.host];
        if let Some(until) = host.suspended.filter(|until| self.now < *until) {
            return self.schedule_at(until, Event::Lease(id.clone()));
        }
        let is_over = keeper.lease.is_some_and(|at| at <= host.local(self.now));
        let round = keeper.workers.as_ref().map(|workers| workers.round);
        let Some(round) = round.filter(|_| is_over && self.bug != Bug::NoKeeper) else { return };
        if self.runs_workers_of(id, round) {
            self.kill_workers(id, KILLING_MS);
            self.wake_agent(id, Duration::ZERO, AgentInput::LeaseExpired(round));
        }
    }

    /// Kills the workers whose lease has ended while the machine was suspended.
    pub(super) fn resume(&mut self, host: usize) {
        if self.hosts[host].is_suspended(self.now) {
            return;
        }
        if self.bug == Bug::ClockStopsInSuspend {
            self.hosts[host].stop_clock(self.now);
        }
        let local = self.hosts[host].local(self.now);
        let mut over = Vec::new();
        for (id, keeper) in self.keepers.iter_mut().filter(|(_, keeper)| keeper.host == host) {
            let is_over = keeper.lease.is_none_or(|lease| lease <= local);
            if let Some(workers) = keeper.workers.take_if(|_| is_over) {
                over.push((id.clone(), workers.round));
            }
        }
        for (id, round) in over {
            self.wake_agent(&id, Duration::ZERO, AgentInput::LeaseExpired(round));
        }
    }

    /// Models the keeper of an agent that was killed. It kills the workers, reaps them, and sends its death notice.
    pub(super) fn outlive_agent(&mut self, id: &NodeId) {
        let Some(keeper) = self.keepers.get_mut(id) else { return };
        let local = self.hosts[keeper.host].local(self.now);
        let left = keeper.lease.map_or(Duration::ZERO, |at| at.saturating_duration_since(local));
        // The kernel takes seconds to free a process tree with much memory.
        let takes = if self.random.chance(20) {
            self.random.millis(300, SLOW_KILLING_MS)
        } else {
            self.random.millis(0, 300)
        };
        let is_reported = self.fixed.is_none() || self.random.chance(65);
        // The successors wait for the lease, and half a second for the killing.
        let takes = takes.min(left + Duration::from_millis(KILLING_MS));
        if let Some(workers) = keeper.workers.as_mut().filter(|_| self.bug != Bug::NoKeeper) {
            workers.is_killed = true;
            let round = workers.round;
            self.schedule(takes, Event::Gone { node: id.clone(), round, is_by_cleanup: false });
            if is_reported {
                self.schedule(takes + Duration::from_micros(1), Event::SendDeathNotice(id.clone()));
            }
        } else if keeper.workers.is_none() && is_reported {
            self.schedule(takes, Event::SendDeathNotice(id.clone()));
        }
    }

    /// Records that the last process of `round` on a node has ended; the keeper reports it.
    pub(super) fn remove_workers(&mut self, id: &NodeId, round: RoundId, is_by_cleanup: bool) {
        let Some(keeper) = self.keepers.get_mut(id) else { return };
        if let Some(until) = self.hosts[keeper.host].suspended.filter(|until| self.now < *until) {
            let gone = Event::Gone { node: id.clone(), round, is_by_cleanup };
            return self.schedule_at(until, gone);
        }
        keeper.workers.take_if(|workers| workers.round == round);
        self.close_worker_sockets(id, round);
        let report =
            if is_by_cleanup { supervisor::Input::Reaped } else { supervisor::Input::Quiet };
        self.wake_agent(id, Duration::ZERO, AgentInput::Group(round, report));
    }

    /// Sends the death notice of an agent to all voters. It may arrive late, or twice.
    pub(super) fn send_death_notices(&mut self, id: &NodeId) {
        let Some(keeper) = self.keepers.get(id) else { return };
        let (host, round, voters) = (keeper.host, keeper.ran, keeper.voters.clone());
        if let Some(until) = self.hosts[host].suspended.filter(|until| self.now < *until) {
            return self.schedule_at(until, Event::SendDeathNotice(id.clone()));
        }
        for to in voters {
            if let Some(delay) = self.transit(host, to.host) {
                self.schedule(delay, Event::DeathNotice { to, node: id.clone(), round });
            }
        }
        if self.random.chance(15) {
            let delay = self.random.millis(0, 10_000);
            self.schedule(delay, Event::SendDeathNotice(id.clone()));
        }
    }

    /// Returns the process that a death notice concerns.
    pub(super) fn buried(&self, node: NodeId) -> NodeId {
        let host = self.keepers.get(&node).map(|keeper| keeper.host);
        let now = host.and_then(|host| self.hosts[host].process.clone());
        now.filter(|_| self.bug == Bug::DeathNoticeOfPlace).unwrap_or(node)
    }
}
