//! Every node that the coordinator knows, until when each counts as alive, and who could take part.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, VecDeque, btree_map::Entry},
    mem,
    time::{Duration, Instant},
};

use crate::{
    flapping::{Heirlooms, Tally},
    ids::{AttendNumber, NodeId, Peer, RoundId},
    limits::{FORMER_MAX, HOST_TALLIES_MAX, after},
    message::{Assignment, Attend, NodeDescription, NodeState, Standing, WaitReason},
    settings::HostTally,
};

/// Every node that the coordinator knows.
///
/// Invariants: `leases` holds one deadline for each node; `ready` and `aside` hold only nodes that
/// are [`NodeState::Ready`] and not members of a running round, each in one of the two;
/// `ready_by_node_rank` counts those in `ready` that have a `--node-rank`.
#[derive(Debug, Default)]
pub(crate) struct Roster {
    nodes: BTreeMap<NodeId, Node>,
    leases: BTreeSet<(Instant, NodeId)>,
    ready: BTreeSet<NodeId>,
    ready_by_node_rank: BTreeMap<u32, u32>,
    aside: BTreeSet<(Instant, NodeId)>,
    leaving: BTreeSet<NodeId>,
    former: Former,
    heirlooms: Heirlooms,
    arrivals: u64,
}

/// One node, as it last described itself.
#[derive(Debug)]
pub(crate) struct Node {
    /// Who it is.
    pub(crate) description: NodeDescription,
    /// Its newest stream.
    pub(crate) attend: AttendNumber,
    /// Whether that stream is open, as far as is known; proves nothing.
    pub(crate) attached: bool,
    /// The how-many-eth node it is, by first attend.
    pub(crate) arrival: u64,
    /// What it last said of itself.
    pub(crate) standing: Standing,
    /// What speaks of an older round than this comes too late.
    pub(crate) floor: RoundId,
    /// The stream on which it was last admitted to a round.
    pub(crate) admitted_on: AttendNumber,
    /// Whether it has said, on a later stream than that, that it never was in that round.
    pub(crate) missed_its_admission: bool,
    /// What its workers last said of their progress.
    pub(crate) said: String,
    /// When it was last heard.
    pub(crate) last_seen: Instant,
    /// What it was last told on its newest stream.
    pub(crate) told: Option<Told>,
    /// How often it failed or was lost early.
    pub(crate) tally: Tally,
    lease: Duration,
}

/// Enough of an [`Assignment`] to tell whether another one says anything new.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Told {
    /// Wait.
    Wait(RoundId, WaitReason),
    /// Run that round.
    Admit(RoundId),
    /// Stop that round.
    Restart(RoundId),
    /// Kill that round's workers.
    Evict(RoundId),
    /// Go.
    Dismiss,
    /// It is over.
    Close,
}

impl From<&Assignment> for Told {
    fn from(assignment: &Assignment) -> Self {
        match assignment {
            Assignment::Wait { round, reason } => Self::Wait(*round, *reason),
            Assignment::Admit(admission) => Self::Admit(admission.round),
            Assignment::Restart { round, reason: _ } => Self::Restart(*round),
            Assignment::Evict { round, reason: _ } => Self::Evict(*round),
            Assignment::Dismiss => Self::Dismiss,
            Assignment::Close(_) => Self::Close,
        }
    }
}

impl Node {
    /// Its newest stream.
    pub(crate) fn peer(&self) -> Peer {
        Peer { node: self.description.node_id.clone(), attend: self.attend }
    }

    /// Whether it is ready for a round.
    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.standing.state, NodeState::Ready { .. })
    }

    /// Whether it was told to leave.
    pub(crate) fn is_leaving(&self) -> bool {
        matches!(self.standing.state, NodeState::Leaving { .. })
    }

    /// Where it would serve a round's store.
    pub(crate) fn store_port(&self) -> Option<u16> {
        match self.standing.state {
            NodeState::Ready { store_port } => Some(store_port),
            NodeState::Preparing
            | NodeState::Running
            | NodeState::Stopping
            | NodeState::Succeeded
            | NodeState::Leaving { .. } => None,
        }
    }
}

impl Roster {
    /// The node, if it is known.
    pub(crate) fn get(&self, node: &NodeId) -> Option<&Node> {
        self.nodes.get(node)
    }

    /// The node, if it is known, to change what [`Roster::sort`] does not look at.
    pub(crate) fn get_mut(&mut self, node: &NodeId) -> Option<&mut Node> {
        self.nodes.get_mut(node)
    }

    /// All nodes, by id.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&NodeId, &Node)> {
        self.nodes.iter()
    }

    /// How many nodes are known.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether none is known.
    pub(crate) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Nodes that could take part in the next round.
    pub(crate) fn ready(&self) -> &BTreeSet<NodeId> {
        &self.ready
    }

    /// How many different `--node-rank`s the nodes have that could take part in the next round.
    pub(crate) fn node_ranks_ready(&self) -> usize {
        self.ready_by_node_rank.len()
    }

    /// Nodes that are ready, but set aside until then.
    pub(crate) fn aside(&self) -> &BTreeSet<(Instant, NodeId)> {
        &self.aside
    }

    /// Whether nodes are known, and all of them were told to leave.
    pub(crate) fn all_leaving(&self) -> bool {
        !self.nodes.is_empty() && self.leaving.len() == self.nodes.len()
    }

    /// Whether `peer` is not the newest stream of its node, or its node is gone for good.
    pub(crate) fn is_late(&self, peer: &Peer) -> bool {
        let newest = self.nodes.get(&peer.node).map(|node| node.attend);
        newest
            .or_else(|| self.former.newest(&peer.node))
            .is_some_and(|newest| peer.attend <= newest)
    }

    /// Takes in a stream that [`Roster::is_late`] does not refuse; false if what its node says of
    /// itself is older than what is known.
    pub(crate) fn attend(&mut self, now: Instant, attend: Attend, lease: Duration) -> bool {
        let Attend { attend, node: description, standing, .. } = attend;
        let id = description.node_id.clone();
        let tally = match self.nodes.get(&id) {
            Some(_) => Tally::default(),
            None => self.heirlooms.inherit(now, &description).unwrap_or_default(),
        };
        let arrivals = &mut self.arrivals;
        let node = self.nodes.entry(id.clone()).or_insert_with(|| {
            *arrivals += 1;
            Node {
                description: description.clone(),
                attend,
                attached: true,
                arrival: *arrivals,
                floor: RoundId::default(),
                admitted_on: AttendNumber::default(),
                missed_its_admission: false,
                standing: standing.clone(),
                said: String::new(),
                last_seen: now,
                told: None,
                tally,
                lease,
            }
        });
        self.leases.remove(&(after(node.last_seen, node.lease), id.clone()));
        // A process has one for good.
        let node_rank = node.description.node_rank;
        node.description = NodeDescription { node_rank, ..description };
        node.attend = attend;
        node.attached = true;
        node.told = None;
        node.last_seen = now;
        node.lease = lease;
        self.leases.insert((after(now, lease), id.clone()));
        // It may have been admitted since it said this.
        self.stand(&id, standing, false)
    }

    /// Notes what a node's workers say of their progress.
    pub(crate) fn note(&mut self, id: &NodeId, said: String) {
        if let Some(node) = self.nodes.get_mut(id) {
            node.said = said;
        }
    }

    /// Renews the lease of `peer`'s node; false if nothing that comes from there counts.
    pub(crate) fn renew(&mut self, now: Instant, peer: &Peer) -> bool {
        let Some(node) = self.nodes.get_mut(&peer.node) else {
            return false;
        };
        if node.attend != peer.attend {
            return false;
        }
        let deadline = (after(node.last_seen, node.lease), peer.node.clone());
        self.leases.remove(&deadline);
        node.last_seen = now;
        self.leases.insert((after(now, node.lease), deadline.1));
        true
    }

    /// Takes note of what `id` says of itself after it was welcomed; false if that comes too late.
    ///
    /// Once welcomed, it reads nothing from earlier streams. So what it then says of an older round
    /// than the one that it was admitted to on one of these means that the admission was lost.
    pub(crate) fn stand_on_stream(&mut self, id: &NodeId, standing: Standing) -> bool {
        let is_later = self.nodes.get(id).is_some_and(|node| node.attend > node.admitted_on);
        self.stand(id, standing, is_later)
    }

    fn stand(&mut self, id: &NodeId, standing: Standing, is_final: bool) -> bool {
        let Some(node) = self.nodes.get_mut(id) else {
            return false;
        };
        // Leaving is for good, so it counts whichever round the node was last told of.
        let is_leaving = matches!(standing.state, NodeState::Leaving { .. });
        let is_below = standing.round < node.floor;
        if is_below && !is_leaving && !is_final {
            return false;
        }
        node.missed_its_admission = is_below && is_final;
        node.floor = node.floor.max(standing.round);
        node.standing = standing;
        if node.is_leaving() {
            self.leaving.insert(id.clone());
        } else {
            self.leaving.remove(id);
        }
        true
    }

    /// Puts `id` where it belongs, given whether it is a member of a running round.
    pub(crate) fn sort(&mut self, id: &NodeId, is_running_member: bool) {
        let Some(node) = self.nodes.get(id) else {
            return;
        };
        let (is_ready, aside_until) = (node.is_ready(), node.tally.aside_until());
        let node_rank = node.description.node_rank;
        self.unsort(id, node_rank);
        if !is_ready || is_running_member {
            return;
        }
        match aside_until {
            Some(until) => {
                self.aside.insert((until, id.clone()));
            }
            None => {
                self.ready.insert(id.clone());
                if let Some(node_rank) = node_rank {
                    *self.ready_by_node_rank.entry(node_rank).or_default() += 1;
                }
            }
        }
    }

    /// Takes `id` from wherever [`Roster::sort`] has put it.
    fn unsort(&mut self, id: &NodeId, node_rank: Option<u32>) {
        self.aside.retain(|(_, node)| node != id);
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

    /// The earliest end of a lease.
    pub(crate) fn first_lease(&self) -> Option<Instant> {
        self.leases.first().map(|(at, _)| *at)
    }

    /// A node whose lease has passed.
    pub(crate) fn expired(&self, now: Instant) -> Option<NodeId> {
        self.leases.first().filter(|(at, _)| *at <= now).map(|(_, node)| node.clone())
    }

    /// Forgets a node that may attend again.
    pub(crate) fn lose(&mut self, now: Instant, id: &NodeId) -> Option<Node> {
        let mut node = self.remove(id)?;
        self.former.insert(id, node.attend);
        if !node.tally.is_clean() {
            self.heirlooms.leave(&node.description, mem::take(&mut node.tally));
            self.pass_on(now, &node.description);
        }
        Some(node)
    }

    /// Forgets a node that is gone for good.
    pub(crate) fn bury(&mut self, now: Instant, id: &NodeId) -> Option<Node> {
        let node = self.lose(now, id);
        self.former.insert(id, AttendNumber(u64::MAX));
        node
    }

    /// Restores the tallies of an earlier coordinator.
    pub(crate) fn restore_tallies(&mut self, now: Instant, counted: &[HostTally]) {
        self.heirlooms.restore(now, counted);
    }

    /// How often machines failed or were lost, for the next coordinator: those with the most losses.
    pub(crate) fn host_tallies(&self, now: Instant) -> Vec<HostTally> {
        let here = self.nodes.values().filter(|node| !node.tally.is_clean());
        let here = here.filter_map(|node| node.tally.to_host(now, &node.description));
        let mut tallies: Vec<HostTally> = here.chain(self.heirlooms.to_hosts(now)).collect();
        tallies.sort_by_key(|tally| Reverse((tally.early_losses, tally.strikes)));
        tallies.truncate(HOST_TALLIES_MAX);
        tallies
    }

    /// Forgets all tallies: another run begins.
    pub(crate) fn forget_tallies(&mut self) {
        self.heirlooms = Heirlooms::default();
        for node in self.nodes.values_mut() {
            node.tally.forgive();
        }
        for (_, id) in mem::take(&mut self.aside) {
            self.sort(&id, false);
        }
    }

    /// Gives what an agent left to an agent of the same machine that was there before it went.
    fn pass_on(&mut self, now: Instant, description: &NodeDescription) {
        let heir = self.nodes.values_mut().find(|node| {
            node.floor == RoundId::default()
                && node.tally.is_clean()
                && node.description.host_name == description.host_name
                && node.description.address == description.address
        });
        let Some(heir) = heir else { return };
        if let Some(tally) = self.heirlooms.inherit(now, description) {
            heir.tally = tally;
            let id = heir.description.node_id.clone();
            self.sort(&id, false);
        }
    }

    fn remove(&mut self, id: &NodeId) -> Option<Node> {
        let node = self.nodes.remove(id)?;
        self.leases.remove(&(after(node.last_seen, node.lease), id.clone()));
        self.unsort(id, node.description.node_rank);
        self.leaving.remove(id);
        Some(node)
    }
}

/// The newest stream of nodes that are gone, so that nothing late from them counts.
#[derive(Debug, Default)]
struct Former {
    newest: BTreeMap<NodeId, AttendNumber>,
    order: VecDeque<NodeId>,
}

impl Former {
    fn newest(&self, node: &NodeId) -> Option<AttendNumber> {
        self.newest.get(node).copied()
    }

    fn insert(&mut self, node: &NodeId, attend: AttendNumber) {
        if self.newest.insert(node.clone(), attend).is_none() {
            self.order.push_back(node.clone());
        }
        while self.order.len() > FORMER_MAX {
            if let Some(oldest) = self.order.pop_front() {
                self.newest.remove(&oldest);
            }
        }
    }
}
