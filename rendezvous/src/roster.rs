//! Keeps all known nodes with their leases, and finds the nodes that can take part in a round.

mod departed_streams;
mod node;
mod quarantined;
#[cfg(test)]
mod tests;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    mem,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

pub(crate) use self::node::{RosterNode, SentAssignment, Unfit};
use self::{departed_streams::DepartedStreams, quarantined::Quarantined};
use crate::{
    flapping::{DepartedTallies, Tally},
    ids::{NodeId, Peer, RoundId, StreamNumber},
    limits::{HOST_TALLIES_MAX, after},
    message::{NodeDescription, NodeNotice, NodeReport, NodeState, Registration, StandbyCounts},
    settings::HostTally,
};

/// All nodes that the coordinator knows.
///
/// Invariants:
///
/// - `leases` has one deadline for each node.
/// - `young`, `ready`, `quarantined` and `unfit` have only nodes that are [`NodeState::Ready`] and not members of a
///   running round. Each is in one of the first three, or set aside and only in `unfit`.
/// - `ready_by_node_rank` counts the nodes in `ready` that have a `--node-rank`.
/// - `alike` has each node by its role, rank and host name.
#[derive(Debug, Default)]
pub(crate) struct Roster {
    nodes: BTreeMap<NodeId, RosterNode>,
    /// The nodes by role, rank and host name.
    alike: BTreeMap<Common, BTreeSet<NodeId>>,
    leases: BTreeSet<(Instant, NodeId)>,
    ready: BTreeSet<NodeId>,
    ready_by_node_rank: BTreeMap<u32, u32>,
    quarantined: Quarantined,
    /// The nodes that are ready, but should get no place. Those that get one nevertheless are also in `ready`.
    unfit: BTreeSet<NodeId>,
    /// The hosts that the user excludes, with reasons.
    excluded: BTreeMap<String, String>,
    /// The nodes on these hosts.
    excluded_nodes: BTreeSet<NodeId>,
    young: BTreeSet<(Instant, NodeId)>,
    leaving: BTreeSet<NodeId>,
    noticed: BTreeMap<NodeId, Noticed>,
    /// The nodes that have received a notice that the job ends, leaving or not.
    ending: BTreeSet<NodeId>,
    departed_streams: DepartedStreams,
    departed_tallies: DepartedTallies,
    arrivals: u64,
}

/// The notice that a node has received, with the time by which it is over.
#[derive(Clone, Debug)]
pub(crate) struct Noticed {
    /// True if the job ends; false if only the node leaves.
    pub(crate) ends_job: bool,
    pub(crate) until: Instant,
    /// The source, for people.
    pub(crate) text: String,
}

/// A property that several nodes may share.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Common {
    Role(String),
    NodeRank(u32),
    HostName(String),
}

impl Common {
    fn of(node: &NodeDescription) -> impl Iterator<Item = Self> + use<> {
        let NodeDescription { role, node_rank, host_name, .. } = node;
        let named = [Self::Role(role.clone()), Self::HostName(host_name.clone())];
        node_rank.map(Self::NodeRank).into_iter().chain(named)
    }
}

impl Roster {
    /// Returns the nodes that have this in common.
    pub(crate) fn with<'a>(
        &'a self,
        common: &Common,
    ) -> impl Iterator<Item = &'a RosterNode> + use<'a> {
        let ids = self.alike.get(common).into_iter().flatten();
        ids.filter_map(|id| self.nodes.get(id))
    }

    fn add_alike(&mut self, node: &NodeDescription) {
        for common in Common::of(node) {
            self.alike.entry(common).or_default().insert(node.node_id.clone());
        }
    }

    fn remove_alike(&mut self, node: &NodeDescription) {
        for common in Common::of(node) {
            if let Some(ids) = self.alike.get_mut(&common) {
                ids.remove(&node.node_id);
                if ids.is_empty() {
                    self.alike.remove(&common);
                }
            }
        }
    }

    /// Returns the node, if it is known.
    pub(crate) fn get(&self, node: &NodeId) -> Option<&RosterNode> {
        self.nodes.get(node)
    }

    /// Returns the node, if it is known, for changes that do not affect [`Roster::index_readiness`].
    pub(crate) fn get_mut(&mut self, node: &NodeId) -> Option<&mut RosterNode> {
        self.nodes.get_mut(node)
    }

    /// Returns all nodes, by id.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&NodeId, &RosterNode)> {
        self.nodes.iter()
    }

    /// Returns the number of known nodes.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns true if no node is known.
    pub(crate) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Returns the nodes that can take part in the next round.
    pub(crate) fn ready(&self) -> &BTreeSet<NodeId> {
        &self.ready
    }

    /// Returns the number of different `--node-rank`s among the nodes that can take part in the
    /// next round.
    pub(crate) fn node_ranks_ready(&self) -> usize {
        self.ready_by_node_rank.len()
    }

    /// Returns the nodes that are ready but quarantined.
    pub(crate) fn quarantined(&self) -> &Quarantined {
        &self.quarantined
    }

    /// Returns the nodes that are ready, but should get no place.
    pub(crate) fn unfit(&self) -> &BTreeSet<NodeId> {
        &self.unfit
    }

    /// Returns the hosts that the user excludes, with reasons.
    pub(crate) fn excluded(&self) -> &BTreeMap<String, String> {
        &self.excluded
    }

    /// Returns the nodes on hosts that the user excludes.
    pub(crate) fn excluded_nodes(&self) -> &BTreeSet<NodeId> {
        &self.excluded_nodes
    }

    /// Replaces the hosts that the user excludes. Returns the nodes for which this is a change.
    pub(crate) fn exclude(&mut self, hosts: BTreeMap<String, String>) -> Vec<NodeId> {
        self.excluded = hosts;
        self.excluded_nodes.clear();
        let mut changed = Vec::new();
        for (id, node) in &mut self.nodes {
            let excluded = excluded_because(&self.excluded, &node.description);
            if excluded.is_some() {
                self.excluded_nodes.insert(id.clone());
            }
            if node.excluded != excluded {
                node.excluded = excluded;
                changed.push(id.clone());
            }
        }
        changed
    }

    /// Returns the nodes that are ready, but too young for the first round of a job.
    pub(crate) fn young(&self) -> &BTreeSet<(Instant, NodeId)> {
        &self.young
    }

    /// Makes nodes candidates if they are old enough at `now`. Without `now`, all of them.
    pub(crate) fn grow_up(&mut self, now: Option<Instant>) {
        let is_due = |at: &Instant| now.is_none_or(|now| *at <= now);
        while let Some((_, id)) = self.young.first().filter(|(at, _)| is_due(at)).cloned() {
            self.young.pop_first();
            if let Some(node) = self.nodes.get_mut(&id) {
                node.young_until = None;
            }
            self.index_readiness(&id, false);
        }
    }

    /// Returns the nodes that have received a notice and are not leaving yet.
    pub(crate) fn noticed(&self) -> &BTreeMap<NodeId, Noticed> {
        &self.noticed
    }

    /// Returns true if a node has received a notice that the job ends, even if the node is leaving already.
    pub(crate) fn is_job_ending(&self) -> bool {
        !self.ending.is_empty()
    }

    /// Returns true if nodes are known, and each of them is leaving, or has received a notice.
    pub(crate) fn all_will_leave(&self) -> bool {
        !self.nodes.is_empty() && self.leaving.len() + self.noticed.len() == self.nodes.len()
    }

    /// Returns true if nodes are known, and all of them are leaving.
    pub(crate) fn all_leaving(&self) -> bool {
        !self.nodes.is_empty() && self.leaving.len() == self.nodes.len()
    }

    /// Returns true if `peer` is not newer than its node's known streams, or if the node has left
    /// permanently.
    pub(crate) fn is_late(&self, peer: &Peer) -> bool {
        let newest = self.nodes.get(&peer.node).map(|node| node.stream);
        newest
            .or_else(|| self.departed_streams.newest(&peer.node))
            .is_some_and(|newest| peer.stream <= newest)
    }

    /// Adds a stream for which [`Roster::is_late`] is false. Returns false if the node's report is outdated.
    pub(crate) fn register(
        &mut self,
        now: Instant,
        registration: Registration,
        lease: Duration,
        young_until: Option<Instant>,
    ) -> bool {
        let Registration { stream, node: description, report, memory, .. } = registration;
        let id = description.node_id.clone();
        let before = self.nodes.get(&id).map(|node| node.young_until);
        let was_young =
            before.flatten().is_some_and(|until| self.young.remove(&(until, id.clone())));
        let tally = match self.nodes.get(&id) {
            Some(_) => Tally::default(),
            None => self.departed_tallies.take(now, &description).unwrap_or_default(),
        };
        let arrivals = &mut self.arrivals;
        let node = self.nodes.entry(id.clone()).or_insert_with(|| {
            *arrivals += 1;
            RosterNode {
                description: Arc::new(description.clone()),
                stream,
                attached: true,
                arrival: *arrivals,
                floor: RoundId::default(),
                admitted_on: StreamNumber::default(),
                missed_its_admission: false,
                has_reported: false,
                missed_round: None,
                report: report.clone(),
                requested: report.requests,
                progress: None,
                standbys: None,
                memory: None,
                last_seen: now,
                sent: None,
                tally,
                excluded: None,
                is_aside: false,
                lease,
                young_until: None,
            }
        });
        self.leases.remove(&(after(node.last_seen, node.lease), id.clone()));
        // The node rank is constant for the life of an agent.
        let node_rank = node.description.node_rank;
        let described = Arc::new(NodeDescription { node_rank, ..description });
        let before_this = mem::replace(&mut node.description, Arc::clone(&described));
        node.excluded = excluded_because(&self.excluded, &described);
        match node.excluded {
            Some(_) => self.excluded_nodes.insert(id.clone()),
            None => self.excluded_nodes.remove(&id),
        };
        node.stream = stream;
        node.has_reported = false;
        node.memory = memory.map(Box::new);
        node.attached = true;
        node.sent = None;
        node.last_seen = now;
        node.lease = lease;
        // A node that is old enough remains so.
        node.young_until = before.unwrap_or(young_until).and(young_until);
        self.remove_alike(&before_this);
        self.add_alike(&described);
        self.leases.insert((after(now, lease), id.clone()));
        // The node may have been admitted since it sent this.
        let counts = self.record_report(now, &id, report, false);
        if was_young {
            self.index_readiness(&id, false);
        }
        counts
    }

    /// Records the progress report of a node's workers.
    pub(crate) fn record_progress(&mut self, id: &NodeId, progress: String) {
        if let Some(node) = self.nodes.get_mut(id) {
            node.progress = Some(progress).filter(|text| !text.is_empty()).map(Arc::from);
        }
    }

    /// Records the standbys of a node.
    pub(crate) fn record_standbys(&mut self, id: &NodeId, standbys: StandbyCounts) {
        if let Some(node) = self.nodes.get_mut(id) {
            node.standbys = Some(Arc::new(standbys));
        }
    }

    /// Renews the lease of `peer`'s node. Returns false if messages of that stream are ignored.
    pub(crate) fn renew(&mut self, now: Instant, peer: &Peer) -> bool {
        let is_current = self.nodes.get(&peer.node).is_some_and(|node| node.stream == peer.stream);
        if is_current {
            self.extend_lease(now, &peer.node);
        }
        is_current
    }

    /// Extends the lease of `id`, if it is known, even while a registration on a newer stream is pending.
    pub(crate) fn extend_lease(&mut self, now: Instant, id: &NodeId) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        let deadline = (after(node.last_seen, node.lease), id.clone());
        self.leases.remove(&deadline);
        node.last_seen = now;
        self.leases.insert((after(now, node.lease), deadline.1));
    }

    /// Applies [`Roster::distrust_store`] to all nodes.
    pub(crate) fn distrust_stores(&mut self, round: RoundId) {
        let ids: Vec<NodeId> = self.nodes.keys().cloned().collect();
        for id in ids {
            self.distrust_store(&id, round);
        }
    }

    /// Notes that `id` may have been admitted to `round` without its knowledge, if it is ready and has reported an earlier round. It is then
    /// not ready until it has opened another store.
    pub(crate) fn distrust_store(&mut self, id: &NodeId, round: RoundId) {
        if let Some(node) = self.nodes.get_mut(id).filter(|node| node.is_ready())
            && node.report.round.round < round.round
        {
            node.missed_round = Some(round);
            self.index_readiness(id, false);
        }
    }

    /// Records the state that `id` reports after it was welcomed. Returns false if the report is outdated.
    ///
    /// Once welcomed, a node reads nothing from earlier streams. So if it then reports an older round than
    /// its admission on an earlier stream, the admission was lost.
    pub(crate) fn record_report_on_stream(
        &mut self,
        now: Instant,
        id: &NodeId,
        report: NodeReport,
    ) -> bool {
        let Some(node) = self.nodes.get_mut(id) else { return false };
        node.has_reported = true;
        let is_later = node.stream > node.admitted_on;
        self.record_report(now, id, report, is_later)
    }

    fn record_report(
        &mut self,
        now: Instant,
        id: &NodeId,
        report: NodeReport,
        is_final: bool,
    ) -> bool {
        let Some(node) = self.nodes.get_mut(id) else { return false };
        // Leaving is final, so it counts for any round.
        let is_leaving = matches!(report.state, NodeState::Leaving { .. });
        let is_below = report.round < node.floor;
        if is_below && !is_leaving && !is_final {
            return false;
        }
        let is_missed = is_below && is_final && !node.missed_its_admission;
        let floor = node.floor;
        let missed_round = node.missed_round.or_else(|| is_missed.then_some(floor));
        node.missed_its_admission = is_below && is_final;
        node.floor = node.floor.max(report.round);
        let is_same_store =
            matches!(report.state, NodeState::Ready { .. }) && report.state == node.report.state;
        // A node that reports this round or a later one has opened another store since, perhaps on the same port.
        let still_misses = |missed: &RoundId| is_same_store && report.round.round < missed.round;
        node.missed_round = missed_round.filter(still_misses);
        node.report = report;
        match node.report.notice.clone().filter(|_| !node.is_leaving()) {
            Some(NodeNotice { ends_job, left, text }) => {
                let until = after(now, left);
                let known = self.noticed.get(id).map_or(until, |noticed| noticed.until);
                let until = until.min(known);
                self.noticed.insert(id.clone(), Noticed { ends_job, until, text });
            }
            None => {
                self.noticed.remove(id);
            }
        }
        if node.report.notice.as_ref().is_some_and(|notice| notice.ends_job) {
            self.ending.insert(id.clone());
        } else {
            self.ending.remove(id);
        }
        if node.is_leaving() {
            self.leaving.insert(id.clone());
        } else {
            self.leaving.remove(id);
        }
        true
    }

    /// Sorts `id` into the young, the ready or the quarantined nodes, or into none of them.
    pub(crate) fn index_readiness(&mut self, id: &NodeId, is_running_member: bool) {
        let Some(node) = self.nodes.get(id) else { return };
        // A node that is about to leave gets no place.
        let is_ready = node.is_ready() && node.report.notice.is_none();
        let quarantined_until = node.tally.quarantined_until();
        let may_be_recalled = node.tally.may_be_recalled();
        let (node_rank, young_until) = (node.description.node_rank, node.young_until);
        let (is_unfit, is_aside) = (node.is_unfit(), node.is_aside);
        self.unindex_readiness(id, node_rank);
        if !is_ready || is_running_member {
            return;
        }
        if let Some(until) = young_until {
            self.young.insert((until, id.clone()));
            return;
        }
        match quarantined_until {
            Some(until) => {
                self.quarantined.insert(id, until, may_be_recalled);
            }
            None => {
                if is_unfit {
                    self.unfit.insert(id.clone());
                    if is_aside {
                        return;
                    }
                }
                self.ready.insert(id.clone());
                if let Some(node_rank) = node_rank {
                    *self.ready_by_node_rank.entry(node_rank).or_default() += 1;
                }
            }
        }
    }

    /// Removes `id` from the index of [`Roster::index_readiness`].
    fn unindex_readiness(&mut self, id: &NodeId, node_rank: Option<u32>) {
        self.quarantined.remove(id);
        self.unfit.remove(id);
        if let Some(until) = self.nodes.get(id).and_then(|node| node.young_until) {
            self.young.remove(&(until, id.clone()));
        }
        if !self.ready.remove(id) {
            return;
        }
        if let Some(rank) = node_rank
            && let Entry::Occupied(mut count) = self.ready_by_node_rank.entry(rank)
        {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    /// Returns the earliest end of a lease.
    pub(crate) fn first_lease(&self) -> Option<Instant> {
        self.leases.first().map(|(at, _)| *at)
    }

    /// Returns the longest silence of a node. All leases are equal, so this node's lease ends first.
    pub(crate) fn longest_silence(&self, now: Instant) -> Duration {
        let node = self.leases.first().and_then(|(_, id)| self.nodes.get(id));
        node.map_or(Duration::ZERO, |node| now.saturating_duration_since(node.last_seen))
    }

    /// Returns a node whose lease has ended, if any.
    pub(crate) fn expired(&self, now: Instant) -> Option<NodeId> {
        self.leases.first().filter(|(at, _)| *at <= now).map(|(_, node)| node.clone())
    }

    /// Removes a node that may register again.
    pub(crate) fn remove_lost(&mut self, now: Instant, id: &NodeId) -> Option<RosterNode> {
        let mut node = self.remove(id)?;
        self.departed_streams.insert(id, node.stream);
        if !node.tally.is_clean() {
            self.departed_tallies.insert(&node.description, mem::take(&mut node.tally));
            self.pass_on(now, &node.description);
        }
        Some(node)
    }

    /// Removes a node that is lost or has left permanently.
    pub(crate) fn remove_for_good(&mut self, now: Instant, id: &NodeId) -> Option<RosterNode> {
        let node = self.remove_lost(now, id);
        self.departed_streams.insert(id, StreamNumber(u64::MAX));
        node
    }

    /// Restores the tallies of an earlier coordinator.
    pub(crate) fn restore_tallies(&mut self, now: Instant, counted: &[HostTally]) {
        self.departed_tallies.restore(now, counted);
    }

    /// Returns the tallies of machines for the next coordinator, those with the most suspicions and losses first.
    pub(crate) fn host_tallies(&self, now: Instant) -> Vec<HostTally> {
        let here = self.nodes.values().filter(|node| !node.tally.is_clean());
        let here = here.filter_map(|node| node.tally.to_host(now, &node.description));
        let mut tallies: Vec<HostTally> = here.chain(self.departed_tallies.to_hosts(now)).collect();
        tallies.sort_by_key(|tally| Reverse((tally.suspicions, tally.early_losses, tally.strikes)));
        tallies.truncate(HOST_TALLIES_MAX);
        tallies
    }

    /// Clears all tallies, because another run begins.
    pub(crate) fn forget_tallies(&mut self) {
        self.departed_tallies = DepartedTallies::default();
        for node in self.nodes.values_mut() {
            node.tally = Tally::default();
        }
        for id in mem::take(&mut self.quarantined).ids() {
            self.index_readiness(id, false);
        }
    }

    /// Passes the tally of a departed agent on to an agent of the same machine that already waits.
    fn pass_on(&mut self, now: Instant, description: &NodeDescription) {
        let successor = self.with(&Common::HostName(description.host_name.clone())).find(|node| {
            node.floor == RoundId::default()
                && node.tally.is_clean()
                && node.description.address == description.address
        });
        let Some(id) = successor.map(|node| node.description.node_id.clone()) else { return };
        if let Some(tally) = self.departed_tallies.take(now, description)
            && let Some(successor) = self.nodes.get_mut(&id)
        {
            successor.tally = tally;
            self.index_readiness(&id, false);
        }
    }

    fn remove(&mut self, id: &NodeId) -> Option<RosterNode> {
        let node_rank = self.nodes.get(id)?.description.node_rank;
        self.unindex_readiness(id, node_rank);
        let node = self.nodes.remove(id)?;
        self.remove_alike(&node.description);
        self.leases.remove(&(after(node.last_seen, node.lease), id.clone()));
        self.leaving.remove(id);
        self.noticed.remove(id);
        self.ending.remove(id);
        self.excluded_nodes.remove(id);
        Some(node)
    }
}

/// Returns the reason for which a node is excluded: by its host name, also up to the first dot, or by its failure domain, which
/// is the machine of a pod in Kubernetes.
fn excluded_because(hosts: &BTreeMap<String, String>, node: &NodeDescription) -> Option<Arc<str>> {
    if hosts.is_empty() {
        return None;
    }
    let names = [node.host_name.as_str(), short_name(&node.host_name), &node.failure_domain];
    let reason = names.into_iter().find_map(|name| hosts.get(name))?;
    Some(Arc::from(reason.as_str()))
}

/// Adds the short names of hosts.
pub(crate) fn with_short_names(hosts: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let short = hosts.iter().map(|(host, reason)| (short_name(host).to_owned(), reason.clone()));
    let short: BTreeMap<String, String> = short.collect();
    short.into_iter().chain(hosts).collect()
}

/// Returns a host name up to its first dot. An address has no short name.
fn short_name(host: &str) -> &str {
    match host.parse::<IpAddr>() {
        Ok(_) => host,
        Err(_) => host.split('.').next().unwrap_or(host),
    }
}
