//! Describes the outcome of a job.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::WorkerFailure;
use crate::ids::Round;

/// The outcome of a job.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Outcome {
    /// The way in which it ended.
    pub result: JobResult,
    /// The first failure that counted, if any: the failure with the oldest event on any node.
    pub first_failure: Option<WorkerFailure>,
    /// The number of other nodes with a failure in the same round.
    pub other_failures: u32,
    /// The other failures within a second of the first, oldest first, at most 16. Their times do not show
    /// which of them was the cause. Their texts are cut to 512 bytes. They have no stderr, and no error file
    /// with a longer path.
    pub further_failures: Vec<WorkerFailure>,
    /// The total number of failures charged.
    pub restarts_used: u32,
    /// The step from which the job goes on: all ranks have saved it for a notice, and no later round has
    /// reported anything.
    pub complete_step: Option<u64>,
}

/// Nodes that were lost or have left.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct DepartedNodes {
    /// The first few, in the order in which they departed.
    pub first: Vec<DepartedNode>,
    /// The number of the others.
    pub more: u32,
}

/// A node that was lost or has left.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct DepartedNode {
    /// Its host name.
    pub host_name: String,
    /// The reason.
    pub how: Departure,
    /// The time since then. For a silent node, the time since its last message.
    pub ago: Duration,
}

/// The reason why a node departed.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Departure {
    /// Its keeper reported that the agent is gone.
    AgentEnded,
    /// It was silent for longer than its lease.
    Silent,
    /// It was not ready for the next round in time.
    NotReady,
    /// It left in order.
    Left,
}

/// The way in which a job ended.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum JobResult {
    /// All workers exited with 0.
    Succeeded,
    /// All ranks had saved this step after a notice that the job ends.
    Saved {
        /// The step.
        step: u64,
    },
    /// The job failed again and again before it reached a new step.
    NoProgress {
        /// The rounds that failed, the oldest first; at most 8.
        rounds: Vec<Round>,
        /// The highest step of these rounds; `None` if they ended before a first step.
        step: Option<u64>,
    },
    /// A worker failed and no restart was left.
    BudgetSpent,
    /// A worker exited with a code that rules out a restart.
    FinalFailure,
    /// A round was not completed in time.
    JoinTimeout {
        /// The number of ready nodes.
        present: u32,
        /// The number of nodes that was needed.
        min: u32,
        /// The time that they waited.
        waited: Duration,
        /// The last round; zero if there was none. The time runs from the end of this round, or from the last
        /// loss of a node after it.
        after: Round,
        /// Nodes that were lost or have left since the last round was formed, and have not been replaced.
        #[serde(default, rename = "gone")]
        departed: Box<DepartedNodes>,
    },
    /// A coordinator that was started without the state of the last round found too few of its nodes in time.
    /// The others may continue the round elsewhere.
    RecoveryTimeout {
        /// The number of nodes present.
        present: u32,
        /// The number of nodes that was needed.
        needed: u32,
        /// The time that they waited.
        waited: Duration,
    },
    /// All nodes have left.
    AllLeft,
    /// The members are on several machines, and the master address is a loopback address.
    LoopbackMaster {
        /// The master address.
        address: String,
        /// The host name of the master.
        host_name: String,
    },
    /// All nodes that could take part failed repeatedly, and were quarantined.
    AllQuarantined,
    /// Too many consecutive rounds were restarted for free, and none ran for a quiet time (10 minutes).
    RestartLoop {
        /// The number of these rounds.
        rounds: u32,
    },
    /// An elder job of this name goes on or may go on, and this one is closed.
    OtherJob {
        /// The endpoint of its coordinator. If that is not known: what is known of the job, as text.
        endpoint: String,
        /// The time at which the elder job began, in milliseconds since the epoch; `None` if no coordinator of it
        /// has answered within the join timeout.
        born_ms: Option<u64>,
    },
}

impl JobResult {
    /// Returns true if another attempt at the same job would probably end in the same way.
    pub fn is_lasting(&self) -> bool {
        match self {
            Self::BudgetSpent
            | Self::NoProgress { .. }
            | Self::FinalFailure
            | Self::LoopbackMaster { .. }
            | Self::AllQuarantined
            | Self::RestartLoop { .. } => true,
            Self::Succeeded
            | Self::Saved { .. }
            | Self::JoinTimeout { .. }
            | Self::RecoveryTimeout { .. }
            | Self::OtherJob { .. }
            | Self::AllLeft => false,
        }
    }
}
