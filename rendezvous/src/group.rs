//! The members of the newest round, and what has become of each.

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
/// Invariant: `pending`, `unstopped` and `leavers` hold exactly the members whose [`Fate`] says so
/// (see [`Fate::is_pending`] and its neighbours), so that nothing needs to walk all seats.
#[derive(Debug)]
pub(crate) struct Group {
    /// The round.
    pub(crate) round: RoundId,
    /// How many members it had at first.
    pub(crate) size: u32,
    /// When it started; none if an earlier coordinator started it.
    pub(crate) started: Option<Instant>,
    /// What its members were told; none if an earlier coordinator told them.
    pub(crate) table: Option<Table>,
    seats: BTreeMap<NodeId, Seat>,
    newcomers: BTreeSet<NodeId>,
    succeeded: BTreeSet<NodeId>,
    pending: BTreeSet<NodeId>,
    unstopped: BTreeSet<NodeId>,
    leavers: BTreeSet<NodeId>,
    cut_off: BTreeMap<NodeId, Instant>,
    refused_clients: Vec<IpAddr>,
}

/// A member's seat.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seat {
    /// Its rank.
    pub(crate) rank: GroupRank,
    /// What has become of it.
    pub(crate) fate: Fate,
}

/// What has become of a member.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Fate {
    /// Its workers run, have succeeded, or are being stopped.
    Active,
    /// Its last process is reaped, and it makes itself ready.
    Stopped,
    /// It is ready for the next round.
    Back,
    /// It was told to leave, and its workers are being stopped.
    Leaving,
    /// It was told to leave, and its last process is reaped.
    Left,
    /// It is no longer a member; nothing that it says brings the seat back.
    Lost(EvictReason),
}

impl Fate {
    /// The fate of a member that is in `state`.
    pub(crate) fn of(state: NodeState) -> Self {
        match state {
            NodeState::Running | NodeState::Stopping | NodeState::Succeeded => Self::Active,
            NodeState::Preparing => Self::Stopped,
            NodeState::Ready { .. } => Self::Back,
            NodeState::Leaving { reaped: false } => Self::Leaving,
            NodeState::Leaving { reaped: true } => Self::Left,
        }
    }

    /// Whether the next round waits for the member: to be ready, or to have stopped.
    fn is_pending(self) -> bool {
        match self {
            Self::Active | Self::Stopped | Self::Leaving => true,
            Self::Back | Self::Left | Self::Lost(_) => false,
        }
    }

    /// Whether processes of the member may live.
    fn is_unstopped(self) -> bool {
        match self {
            Self::Active | Self::Leaving => true,
            Self::Stopped | Self::Back | Self::Left | Self::Lost(_) => false,
        }
    }

    /// Whether the member was told to leave.
    fn is_leaver(self) -> bool {
        match self {
            Self::Leaving | Self::Left => true,
            Self::Active | Self::Stopped | Self::Back | Self::Lost(_) => false,
        }
    }

    /// Whether the member is to take part in the next round.
    pub(crate) fn stays(self) -> bool {
        match self {
            Self::Active | Self::Stopped | Self::Back => true,
            Self::Leaving | Self::Left | Self::Lost(_) => false,
        }
    }
}

impl Group {
    /// The group of a round that has just been completed.
    pub(crate) fn new(
        now: Instant,
        round: RoundId,
        table: Table,
        newcomers: BTreeSet<NodeId>,
    ) -> Self {
        let members = table.members().map(|(rank, node)| (rank, node.clone())).collect();
        let mut group = Self::recovered(round, 0, members);
        group.size = u32::try_from(group.seats.len()).unwrap_or(u32::MAX);
        group.started = Some(now);
        group.table = Some(table);
        group.newcomers = newcomers;
        group
    }

    /// The group of a round that an earlier coordinator completed, as far as it is back.
    pub(crate) fn recovered(
        round: RoundId,
        size: u32,
        members: BTreeMap<GroupRank, NodeId>,
    ) -> Self {
        let ids: BTreeSet<NodeId> = members.values().cloned().collect();
        let seat = |rank| Seat { rank, fate: Fate::Active };
        Self {
            round,
            size,
            started: None,
            table: None,
            seats: members.into_iter().map(|(rank, node)| (node, seat(rank))).collect(),
            newcomers: BTreeSet::new(),
            succeeded: BTreeSet::new(),
            pending: ids.clone(),
            unstopped: ids,
            leavers: BTreeSet::new(),
            cut_off: BTreeMap::new(),
            refused_clients: Vec::new(),
        }
    }

    /// The clients that the round's store has refused.
    pub(crate) fn refused_clients(&self) -> &[IpAddr] {
        &self.refused_clients
    }

    /// Adds clients that the round's store has refused, as `node` reports. Returns true if any is new,
    /// and `node` serves that store.
    pub(crate) fn add_refused_clients(&mut self, node: &NodeId, refused: &RefusedClients) -> bool {
        let is_served_there = self.held(node).is_some_and(|seat| seat.rank == GroupRank(0));
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

    /// The seat of `node`, if it was a member when the round started.
    pub(crate) fn seat(&self, node: &NodeId) -> Option<Seat> {
        self.seats.get(node).copied()
    }

    /// The seat of `node`, if it is a member still.
    pub(crate) fn held(&self, node: &NodeId) -> Option<Seat> {
        self.seat(node).filter(|seat| !matches!(seat.fate, Fate::Lost(_)))
    }

    /// All members, as the round started.
    pub(crate) fn seats(&self) -> impl Iterator<Item = (&NodeId, Seat)> {
        self.seats.iter().map(|(node, seat)| (node, *seat))
    }

    /// Notes what has become of `node`, if it is a member still.
    pub(crate) fn set_fate(&mut self, node: &NodeId, fate: Fate) {
        let Some(seat) = self.seats.get_mut(node) else {
            return;
        };
        if matches!(seat.fate, Fate::Lost(_)) {
            return;
        }
        seat.fate = fate;
        let unstopped = fate.is_unstopped() && !self.succeeded.contains(node);
        keep(&mut self.pending, node, fate.is_pending());
        keep(&mut self.unstopped, node, unstopped);
        keep(&mut self.leavers, node, fate.is_leaver());
    }

    /// Notes that all workers of `node` exited with 0.
    pub(crate) fn set_succeeded(&mut self, node: &NodeId) {
        if self.held(node).is_some() {
            self.succeeded.insert(node.clone());
            self.unstopped.remove(node);
        }
    }

    /// Whether all workers of `node` exited with 0.
    pub(crate) fn has_succeeded(&self, node: &NodeId) -> bool {
        self.succeeded.contains(node)
    }

    /// Returns true if a member was lost by silence after it had succeeded.
    pub(crate) fn has_lost_success(&self) -> bool {
        let is_silent =
            |id: &NodeId| self.seat(id).is_some_and(|s| s.fate == Fate::Lost(EvictReason::Silent));
        self.succeeded.iter().any(is_silent)
    }

    /// Whether any member has succeeded.
    pub(crate) fn any_succeeded(&self) -> bool {
        !self.succeeded.is_empty()
    }

    /// Whether every member has succeeded, those that are gone since included.
    pub(crate) fn all_succeeded(&self) -> bool {
        u32::try_from(self.succeeded.len()).is_ok_and(|succeeded| succeeded == self.size)
    }

    /// Whether `node` came into a group that was there before it.
    pub(crate) fn is_newcomer(&self, node: &NodeId) -> bool {
        self.newcomers.contains(node)
    }

    /// Members for which the next round waits.
    pub(crate) fn pending(&self) -> &BTreeSet<NodeId> {
        &self.pending
    }

    /// Members of which processes may live.
    pub(crate) fn unstopped(&self) -> &BTreeSet<NodeId> {
        &self.unstopped
    }

    /// Notes that the lease of `node` was over on its own side.
    pub(crate) fn note_cut_off(&mut self, node: &NodeId, now: Instant) {
        if self.held(node).is_some() {
            self.cut_off.entry(node.clone()).or_insert(now);
        }
    }

    /// Takes the members that were cut off and are members still, with the time at which that was noticed;
    /// none if most members were: then the coordinator or its network stalled.
    pub(crate) fn take_cut_off(&mut self) -> Vec<(NodeId, Instant)> {
        let cut_off = mem::take(&mut self.cut_off);
        let held = self.seats.keys().filter(|node| self.held(node).is_some()).count();
        if cut_off.len() * 2 > held {
            return Vec::new();
        }
        cut_off.into_iter().filter(|(node, _)| self.held(node).is_some()).collect()
    }

    /// Members that were told to leave, and are not gone yet or went in order.
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
