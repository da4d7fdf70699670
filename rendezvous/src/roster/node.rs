//! Keeps one node, and the last assignment that was sent to it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    flapping::Tally,
    ids::{Peer, RoundId, StreamNumber},
    message::{
        Assignment, CheckpointId, HealthClass, MemoryReport, NodeDescription, NodeReport,
        NodeState, Requests, StandbyCounts, WaitReason,
    },
};

/// A node, as it last described itself.
#[derive(Debug)]
pub(crate) struct RosterNode {
    /// Its description.
    pub(crate) description: Arc<NodeDescription>,
    /// The number of its newest stream.
    pub(crate) stream: StreamNumber,
    /// True if that stream is known to be open. This proves nothing.
    pub(crate) attached: bool,
    /// Its position in the order of first registrations.
    pub(crate) arrival: u64,
    /// The state that it last reported.
    pub(crate) report: NodeReport,
    /// The oldest round that its reports may be about. Reports about older rounds are outdated.
    pub(crate) floor: RoundId,
    /// The stream on which it was last admitted to a round.
    pub(crate) admitted_on: StreamNumber,
    /// True if it has reported, on a stream after `admitted_on`, that it never was in that round.
    pub(crate) missed_its_admission: bool,
    /// True if it has reported its state on its newest stream after the welcome. From the welcome on, it reads nothing from earlier streams.
    pub(crate) has_reported: bool,
    /// The round to which it may have been admitted without its knowledge. Workers may have connected to its store, so it gets no place
    /// until it has opened another one.
    pub(crate) missed_round: Option<RoundId>,
    /// What was requested on it so far, and is known here.
    pub(crate) requested: Requests,
    /// The latest progress report of its workers, if any.
    pub(crate) progress: Option<Arc<str>>,
    /// The standbys that it last reported.
    pub(crate) standbys: Option<Arc<StandbyCounts>>,
    /// The checkpoints in its memory, as last reported on its newest stream.
    pub(crate) memory: Option<Box<MemoryReport>>,
    /// The time of its last message.
    pub(crate) last_seen: Instant,
    /// The assignment that was last sent on its newest stream.
    pub(crate) sent: Option<SentAssignment>,
    /// Its early failures and losses.
    pub(crate) tally: Tally,
    /// The reason for which the user has excluded its host, if it is excluded.
    pub(crate) excluded: Option<Arc<str>>,
    /// True if it gets no place in the next round although it is ready, because of its [`Unfit`].
    pub(crate) is_aside: bool,
    pub(super) lease: Duration,
    /// The time until which it takes part in no first round, because an earlier job may not have been shown
    /// to it yet.
    pub(super) young_until: Option<Instant>,
}

/// The reason why a node should get no place.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Unfit {
    /// The kind of reason, such as `xid_119`. If many nodes report the same kind, the cause is probably not their machines.
    pub(crate) kind: String,
    /// The need of its machine; `None` if the user has excluded its host.
    pub(crate) class: Option<HealthClass>,
}

/// The part of an [`Assignment`] that decides if another one must be sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum SentAssignment {
    /// The node waits, and keeps its parts of that checkpoint.
    Wait(RoundId, WaitReason, Option<CheckpointId>),
    /// The node runs that round.
    Admit(RoundId),
    /// The node stops that round.
    Restart(RoundId),
    /// The node kills the workers of that round, or replaces the store that it may have served to it.
    Evict(RoundId),
    /// The node may exit.
    Dismiss,
    /// The job has ended.
    Close,
}

impl From<&Assignment> for SentAssignment {
    fn from(assignment: &Assignment) -> Self {
        match assignment {
            Assignment::Wait { round, reason, memory } => Self::Wait(*round, *reason, *memory),
            Assignment::Admit(admission) => Self::Admit(admission.round),
            Assignment::Restart { round, .. } => Self::Restart(*round),
            Assignment::Evict { round, reason: _ } => Self::Evict(*round),
            Assignment::Dismiss => Self::Dismiss,
            Assignment::Close(_) => Self::Close,
        }
    }
}

impl RosterNode {
    /// Returns its newest stream.
    pub(crate) fn peer(&self) -> Peer {
        Peer { node: self.description.node_id.clone(), stream: self.stream }
    }

    /// Returns the reason why it should get no place, if there is one.
    pub(crate) fn unfit(&self) -> Option<Unfit> {
        match &self.report.unhealthy {
            Some(unhealthy) => {
                Some(Unfit { kind: unhealthy.kind.clone(), class: Some(unhealthy.class) })
            }
            None => {
                self.excluded.as_ref().map(|_| Unfit { kind: "excluded".to_owned(), class: None })
            }
        }
    }

    /// Returns true if it should get no place.
    pub(crate) fn is_unfit(&self) -> bool {
        self.report.unhealthy.is_some() || self.excluded.is_some()
    }

    /// Returns true if it is ready for a round.
    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.report.state, NodeState::Ready { .. }) && self.missed_round.is_none()
    }

    /// Returns true if it is leaving.
    pub(crate) fn is_leaving(&self) -> bool {
        matches!(self.report.state, NodeState::Leaving { .. })
    }

    /// Returns the port at which it would serve a round's store, if it is ready.
    pub(crate) fn store_port(&self) -> Option<u16> {
        match self.report.state {
            NodeState::Ready { store_port } => Some(store_port),
            NodeState::Preparing
            | NodeState::Running
            | NodeState::Stopping
            | NodeState::Succeeded
            | NodeState::Leaving { .. } => None,
        }
    }
}
