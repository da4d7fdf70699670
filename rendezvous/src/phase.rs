//! Defines the phases of a rendezvous. Each has the data that exists only in it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use crate::{
    group::Group,
    ids::{GroupRank, NodeId, RoundId},
    message::{Outcome, RestartReason, WorkerFailure},
};

/// The phase of a rendezvous.
#[derive(Debug)]
pub(crate) enum Phase {
    /// A restarted coordinator waits for the members of the last round.
    Recovering(Recovering),
    /// The coordinator waits for nodes. None of them was in a previous round.
    Gathering(Gathering),
    /// A round runs.
    Running(Running),
    /// A round has ended, and the coordinator waits for its members to form the next one.
    Regathering(Regathering),
    /// The job has ended.
    Closed(Closed),
}

/// The members of the last round that are back after a restart of the coordinator.
///
/// Invariant: `ranks` is the inverse of `members`. It contains all `claimants`, and these contain all
/// `confirmed_claimants`.
#[derive(Debug)]
pub(crate) struct Recovering {
    /// The highest round known.
    pub(crate) round: RoundId,
    /// The number of its members.
    pub(crate) size: u32,
    /// Members that have registered, by their rank in that round.
    pub(crate) members: BTreeMap<GroupRank, NodeId>,
    /// The rank of each of these members.
    pub(crate) ranks: BTreeMap<NodeId, GroupRank>,
    /// Those of the members that know their rank only from a state file. They are new agents of machines
    /// whose old agent was the member, and may have left running workers.
    pub(crate) claimants: BTreeSet<NodeId>,
    /// The claimants whose machine's old agent is known to have left no process.
    pub(crate) confirmed_claimants: BTreeSet<NodeId>,
    /// Other members that have left in order.
    pub(crate) left: BTreeSet<NodeId>,
    /// Other members with no process left. Only an elected coordinator knows them.
    pub(crate) dead: BTreeSet<NodeId>,
    /// True if a member of that round has registered.
    pub(crate) has_member: bool,
    /// True if a member of an earlier round of this run has registered. Perhaps no node was admitted to the
    /// last round.
    pub(crate) has_earlier_member: bool,
    /// The start of the wait.
    pub(crate) since: Instant,
    /// The stage of the wait.
    pub(crate) stage: RecoveryStage,
}

/// The stage of a recovery.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum RecoveryStage {
    /// Workers of members that have not registered may still run.
    Listening,
    /// All such workers have ended, but not enough members are back.
    Outnumbered,
}

/// Gathers nodes that were in no previous round.
#[derive(Debug, Default)]
pub(crate) struct Gathering {
    /// The time at which the first of them registered.
    pub(crate) since: Option<Instant>,
    /// The end of the last call; `None` while there are too few nodes.
    pub(crate) last_call_until: Option<Instant>,
    /// The recovery that was given up because no member had registered. Its members may come late.
    pub(crate) forgotten: Option<Recovering>,
}

/// A round that runs.
#[derive(Debug)]
pub(crate) struct Running {
    /// Its members.
    pub(crate) group: Group,
    /// The time since which nodes have waited, with room for them.
    pub(crate) waiting_since: Option<Instant>,
}

/// The end of a round. `reason.into()` is an end after which no failure is judged.
#[derive(Debug)]
pub(crate) struct RoundEnd {
    pub(crate) reason: RestartReason,
    /// The failure to judge.
    pub(crate) verdict: Option<PendingVerdict>,
    /// The step in memory that was enough to end the phase of a notice.
    pub(crate) memory_step: Option<u64>,
}

impl From<RestartReason> for RoundEnd {
    fn from(reason: RestartReason) -> Self {
        Self { reason, verdict: None, memory_step: None }
    }
}

/// A round that has ended.
#[derive(Debug)]
pub(crate) struct Regathering {
    /// Its members.
    pub(crate) group: Group,
    /// The reason for its end.
    pub(crate) reason: RestartReason,
    /// The time of its end.
    pub(crate) since: Instant,
    /// The time at which a member was last lost or quarantined, or that of the end. From then on, it waits for another node.
    pub(crate) last_loss: Instant,
    /// The failure that has not been judged yet.
    pub(crate) verdict: Option<PendingVerdict>,
    /// The step in memory that was enough to end the phase of a notice, and the round with it.
    pub(crate) memory_step: Option<u64>,
}

/// A failed round whose verdict is open: did a failure end it or its membership, and which failure came
/// first?
///
/// Once no sign of life is awaited, no member was lost. The failures are complete when all members have
/// stopped.
#[derive(Debug, Default)]
pub(crate) struct PendingVerdict {
    /// Each node's failure with the oldest event, and the time of that event.
    pub(crate) failures: BTreeMap<NodeId, (Instant, WorkerFailure)>,
    /// Members that have not given a sign of life since the failure.
    pub(crate) awaited: BTreeSet<NodeId>,
    /// The member for whose worker the others waited, if a look at the stalled round has shown it.
    pub(crate) blamed: Option<NodeId>,
}

/// A job that has ended.
#[derive(Debug)]
pub(crate) struct Closed {
    /// The outcome.
    pub(crate) outcome: Outcome,
    /// The last round, if one was under way.
    pub(crate) group: Option<Group>,
    /// The coordinator stays until this time although no node is left, because others may register again.
    pub(crate) stays_until: Instant,
    /// The coordinator waits until this time for the goodbyes of its nodes.
    pub(crate) goes_at: Instant,
}

impl Phase {
    /// Returns the round that runs.
    pub(crate) fn running(&self) -> Option<&Running> {
        if let Self::Running(running) = self { Some(running) } else { None }
    }

    /// Returns the round that runs, for changes.
    pub(crate) fn running_mut(&mut self) -> Option<&mut Running> {
        if let Self::Running(running) = self { Some(running) } else { None }
    }

    /// Returns the round that has ended, until the next one begins.
    pub(crate) fn regathering(&self) -> Option<&Regathering> {
        if let Self::Regathering(regathering) = self { Some(regathering) } else { None }
    }

    /// Returns the round that has ended, for changes.
    pub(crate) fn regathering_mut(&mut self) -> Option<&mut Regathering> {
        if let Self::Regathering(regathering) = self { Some(regathering) } else { None }
    }

    /// Returns the newest round, if its members matter in this phase.
    pub(crate) fn group(&self) -> Option<&Group> {
        match self {
            Self::Recovering(_) | Self::Gathering(_) => None,
            Self::Running(running) => Some(&running.group),
            Self::Regathering(regathering) => Some(&regathering.group),
            Self::Closed(closed) => closed.group.as_ref(),
        }
    }

    /// Returns the newest round, for changes to its members.
    pub(crate) fn group_mut(&mut self) -> Option<&mut Group> {
        match self {
            Self::Recovering(_) | Self::Gathering(_) => None,
            Self::Running(running) => Some(&mut running.group),
            Self::Regathering(regathering) => Some(&mut regathering.group),
            Self::Closed(closed) => closed.group.as_mut(),
        }
    }

    /// Takes the recovery out of a phase that will be left.
    pub(crate) fn take_recovering(&mut self) -> Option<Recovering> {
        match std::mem::replace(self, Self::Gathering(Gathering::default())) {
            Self::Recovering(recovering) => Some(recovering),
            Self::Gathering(_) | Self::Running(_) | Self::Regathering(_) | Self::Closed(_) => None,
        }
    }

    /// Takes the newest round out of a phase that will be left.
    pub(crate) fn take_group(&mut self) -> Option<Group> {
        match std::mem::replace(self, Self::Gathering(Gathering::default())) {
            Self::Recovering(_) | Self::Gathering(_) => None,
            Self::Running(running) => Some(running.group),
            Self::Regathering(regathering) => Some(regathering.group),
            Self::Closed(closed) => closed.group,
        }
    }
}
