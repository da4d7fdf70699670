//! Simulates nodes whose machines are unhealthy for a while. Its rules:
//!
//! - aj: a round has no unhealthy member while the others reach MIN, and no more of them than it needs. The exception is a reason
//!   that many nodes have.
//! - ak: one kind of reason sets aside at most MAX - MIN nodes in ten minutes; one, if that is zero and a spare waits.
//! - al: the job ends for lack of nodes only if there are too few, counting those that only need a reset or a repair.
//! - am: the coordinator knows what a member has reported about its machine.
//! - an: no round has a member while a healthy spare waits on a host with fewer charged failures.
//!
//! These worlds have random numbers of their own, so that the other worlds of a seed stay the same.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use ragent_rendezvous::{
    event::{Event as JournalEvent, EventKind},
    ids::{NodeId, Peer, Term},
    message::{FromNode, HealthClass, JobResult, NodeReport, Unhealthy},
    settings::{HostTally, JobState},
    snapshot::{NodeSnapshot, NodeStateName, Snapshot},
};

use super::{Bug, Event, FAULTY, World, fault::Fault, port::Up};
use crate::random::Random;

/// The state of the machines, and what was set aside.
#[derive(Debug)]
pub(super) struct Health {
    illnesses: Vec<Illness>,
    /// The last report of each node, with the time at which its agent first reported this need of its machine.
    reported: BTreeMap<NodeId, Reported>,
    /// The nodes that each coordinator has set aside for a kind of reason.
    set_aside: BTreeMap<(NodeId, Term, String), BTreeMap<NodeId, Instant>>,
    /// The charged failures of each host.
    charged: BTreeMap<String, u32>,
    totals: HealthTotals,
    broken: Option<String>,
}

/// The numbers of a world with unhealthy machines.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct HealthTotals {
    /// Nodes that got no place in a round.
    pub set_aside: u64,
    /// Unhealthy nodes that got a place in a round, counted for each round.
    pub placed: u64,
    /// Failures that were not charged because of the machine.
    pub free: u64,
}

/// A machine that is unhealthy for a while.
#[derive(Clone, Debug)]
struct Illness {
    host: usize,
    from: Instant,
    to: Instant,
    class: HealthClass,
    kind: &'static str,
    /// True if it lets workers fail. Else the node finds it by itself.
    fails: bool,
}

#[derive(Clone, Debug)]
struct Reported {
    peer: Peer,
    report: NodeReport,
    since: Instant,
}

/// The time by which messages and processes are late.
const LATE: Duration = Duration::from_secs(8);

/// The time in which nodes that are set aside are counted, by clocks that drift.
const COUNTED_FOR: Duration = Duration::from_secs(590);

impl World {
    /// Creates a world whose machines are unhealthy for a while.
    pub fn with_health(seed: u64, bug: Bug) -> Self {
        let mut world = match seed % 2 {
            0 => Self::with_fixed_coordinator(seed, bug),
            _ => Self::new(seed, bug),
        };
        world.add_illnesses(seed);
        world
    }

    fn add_illnesses(&mut self, seed: u64) {
        if let Some(fixed) = &mut self.fixed {
            // The rules count the nodes that are ready, and such a node may not be for a while.
            fixed.has_standbys = false;
        }
        let mut random = Random::new(seed ^ 0x6865_616c_7468);
        let mut illnesses = Vec::new();
        // Long enough for the end of a job that lacks nodes.
        self.faulty = FAULTY + Duration::from_secs(60);
        let end = self.start + self.faulty;
        for _ in 0..random.between(1, 5) {
            let classes = [HealthClass::Reset, HealthClass::Replace, HealthClass::Gone];
            let class = random.pick(&classes).unwrap_or(HealthClass::Reset);
            let kind = random.pick(&["xid_79", "xid_119"]).unwrap_or("xid_79");
            let from = self.start + random.millis(0, 35_000);
            let to = from + random.millis(1_000, 95_000);
            // A kind of reason may come to all hosts, because of something else.
            let is_common = random.chance(20);
            let fails = random.chance(50);
            let host = usize::try_from(random.between(0, 99)).unwrap_or(0);
            for (place, _) in self.hosts.iter().enumerate() {
                if is_common || place == host % self.hosts.len() {
                    let to = to.min(end);
                    illnesses.push(Illness { host: place, from, to, class, kind, fails });
                }
            }
        }
        for illness in &illnesses {
            let event = |fails| Event::Health { host: illness.host, fails };
            self.schedule_at(illness.from, event(illness.fails));
            self.schedule_at(illness.to, event(false));
        }
        for _ in 0..random.between(1, 3) {
            let at = random.millis(5_000, 40_000);
            self.schedule(at, Event::Fault(Fault::WorkerFails));
        }
        let (reported, set_aside, charged) = Default::default();
        let totals = HealthTotals::default();
        let health = Health { illnesses, reported, set_aside, charged, totals, broken: None };
        self.health = Some(Box::new(health));
    }

    /// Returns the numbers of unhealthy nodes so far.
    pub fn health_totals(&self) -> HealthTotals {
        self.health.as_ref().map(|health| health.totals).unwrap_or_default()
    }

    /// Returns the worst need of a host's machine now.
    fn illness_of(&self, host: usize) -> Option<Unhealthy> {
        let illnesses = self.health.as_ref()?.illnesses.iter();
        let now = self.now;
        let is_ill = |one: &&Illness| one.host == host && one.from <= now && now < one.to;
        let worst = illnesses.filter(is_ill).max_by_key(|one| one.class)?;
        let class = match self.bug {
            Bug::MilderNeeds => HealthClass::Reset,
            Bug::WorseNeeds => HealthClass::Gone,
            _ => worst.class,
        };
        let kind = match self.bug {
            Bug::NewKinds => format!("{} {host}", worst.kind),
            _ => worst.kind.to_owned(),
        };
        let reason = format!("{} {}", worst.class.name(), worst.kind);
        Some(Unhealthy { class, kind, reason })
    }

    /// Adds to a report what the node knows about its machine. `is_first` is true for the first message of a stream.
    pub(super) fn add_health(&mut self, peer: &Peer, report: &mut NodeReport, is_first: bool) {
        if self.health.is_none() {
            return;
        }
        let host = self.processes.get(&peer.node).map(|process| process.host);
        report.unhealthy = host.and_then(|host| self.illness_of(host)).map(Box::new);
        let now = self.now;
        let Some(health) = &mut self.health else { return };
        let before = health.reported.get(&peer.node);
        let is_same = |before: &&Reported| before.report.unhealthy == report.unhealthy;
        let since = before.filter(is_same).map_or(now, |before| before.since);
        let reported = Reported { peer: peer.clone(), report: report.clone(), since };
        health.reported.insert(peer.node.clone(), reported);
        if is_first && self.bug == Bug::ForgottenNeeds {
            report.unhealthy = None;
        }
    }

    /// Lets the workers of a host fail, or its agents report what has changed.
    pub(super) fn happen_in_machine(&mut self, host: usize, fails: bool) {
        if fails {
            let runs = |node: &&NodeId| {
                self.processes.get(*node).is_some_and(|process| process.host == host)
            };
            let node = self.alive().map(|(node, _)| node).find(runs).cloned();
            if let Some((node, round)) =
                node.and_then(|node| Some((node.clone(), self.round_on(&node)?)))
            {
                self.schedule(Duration::ZERO, Event::WorkerFails(node, round));
                self.fail_others(round);
            }
            return;
        }
        let Some(health) = &self.health else { return };
        let is_here =
            |node: &NodeId| self.processes.get(node).is_some_and(|process| process.host == host);
        let reported = health.reported.iter().filter(|(node, _)| is_here(node));
        let reported: Vec<Reported> = reported.map(|(_, one)| one.clone()).collect();
        for Reported { peer, mut report, .. } in reported {
            let Some(now) = self.local(&peer.node) else { continue };
            let Some(agent) = self.agent(&peer.node) else { continue };
            // It repeats the state that it has reported last.
            if agent.node.agent().report(now).state != report.state {
                continue;
            }
            self.add_health(&peer, &mut report, false);
            self.send_up(&peer, Up::Message(Box::new(FromNode::NodeReport(report))));
        }
    }

    /// Changes the suspicions with which a coordinator begins, as a bug does.
    pub(super) fn forge_suspicions(&self, job_state: &mut JobState) {
        let tallies = &mut job_state.host_tallies;
        let most = tallies.iter().map(|tally| tally.suspicions).max().unwrap_or(0);
        if self.bug == Bug::SuspicionsLost {
            tallies.iter_mut().for_each(|tally| tally.suspicions = 0);
        }
        if self.bug == Bug::MostSuspectedFirst {
            for node in self.descriptions.values() {
                if tallies.iter().all(|tally| tally.host_name != node.host_name) {
                    tallies.push(HostTally {
                        host_name: node.host_name.clone(),
                        address: node.address.clone(),
                        strikes: 0,
                        early_losses: 0,
                        suspicions: 0,
                        suspected_for: Duration::ZERO,
                    });
                }
            }
            tallies.iter_mut().for_each(|tally| tally.suspicions = most - tally.suspicions);
        }
    }

    /// Checks the rules for an event of a coordinator.
    pub(super) fn check_health_event(&mut self, id: &NodeId, event: &JournalEvent) {
        if self.health.is_none() {
            return;
        }
        match &event.kind {
            EventKind::NodeUnhealthy { reason, is_set_aside: true, .. } => {
                let (now, node) = (self.now, event.node.as_ref().map(|node| node.node_id.clone()));
                let kind = reason.split_once(' ').map(|(_, kind)| kind.to_owned());
                let (Some(health), Some(node)) = (&mut self.health, node) else { return };
                health.totals.set_aside += 1;
                let of_kind = (id.clone(), event.id.term, kind.unwrap_or_default());
                let noted = health.set_aside.entry(of_kind).or_default();
                noted.retain(|_, at| now.saturating_duration_since(*at) < COUNTED_FOR);
                noted.entry(node).or_insert(now);
            }
            EventKind::FailureCharged { .. } => {
                let Some((health, node)) = self.health.as_mut().zip(event.node.as_ref()) else {
                    return;
                };
                let reported = health.reported.get(&node.node_id);
                if reported.is_none_or(|reported| reported.report.unhealthy.is_none()) {
                    *health.charged.entry(node.host_name.clone()).or_default() += 1;
                }
            }
            EventKind::RoundAdmitted { .. } => {
                self.check_places(id, event.id.term);
                self.check_order(id);
            }
            EventKind::FailureNotCharged { reason }
                if *reason == ragent_rendezvous::event::FreeReason::BadMachine =>
            {
                if let Some(health) = &mut self.health {
                    health.totals.free += 1;
                }
            }
            EventKind::JobClosed {
                result: JobResult::JoinTimeout { .. } | JobResult::AllQuarantined,
            } => {
                let Some(snapshot) = self.snapshot_of(id) else { return };
                let nodes = &snapshot.nodes;
                let can_run = |node: &&NodeSnapshot| {
                    matches!(node.state, NodeStateName::Joined | NodeStateName::Unhealthy)
                        && class_of(node).is_none_or(|(class, _)| class != "gone")
                };
                let nodes = nodes.iter().filter(can_run).count();
                // A first round may also wait for another job of the same name.
                let is_alone = event.round.0 > 0 || self.fixed.is_some();
                if is_alone && nodes >= snapshot.min_nodes as usize && snapshot.min_nodes > 0 {
                    let broken =
                        format!("rule al: {id} has closed the job: {}", described(&snapshot));
                    if let Some(health) = &mut self.health {
                        health.broken.get_or_insert(broken);
                    }
                }
            }
            _ => {}
        }
    }

    /// Checks rules aj, ak and am when a round begins.
    fn check_places(&mut self, id: &NodeId, term: Term) {
        let Some(snapshot) = self.snapshot_of(id) else { return };
        let (now, fixed_ranks) = (self.now, self.shared.fixed_ranks);
        let is_member = |node: &&NodeSnapshot| node.group_rank.is_some();
        let fit = |node: &&NodeSnapshot| {
            node.unhealthy.is_none() && (is_member(node) || node.state == NodeStateName::Spare)
        };
        let fit = snapshot.nodes.iter().filter(fit).count();
        let limit = limit(&snapshot, fit, fixed_ranks);
        let min = snapshot.min_nodes as usize;
        let Some(health) = &mut self.health else { return };
        let mut broken = None;
        for ((of, _, kind), noted) in &health.set_aside {
            if of == id
                && (noted.len() > limit.max(1) || limit == 0 && noted.values().any(|at| *at == now))
            {
                broken = Some(format!("rule ak: {id} sets aside {noted:?} for {kind}, of {limit}"));
            }
        }
        let members = snapshot.nodes.iter().filter(is_member);
        for node in members {
            let since = health.reported.get(&node.node_id);
            let since = since.filter(|one| one.report.unhealthy.is_some()).map(|one| one.since);
            let was_told = since.is_some_and(|since| since + LATE < now);
            let Some((class, kind)) = class_of(node) else {
                if was_told {
                    broken =
                        Some(format!("rule am: {id} does not know the need of {}", node.node_id));
                }
                continue;
            };
            health.totals.placed += 1;
            let noted = health.set_aside.get(&(id.clone(), term, kind.to_owned()));
            let noted = noted
                .map_or(0, |noted| noted.keys().filter(|other| **other != node.node_id).count());
            let is_open = noted < limit && fit > 0;
            let size = snapshot.nodes.iter().filter(is_member).count();
            let is_needed = class != "gone" && size <= min;
            if is_open && !is_needed {
                broken = Some(format!(
                    "rule aj: {id} gives {} a place: {}",
                    node.node_id,
                    described(&snapshot)
                ));
            }
        }
        if let (Some(broken), Some(health)) = (broken, &mut self.health) {
            health.broken.get_or_insert(broken);
        }
    }

    /// Checks rule an when a round begins.
    fn check_order(&mut self, id: &NodeId) {
        let Some(snapshot) = self.snapshot_of(id).filter(|_| !self.shared.fixed_ranks) else {
            return;
        };
        let Some(health) = &mut self.health else { return };
        let charged =
            |node: &&NodeSnapshot| health.charged.get(&node.host_name).copied().unwrap_or(0);
        let is_healthy = |node: &&NodeSnapshot| node.unhealthy.is_none() && node.excluded.is_none();
        let members =
            snapshot.nodes.iter().filter(|node| node.group_rank.is_some()).filter(is_healthy);
        let spares = snapshot
            .nodes
            .iter()
            .filter(|node| node.state == NodeStateName::Spare)
            .filter(is_healthy);
        let (most, least) =
            (members.map(|node| charged(&node)).max(), spares.map(|node| charged(&node)).min());
        if let (Some(most), Some(least)) = (most, least)
            && least < most
        {
            let broken = format!("rule an: {id}: {:?} of {}", health.charged, described(&snapshot));
            health.broken.get_or_insert(broken);
        }
    }

    /// Returns an error if a rule is broken.
    pub(super) fn check_machines(&mut self) -> Result<(), String> {
        match self.health.as_mut().and_then(|health| health.broken.take()) {
            Some(broken) => Err(format!("{broken}, at {:?}", self.elapsed())),
            None => Ok(()),
        }
    }
}

/// Returns the most nodes that one kind of reason sets aside.
fn limit(snapshot: &Snapshot, fit: usize, fixed_ranks: bool) -> usize {
    let places = snapshot.max_nodes - snapshot.min_nodes;
    match places {
        _ if fixed_ranks => 0,
        0 => usize::from(fit >= snapshot.max_nodes as usize),
        places => places as usize,
    }
}

/// Returns the need and the kind of reason of a node.
fn class_of(node: &NodeSnapshot) -> Option<(&str, &str)> {
    node.unhealthy.as_deref()?.split_once(' ')
}

fn described(snapshot: &Snapshot) -> String {
    let of_node = |node: &NodeSnapshot| {
        let rank = node.group_rank.map(|rank| rank.0);
        format!("{} {rank:?} {} {:?}", node.node_id, node.state.name(), node.unhealthy)
    };
    let nodes: Vec<String> = snapshot.nodes.iter().map(of_node).collect();
    format!("{}:{}, {}", snapshot.min_nodes, snapshot.max_nodes, nodes.join("; "))
}
