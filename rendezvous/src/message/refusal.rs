//! Defines the reasons why a registration is refused.

use super::Outcome;
use crate::{ids::RunId, settings::SharedSettings};

/// The reason why a registration is refused.
#[derive(Clone, Debug, Eq, PartialEq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum RefuseReason {
    /// The job has ended.
    Closed(Outcome),
    /// The agent belongs to an earlier run with the same run id.
    EarlierRun,
    /// The nodes are on several machines, and the address of this node or of the master is a loopback
    /// address.
    LoopbackAddress {
        /// The loopback address.
        address: String,
    },
    /// Ranks are fixed, and another connected node has the same `--node-rank`.
    NodeRankTaken {
        /// The rank.
        node_rank: u32,
        /// The host name of the other node.
        host_name: String,
    },
    /// Ranks are fixed, and this node's rank is outside the range of the job.
    NodeRankTooHigh {
        /// The rank.
        node_rank: u32,
        /// The number of nodes of the job.
        nodes: u32,
    },
    /// The workers of another connected node with the same role run another script.
    OtherScript {
        /// The name of the other node's script.
        script: String,
        /// The host name of the other node.
        host_name: String,
    },
    /// The agent and the coordinator have different protocol versions.
    ProtocolVersion {
        /// The coordinator's version.
        ours: u32,
    },
    /// The agent and the coordinator have different run ids.
    RunId {
        /// The coordinator's run id.
        ours: RunId,
    },
    /// The agent and the coordinator have different settings.
    Settings {
        /// The coordinator's settings.
        ours: SharedSettings,
    },
    /// The job already has the most nodes that it serves: those of a round and a tenth more as spares, at
    /// least 1,200.
    TooManyNodes {
        /// The limit.
        limit: u32,
    },
}
