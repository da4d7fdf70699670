//! Decides which nodes get no place because their machines are unhealthy, or because the user has excluded their hosts.
//!
//! 1. A node has a reason (`Unfit`) as long as it reports one, or its host is excluded. Each registration repeats it.
//! 2. When a round is formed, a node with a reason gets no place, unless
//!    - too many nodes have the same kind of reason ([`SafetyValve`]), or
//!    - the others do not reach MIN. Then as many nodes get one as are needed, first those that need only a reset.
//!      A node with a GPU that is gone, or with an excluded host, does not help.
//! 3. A failure on a machine that needs a reset or a replacement is not charged if the job can go on without it.
//! 4. A round ends if a member must be replaced, and this was not known when it got its place.
//! 5. A member whose host is excluded stays until the round ends. If all ranks can save, a ready node takes its place.
//! 6. A job with fixed ranks needs all its nodes, so it sets none aside.
//!
//! This is not the quarantine: there, the coordinator counts failures. Here, a check of the node itself ends it.

mod safety_valve;
#[cfg(test)]
mod tests;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use safety_valve::SafetyValve;
use tracing::{info, warn};

use crate::{
    effects::Effects,
    event::EventKind,
    group::Group,
    ids::NodeId,
    job::{Availability, Job},
    message::{HealthClass, NodeState, RestartReason},
    phase::Phase,
    roster::{RosterNode, Unfit},
    settings::SharedSettings,
};

/// Decides which nodes with a reason get a place, and remembers what it has decided.
#[derive(Debug, Default)]
pub(crate) struct JobHealth {
    /// The time until which rounds wait for the first list of excluded hosts.
    awaited_until: Option<Instant>,
    valve: SafetyValve,
    /// The need of each member that was known when it got its place.
    placed_with: BTreeMap<NodeId, HealthClass>,
    /// The need, the kind of reason and whether the node was set aside, as they were last recorded.
    shown: BTreeMap<NodeId, (HealthClass, String, bool)>,
}

impl JobHealth {
    /// Lets rounds wait for the first list of excluded hosts, at most until this time.
    pub(crate) fn await_list_until(&mut self, until: Instant) {
        self.awaited_until = Some(until);
    }

    /// Notes that a list is there. Returns true if rounds have waited for it.
    pub(crate) fn note_list(&mut self) -> bool {
        self.awaited_until.take().is_some()
    }

    /// Returns the time until which rounds still wait for the list.
    pub(crate) fn list_awaited_until(&self, now: Instant) -> Option<Instant> {
        self.awaited_until.filter(|until| now < *until)
    }

    /// Forgets a node that is lost or has left.
    pub(crate) fn forget(&mut self, id: &NodeId) {
        self.placed_with.remove(id);
        self.shown.remove(id);
    }

    /// Decides for all ready nodes with a reason which of them get no place in the next round. `None` if nothing is decided in
    /// this phase.
    pub(crate) fn aside(&self, job: &Job, shared: SharedSettings) -> Option<BTreeSet<NodeId>> {
        match &job.phase {
            // No round is interrupted for them.
            Phase::Running(_) => Some(job.roster.unfit().clone()),
            Phase::Gathering(_) => Some(self.to_set_aside(job, shared)),
            // Other nodes follow.
            Phase::Regathering(regathering) if !regathering.group.pending().is_empty() => None,
            Phase::Regathering(_) => Some(self.to_set_aside(job, shared)),
            Phase::Recovering(_) | Phase::Closed(_) => None,
        }
    }

    fn to_set_aside(&self, job: &Job, shared: SharedSettings) -> BTreeSet<NodeId> {
        let node = |id: &NodeId| job.roster.get(id);
        let unfit = job.roster.unfit();
        let placed = unfit.iter().filter(|id| node(id).is_some_and(|node| !node.is_aside));
        let fit = job.roster.ready().len() - placed.count();
        let mut nodes: Vec<(&NodeId, Unfit, bool)> = unfit
            .iter()
            .filter_map(|id| Some((id, node(id)?.unfit()?)))
            .map(|(id, unfit)| (id, self.valve.has(job.clock, id, &unfit.kind), unfit))
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
            let count = by_kind
                .entry(&unfit.kind)
                .or_insert_with(|| self.valve.count(job.clock, &unfit.kind));
            let others = *count - usize::from(*is_known);
            if fit > 0 && others < limit {
                *count = others + 1;
                aside.insert((*id).clone());
            }
        }
        let candidates = fit + nodes.len() - aside.len();
        let quarantined = job.roster.quarantined().recallable().len();
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

    /// Records which nodes with a reason get a place in the round that begins, and which do not. Notes what is known about the
    /// machines of all members.
    pub(crate) fn begin_round(&mut self, job: &Job, placed: &[NodeId], out: &mut Effects) {
        let placed: BTreeSet<&NodeId> = placed.iter().collect();
        let need = |id: &NodeId| Some(job.roster.get(id)?.report.unhealthy.as_ref()?.class);
        for id in &placed {
            match need(id) {
                Some(class) => self.placed_with.insert((*id).clone(), class),
                None => self.placed_with.remove(*id),
            };
        }
        for id in job.roster.unfit() {
            let Some(node) = job.roster.get(id) else { continue };
            let (Some(unfit), is_aside) = (node.unfit(), node.is_aside) else { continue };
            if is_aside {
                self.valve.note(job.clock, id, &unfit.kind);
            } else if unfit.class.is_none() && placed.contains(id) {
                warn!(node = %id, "host is excluded, but gets a place: too many are excluded at once");
            }
            if is_aside || placed.contains(id) {
                self.show(job, id, is_aside, out);
            }
        }
    }

    /// Logs and records once whether an unhealthy node gets a place.
    fn show(&mut self, job: &Job, id: &NodeId, is_set_aside: bool, out: &mut Effects) {
        let node = job.roster.get(id);
        let Some(unhealthy) = node.and_then(|node| node.report.unhealthy.clone()) else { return };
        let (class, reason) = (unhealthy.class, unhealthy.reason);
        let shown = (class, unhealthy.kind, is_set_aside);
        if self.shown.get(id) == Some(&shown) {
            return;
        }
        self.shown.insert(id.clone(), shown);
        if is_set_aside {
            warn!(node = %id, class = class.name(), %reason, "node is unhealthy: it takes part again when its own check finds nothing");
        } else {
            warn!(node = %id, class = class.name(), %reason, "node is unhealthy, but takes part: the job needs it, or too many nodes report the same");
        }
        out.event_of(job, None, id, EventKind::NodeUnhealthy { class, reason, is_set_aside });
    }

    /// Records that a node is healthy again, if it now reports nothing.
    pub(crate) fn note_recovery(&mut self, job: &Job, id: &NodeId, out: &mut Effects) {
        let is_healthy = job.roster.get(id).is_some_and(|node| node.report.unhealthy.is_none());
        if is_healthy && self.shown.remove(id).is_some() {
            info!(node = %id, "node is healthy again");
            out.event_of(job, None, id, EventKind::NodeHealthy);
        }
    }

    /// Returns the reason to end the round: a check that began before the round finds that a member's machine must be replaced,
    /// and the job can go on without it.
    pub(crate) fn why_end(&self, job: &Job, id: &NodeId, is_saving: bool) -> Option<RestartReason> {
        let running = job.phase.running()?;
        let node = job.roster.get(id)?;
        let runs = matches!(node.report.state, NodeState::Running)
            && node.report.failure.is_none()
            && node.report.round == running.group.round;
        let unhealthy = node.report.unhealthy.as_deref().filter(|_| runs)?;
        let is_new = self.placed_with.get(id).is_none_or(|known| *known < unhealthy.class);
        // What is done already would be repeated, or saved in vain.
        let may = running.group.held(id).is_some()
            && !running.group.any_succeeded()
            && !is_saving
            && job.availability == Availability::Available;
        let must_go = unhealthy.class >= HealthClass::Replace && is_new && may;
        if must_go { self.bad_machine(job, id) } else { None }
    }

    /// Returns why the failure of a worker is not charged: its machine needs a reset or a replacement, and the job can go on
    /// without it.
    pub(crate) fn why_free(&self, job: &Job, id: &NodeId) -> Option<RestartReason> {
        let unhealthy = job.roster.get(id)?.report.unhealthy.as_deref()?;
        if can_run(unhealthy.class) { self.bad_machine(job, id) } else { None }
    }

    /// Returns the reason for a round without this node; `None` if its machine is healthy, or the job cannot go on
    /// without it.
    fn bad_machine(&self, job: &Job, id: &NodeId) -> Option<RestartReason> {
        let node = job.roster.get(id)?;
        let reason = node.report.unhealthy.as_deref()?.reason.clone();
        let host_name = node.description.host_name.clone();
        let can_go = self.can_set_aside(job, id);
        can_go.then_some(RestartReason::BadMachine { host_name, reason })
    }

    /// Returns true if the next round can begin without this member, which is unhealthy or excluded.
    fn can_set_aside(&self, job: &Job, id: &NodeId) -> bool {
        let unfit = job.roster.get(id).and_then(RosterNode::unfit);
        let (Some(shared), Some(unfit)) = (job.settings.shared, unfit) else { return false };
        let others = job.fit_without(id);
        if others == 0 || others < shared.nodes.min() as usize {
            return false;
        }
        // Some may be set aside for longer than they are counted.
        let is_of_kind = |other: &&NodeId| {
            let node = job.roster.get(other).filter(|node| node.is_aside);
            node.and_then(RosterNode::unfit).is_some_and(|other| other.kind == unfit.kind)
        };
        let aside = job.roster.unfit().iter().filter(|other| *other != id).filter(is_of_kind);
        let aside = aside.filter(|other| !self.valve.has(job.clock, other, &unfit.kind)).count();
        let counted = self.valve.count(job.clock, &unfit.kind);
        let counted = counted - usize::from(self.valve.has(job.clock, id, &unfit.kind));
        counted + aside < limit(others, shared)
    }

    /// Returns true if a member of the running round is excluded, all ranks can save before it is replaced, and a ready node
    /// can take its place.
    pub(crate) fn can_replace_excluded(&self, job: &Job, group: &Group, has_saved: bool) -> bool {
        let Some(shared) = job.settings.shared.filter(|shared| !shared.notice.is_zero()) else {
            return false;
        };
        let is_possible =
            has_saved && !job.roster.ready().is_empty() && !job.roster.excluded_nodes().is_empty();
        let is_member = |id: &&NodeId| {
            let node = job.roster.get(id).filter(|node| node.report.unhealthy.is_none());
            node.is_some() && group.held(id).is_some()
        };
        let member = job.roster.excluded_nodes().iter().find(is_member).filter(|_| is_possible);
        // All of them have the same kind of reason, so one is enough to decide.
        member.is_some_and(|id| {
            shared.nodes.fit(job.fit_without(id)) >= group.size as usize
                && self.can_set_aside(job, id)
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
