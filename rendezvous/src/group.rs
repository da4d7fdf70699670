//! Keeps the members of the newest round, and the state of each.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    net::IpAddr,
    time::Instant,
};

use crate::{
    ids::{GroupRank, NodeId, RoundId},
    message::{EvictReason, NodeState, REFUSED_CLIENTS_MAX, RefusedClients},
    table::Table,
};

/// The members of the newest round.
///
/// Most inputs must not visit all members, so there are sets. Invariant: `pending`, `unstopped` and
/// `leavers` have exactly the members for which [`MemberState::is_pending`],
/// [`MemberState::is_unstopped`] and [`MemberState::is_leaver`] are true. `unstopped` has no
/// members that have succeeded.
#[derive(Debug)]
pub(crate) struct Group {
    /// The round.
    pub(crate) round: RoundId,
    /// The initial number of members.
    pub(crate) size: u32,
    /// The start of the round; `None` if an earlier coordinator started it.
    pub(crate) started: Option<Instant>,
    /// The table of the round; `None` if an earlier coordinator completed it.
    pub(crate) table: Option<Table>,
    members: BTreeMap<NodeId, GroupMember>,
    newcomers: BTreeSet<NodeId>,
    succeeded: BTreeSet<NodeId>,
    pending: BTreeSet<NodeId>,
    unstopped: BTreeSet<NodeId>,
    leavers: BTreeSet<NodeId>,
    /// Leavers that were not dismissed yet.
    undismissed: BTreeSet<NodeId>,
    expired: BTreeMap<NodeId, Instant>,
    /// The members whose workers do not run yet.
    unstarted: BTreeSet<NodeId>,
    refused_clients: Vec<IpAddr>,
}

/// A member of the newest round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupMember {
    /// Its rank.
    pub(crate) rank: GroupRank,
    /// Its state.
    pub(crate) state: MemberState,
}

/// The state of a member with regard to the next round.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum MemberState {
    /// The member's workers run, have succeeded, or are being stopped.
    Active,
    /// The member's last process is reaped, and it prepares for the next round.
    Stopped,
    /// The member is ready for the next round.
    Back,
    /// The member is leaving, and its workers are being stopped.
    Leaving,
    /// The member is leaving, and its last process is reaped.
    Left,
    /// The node is no longer a member. No report makes it a member of this round again.
    Lost(EvictReason),
}

impl GroupMember {
    /// Returns true if the node is still a member.
    pub(crate) fn is_held(&self) -> bool {
        !matches!(self.state, MemberState::Lost(_))
    }
}

impl MemberState {
    /// Returns the state of a member in `state`.
    pub(crate) fn of(state: NodeState) -> Self {
        match state {
            NodeState::Running | NodeState::Stopping | NodeState::Succeeded => Self::Active,
            NodeState::Preparing => Self::Stopped,
            NodeState::Ready { .. } => Self::Back,
            NodeState::Leaving { reaped: false } => Self::Leaving,
            NodeState::Leaving { reaped: true } => Self::Left,
        }
    }

    /// Returns true if the next round waits for the member to be ready or to have stopped.
    fn is_pending(self) -> bool {
        match self {
            Self::Active | Self::Stopped | Self::Leaving => true,
            Self::Back | Self::Left | Self::Lost(_) => false,
        }
    }

    /// Returns true if processes of the member may still run.
    fn is_unstopped(self) -> bool {
        match self {
            Self::Active | Self::Leaving => true,
            Self::Stopped | Self::Back | Self::Left | Self::Lost(_) => false,
        }
    }

    /// Returns true if the member is leaving or has left in order.
    fn is_leaver(self) -> bool {
        match self {
            Self::Leaving | Self::Left => true,
            Self::Active | Self::Stopped | Self::Back | Self::Lost(_) => false,
        }
    }

    /// Returns true if the member should take part in the next round.
    pub(crate) fn stays(self) -> bool {
        match self {
            Self::Active | Self::Stopped | Self::Back => true,
            Self::Leaving | Self::Left | Self::Lost(_) => false,
        }
    }
}

impl Group {
    /// Creates the group of a round that has just been completed.
    pub(crate) fn new(
        now: Instant,
        round: RoundId,
        table: Table,
        newcomers: BTreeSet<NodeId>,
    ) -> Self {
        let members = table.members().map(|(rank, node)| (rank, node.clone())).collect();
        let mut group = Self::recovered(round, 0, members);
        group.size = u32::try_from(group.members.len()).unwrap_or(u32::MAX);
        group.started = Some(now);
        group.table = Some(table);
        group.newcomers = newcomers;
        group.unstarted = group.members.keys().cloned().collect();
        group
    }

    /// Creates the group of a round that an earlier coordinator completed, from the members that
    /// are back.
    pub(crate) fn recovered(
        round: RoundId,
        size: u32,
        members: BTreeMap<GroupRank, NodeId>,
    ) -> Self {
        let ids: BTreeSet<NodeId> = members.values().cloned().collect();
        let member = |rank| GroupMember { rank, state: MemberState::Active };
        Self {
            round,
            size,
            started: None,
            table: None,
            members: members.into_iter().map(|(rank, node)| (node, member(rank))).collect(),
            newcomers: BTreeSet::new(),
            succeeded: BTreeSet::new(),
            pending: ids.clone(),
            unstopped: ids,
            leavers: BTreeSet::new(),
            undismissed: BTreeSet::new(),
            expired: BTreeMap::new(),
            unstarted: BTreeSet::new(),
            refused_clients: Vec::new(),
        }
    }

    /// Returns the clients that the round's store has refused.
    pub(crate) fn refused_clients(&self) -> &[IpAddr] {
        &self.refused_clients
    }

    /// Adds clients that the round's store has refused, as reported by `node`. Returns true if any
    /// of them is new and `node` serves that store.
    pub(crate) fn add_refused_clients(&mut self, node: &NodeId, refused: &RefusedClients) -> bool {
        let is_served_there = self.held(node).is_some_and(|member| member.rank == GroupRank(0));
        if !is_served_there || refused.round != self.round {
            return false;
        }
        let before = self.refused_clients.len();
        for address in &refused.addresses {
            let has_room = self.refused_clients.len() < REFUSED_CLIENTS_MAX;
            if has_room && !self.refused_clients.contains(address) {
                self.refused_clients.push(*address);
            }
        }
        before < self.refused_clients.len()
    }

    /// Returns the leavers that were not returned before.
    pub(crate) fn take_undismissed(&mut self) -> BTreeSet<NodeId> {
        mem::take(&mut self.undismissed)
    }

    /// Returns the member `node`, if it was a member when the round started.
    pub(crate) fn member(&self, node: &NodeId) -> Option<GroupMember> {
        self.members.get(node).copied()
    }

    /// Returns the member `node`, if it is still a member.
    pub(crate) fn held(&self, node: &NodeId) -> Option<GroupMember> {
        self.member(node).filter(GroupMember::is_held)
    }

    /// Returns all members at the start of the round.
    pub(crate) fn members(&self) -> impl Iterator<Item = (&NodeId, GroupMember)> {
        self.members.iter().map(|(node, member)| (node, *member))
    }

    /// Sets the state of `node`, if it is still a member.
    pub(crate) fn set_state(&mut self, node: &NodeId, state: MemberState) {
        let Some(member) = self.members.get_mut(node) else { return };
        if matches!(member.state, MemberState::Lost(_)) {
            return;
        }
        member.state = state;
        let unstopped = state.is_unstopped() && !self.succeeded.contains(node);
        keep(&mut self.pending, node, state.is_pending());
        keep(&mut self.unstopped, node, unstopped);
        keep(&mut self.leavers, node, state.is_leaver());
        if state.is_leaver() {
            self.undismissed.insert(node.clone());
        }
    }

    /// Records that all workers of `node` exited with 0.
    pub(crate) fn set_succeeded(&mut self, node: &NodeId) {
        if self.held(node).is_some() {
            self.succeeded.insert(node.clone());
            self.unstopped.remove(node);
        }
    }

    /// Records that the workers of `node` run. Returns true if it is the last member to do so.
    pub(crate) fn note_running(&mut self, node: &NodeId) -> bool {
        self.unstarted.remove(node) && self.unstarted.is_empty()
    }

    /// Returns true if all workers of `node` exited with 0.
    pub(crate) fn has_succeeded(&self, node: &NodeId) -> bool {
        self.succeeded.contains(node)
    }

    /// Returns true if a member timed out after it had succeeded.
    pub(crate) fn has_lost_success(&self) -> bool {
        let is_silent = |id: &NodeId| {
            self.member(id).is_some_and(|s| s.state == MemberState::Lost(EvictReason::Silent))
        };
        self.succeeded.iter().any(is_silent)
    }

    /// Returns true if any member has succeeded.
    pub(crate) fn any_succeeded(&self) -> bool {
        !self.succeeded.is_empty()
    }

    /// Returns true if every member has succeeded, including members that are gone.
    pub(crate) fn all_succeeded(&self) -> bool {
        u32::try_from(self.succeeded.len()).is_ok_and(|succeeded| succeeded == self.size)
    }

    /// Returns true if `node` was added to an existing group in this round.
    pub(crate) fn is_newcomer(&self, node: &NodeId) -> bool {
        self.newcomers.contains(node)
    }

    /// Returns the members that the next round waits for.
    pub(crate) fn pending(&self) -> &BTreeSet<NodeId> {
        &self.pending
    }

    /// Returns the members whose processes may still run.
    pub(crate) fn unstopped(&self) -> &BTreeSet<NodeId> {
        &self.unstopped
    }

    /// Records that the lease of `node` ended on the node's own side.
    pub(crate) fn note_expired(&mut self, node: &NodeId, now: Instant) {
        if self.held(node).is_some() {
            self.expired.entry(node.clone()).or_insert(now);
        }
    }

    /// Takes the members that were unreachable and are still members, with the time at which this
    /// was noticed. If more than half of the members were unreachable, the coordinator was paused
    /// or its network was down, so there are none.
    pub(crate) fn take_expired(&mut self) -> Vec<(NodeId, Instant)> {
        let expired = mem::take(&mut self.expired);
        let held = self.members.keys().filter(|node| self.held(node).is_some()).count();
        if expired.len() * 2 > held {
            return Vec::new();
        }
        expired.into_iter().filter(|(node, _)| self.held(node).is_some()).collect()
    }

    /// Returns the members that are leaving or have left in order.
    pub(crate) fn leavers(&self) -> &BTreeSet<NodeId> {
        &self.leavers
    }
}

fn keep(set: &mut BTreeSet<NodeId>, node: &NodeId, belongs: bool) {
    if belongs {
        set.insert(node.clone());
    } else {
        set.remove(node);
    }
}
