//! Defines the coordinator's instructions to a node, with their reasons.

use std::net::IpAddr;

use serde::Serialize;

use super::{CheckpointId, MemoryPlan, MemoryUnusable, NoticeKind, OomKill, Outcome, WorkerEnd};
use crate::ids::{GlobalRank, GroupRank, RoleRank, Round, RoundId};

/// The coordinator's current instruction to a node.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Assignment {
    /// The node waits for a round and runs no workers.
    Wait {
        /// The newest round.
        round: RoundId,
        /// The reason.
        reason: WaitReason,
        /// The checkpoint in memory with which the newest round has begun. The node keeps its parts of it,
        /// because other nodes may fetch them, and frees all others. The default id, which no checkpoint has, if
        /// the round has begun from disk. `None` if the coordinator does not know it: the node keeps everything.
        memory: Option<CheckpointId>,
    },
    /// The node is a member and runs workers.
    Admit(Admission),
    /// The round has ended. The node stops its workers and prepares for a later round.
    Restart {
        /// The round that has ended.
        round: RoundId,
        /// The reason.
        reason: RestartReason,
        /// The step from which the job goes on: all ranks have saved it for a notice, and no later round has
        /// reported anything.
        complete_step: Option<u64>,
        /// The step in memory that was enough to end the phase of a notice.
        memory_step: Option<u64>,
    },
    /// The node is no longer a member of that round. It kills its workers, and takes part again as a newcomer.
    ///
    /// A node may have been in the round without its knowledge, for example because its machine was frozen. It has no workers then. Those
    /// of other nodes may have connected to its store, so it opens another one.
    Evict {
        /// The round that the node is no longer a member of.
        round: RoundId,
        /// The reason.
        reason: EvictReason,
    },
    /// The round that a leaving node still served has stopped, so the node may exit.
    Dismiss,
    /// The job has ended.
    Close(Outcome),
}

/// The place of one node in a round.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Admission {
    /// The round.
    pub round: RoundId,
    /// The node's rank.
    pub group_rank: GroupRank,
    /// The number of nodes in the round.
    pub group_world_size: u32,
    /// `RANK` of its first worker.
    pub first_global_rank: GlobalRank,
    /// `WORLD_SIZE`.
    pub world_size: u32,
    /// `ROLE_RANK` of its first worker.
    pub first_role_rank: RoleRank,
    /// `ROLE_WORLD_SIZE`.
    pub role_world_size: u32,
    /// `TORCHELASTIC_RESTART_COUNT`: failures charged so far, the same on every node.
    pub restart_count: u32,
    /// The number of these that progress has forgiven.
    pub restarts_forgiven: u32,
    /// The last round that was charged.
    pub charged_through: Round,
    /// `MASTER_ADDR`: the address of group rank 0.
    pub master_address: String,
    /// `MASTER_PORT`: the port of the worker store, which group rank 0 serves.
    pub master_port: u16,
    /// The addresses that the worker store admits; empty except for group rank 0.
    pub store_clients: Vec<IpAddr>,
    /// `RAGENT_ROUNDS_WITHOUT_PROGRESS`: the number of rounds since the last one that reached a new step.
    pub rounds_without_progress: u32,
    /// `RAGENT_SAVED_STEP`: the newest step that all ranks have saved.
    pub saved_step: Option<u64>,
    /// The checkpoint in memory with which the round begins; `None` if it begins from disk.
    pub memory: Option<Box<MemoryPlan>>,
    /// The address of the node that keeps copies of this node's parts; `None` if no node does.
    pub buddy: Option<String>,
    /// The node whose copies this node keeps, if any.
    pub ward: Option<GroupRank>,
    /// The first node that has lost its place after a failure, if any.
    pub replaced: Option<Replaced>,
}

/// A node whose worker has failed, and the spare that takes its place.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Replaced {
    /// The host name of the node that has failed.
    pub host: String,
    /// The host name of the spare.
    pub by: String,
}

/// The reason why a node waits.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitReason {
    /// A round is being gathered.
    Gathering,
    /// A round runs and has room. A new one follows for all waiting nodes.
    NextRound,
    /// A round runs and is full.
    Spare,
    /// The node failed too often and is quarantined.
    Quarantined,
    /// The coordinator was restarted and waits for the members of the last round.
    Recovering,
    /// The job ends after its next checkpoint.
    Ending,
    /// The node has reported that its machine is unhealthy.
    Unhealthy,
    /// The user has excluded the host.
    Excluded,
}

/// The reason why a round ended before its workers were done.
#[derive(Clone, Debug, Eq, PartialEq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum RestartReason {
    /// The elected coordinator was lost, and another process was elected.
    CoordinatorLost {
        /// The host name of the lost coordinator; `None` if unknown, because its node was not a member.
        host_name: Option<String>,
    },
    /// The coordinator was restarted.
    CoordinatorRestarted,
    /// The coordinator's host is leaving.
    HostLeft,
    /// Nodes wait, and there is room for them.
    NodesWaiting {
        /// The number of waiting nodes.
        waiting: u32,
    },
    /// A member is leaving, and its workers have ended.
    NodeLeft {
        /// The member's host name.
        host_name: String,
    },
    /// A member was lost.
    NodeLost {
        /// The member's host name.
        host_name: String,
        /// The reason why it counts as lost.
        how: EvictReason,
    },
    /// A notice was given, and all ranks have saved, or its time is over.
    Notice {
        /// What follows.
        kind: NoticeKind,
        /// The host names of nodes that leave; at most [`NOTICE_HOSTS_MAX`](super::NOTICE_HOSTS_MAX).
        hosts: Vec<String>,
    },
    /// A machine is unhealthy, and the next round is formed without it. Its failure is not charged.
    BadMachine {
        /// The machine's host name.
        host_name: String,
        /// The reason, for people; at most [`LINE_MAX`](super::LINE_MAX) bytes.
        reason: String,
    },
    /// A node cannot use the checkpoint in memory with which the round began. Not charged.
    MemoryUnusable {
        /// The node's host name.
        host_name: String,
        /// The checkpoint, and the reason.
        unusable: MemoryUnusable,
    },
    /// A worker failed.
    WorkerFailed {
        /// The host name of its node.
        host_name: String,
        /// Its rank.
        global_rank: GlobalRank,
        /// The way in which it ended.
        end: WorkerEnd,
        /// Set if the kernel has probably killed it for lack of memory.
        oom: Option<OomKill>,
        /// The reports of the node's hardware, as lines; at most [`HARDWARE_FACTS_MAX`](super::HARDWARE_FACTS_MAX).
        hardware: Vec<String>,
    },
}

/// The reason why a node is no longer a member.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum EvictReason {
    /// The node's keeper reported that the agent is gone and all its processes are reaped.
    DeathNotice,
    /// The node was silent for longer than its lease, or has missed its admission.
    Silent,
    /// The node was not ready again in time after a restart.
    NotBack,
    /// The node failed or was lost too often shortly after a start.
    Quarantined,
}
