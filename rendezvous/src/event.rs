//! Describes the events of a job: what happened, where, and which earlier event caused it.
//!
//! The machine records an event for each change that people ask about. What all nodes do is one event of the round: the workers of 100 nodes
//! start, and "all workers of round 1 run" is recorded. A node has its own event only if it does something else, for example if it is lost.

use std::time::Duration;

use serde::{Deserialize, Serialize, Serializer};
use strum::{IntoStaticStr, VariantArray, VariantNames};

use crate::{
    account::{TimeState, TimeTotals},
    ids::{GlobalRank, LocalRank, NodeId, Round, Term},
    limits::millis,
    message::{EvictReason, HealthClass, JobResult, NoticeKind, OomKill, RestartReason, WorkerEnd},
};

/// Identifies an event. It grows with each event of a job, even after a restart of the coordinator.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct EventId {
    /// The term of the coordinator that has recorded it.
    pub term: Term,
    /// Its number in this term, from 1.
    pub number: u64,
}

impl std::fmt::Display for EventId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.term, self.number)
    }
}

impl std::str::FromStr for EventId {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (term, number) = text.split_once('.').unwrap_or((text, ""));
        Ok(Self { term: Term(term.parse()?), number: number.parse()? })
    }
}

impl Serialize for EventId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// An event.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Event {
    /// Its identity.
    pub id: EventId,
    /// The event that caused it, if one is known.
    pub cause: Option<EventId>,
    /// The newest round at that time.
    pub round: Round,
    /// The node that it concerns, if any.
    pub node: Option<EventNode>,
    /// The kind of the event, with its details.
    pub kind: EventKind,
}

/// The node that an event concerns.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct EventNode {
    /// The id of its agent.
    pub node_id: NodeId,
    /// Its host name.
    pub host_name: String,
}

/// A kind of event, with its details. The names are part of the JSON of events, so they never
/// change.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, IntoStaticStr, VariantNames)]
#[serde(rename_all = "snake_case", tag = "kind", content = "data")]
#[strum(serialize_all = "snake_case")]
pub enum EventKind {
    /// A coordinator has started. It knows the round and the charges from its state file.
    CoordinatorStarted {
        /// The number of nodes of the newest round; zero if there is none.
        nodes: u32,
        /// The failures charged so far.
        restarts_used: u32,
    },
    /// A coordinator was elected, and continues the job of an earlier one.
    CoordinatorTookOver {
        /// The number of nodes of the newest round.
        nodes: u32,
        /// The failures charged so far.
        restarts_used: u32,
        /// The host of the earlier coordinator, if it was lost and its name is known.
        lost_host: Option<String>,
    },
    /// The coordinator has adopted the run of a node, because it was started without state.
    RunAdopted,
    /// The coordinator has learned the newest round, or charges, from a node.
    StateLearned {
        /// The number of nodes of that round.
        nodes: u32,
        /// The failures charged so far.
        restarts_used: u32,
    },
    /// The coordinator waits for the members of the last round, after a restart or a takeover.
    Recovering,
    /// No node of the last round is left, so a new run begins with these charges.
    RunBegan {
        /// The failures charged so far.
        restarts_used: u32,
    },
    /// The coordinator leaves, because its node or its process ends.
    CoordinatorLeaving,
    /// The coordinator has ended.
    CoordinatorEnded {
        /// True if another process continues the job.
        hands_over: bool,
    },
    /// The coordinator waits for nodes for a round.
    Gathering,
    /// Members of the last round are back after a restart of the coordinator or a takeover.
    Recovered {
        /// Their number.
        back: u32,
        /// The number of nodes of that round.
        nodes: u32,
    },
    /// A round was completed, and its nodes are admitted.
    RoundAdmitted {
        /// The number of its nodes.
        nodes: u32,
        /// The number of its workers.
        workers: u32,
        /// The number of its nodes that were not in the round before.
        newcomers: u32,
    },
    /// All nodes of the round have started their workers.
    WorkersStarted,
    /// The workers of the round have given their first sign of progress.
    FirstProgress {
        /// The lowest step of all workers.
        step: u64,
    },
    /// A round has ended, and its workers are being stopped.
    RoundEnded {
        /// The reason.
        #[serde(serialize_with = "kind_of_reason")]
        reason: RestartReason,
    },
    /// All processes of the last round have ended.
    RoundStopped,
    /// A member still has processes of the last round after all, according to a report that arrived
    /// late.
    RoundStillStopping,
    /// The workers have made no progress for much longer than usual.
    StallBegan {
        /// The last step; `None` if the round has none yet.
        step: Option<u64>,
        /// The time since the last sign of progress, in milliseconds.
        after_ms: u64,
    },
    /// The nodes have looked at their workers. Recorded again if a later look shows something else.
    StallExplained {
        /// The explanation.
        text: String,
        /// The rank for which the others wait, if one is known.
        rank: Option<GlobalRank>,
    },
    /// The workers make progress again, or the round has ended.
    StallEnded {
        /// The new step; `None` if the round has ended without one.
        step: Option<u64>,
        /// The time since the last sign of progress before, in milliseconds.
        after_ms: u64,
    },
    /// A round begins with a checkpoint in memory.
    MemoryRestored {
        /// The step of the checkpoint.
        step: u64,
        /// The number of nodes that fetch their part from another node; all if it is resharded.
        fetching: u32,
        /// The size of all these parts, in bytes; of all parts if it is resharded.
        bytes: u64,
        /// True if it was saved with other ranks on the nodes, so that the workers of all nodes read from all parts.
        is_resharded: bool,
    },
    /// All nodes that needed their part from another one have it.
    MemoryFetched {
        /// The host names of the nodes, by rank; at most [`FETCHERS_MAX`].
        nodes: Vec<String>,
        /// The number of all of them.
        fetching: u32,
        /// The size of these parts, in bytes.
        bytes: u64,
        /// The longest time for which one of them has fetched, in milliseconds.
        longest_ms: u64,
    },
    /// A checkpoint in memory is not used again.
    MemoryStruck {
        /// Its step.
        step: u64,
        /// The reason.
        reason: StrikeReason,
    },
    /// Checkpoints in memory are off, for the rest of the round or of the job.
    MemoryOff {
        /// The reason.
        reason: String,
    },
    /// The cost of a restart or of the first start. Recorded when the workers make progress again,
    /// or when they run if the job gives no signs of progress.
    RestartCost(RestartCost),
    /// A worker has failed.
    WorkerFailed {
        /// `RANK` of the worker.
        rank: GlobalRank,
        /// Its rank on its node.
        local_rank: LocalRank,
        /// Its process id.
        pid: u32,
        /// The end of its process.
        end: WorkerEnd,
        /// Set if the kernel has probably killed it for lack of memory.
        #[serde(skip_serializing_if = "Option::is_none")]
        oom: Option<OomKill>,
        /// The reports of the node's hardware since the round began, as lines.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        hardware: Vec<String>,
    },
    /// A failure was charged to the job.
    FailureCharged {
        /// The number of failures that count: progress has forgiven the others.
        restarts_used: u32,
        /// The failures that may be charged.
        max_restarts: u32,
        /// The number of the round's other failures.
        others: u32,
    },
    /// A failure was not charged.
    FailureNotCharged {
        /// The reason.
        reason: FreeReason,
    },
    /// A notice was given, and all ranks may save. A further notice before the end of the phase has the same
    /// number.
    NoticeGiven {
        /// Its number.
        notice: u64,
        /// What follows.
        about: NoticeKind,
        /// The host names of nodes that leave.
        hosts: Vec<String>,
        /// The source.
        source: String,
        /// The time for checkpoints, in milliseconds; `None` if the round goes on.
        left_ms: Option<u64>,
    },
    /// The phase of a notice is over.
    NoticeOver {
        /// Its number.
        notice: u64,
        /// The step that all ranks have saved on storage; `None` if they have not.
        step: Option<u64>,
        /// The step in memory that was enough to end the phase.
        memory_step: Option<u64>,
        /// The ranks of the nodes that have not saved, such as `12-31`; empty if all have.
        missing: String,
        /// The time since the notice, in milliseconds.
        after_ms: u64,
        /// True if the notice was withdrawn, because the waiting nodes are gone.
        is_withdrawn: bool,
    },
    /// The workers of a node could not write a checkpoint.
    SaveFailed {
        /// The reason.
        reason: String,
    },
    /// A node is gone, or counts as gone.
    NodeLost {
        /// The reason.
        how: EvictReason,
        /// True if it was a member of the round.
        was_member: bool,
    },
    /// A member is registered, but has stopped its workers because its lease had ended on its side.
    NodeLeaseExpired,
    /// A node has left in order.
    NodeLeft,
    /// A node was quarantined.
    NodeQuarantined,
    /// Another node takes the place of this one, whose worker has failed.
    NodeReplaced {
        /// The host name of the node that takes its place.
        by: String,
    },
    /// The quarantine of a node is over.
    NodeReleased {
        /// True if the job needs the node before the end of its quarantine.
        early: bool,
    },
    /// A node has reported that its machine is unhealthy.
    NodeUnhealthy {
        /// The need of the machine.
        class: HealthClass,
        /// The reason.
        reason: String,
        /// True if the node gets no place. False if the job needs it, or too many nodes report the same.
        is_set_aside: bool,
    },
    /// A node has reported that its machine is healthy again.
    NodeHealthy,
    /// The user has excluded the host of a node, or excludes it no longer.
    NodeExcluded {
        /// The reason; `None` if the host is excluded no longer.
        reason: Option<String>,
    },
    /// The registration of a node was refused.
    NodeRefused {
        /// The name of the reason.
        reason: String,
    },
    /// The store of the round has refused connections from these addresses.
    StoreClientsRefused {
        /// All refused addresses of the round so far.
        addresses: Vec<String>,
    },
    /// The voters of the job have changed.
    VotersChanged {
        /// Their endpoints.
        voters: Vec<String>,
    },
    /// A voter does not answer the coordinator.
    VoterSilent {
        /// Its endpoint.
        voter: String,
    },
    /// A voter that did not answer answers again.
    VoterBack {
        /// Its endpoint.
        voter: String,
    },
    /// The job is closed.
    JobClosed {
        /// The result.
        #[serde(serialize_with = "kind_of_result")]
        result: JobResult,
    },
}

fn kind_of_reason<S: Serializer>(reason: &RestartReason, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(reason.name())
}

fn kind_of_result<S: Serializer>(result: &JobResult, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(result.name())
}

/// The number of nodes that [`EventKind::MemoryFetched`] names. More do not help a reader.
pub const FETCHERS_MAX: usize = 3;

/// The reason why a checkpoint in memory is not used again.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StrikeReason {
    /// Rounds that began with it have failed, without a newer one.
    Failures,
    /// The checksum of a part is wrong at each of its holders.
    Sum,
    /// The script has refused it.
    Script,
    /// The job would end, because workers fail before they receive it.
    Unread,
}

impl StrikeReason {
    /// Returns the reason as a part of a sentence.
    pub fn text(self) -> &'static str {
        match self {
            Self::Failures => "two rounds that began with it have failed",
            Self::Sum => "the checksum of a part is wrong",
            Self::Script => "the script has refused it",
            Self::Unread => "workers fail before they receive it",
        }
    }
}

/// The reason why a failure is not charged.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FreeReason {
    /// A member was lost at the same time.
    MemberLost,
    /// A standby did not fit the script.
    StandbyUnfit,
    /// The checkpoint in memory with which the round began cannot be used.
    MemoryUnusable,
    /// The machine is unhealthy, and the other nodes reach MIN.
    BadMachine,
}

/// The cause of a restart, by which restarts are summed.
#[derive(
    Clone,
    Copy,
    Debug,
    Deserialize,
    Eq,
    Ord,
    PartialEq,
    PartialOrd,
    Serialize,
    IntoStaticStr,
    VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum RestartCause {
    /// The first start of the job, which is not a restart.
    FirstStart,
    /// A worker failed.
    WorkerFailed,
    /// A node was lost.
    NodeLost,
    /// A node has left.
    NodeLeft,
    /// Nodes waited, and there was room for them.
    NodesWaiting,
    /// The coordinator was lost, and another one has taken over.
    CoordinatorLost,
    /// The coordinator was restarted.
    CoordinatorRestarted,
    /// The host of the coordinator has left.
    HostLeft,
    /// A notice was given, and nodes have left.
    Notice,
    /// A machine was unhealthy.
    BadMachine,
    /// A checkpoint in memory could not be used.
    MemoryUnusable,
}

impl RestartCause {
    /// All causes.
    pub const ALL: [Self; 11] = *Self::VARIANTS.as_array().expect("all variants");
}

impl From<&RestartReason> for RestartCause {
    fn from(reason: &RestartReason) -> Self {
        match reason {
            RestartReason::CoordinatorLost { .. } => Self::CoordinatorLost,
            RestartReason::CoordinatorRestarted => Self::CoordinatorRestarted,
            RestartReason::HostLeft => Self::HostLeft,
            RestartReason::NodesWaiting { .. } => Self::NodesWaiting,
            RestartReason::NodeLeft { .. } => Self::NodeLeft,
            RestartReason::NodeLost { .. } => Self::NodeLost,
            RestartReason::Notice { .. } => Self::Notice,
            RestartReason::BadMachine { .. } => Self::BadMachine,
            RestartReason::MemoryUnusable { .. } => Self::MemoryUnusable,
            RestartReason::WorkerFailed { .. } => Self::WorkerFailed,
        }
    }
}

/// The cost of one restart.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct RestartCost {
    /// The cause.
    pub why: RestartCause,
    /// The time in each stage, in milliseconds.
    pub stages: RestartStages,
    /// The steps that are done again, if the workers report steps.
    pub redone_steps: Option<u64>,
    /// False if the round of this restart ended before it made progress.
    pub is_complete: bool,
}

impl RestartCost {
    /// Returns the sum of all stages, in milliseconds.
    pub fn total_ms(&self) -> u64 {
        let RestartStages { saving_ms, stopping_ms, waiting_ms, rendezvous_ms, starting_ms } =
            self.stages;
        let stages = [saving_ms, stopping_ms, waiting_ms, rendezvous_ms, starting_ms];
        stages.into_iter().fold(0, u64::saturating_add)
    }
}

/// The stages of a restart.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct RestartStages {
    /// The time from the last step before a notice until all ranks had saved, or its time was over.
    #[serde(default)]
    pub saving_ms: u64,
    /// The time from the end of the round until its last process was reaped.
    pub stopping_ms: u64,
    /// The wait for nodes, or for the coordinator.
    pub waiting_ms: u64,
    /// The forming of the next round.
    pub rendezvous_ms: u64,
    /// The time from the admission of the next round until its first progress.
    pub starting_ms: u64,
}

impl RestartStages {
    /// Returns the stages of a restart in which these times have passed.
    pub(crate) fn of(times: &TimeTotals, saving: Duration) -> Self {
        let ms = |state| millis(times.of(state));
        Self {
            saving_ms: millis(saving),
            stopping_ms: ms(TimeState::Stopping),
            waiting_ms: ms(TimeState::Waiting),
            rendezvous_ms: ms(TimeState::Rendezvous),
            starting_ms: ms(TimeState::Starting),
        }
    }
}

/// The restarts of a job by one cause.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct RestartSum {
    /// Their number.
    pub count: u32,
    /// Their cost in milliseconds.
    pub cost_ms: u64,
    /// The steps that were done again.
    pub redone_steps: u64,
}

impl RestartSum {
    /// Adds a restart.
    pub(crate) fn add(&mut self, cost: &RestartCost) {
        self.count = self.count.saturating_add(1);
        self.cost_ms = self.cost_ms.saturating_add(cost.total_ms());
        self.redone_steps = self.redone_steps.saturating_add(cost.redone_steps.unwrap_or(0));
    }

    /// Removes a restart that was added.
    pub(crate) fn remove(&mut self, cost: &RestartCost) {
        self.count = self.count.saturating_sub(1);
        self.cost_ms = self.cost_ms.saturating_sub(cost.total_ms());
        self.redone_steps = self.redone_steps.saturating_sub(cost.redone_steps.unwrap_or(0));
    }
}
