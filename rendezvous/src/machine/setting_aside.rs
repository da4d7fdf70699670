//! Decides which nodes get no place because their machines are unhealthy, or because the user has excluded their hosts.
//!
//! 1. A node has a reason (`Unfit`) as long as it reports one, or its host is excluded. Each registration repeats it.
//! 2. When a round is formed, a node with a reason gets no place, unless
//!    - too many nodes have the same kind of reason ([`SafetyValve`](crate::safety_valve::SafetyValve)), or
//!    - the others do not reach MIN. Then as many nodes get one as are needed, first those that need only a reset.
//!      A node with a GPU that is gone, or with an excluded host, does not help.
//! 3. A failure on a machine that needs a reset or a replacement is not charged if the job can go on without it.
//! 4. A round ends if a member must be replaced, and this was not known when it got its place.
//! 5. A member whose host is excluded stays until the round ends. If all ranks can save, a ready node takes its place.
//! 6. A job with fixed ranks needs all its nodes, so it sets none aside.
//!
//! This is not the quarantine: there, the coordinator counts failures. Here, a check of the node itself ends it.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use tracing::{info, warn};

use crate::{
    event::{EventKind, FreeReason},
    group::Group,
    ids::NodeId,
    job::Availability,
    machine::Rendezvous,
    message::{HealthClass, NodeState, RestartReason},
    phase::{Phase, RoundEnd},
    roster::{RosterNode, Unfit, with_short_names},
    settings::SharedSettings,
};

/// The hosts that the user excludes, with reasons.
pub type ExcludedHosts = BTreeMap<String, String>;

impl Rendezvous {
    /// Lets rounds wait for the first [`Rendezvous::handle_excluded`], at most until this time.
    pub fn await_excluded(&mut self, until: Instant) {
        self.excluded_awaited_until = Some(until);
    }

    /// Replaces the hosts that get no place. `None` keeps the last ones: it is not known which hosts the user excludes now.
    pub fn handle_excluded(&mut self, now: Instant, hosts: Option<ExcludedHosts>) {
        if !self.begin(now) {
            return;
        }
        let was_awaited = self.excluded_awaited_until.take().is_some();
        let hosts = hosts.map(with_short_names);
        let Some(hosts) = hosts.filter(|hosts| self.job.roster.excluded() != hosts) else {
            if was_awaited {
                self.advance(now);
            }
            return;
        };
        for id in self.job.roster.exclude(hosts) {
            let reason = self.job.roster.get(&id).and_then(|node| node.excluded.clone());
            match &reason {
                Some(reason) => warn!(node = %id, %reason, "host excluded"),
                None => info!(node = %id, "host is no longer excluded"),
            }
            let reason = reason.map(|reason| reason.to_string());
            self.out.event_of(&self.job, None, &id, EventKind::NodeExcluded { reason });
            self.index_readiness(&id);
            self.sync(&id);
        }
        self.advance(now);
    }

    /// Decides for all ready nodes with a reason which of them get no place in the next round.
    pub(super) fn set_aside(&mut self, now: Instant, shared: SharedSettings) {
        if self.job.roster.unfit().is_empty() {
            return;
        }
        let aside = match &self.job.phase {
            // No round is interrupted for them.
            Phase::Running(_) => self.job.roster.unfit().clone(),
            Phase::Gathering(_) => self.to_set_aside(now, shared),
            // Other nodes follow.
            Phase::Regathering(regathering) if !regathering.group.pending().is_empty() => return,
            Phase::Regathering(_) => self.to_set_aside(now, shared),
            Phase::Recovering(_) | Phase::Closed(_) => return,
        };
        for id in self.job.roster.unfit().clone() {
            let is_aside = aside.contains(&id);
            let Some(node) = self.job.roster.get_mut(&id).filter(|node| node.is_aside != is_aside)
            else {
                continue;
            };
            node.is_aside = is_aside;
            self.index_readiness(&id);
            self.job.has_news = true;
        }
    }

    fn to_set_aside(&self, now: Instant, shared: SharedSettings) -> BTreeSet<NodeId> {
        let node = |id: &NodeId| self.job.roster.get(id);
        let unfit = self.job.roster.unfit();
        let placed = unfit.iter().filter(|id| node(id).is_some_and(|node| !node.is_aside));
        let fit = self.job.roster.ready().len() - placed.count();
        let mut nodes: Vec<(&NodeId, Unfit, bool)> = unfit
            .iter()
            .filter_map(|id| Some((id, node(id)?.unfit()?)))
            .map(|(id, unfit)| (id, self.valve.has(now, id, &unfit.kind), unfit))
            .map(|(id, is_known, unfit)| (id, unfit, is_known))
            .collect();
        // Nodes that the valve counts already stay aside. Then come the worst, and of equal ones those without a place.
        nodes.sort_by_key(|(id, unfit, is_known)| {
            let was_aside = node(id).is_some_and(|node| node.is_aside);
            (Reverse(*is_known), Reverse(unfit.class), Reverse(was_aside))
        });
        let limit = limit(fit, shared);
        let mut aside = BTreeSet::new();
        let mut by_kind: BTreeMap<&str, usize> = BTreeMap::new();
        for (id, unfit, is_known) in &nodes {
            let count =
                by_kind.entry(&unfit.kind).or_insert_with(|| self.valve.count(now, &unfit.kind));
            let others = *count - usize::from(*is_known);
            if fit > 0 && others < limit {
                *count = others + 1;
                aside.insert((*id).clone());
            }
        }
        let candidates = fit + nodes.len() - aside.len();
        let quarantined = self.job.roster.quarantined().recallable().len();
        let missing = (shared.nodes.min() as usize).saturating_sub(candidates + quarantined);
        let mut helpful: Vec<_> = nodes
            .iter()
            .filter(|(id, unfit, _)| {
                let is_excluded = node(id).is_some_and(|node| node.excluded.is_some());
                aside.contains(*id) && !is_excluded && unfit.class.is_some_and(can_run)
            })
            .collect();
        if helpful.len() >= missing {
            helpful.sort_by_key(|(_, unfit, _)| unfit.class);
            for (id, _, _) in helpful.into_iter().take(missing) {
                aside.remove(*id);
            }
        }
        aside
    }

    /// Records which nodes with a reason get a place in the round that begins, and which do not.
    pub(super) fn record_aside(&mut self, now: Instant, placed: &[NodeId]) {
        let placed: BTreeSet<&NodeId> = placed.iter().collect();
        for id in self.job.roster.unfit().clone() {
            let Some(node) = self.job.roster.get(&id) else { continue };
            let (Some(unfit), is_aside) = (node.unfit(), node.is_aside) else { continue };
            if is_aside {
                self.valve.note(now, &id, &unfit.kind);
            } else if unfit.class.is_none() && placed.contains(&id) {
                warn!(node = %id, "host is excluded, but gets a place: too many are excluded at once");
            }
            if is_aside || placed.contains(&id) {
                self.show_unhealthy(&id, is_aside);
            }
        }
    }

    /// Logs and records once whether an unhealthy node gets a place.
    fn show_unhealthy(&mut self, id: &NodeId, is_set_aside: bool) {
        let Some(node) = self.job.roster.get_mut(id) else { return };
        let Some(unhealthy) = node.report.unhealthy.clone() else { return };
        let shown = Some((unhealthy.class, unhealthy.kind, is_set_aside));
        if node.shown_unhealthy == shown {
            return;
        }
        node.shown_unhealthy = shown;
        let (class, reason) = (unhealthy.class, unhealthy.reason);
        if is_set_aside {
            warn!(node = %id, class = class.name(), %reason, "node is unhealthy: it takes part again when its own check finds nothing");
        } else {
            warn!(node = %id, class = class.name(), %reason, "node is unhealthy, but takes part: the job needs it, or too many nodes report the same");
        }
        self.out.event_of(
            &self.job,
            None,
            id,
            EventKind::NodeUnhealthy { class, reason, is_set_aside },
        );
    }

    /// Records that a node is healthy again.
    pub(super) fn note_health(&mut self, id: &NodeId) {
        if let Some(node) = self.job.roster.get_mut(id)
            && node.report.unhealthy.is_none()
            && node.shown_unhealthy.take().is_some()
        {
            info!(node = %id, "node is healthy again");
            self.out.event_of(&self.job, None, id, EventKind::NodeHealthy);
        }
    }

    /// Ends the round if a check that began before it finds that a member's machine must be replaced, and the job can go on
    /// without it. Returns true then.
    pub(super) fn end_unhealthy(&mut self, now: Instant, id: &NodeId) -> bool {
        let Some(running) = self.job.phase.running() else { return false };
        let Some(node) = self.job.roster.get(id) else { return false };
        let runs = matches!(node.report.state, NodeState::Running)
            && node.report.failure.is_none()
            && node.report.round == running.group.round;
        let Some(unhealthy) = node.report.unhealthy.as_deref().filter(|_| runs) else {
            return false;
        };
        let is_new = node.placed_with < Some(unhealthy.class);
        // What is done already would be repeated, or saved in vain.
        let may = running.group.held(id).is_some()
            && !running.group.any_succeeded()
            && !self.is_saving()
            && self.job.availability == Availability::Available;
        if unhealthy.class < HealthClass::Replace || !is_new || !may {
            return false;
        }
        let Some(reason) = self.bad_machine(now, id) else { return false };
        self.end_round(now, RoundEnd { loss: Some(now), ..reason.into() });
        true
    }

    /// Judges the failure of a worker whose machine needs a reset or a replacement: if the job can go on without it, the
    /// failure is not charged. Returns true then.
    pub(super) fn set_aside_after_failure(&mut self, now: Instant, id: &NodeId) -> bool {
        let unhealthy = self.job.roster.get(id).and_then(|node| node.report.unhealthy.as_deref());
        let is_free = unhealthy.is_some_and(|unhealthy| can_run(unhealthy.class));
        let Some(reason) = self.bad_machine(now, id).filter(|_| is_free) else { return false };
        let Some(regathering) = self.job.phase.regathering_mut() else { return false };
        info!(round = %regathering.group.round, node = %id, "failure not charged: the machine is unhealthy");
        regathering.reason = reason;
        regathering.loss = Some(now);
        self.out.record_free_failure(&self.job, FreeReason::BadMachine);
        true
    }

    /// Returns the reason for a round without this node; `None` if its machine is healthy, or the job cannot go on
    /// without it.
    fn bad_machine(&self, now: Instant, id: &NodeId) -> Option<RestartReason> {
        let node = self.job.roster.get(id)?;
        let unhealthy = node.report.unhealthy.as_deref()?;
        self.can_set_aside(now, id).then(|| RestartReason::BadMachine {
            host_name: node.description.host_name.clone(),
            reason: unhealthy.reason.clone(),
        })
    }

    /// Returns true if the next round can begin without this member, which is unhealthy or excluded.
    fn can_set_aside(&self, now: Instant, id: &NodeId) -> bool {
        let unfit = self.job.roster.get(id).and_then(RosterNode::unfit);
        let (Some(shared), Some(unfit)) = (self.job.settings.shared, unfit) else { return false };
        let others = self.fit_without(id);
        if others == 0 || others < shared.nodes.min() as usize {
            return false;
        }
        // Some may be set aside for longer than they are counted.
        let is_of_kind = |other: &&NodeId| {
            let node = self.job.roster.get(other).filter(|node| node.is_aside);
            node.and_then(RosterNode::unfit).is_some_and(|other| other.kind == unfit.kind)
        };
        let aside = self.job.roster.unfit().iter().filter(|other| *other != id).filter(is_of_kind);
        let aside = aside.filter(|other| !self.valve.has(now, other, &unfit.kind)).count();
        let counted = self.valve.count(now, &unfit.kind);
        let counted = counted - usize::from(self.valve.has(now, id, &unfit.kind));
        counted + aside < limit(others, shared)
    }

    /// Returns the number of other nodes that can take part in the next round, and are neither unhealthy nor excluded.
    pub(super) fn fit_without(&self, id: &NodeId) -> usize {
        let Some(group) = self.job.phase.group() else { return 0 };
        let is_fit = |id: &NodeId| {
            self.job.roster.get(id).is_some_and(|node| {
                node.tally.quarantined_until().is_none() && node.unfit().is_none()
            })
        };
        let members = group
            .members()
            .filter(|(other, member)| *other != id && member.state.stays() && is_fit(other));
        let others = self.job.roster.ready().iter();
        let others = others.filter(|other| group.held(other).is_none() && is_fit(other));
        members.count() + others.count()
    }

    /// Returns true if a member of the running round is excluded, all ranks can save before it is replaced, and a ready node
    /// can take its place.
    pub(super) fn can_replace_excluded(&self, group: &Group) -> bool {
        let Some(shared) = self.job.settings.shared.filter(|shared| !shared.notice.is_zero())
        else {
            return false;
        };
        let is_possible = self.job.state.training.saved_step.is_some()
            && !self.job.roster.ready().is_empty()
            && !self.job.roster.excluded_nodes().is_empty();
        let is_member = |id: &&NodeId| {
            let node = self.job.roster.get(id).filter(|node| node.report.unhealthy.is_none());
            node.is_some() && group.held(id).is_some()
        };
        let member =
            self.job.roster.excluded_nodes().iter().find(is_member).filter(|_| is_possible);
        // All of them have the same kind of reason, so one is enough to decide.
        member.is_some_and(|id| {
            shared.nodes.fit(self.fit_without(id)) >= group.size as usize
                && self.can_set_aside(self.job.clock, id)
        })
    }
}

/// Returns the most nodes that one kind of reason sets aside. `fit` is the number of nodes that are neither unhealthy nor excluded.
fn limit(fit: usize, shared: SharedSettings) -> usize {
    let (min, max) = (shared.nodes.min() as usize, shared.nodes.max() as usize);
    let has_spare = fit >= max;
    match max - min {
        _ if shared.fixed_ranks => 0,
        0 => usize::from(has_spare),
        places => places,
    }
}

/// Returns true if workers can run on such a machine, perhaps.
fn can_run(class: HealthClass) -> bool {
    match class {
        HealthClass::Reset | HealthClass::Replace => true,
        HealthClass::Gone => false,
    }
}
