//! The messages between agents and their coordinator, as domain types.
//!
//! Both sides are *level*, not edge: a node reports its [`Standing`], the coordinator sends the
//! [`Assignment`] that applies to the node. After a broken stream both are sent again, so that a
//! lost or repeated message blocks nothing.

use std::{net::IpAddr, num::NonZeroU32, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    ids::{
        AttendNumber, GlobalRank, GroupRank, JobUid, LocalRank, NodeId, Peer, RoleRank, Round,
        RoundId, RunId, Term,
    },
    settings::{Leases, SharedSettings},
};

/// The longest progress report of workers that is passed on, in bytes: one line.
pub const SAID_MAX: usize = 200;

/// The most addresses refused by a round's store that are reported.
pub const REFUSED_CLIENTS_MAX: usize = 16;

/// The version of the attend protocol in this build; `docs/protocol.md` lists all versions.
pub const PROTOCOL_VERSION: u32 = 3;

/// The first message of an agent on each of its streams.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Attend {
    /// The protocol version of the agent.
    pub protocol_version: u32,
    /// The job that the agent wants to join.
    pub run_id: RunId,
    /// The run that the agent belongs to, if known.
    pub job_uid: Option<JobUid>,
    /// The number of the stream.
    pub attend: AttendNumber,
    /// The node.
    pub node: NodeDescription,
    /// The agent's settings that all nodes must share.
    pub settings: SharedSettings,
    /// The newest round that the node knows, with its size and the node's rank in it.
    pub heard: Heard,
    /// The number of failures charged to the job, as far as the agent knows.
    pub restarts_used: u32,
    /// The last round charged, as far as the agent knows.
    pub charged_through: Round,
    /// The current state of the node.
    pub standing: Standing,
}

impl Attend {
    /// Returns the stream that this message opens.
    pub fn peer(&self) -> Peer {
        Peer { node: self.node.node_id.clone(), attend: self.attend }
    }
}

/// The description of a node; constant for the life of its agent.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NodeDescription {
    /// The agent's id.
    pub node_id: NodeId,
    /// The machine's host name, for sorting and for people.
    pub host_name: String,
    /// The address at which the other nodes' workers reach this node.
    pub address: String,
    /// All addresses from which its workers may connect.
    pub addresses: Vec<IpAddr>,
    /// The port on which its agent listens.
    pub agent_port: u16,
    /// `--role`.
    pub role: String,
    /// The number of workers; nodes may differ.
    pub local_world_size: NonZeroU32,
    /// `--node-rank`: the group rank if ranks are fixed, else a sort key among newcomers.
    pub node_rank: Option<u32>,
}

/// The newest round that a node knows.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Heard {
    /// The round; zero if none.
    pub round: RoundId,
    /// The number of nodes in it.
    pub size: u32,
    /// The node's own rank in it, if it was a member.
    pub group_rank: Option<GroupRank>,
}

impl Heard {
    /// Returns the number of nodes in the round, if this comes from one of its members: others may
    /// not know it. Returns `None` if the number is above `max`, which no round of the job exceeds.
    pub(crate) fn size_by_member(&self, max: u32) -> Option<u32> {
        let is_member = self.group_rank.is_some_and(|rank| rank.0 < self.size);
        (is_member && self.size <= max).then_some(self.size)
    }
}

/// The current state of a node.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Standing {
    /// The round that this refers to: the newest one in which the node was a member; zero if none.
    pub round: RoundId,
    /// The activity of the node.
    pub state: NodeState,
    /// The first failure among its workers in that round.
    ///
    /// An agent sends it in these steps:
    ///
    /// 1. `Stopping` with the first worker that ended badly, at once, as known at that time. This
    ///    ends the round on all nodes; `error_file_age` may be none.
    /// 2. When all its workers are reaped, and before it sends anything but keep-alives, the agent
    ///    reads the error files of *all* its workers of that round. A worker whose error file was
    ///    written before the node began to stop (on request, or because of 1) has failed too, even
    ///    if it was killed before it had exited: its failure has `end` as it was reaped, and
    ///    `error_file_age`. The time of a file is compared with the wall clock of the same machine,
    ///    as an age; a time in the future has age zero. Files written later are consequences of the
    ///    stop and do not count.
    /// 3. `Preparing` with the failure of the largest [`WorkerFailure::event_age`], be it the one
    ///    of 1 or another one; also on a node that had none in 1. Ages are relative to the time of
    ///    sending, here and in every repetition (`Ready`, attends) until the next round.
    ///
    /// The coordinator keeps the oldest event of each node. It judges the round once all members
    /// have stopped or are lost, so a failure that a node sends after its first `Preparing` or
    /// `Ready` of the round may come too late. This delays nothing: the next round waits for the
    /// same.
    pub failure: Option<WorkerFailure>,
    /// True if the node's workers of that round were killed because its lease had ended: others may
    /// have failed because of it.
    pub was_cut_off: bool,
}

/// The activity of a node with regard to the round of its [`Standing`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NodeState {
    /// No worker runs and none may be started: the node prepares for a round.
    Preparing,
    /// The last process of that round is reaped, and the node is ready for any later round.
    Ready {
        /// The port of the fresh worker store that the node would serve as group rank 0.
        store_port: u16,
    },
    /// The node's workers run.
    Running,
    /// The node's workers are being stopped, on request or because one failed.
    Stopping,
    /// All workers of the node exited with 0.
    Succeeded,
    /// The node is leaving (after a signal) and takes part in no further round.
    Leaving {
        /// True if its last process is reaped.
        reaped: bool,
    },
}

/// A message of a node on an open stream.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum FromNode {
    /// Renews the lease; the coordinator echoes it.
    KeepAlive {
        /// The number of the keep-alive; it grows with each one of the node.
        sequence: u64,
    },
    /// The current state of the node.
    Standing(Standing),
    /// Answers [`ToNode::Probe`].
    Alive {
        /// The round that the probe named.
        round: RoundId,
    },
    /// The latest progress report of the node's workers, for people; empty if none in this round.
    Said {
        /// At most [`SAID_MAX`] bytes, without control characters.
        text: String,
    },
    /// The store of the round, which this node serves, has refused clients.
    RefusedClients(RefusedClients),
    /// The node has received the outcome or its dismissal, and disconnects.
    Goodbye,
}

/// A message of the coordinator to a node.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ToNode {
    /// The stream is accepted; the node's assignment follows.
    Welcome(Welcome),
    /// The stream is refused for good.
    Refuse(RefuseReason),
    /// Echoes a keep-alive.
    Echo {
        /// The number of the keep-alive.
        sequence: u64,
    },
    /// Asks for an immediate sign of life.
    Probe {
        /// The round in which a failure occurred.
        round: RoundId,
    },
    /// The node's current assignment.
    Assignment(Assignment),
    /// The coordinator's host is leaving; the job can continue only if it comes back.
    HostLeaving,
    /// The store of the node's round has refused clients.
    RefusedClients(RefusedClients),
}

/// The clients that the store of a round has refused, because their addresses are not a member's. A
/// worker of the job may be among them, and hangs then, so every node logs a warning.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RefusedClients {
    /// The round.
    pub round: RoundId,
    /// All addresses refused so far, each once; at most [`REFUSED_CLIENTS_MAX`].
    pub addresses: Vec<IpAddr>,
}

/// The answer to an accepted attend.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Welcome {
    /// The coordinator's term.
    pub term: Term,
    /// The run.
    pub job_uid: JobUid,
    /// The name of this start of the coordinator.
    pub coordinator: String,
    /// The leases and the keep-alive interval.
    pub leases: Leases,
    /// The nodes that would take over, in this order; currently none.
    pub successors: Vec<NodeId>,
}

/// The coordinator's current instruction to a node.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Assignment {
    /// The node waits for a round and runs no workers.
    Wait {
        /// The newest round.
        round: RoundId,
        /// The reason.
        reason: WaitReason,
    },
    /// The node is a member and runs workers.
    Admit(Admission),
    /// The round has ended: the node stops its workers and prepares for a later one.
    Restart {
        /// The round that has ended.
        round: RoundId,
        /// The reason.
        reason: RestartReason,
    },
    /// The node is no longer a member of that round: it kills its workers and registers again.
    Evict {
        /// The round that the node is no longer a member of.
        round: RoundId,
        /// The reason.
        reason: EvictReason,
    },
    /// The round that a leaving node still served has stopped: the node may exit.
    Dismiss,
    /// The job has ended.
    Close(Outcome),
}

/// The place of one node in a round.
#[derive(Clone, Debug, Eq, PartialEq)]
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
    /// The last round that was charged.
    pub charged_through: Round,
    /// `MASTER_ADDR`: the address of group rank 0.
    pub master_address: String,
    /// `MASTER_PORT`: the worker store that group rank 0 serves.
    pub master_port: u16,
    /// The addresses that the worker store admits; empty except for group rank 0.
    pub store_clients: Vec<IpAddr>,
}

/// The reason why a node waits.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitReason {
    /// A round is being gathered.
    Gathering,
    /// A round runs and has room: a new one follows for all waiting nodes.
    NextRound,
    /// A round runs and is full.
    Spare,
    /// The node failed too often and is quarantined.
    Quarantined,
    /// The coordinator was restarted and waits for the members of the last round.
    Recovering,
}

/// The reason why a round ended before its workers were done.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum RestartReason {
    /// The coordinator was restarted.
    CoordinatorRestarted,
    /// The coordinator's host is leaving.
    HostLeft,
    /// Nodes wait and there is room for them.
    NodesWaiting {
        /// The number of waiting nodes.
        waiting: u32,
    },
    /// A member is leaving and its workers have ended.
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
    /// A worker failed.
    WorkerFailed {
        /// The host name of its node.
        host_name: String,
        /// Its rank.
        global_rank: GlobalRank,
        /// The way in which it ended.
        end: WorkerEnd,
    },
}

impl RestartReason {
    /// Returns a stable name of the reason, for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::CoordinatorRestarted => "coordinator_restarted",
            Self::HostLeft => "host_left",
            Self::NodesWaiting { .. } => "nodes_waiting",
            Self::NodeLeft { .. } => "node_left",
            Self::NodeLost { .. } => "node_lost",
            Self::WorkerFailed { .. } => "worker_failed",
        }
    }
}

/// The reason why a node is no longer a member.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EvictReason {
    /// The node's keeper reported that the agent is gone and all its processes are reaped.
    Obituary,
    /// The node was silent for longer than its lease.
    Silent,
    /// The node was not ready again in time after a restart.
    NotBack,
    /// The node failed or was lost too often shortly after a start.
    Quarantined,
}

impl EvictReason {
    /// Returns a stable name of the reason, for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Obituary => "obituary",
            Self::Silent => "silent",
            Self::NotBack => "not_back",
            Self::Quarantined => "quarantined",
        }
    }
}

/// The reason why an attend is refused.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum RefuseReason {
    /// The job has ended.
    Closed(Outcome),
    /// The agent belongs to an earlier run with the same run id.
    EarlierRun,
    /// The nodes are on several machines, and this one's or the master's address is a loopback
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
    /// Ranks are fixed, and the node's is outside the range of the job.
    NodeRankTooHigh {
        /// The rank.
        node_rank: u32,
        /// The number of nodes of the job.
        nodes: u32,
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
    /// The job has as many nodes as it serves: those of a round and a tenth more as spares, at
    /// least 1,200.
    TooManyNodes {
        /// The limit.
        limit: u32,
    },
}

impl RefuseReason {
    /// Returns a stable name of the reason, for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Closed(_) => "closed",
            Self::EarlierRun => "earlier_run",
            Self::LoopbackAddress { .. } => "loopback_address",
            Self::NodeRankTaken { .. } => "node_rank_taken",
            Self::NodeRankTooHigh { .. } => "node_rank_too_high",
            Self::ProtocolVersion { .. } => "protocol_version",
            Self::RunId { .. } => "run_id",
            Self::Settings { .. } => "settings",
            Self::TooManyNodes { .. } => "too_many_nodes",
        }
    }
}

/// The way in which a worker ended.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerEnd {
    /// The worker exited with this code.
    Exited(i32),
    /// The worker was killed by this signal.
    Signaled(i32),
    /// The worker could not be started, for this reason.
    NotStarted(String),
    /// The worker's keeper was lost, and the worker with it.
    KeeperLost,
    /// The worker was killed because its node's workers had made no progress for this long.
    Hung(Duration),
}

/// The failure of a worker, as its own node reports it.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct WorkerFailure {
    /// The node's host name.
    pub host_name: String,
    /// The round in which it failed.
    pub round: RoundId,
    /// The worker's rank in the job.
    pub global_rank: GlobalRank,
    /// The worker's rank on its node.
    pub local_rank: LocalRank,
    /// Its process id; zero if it never ran.
    pub pid: u32,
    /// The way in which it ended.
    pub end: WorkerEnd,
    /// The time since it ended, at the time of sending; ages are compared, never wall clocks.
    pub age: Duration,
    /// The text that the script wrote to its error file, if any.
    pub message: Option<String>,
    /// The path of that file.
    pub error_file: Option<String>,
    /// The last lines of its stderr, if captured.
    pub stderr_tail: String,
    /// True if its exit code rules out a restart.
    #[serde(default)]
    pub is_final: bool,
    /// The age of its error file, at the time of sending; `None` if there is none, or the node has
    /// not looked yet.
    #[serde(default)]
    pub error_file_age: Option<Duration>,
}

impl WorkerFailure {
    /// Returns the time since it failed, at the time of sending: since it wrote its error file, if
    /// it ended only after that. A worker may take seconds to exit, and its peers fail because of
    /// it meanwhile.
    pub fn event_age(&self) -> Duration {
        self.error_file_age.map_or(self.age, |age| age.max(self.age))
    }
}

/// The outcome of a job.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Outcome {
    /// The way in which it ended.
    pub result: JobResult,
    /// The first failure that counted, if any: the failure with the oldest event on any node.
    pub first_failure: Option<WorkerFailure>,
    /// The number of other nodes with a failure in the same round.
    pub other_failures: u32,
    /// The other failures within a second of the first, oldest first, at most 16; their times do
    /// not show which of them was the cause. Shortened: without stderr.
    #[serde(default)]
    pub further_failures: Vec<WorkerFailure>,
    /// The total number of failures charged.
    pub restarts_used: u32,
}

/// The way in which a job ended.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum JobResult {
    /// All workers exited with 0.
    Succeeded,
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
        /// The time for which they waited.
        waited: Duration,
    },
    /// A coordinator that was started without the state of the last round found too few of its
    /// nodes in time to rule out that the others continue it elsewhere.
    RecoveryTimeout {
        /// The number of nodes present.
        present: u32,
        /// The number of nodes that was needed.
        needed: u32,
        /// The time for which they waited.
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
    /// All nodes that could take part failed repeatedly and were quarantined.
    AllQuarantined,
    /// Too many consecutive rounds were restarted for free, and none ran for a quiet time (10
    /// minutes).
    RestartLoop {
        /// The number of these rounds.
        rounds: u32,
    },
}

impl JobResult {
    /// Returns true if another attempt at the same job would most likely end in the same way.
    pub fn is_lasting(&self) -> bool {
        match self {
            Self::BudgetSpent
            | Self::FinalFailure
            | Self::LoopbackMaster { .. }
            | Self::AllQuarantined
            | Self::RestartLoop { .. } => true,
            Self::Succeeded
            | Self::JoinTimeout { .. }
            | Self::RecoveryTimeout { .. }
            | Self::AllLeft => false,
        }
    }

    /// Returns a stable name of the result, for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::BudgetSpent => "budget_spent",
            Self::FinalFailure => "final_failure",
            Self::JoinTimeout { .. } => "join_timeout",
            Self::RecoveryTimeout { .. } => "recovery_timeout",
            Self::AllLeft => "all_left",
            Self::LoopbackMaster { .. } => "loopback_master",
            Self::AllQuarantined => "all_quarantined",
            Self::RestartLoop { .. } => "restart_loop",
        }
    }
}
