//! Registers a node that was not refused. With an elected coordinator, this has two steps:
//!
//! 1. The node is welcomed. From then on, it ignores leaders of lower terms.
//! 2. It is registered when it reports its state on the same stream.
//!
//! The reason: a registration may be old. Another voter may have held it until this process was elected, and
//! another leader may have admitted the node to a round in the meantime.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    time::{Duration, Instant},
};

use tracing::{debug, info};

use crate::{
    effect::Effect,
    event::EventKind,
    ids::{NodeId, Peer, Round, RoundId, StreamNumber},
    job::Availability,
    machine::Rendezvous,
    message::{FromNode, MemoryReport, Registration, ToNode},
    phase::Phase,
    roster::Roster,
    settings::Leases,
};

/// The number of an agent's first stream.
const FIRST_STREAM: StreamNumber = StreamNumber(1);

/// Nodes that were welcomed, and have not reported their state since.
#[derive(Debug, Default)]
pub(super) struct Welcomed {
    registrations: BTreeMap<NodeId, (Instant, Registration)>,
    /// The same nodes, by the time by which they must report.
    by_time: BTreeSet<(Instant, NodeId)>,
    /// The part of them that knows a round, and so may have workers, by the same time.
    with_workers: BTreeSet<(Instant, NodeId)>,
}

impl Welcomed {
    fn insert(&mut self, until: Instant, registration: Registration, may_have_workers: bool) {
        let node = registration.node.node_id.clone();
        let old = self.registrations.get(&node).map(|(until, _)| (*until, node.clone()));
        let had_workers = old.is_some_and(|old| self.with_workers.contains(&old));
        self.remove(&node);
        if may_have_workers || had_workers {
            self.with_workers.insert((until, node.clone()));
        }
        self.by_time.insert((until, node.clone()));
        self.registrations.insert(node, (until, registration));
    }

    pub(super) fn remove(&mut self, node: &NodeId) -> Option<Registration> {
        let (until, registration) = self.registrations.remove(node)?;
        let at = (until, node.clone());
        self.by_time.remove(&at);
        self.with_workers.remove(&at);
        Some(registration)
    }

    /// Removes a node whose workers may run until the time by which it had to report.
    fn remove_with_workers(&mut self, node: &NodeId) {
        if let Some((until, _)) = self.registrations.get(node) {
            let until = *until;
            self.remove(node);
            self.with_workers.insert((until, node.clone()));
        }
    }

    /// Replaces what a node has reported about its memory. Its next report may say that it is ready.
    fn set_memory(&mut self, node: &NodeId, report: MemoryReport) {
        if let Some((_, registration)) = self.registrations.get_mut(node) {
            registration.memory = Some(report);
        }
    }

    /// Removes all of them, and returns their streams.
    pub(super) fn take(&mut self) -> Vec<Peer> {
        self.by_time.clear();
        self.with_workers.clear();
        mem::take(&mut self.registrations)
            .into_values()
            .map(|(_, registration)| registration.peer())
            .collect()
    }

    /// Forgets workers that have ended by now.
    fn forget_ended(&mut self, now: Instant) {
        while self.with_workers.first().is_some_and(|(until, _)| *until <= now) {
            self.with_workers.pop_first();
        }
    }

    pub(super) fn contains(&self, node: &NodeId) -> bool {
        self.registrations.contains_key(node)
    }

    pub(super) fn len(&self) -> usize {
        self.registrations.len()
    }

    /// Returns the earliest time by which one of them must report.
    pub(super) fn first_until(&self) -> Option<Instant> {
        self.by_time.first().map(|(until, _)| *until)
    }

    /// Returns the time until which workers of any of them may run.
    pub(super) fn last_until(&self) -> Option<Instant> {
        self.with_workers.last().map(|(until, _)| *until)
    }
}

impl Rendezvous {
    /// Returns the time until which a node takes part in no first round: it must have been there for as long
    /// as a lost leader's workers may run. `None` if the job has a round, or the node is old enough.
    fn young_until(
        &self,
        now: Instant,
        registration: &Registration,
        leases: Leases,
    ) -> Option<Instant> {
        let missing = leases.coordinator.saturating_sub(registration.waited);
        let is_first =
            matches!(self.job.phase, Phase::Gathering(_)) && self.job.state.round == Round(0);
        (is_first && !missing.is_zero()).then(|| now + missing)
    }

    /// Returns true if the job has one node, and its agent is in the only process that can coordinate. Its silence then
    /// means that the machine is busy: the loss of that process would end this coordinator as well.
    fn is_alone(&self, id: &NodeId) -> bool {
        let has_one = self.job.settings.shared.is_some_and(|shared| shared.nodes.max() == 1);
        has_one && self.job.grant.is_none() && self.job.is_host(id)
    }

    /// Registers a node: welcomes it, unless it was welcomed before, and sends its assignment.
    pub(super) fn register(&mut self, now: Instant, registration: Registration) {
        let peer = registration.peer();
        let is_of_this_run = self.is_of_this_run(&registration);
        let known_round = registration.known_round;
        let leases = self.leases();
        let young_until = self.young_until(now, &registration, leases);
        let id = peer.node.clone();
        let excluded = |roster: &Roster| roster.get(&id).and_then(|node| node.excluded.clone());
        let before = excluded(&self.job.roster);
        // A coordinator may have admitted this agent on an earlier stream, and the admission was lost.
        let may_have_missed = self.job.roster.get(&id).is_none()
            && peer.stream > FIRST_STREAM
            && known_round.round.round < self.job.state.round;
        let lease = if self.is_alone(&id) { Duration::MAX } else { leases.coordinator };
        let counts = self.job.roster.register(now, registration, lease, young_until);
        let excluded = excluded(&self.job.roster);
        if excluded != before {
            let reason = excluded.map(|reason| reason.to_string());
            self.out.event_of(&self.job, None, &id, EventKind::NodeExcluded { reason });
        }
        self.count_loss_of_host(now, &id);
        if self.job.grant.is_none() {
            self.out.send(peer.clone(), ToNode::Welcome(self.welcome(leases)));
        }
        if self.job.availability != Availability::Available {
            self.out.send(peer, ToNode::HostLeaving);
        }
        if is_of_this_run {
            self.close_again();
        }
        // The agent of this process has read the state file, and learns the run from the welcome.
        if is_of_this_run || self.job.is_host(&id) {
            self.claim(&id, known_round);
        }
        if may_have_missed {
            let round = RoundId { term: self.job.state.term, round: self.job.state.round };
            self.job.roster.distrust_store(&id, round);
        }
        // An elected coordinator registers a node only after the node's report on this stream.
        if self.job.grant.is_some()
            && let Some(node) = self.job.roster.get_mut(&id)
        {
            node.has_reported = true;
        }
        self.follow_memory(&id);
        self.memory.note_killed_agent(&self.job, &id, &mut self.out);
        if counts {
            self.on_report(now, &id);
        } else {
            self.record_sign_of_life_by_report(&id);
        }
        self.advance(now);
        self.sync(&id);
        self.repeat_refused_clients(&id);
        self.send_guidance(now, &id);
    }

    /// Welcomes a node, and waits for its report. Forgets an earlier stream of the node.
    pub(super) fn ask_for_report(&mut self, now: Instant, registration: Registration) {
        let peer = registration.peer();
        let leases = self.leases();
        let newest = self.welcomed.registrations.get(&peer.node);
        if newest.is_some_and(|(_, newest)| newest.stream > peer.stream) {
            debug!(node = %peer.node, stream = %peer.stream, "outdated registration dropped");
            return;
        }
        // The welcome extends the lease of the node's workers, even if a registered node has a new stream.
        self.job.roster.extend_lease(now, &peer.node);
        // A process that knows no round has no workers, and does not delay the recovery.
        let may_have_workers = registration.known_round.round.round > Round(0);
        self.welcomed.insert(now + leases.coordinator, registration, may_have_workers);
        self.out.send(peer, ToNode::Welcome(self.welcome(leases)));
    }

    /// Registers a node that reports its state after its welcome. Returns the message if it comes from
    /// another stream.
    pub(super) fn register_welcomed(
        &mut self,
        now: Instant,
        from: &Peer,
        message: FromNode,
    ) -> Option<FromNode> {
        let newest = self.welcomed.registrations.get(&from.node);
        if newest.is_none_or(|(_, registration)| registration.peer() != *from) {
            return Some(message);
        }
        // An agent sends what it holds in memory and its report first, and repeats the rest. An echo now would extend
        // the lease of workers, and the recovery would not wait for these.
        let report = match message {
            FromNode::NodeReport(report) => report,
            FromNode::MemoryReport(report) => {
                self.welcomed.set_memory(&from.node, report);
                return None;
            }
            _ => return None,
        };
        if newest.is_some_and(|(_, registration)| {
            report.round.round > registration.known_round.round.round
        }) {
            debug!(node = %from.node, "registration is older than the node's round");
            self.welcomed.remove_with_workers(&from.node);
            self.out.queue.push_back(Effect::HangUp { to: from.clone() });
            return None;
        }
        let registration = self.welcomed.remove(&from.node)?;
        let registration = Registration { report, ..registration };
        match self.why_refused(&registration) {
            Some(reason) => {
                info!(node = %from.node, reason = reason.name(), "node refused");
                self.out.send(from.clone(), ToNode::Refuse(reason));
            }
            None => self.register(now, registration),
        }
        None
    }

    /// Ends the streams of welcomed nodes that have reported nothing for a lease.
    pub(super) fn drop_silent(&mut self, now: Instant) {
        while let Some((_, node)) =
            self.welcomed.by_time.first().filter(|(until, _)| *until <= now).cloned()
        {
            if let Some(registration) = self.welcomed.remove(&node) {
                self.out.queue.push_back(Effect::HangUp { to: registration.peer() });
            }
        }
        self.welcomed.forget_ended(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fixture::{SECOND, describe, ready, some_instant},
        ids::RunId,
        settings::{NodeRange, SharedSettings},
    };

    fn registration(name: &str) -> Registration {
        let shared = SharedSettings::new(NodeRange::new(1, 2).expect("a range"));
        Registration::new(RunId::new("run"), describe(name), shared, ready())
    }

    /// Welcomed nodes are known until they report, are silent, or all are removed. The workers of a node whose registration was old count
    /// until the time by which it had to report.
    #[test]
    fn welcomed_nodes_are_known_until_they_report() {
        let (mut welcomed, now) = (Welcomed::default(), some_instant());
        assert_eq!(
            (welcomed.len(), welcomed.first_until(), welcomed.last_until()),
            (0, None, None)
        );
        for (n, name) in (1..).zip(["a", "b", "c"]) {
            welcomed.insert(now + n * SECOND, registration(name), name != "a");
        }
        assert_eq!((welcomed.len(), welcomed.first_until()), (3, Some(now + SECOND)));
        assert_eq!(welcomed.last_until(), Some(now + 3 * SECOND));
        assert!(welcomed.remove(&NodeId::new("a")).is_some());
        assert!(!welcomed.contains(&NodeId::new("a")) && welcomed.contains(&NodeId::new("b")));

        welcomed.remove_with_workers(&NodeId::new("c"));
        assert_eq!((welcomed.len(), welcomed.last_until()), (1, Some(now + 3 * SECOND)));
        welcomed.forget_ended(now + 2 * SECOND);
        assert_eq!(welcomed.with_workers.len(), 1, "those of b have ended");
        welcomed.forget_ended(now + 3 * SECOND);
        assert_eq!(welcomed.last_until(), None);

        let left: Vec<NodeId> = welcomed.take().into_iter().map(|peer| peer.node).collect();
        assert_eq!((left, welcomed.len()), (vec![NodeId::new("b")], 0));
    }
}
