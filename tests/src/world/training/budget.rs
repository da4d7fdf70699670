//! Simulates workers that fail, train for about ten minutes, and fail again. There is a spare. Its rules:
//!
//! - ao: the failures since the last progress count. The job ends at the first one after `--max-restarts` of them, and never before.
//!   Progress is a round of ten minutes, with a step that all ranks have saved and that is higher than at the last charge.
//! - ap: the failure of a node that has taken the place of a failed one is charged.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use ragent_rendezvous::{
    event::{Event as JournalEvent, EventKind},
    ids::{NodeId, Round, Term},
    message::JobResult,
    settings::{JobState, NodeRange},
};

use super::{
    super::{
        Bug, Event, World,
        fault::{Fault, Victim},
        host::Host,
    },
    INTERVAL,
};
use crate::random::Random;

/// The charges of a job, as the world counts them.
#[derive(Debug, Default)]
pub(super) struct Budget {
    /// The term of the newest coordinator.
    term: Term,
    /// The charged rounds, with the newest step that all ranks had saved then.
    charged: BTreeMap<Round, u64>,
    /// The last round whose failure is forgiven.
    forgiven_through: Round,
    /// The round whose progress has forgiven it.
    progress: Round,
    /// True if the world cannot know what is forgiven.
    is_unknown: bool,
    /// The newest round, its start, and its members; `None` after a takeover.
    newest: Option<(Round, Instant, BTreeSet<NodeId>)>,
    /// The node whose failure in the newest round is charged.
    failed: Option<NodeId>,
    /// The nodes that were lost or quarantined since the newest round began.
    gone: BTreeSet<NodeId>,
    /// The node of the newest round that has taken the place of a failed one.
    swapped: Option<NodeId>,
}

/// The time after which a round forgives failures.
const QUIET_TIME: Duration = Duration::from_secs(600);
/// The error with which the world measures the length of a round.
const ERROR: Duration = Duration::from_secs(12);

impl Budget {
    /// Returns the number of failures that count.
    fn counted(&self) -> u32 {
        let counted = self.charged.keys().filter(|round| **round > self.forgiven_through).count();
        u32::try_from(counted).unwrap_or(u32::MAX)
    }

    /// Notes the start of a round.
    fn begin_round(&mut self, round: Round, now: Instant, members: BTreeSet<NodeId>) {
        let before = self.newest.replace((round, now, members.clone()));
        let (failed, gone) = (self.failed.take(), std::mem::take(&mut self.gone));
        let before = before.map(|(_, _, members)| members).unwrap_or_default();
        let mut entered = members.difference(&before);
        let is_swap = members.len() == before.len() && before.difference(&members).eq(&failed);
        let is_swap = is_swap && failed.is_some_and(|failed| !gone.contains(&failed));
        self.swapped = entered.next().filter(|_| is_swap).cloned();
    }

    /// Notes the end of the newest round. `saved` is the newest step that all ranks have saved. Returns true if failures are forgiven.
    fn end_round(&mut self, now: Instant, saved: u64) -> bool {
        let Some((round, began, _)) = self.newest else { return false };
        let Some((last, before)) = self.charged.last_key_value() else { return false };
        let ran = now.saturating_duration_since(began);
        if self.counted() == 0 || saved <= *before || ran + ERROR < QUIET_TIME {
            return false;
        }
        let is_certain = ran > QUIET_TIME + ERROR && saved >= before + 2 * INTERVAL;
        (self.forgiven_through, self.progress) = (*last, round);
        self.is_unknown |= !is_certain;
        is_certain
    }
}

impl World {
    /// Creates a world whose workers fail, train for about ten minutes, and fail again.
    pub fn with_budget(seed: u64, bug: Bug) -> Self {
        let mut world = Self::new(seed, bug);
        world.train(seed);
        world.fail_often(seed);
        world
    }

    fn fail_often(&mut self, seed: u64) {
        let mut random = Random::new(seed ^ 0x6275_6467_6574);
        self.events.clear();
        (self.forgets, self.checks_voters, self.listed) = (false, false, 3);
        let hosts = random.between(3, 5);
        self.hosts = (0..hosts).map(|_| Host::new(self.start, &mut random)).collect();
        let bound = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        let nodes = NodeRange::new(bound(random.between(1, hosts - 2)), bound(hosts - 1));
        self.shared.nodes = nodes.expect("min is at most max");
        let restarts = random.between(2, 5);
        self.shared.max_restarts = bound(restarts);
        (self.shared.notice, self.shared.no_progress_limit) = (Duration::ZERO, 0);
        for host in 0..self.hosts.len() {
            self.schedule(random.millis(0, 400), Event::Start(host));
        }
        // Too early for progress, or late enough.
        let again = random.pick(&[520_000, 730_000, 730_000]).unwrap_or(730_000);
        for _ in 0..random.between(1, restarts) {
            self.schedule(random.millis(12_000, 35_000), Event::Fault(Fault::WorkerFails));
        }
        for from in (again..).step_by(10_000).take(bound(restarts + 2) as usize) {
            self.schedule(random.millis(from, from + 4_000), Event::Fault(Fault::WorkerFails));
        }
        for from in [12_000, again] {
            let (at, down) = (random.millis(from, from + 25_000), random.millis(100, 3_000));
            let fault = Fault::KillAgent { victim: Victim::Leader, down };
            if random.chance(25) {
                self.schedule(at, Event::Fault(fault));
            }
        }
        self.faulty = Duration::from_millis(again + 10_000 * (restarts + 2));
        if let Some(training) = &mut self.training {
            training.saves_at_intervals = random.chance(75);
            (training.fails_at, training.budget) = (None, Some(Box::default()));
        }
    }

    /// Returns true if all nodes have the same number of workers, so that a spare may take any place.
    pub(in crate::world) fn has_equal_nodes(&self) -> bool {
        let has_budget = self.training.as_ref().is_some_and(|training| training.budget.is_some());
        has_budget || self.health.is_some()
    }

    /// Forgets what the next coordinator of a job does not know.
    pub(in crate::world) fn begin_budget(&mut self, term: Term, state: &JobState) {
        let now = self.now;
        let Some(training) = &mut self.training else { return };
        let Some(budget) = &mut training.budget else { return };
        if state.round == Round(0) {
            **budget = Budget::default();
        }
        // The coordinator before looked once a minute.
        budget.is_unknown |= budget.newest.as_ref().is_some_and(|(_, began, _)| {
            now.saturating_duration_since(*began) + ERROR > QUIET_TIME
        });
        (budget.term, budget.newest, budget.failed) = (term, None, None);
        budget.charged.retain(|round, _| *round <= state.charged_through);
        // The coordinator may not know that the round had progress.
        budget.is_unknown |=
            state.charged_through < budget.progress && state.round <= budget.progress;
    }

    /// Checks rules ao and ap for an event of a coordinator.
    pub(super) fn check_budget(&mut self, id: &NodeId, event: &JournalEvent) {
        let (now, most, round) = (self.now, self.shared.max_restarts, event.round);
        let is_admission = matches!(event.kind, EventKind::RoundAdmitted { .. });
        let snapshot = if is_admission { self.snapshot_of(id) } else { None };
        let Some(training) = &mut self.training else { return };
        let saved = training.checkpoint;
        let Some(budget) = &mut training.budget else { return };
        let node = event.node.as_ref().map(|node| node.node_id.clone());
        if event.id.term < budget.term {
            return;
        }
        let mut broken = None;
        match (&event.kind, node) {
            (EventKind::RoundAdmitted { .. }, _) => {
                let nodes = snapshot.into_iter().flat_map(|snapshot| snapshot.nodes);
                let members = nodes.filter(|node| node.group_rank.is_some());
                budget.begin_round(round, now, members.map(|node| node.node_id).collect());
            }
            (EventKind::RoundEnded { .. }, _) => {
                training.totals.forgiven += u64::from(budget.end_round(now, saved));
            }
            (EventKind::FailureCharged { restarts_used, .. }, node) => {
                budget.charged.insert(round, saved);
                budget.failed = node;
                let counted = budget.counted();
                if !budget.is_unknown && (counted > most || *restarts_used != counted) {
                    broken =
                        Some(format!("rule ao: {restarts_used} instead of {counted} of {most}"));
                }
            }
            (EventKind::JobClosed { result: JobResult::BudgetSpent }, _) => {
                training.totals.spent += u64::from(!budget.is_unknown);
                let counted = budget.counted();
                if !budget.is_unknown && counted != most {
                    broken = Some(format!("rule ao: closed after {counted} of {most}"));
                }
            }
            (
                EventKind::NodeLost { .. }
                | EventKind::NodeLeaseExpired
                | EventKind::NodeQuarantined,
                Some(node),
            ) => {
                let is_free = !budget.charged.contains_key(&round) && !budget.gone.contains(&node);
                let is_quarantined = event.kind == EventKind::NodeQuarantined;
                if is_quarantined && is_free && budget.swapped.as_ref() == Some(&node) {
                    broken = Some(format!("rule ap: the failure of {node} in {round} is free"));
                }
                budget.gone.insert(node);
            }
            _ => {}
        }
        if let Some(broken) = broken {
            self.break_rule(|| broken);
        }
    }
}
