//! What a rendezvous may be doing, each with the data that only then exists.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use crate::{
    group::Group,
    ids::{GroupRank, NodeId, RoundId},
    message::{Outcome, RestartReason, WorkerFailure},
};

/// What a rendezvous is doing.
#[derive(Debug)]
pub(crate) enum Phase {
    /// A coordinator that was started anew waits for the members of the last round.
    Recovering(Recovering),
    /// Nodes are awaited that have no round behind them.
    Gathering(Gathering),
    /// A round runs.
    Running(Running),
    /// A round is over, and its members are awaited for the next one.
    Regathering(Regathering),
    /// The job is over.
    Closed(Closed),
}

/// Who of the last round is back after a start of the coordinator.
///
/// Invariant: `ranks` is `members` the other way round, and holds all `claimants`, which
/// hold all `heirs`.
#[derive(Debug)]
pub(crate) struct Recovering {
    /// The highest round heard of.
    pub(crate) round: RoundId,
    /// How many members it had.
    pub(crate) size: u32,
    /// Members that have attended, by the rank that they had.
    pub(crate) members: BTreeMap<GroupRank, NodeId>,
    /// The rank of each of them.
    pub(crate) ranks: BTreeMap<NodeId, GroupRank>,
    /// Those of them that only know their rank from a state file: new agents of machines whose old
    /// agent was the member, and may have left workers that live.
    pub(crate) claimants: BTreeSet<NodeId>,
    /// Those of them whose machine's old agent is known to have left nothing behind.
    pub(crate) heirs: BTreeSet<NodeId>,
    /// How many other members were told to leave, have stopped, and are gone.
    pub(crate) left: u32,
    /// Whether anybody has attended who had heard of that round.
    pub(crate) is_heard: bool,
    /// When the wait began.
    pub(crate) since: Instant,
    /// How far the wait has come.
    pub(crate) stage: RecoveryStage,
}

/// How far a recovery has come.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum RecoveryStage {
    /// Workers of members that have not attended may live.
    Listening,
    /// None of them lives any more, but not enough members are back.
    Outnumbered,
}

/// Nodes without a round behind them.
#[derive(Debug, Default)]
pub(crate) struct Gathering {
    /// When the first of them came.
    pub(crate) since: Option<Instant>,
    /// When the last call is over; none while there are too few.
    pub(crate) last_call_until: Option<Instant>,
    /// What was known of the last round when it seemed forgotten; its members may come late.
    pub(crate) forgotten: Option<Recovering>,
}

/// A round that runs.
#[derive(Debug)]
pub(crate) struct Running {
    /// Its members.
    pub(crate) group: Group,
    /// When the first of the nodes that now wait for a place began to wait.
    pub(crate) waiting_since: Option<Instant>,
}

/// A round that is over.
#[derive(Debug)]
pub(crate) struct Regathering {
    /// Its members.
    pub(crate) group: Group,
    /// Why it is over.
    pub(crate) reason: RestartReason,
    /// When it was over.
    pub(crate) since: Instant,
    /// When a member was last lost or set aside.
    pub(crate) loss: Option<Instant>,
    /// The failure that is not judged yet.
    pub(crate) verdict: Option<Verdict>,
}

/// A failed round, until it is known whether its failure or its membership ended it, and which failure
/// came first.
///
/// When no member is awaited any more, none was lost; the failures are complete when all have stopped.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    /// The failure of the oldest event on each node, with its time.
    pub(crate) failures: BTreeMap<NodeId, (Instant, WorkerFailure)>,
    /// Members that have not given a sign of life since.
    pub(crate) awaited: BTreeSet<NodeId>,
}

/// A job that is over.
#[derive(Debug)]
pub(crate) struct Closed {
    /// How it ended.
    pub(crate) outcome: Outcome,
    /// Its last round, if one was under way.
    pub(crate) group: Option<Group>,
    /// Until when it stays although nobody is left to hear of it: others may attend again.
    pub(crate) stays_until: Instant,
    /// Until when it stays for those that have not said goodbye.
    pub(crate) goes_at: Instant,
}

impl Phase {
    /// The newest round, while its members matter.
    pub(crate) fn group(&self) -> Option<&Group> {
        match self {
            Self::Recovering(_) | Self::Gathering(_) => None,
            Self::Running(running) => Some(&running.group),
            Self::Regathering(regathering) => Some(&regathering.group),
            Self::Closed(closed) => closed.group.as_ref(),
        }
    }

    /// The newest round, to note what becomes of its members.
    pub(crate) fn group_mut(&mut self) -> Option<&mut Group> {
        match self {
            Self::Recovering(_) | Self::Gathering(_) => None,
            Self::Running(running) => Some(&mut running.group),
            Self::Regathering(regathering) => Some(&mut regathering.group),
            Self::Closed(closed) => closed.group.as_mut(),
        }
    }

    /// Takes a recovery that is to be left.
    pub(crate) fn take_recovering(&mut self) -> Option<Recovering> {
        match std::mem::replace(self, Self::Gathering(Gathering::default())) {
            Self::Recovering(recovering) => Some(recovering),
            Self::Gathering(_) | Self::Running(_) | Self::Regathering(_) | Self::Closed(_) => None,
        }
    }

    /// Takes the newest round out of a phase that is to be left.
    pub(crate) fn take_group(&mut self) -> Option<Group> {
        match std::mem::replace(self, Self::Gathering(Gathering::default())) {
            Self::Recovering(_) | Self::Gathering(_) => None,
            Self::Running(running) => Some(running.group),
            Self::Regathering(regathering) => Some(regathering.group),
            Self::Closed(closed) => closed.group,
        }
    }
}
