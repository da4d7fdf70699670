//! What agents and their coordinator say to each other, as domain types.
//!
//! Both sides are *level*, not edge: a node says in which [`Standing`] it is, the coordinator which
//! [`Assignment`] holds for it. After a broken stream both repeat themselves, so that a lost or a
//! repeated message wedges nothing.

use std::{net::IpAddr, num::NonZeroU32, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    ids::{
        AttendNumber, GlobalRank, GroupRank, JobUid, LocalRank, NodeId, Peer, RoleRank, Round,
        RoundId, RunId, Term,
    },
    settings::{Leases, SharedSettings},
};

/// How much of what workers say of their progress is passed on, in bytes: one line.
pub const SAID_MAX: usize = 200;

/// How many addresses that a round's store has refused are reported.
pub const REFUSED_CLIENTS_MAX: usize = 16;

/// Version of the attend protocol in this build; `docs/protocol.md` lists all versions.
pub const PROTOCOL_VERSION: u32 = 3;

/// What an agent says first on each of its streams.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Attend {
    /// The protocol that the agent speaks.
    pub protocol_version: u32,
    /// The job that it wants to take part in.
    pub run_id: RunId,
    /// The run that it belongs to, once it knows.
    pub job_uid: Option<JobUid>,
    /// Which of the node's streams this is.
    pub attend: AttendNumber,
    /// Who attends.
    pub node: NodeDescription,
    /// What it was told and all must share.
    pub settings: SharedSettings,
    /// The newest round that it has heard of, with its size and its own rank in it.
    pub heard: Heard,
    /// Failures charged to the job as far as it knows.
    pub restarts_used: u32,
    /// The last round charged as far as it knows.
    pub charged_through: Round,
    /// What currently holds on the node.
    pub standing: Standing,
}

impl Attend {
    /// The stream that this opens.
    pub fn peer(&self) -> Peer {
        Peer { node: self.node.node_id.clone(), attend: self.attend }
    }
}

/// Who a node is; fixed for the life of its agent.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NodeDescription {
    /// The agent's identity.
    pub node_id: NodeId,
    /// The machine's host name, for ordering and for people.
    pub host_name: String,
    /// Where the other nodes' workers reach this one.
    pub address: String,
    /// All addresses from which its workers may connect.
    pub addresses: Vec<IpAddr>,
    /// The port on which its agent listens.
    pub agent_port: u16,
    /// `--role`.
    pub role: String,
    /// Workers per node here; nodes may differ.
    pub local_world_size: NonZeroU32,
    /// `--node-rank`: an ordering key among newcomers, not the rank.
    pub node_rank: Option<u32>,
}

/// The newest round that a node has heard of.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Heard {
    /// The round; zero if none.
    pub round: RoundId,
    /// How many nodes it had.
    pub size: u32,
    /// The node's own rank in it, if it was a member.
    pub group_rank: Option<GroupRank>,
}

impl Heard {
    /// How many nodes the round had, if this comes from one of its members: others may not know. None
    /// where that is more than `max`, which a round of the job cannot have.
    pub(crate) fn size_by_member(&self, max: u32) -> Option<u32> {
        let is_member = self.group_rank.is_some_and(|rank| rank.0 < self.size);
        (is_member && self.size <= max).then_some(self.size)
    }
}

/// What currently holds on a node.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Standing {
    /// The round that this speaks of: the newest one in which the node was a member; zero if none.
    pub round: RoundId,
    /// What the node does.
    pub state: NodeState,
    /// The first failure among its workers in that round.
    ///
    /// An agent sends it in these steps:
    ///
    /// 1. `Stopping` with the first worker that ended badly, at once, as it is known then. This ends the
    ///    round on all nodes; `error_file_age` may be none.
    /// 2. When all its workers are reaped, and before it sends anything else but keep-alives, the agent
    ///    reads the error files of *all* its workers of that round. A worker whose error file was written
    ///    before the node began to stop (on request, or because of 1) has failed too, even if it was
    ///    killed while it took its time to exit: its failure has `end` as it was reaped, and
    ///    `error_file_age`. The time of a file is compared with the wall clock of the same machine, as an
    ///    age; a time in the future has age zero. Files written later are echoes of the stop and do not
    ///    count.
    /// 3. `Preparing` with the failure of the largest [`WorkerFailure::event_age`], be it the one of 1 or
    ///    another one; also on a node that had none in 1. Ages are those at the time of sending, here and
    ///    in every repetition (`Ready`, attends) until the next round.
    ///
    /// The coordinator keeps the oldest event of each node. It judges the round once all members have
    /// stopped or are lost, so what a node sends after its first `Preparing` or `Ready` of the round may
    /// come too late. The next round waits for that anyway.
    pub failure: Option<WorkerFailure>,
    /// Whether its workers of that round were killed because its lease was over: others may have
    /// failed because of it.
    pub was_cut_off: bool,
}

/// What a node does, with regard to the round of its [`Standing`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NodeState {
    /// No worker runs and none may be started: it makes itself ready.
    Preparing,
    /// Its last process of that round is reaped, and it is ready for any later round: `Join`.
    Ready {
        /// Port of the fresh worker store that it would serve as group rank 0.
        store_port: u16,
    },
    /// Its workers run.
    Running,
    /// Its workers are being stopped, on request or because one failed.
    Stopping,
    /// All its workers exited with 0.
    Succeeded,
    /// It was told to leave (a signal) and takes part in no further round.
    Leaving {
        /// Whether its last process is reaped.
        reaped: bool,
    },
}

/// What a node says on an open stream.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum FromNode {
    /// Renews the lease; to be echoed.
    KeepAlive {
        /// Grows with every keep-alive of the node.
        sequence: u64,
    },
    /// What now holds on the node.
    Standing(Standing),
    /// Answers [`ToNode::Probe`].
    Alive {
        /// The round that the probe named.
        round: RoundId,
    },
    /// What its workers last said of their progress, for people; empty: nothing in this round.
    Said {
        /// At most [`SAID_MAX`] bytes, without control characters.
        text: String,
    },
    /// The store of the round, which this node serves, has refused clients.
    RefusedClients(RefusedClients),
    /// It has heard the outcome, or that it is dismissed, and goes.
    Goodbye,
}

/// What the coordinator says.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ToNode {
    /// The stream counts; what currently holds follows.
    Welcome(Welcome),
    /// The stream does not count and never will.
    Refuse(RefuseReason),
    /// Echoes a keep-alive.
    Echo {
        /// The keep-alive's number.
        sequence: u64,
    },
    /// Asks for a sign of life, now.
    Probe {
        /// The round in which something failed.
        round: RoundId,
    },
    /// What now holds for the node.
    Assignment(Assignment),
    /// The coordinator's host has been told to leave; the job can go on only if it comes back.
    HostLeaving,
    /// The store of the node's round has refused clients.
    RefusedClients(RefusedClients),
}

/// The clients that the store of a round has refused, because their addresses are not a member's. A
/// worker of the job may be among them, and hangs then: every node warns.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RefusedClients {
    /// The round.
    pub round: RoundId,
    /// The addresses of all so far, each once; at most [`REFUSED_CLIENTS_MAX`].
    pub addresses: Vec<IpAddr>,
}

/// The answer to an attend that counts.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Welcome {
    /// The coordinator's term.
    pub term: Term,
    /// The run.
    pub job_uid: JobUid,
    /// This start of the coordinator.
    pub coordinator: String,
    /// How attendance is timed.
    pub leases: Leases,
    /// Who would take over, in this order; none today.
    pub successors: Vec<NodeId>,
}

/// What currently holds for a node.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Assignment {
    /// It waits for a round, as the reason says; it runs nothing.
    Wait {
        /// The newest round there is.
        round: RoundId,
        /// Why it waits.
        reason: WaitReason,
    },
    /// It is a member: run workers.
    Admit(Admission),
    /// The round is over: stop the workers and get ready for a later one.
    Restart {
        /// The round that is over.
        round: RoundId,
        /// Why.
        reason: RestartReason,
    },
    /// It no longer counts as a member of that round: kill the workers, attend anew.
    Evict {
        /// The round that it is no longer in.
        round: RoundId,
        /// Why.
        reason: EvictReason,
    },
    /// The round that a leaving node still served has stopped: it may go.
    Dismiss,
    /// The job is over.
    Close(Outcome),
}

/// One node's place in a round.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Admission {
    /// The round.
    pub round: RoundId,
    /// The node's rank.
    pub group_rank: GroupRank,
    /// How many nodes there are.
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
    /// Whom the worker store lets in; only group rank 0 is told.
    pub store_clients: Vec<IpAddr>,
}

/// Why a node waits.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitReason {
    /// The round is being gathered.
    Gathering,
    /// A round runs and there is room: a new one follows for all who wait.
    NextRound,
    /// A round runs and is full.
    Spare,
    /// The node failed too often and is left out until the job needs it.
    SetAside,
    /// The coordinator has been started anew and waits for the members of the last round.
    Recovering,
}

/// Why a round is over before its workers are done.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum RestartReason {
    /// The coordinator was started anew.
    CoordinatorRestarted,
    /// The coordinator's host leaves.
    HostLeft,
    /// Nodes wait and there is room for them.
    NodesWaiting {
        /// How many.
        waiting: u32,
    },
    /// A member was told to leave and its workers have ended.
    NodeLeft {
        /// The member.
        host_name: String,
    },
    /// A member is gone.
    NodeLost {
        /// The member.
        host_name: String,
        /// How that is known.
        how: EvictReason,
    },
    /// A worker failed.
    WorkerFailed {
        /// On which node.
        host_name: String,
        /// Its rank.
        global_rank: GlobalRank,
        /// How it ended.
        end: WorkerEnd,
    },
}

impl RestartReason {
    /// A stable word for it.
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

/// Why a node is no longer a member.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EvictReason {
    /// Its keeper reported that the agent is gone and all its processes are reaped.
    Obituary,
    /// It was silent for longer than its lease.
    Silent,
    /// It was not ready again in time after a restart.
    NotBack,
    /// It failed or was lost too often shortly after a start.
    SetAside,
}

impl EvictReason {
    /// A stable word for it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Obituary => "obituary",
            Self::Silent => "silent",
            Self::NotBack => "not_back",
            Self::SetAside => "set_aside",
        }
    }
}

/// Why an attend does not count.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum RefuseReason {
    /// The job is over.
    Closed(Outcome),
    /// The agent belongs to an earlier run with the same run id.
    EarlierRun,
    /// Members on two machines, and this one's address reaches only itself.
    LoopbackAddress {
        /// The address.
        address: String,
    },
    /// Another node, which attends, has the same `--node-rank`, and that is the group rank.
    NodeRankTaken {
        /// The rank.
        node_rank: u32,
        /// Who has it.
        host_name: String,
    },
    /// Ranks are fixed, and the node's is outside the job's.
    NodeRankTooHigh {
        /// The rank.
        node_rank: u32,
        /// How many nodes the job has.
        nodes: u32,
    },
    /// The two speak different versions of the protocol.
    ProtocolVersion {
        /// The coordinator's.
        ours: u32,
    },
    /// The two were told different run ids.
    RunId {
        /// The coordinator's.
        ours: RunId,
    },
    /// The two were told different settings.
    Settings {
        /// The coordinator's.
        ours: SharedSettings,
    },
    /// There are as many nodes as the job serves: those of a round and a tenth more as spares, at least
    /// 1,200.
    TooManyNodes {
        /// The limit.
        limit: u32,
    },
}

impl RefuseReason {
    /// A stable word for it.
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

/// How a worker ended.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerEnd {
    /// It exited with this code.
    Exited(i32),
    /// This signal killed it.
    Signaled(i32),
    /// It could not be started, for this reason.
    NotStarted(String),
    /// Its keeper is gone, and it with it.
    KeeperLost,
    /// It was killed because its node's workers had made no progress for so long.
    Hung(Duration),
}

/// The failure of a worker, as its own node saw it.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct WorkerFailure {
    /// The node's host name.
    pub host_name: String,
    /// Which round it failed in.
    pub round: RoundId,
    /// The worker's rank in the job.
    pub global_rank: GlobalRank,
    /// The worker's rank on its node.
    pub local_rank: LocalRank,
    /// Its process id; zero if it never ran.
    pub pid: u32,
    /// How it ended.
    pub end: WorkerEnd,
    /// How long ago, when this was sent; ages are compared, never wall clocks.
    pub age: Duration,
    /// What the script wrote to its error file, if it did.
    pub message: Option<String>,
    /// That file's path.
    pub error_file: Option<String>,
    /// The last lines of its stderr, where they were captured.
    pub stderr_tail: String,
    /// Whether its exit code asks for no restart.
    #[serde(default)]
    pub is_final: bool,
    /// How long ago its script wrote the error file, when this was sent; none if it wrote none, or the
    /// node has not looked yet.
    #[serde(default)]
    pub error_file_age: Option<Duration>,
}

impl WorkerFailure {
    /// How long ago it failed, when this was sent: when it wrote its error file, if it ended only after
    /// that. A worker may take seconds to exit, and its peers fail because of it meanwhile.
    pub fn event_age(&self) -> Duration {
        self.error_file_age.map_or(self.age, |age| age.max(self.age))
    }
}

/// How the job ended.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Outcome {
    /// In which way.
    pub result: JobResult,
    /// The first failure that counted, if any did: that of the oldest event on any node.
    pub first_failure: Option<WorkerFailure>,
    /// How many other nodes had a failure of their own in the same round.
    pub other_failures: u32,
    /// Those of them that failed within a second of the first, oldest first, at most 16: which of them
    /// was the cause cannot be determined from their times. Shortened: without stderr.
    #[serde(default)]
    pub further_failures: Vec<WorkerFailure>,
    /// Failures charged in all.
    pub restarts_used: u32,
}

/// In which way the job ended.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum JobResult {
    /// All workers exited with 0.
    Succeeded,
    /// A worker failed and no restart was left.
    BudgetSpent,
    /// A worker exited with a code that asks for no restart.
    FinalFailure,
    /// The round did not come to be in time.
    JoinTimeout {
        /// How many nodes were ready.
        present: u32,
        /// How many were needed.
        min: u32,
        /// How long they waited.
        waited: Duration,
    },
    /// A coordinator that was started without the state of the last round found too few of its nodes in
    /// time to rule out that the others run it elsewhere.
    RecoveryTimeout {
        /// How many nodes were there.
        present: u32,
        /// How many were needed.
        needed: u32,
        /// How long they waited.
        waited: Duration,
    },
    /// All nodes were told to leave.
    AllLeft,
    /// Members on two machines, and a master address that reaches only one of them.
    LoopbackMaster {
        /// The address.
        address: String,
        /// The host that has it.
        host_name: String,
    },
    /// Every node that could take part kept failing and was set aside.
    AllSetAside,
    /// Round after round was restarted for free, and none ran for a quiet time (10 minutes).
    RestartLoop {
        /// How many.
        rounds: u32,
    },
}

impl JobResult {
    /// Whether another attempt at the same job would most likely end in the same way.
    pub fn is_lasting(&self) -> bool {
        match self {
            Self::BudgetSpent
            | Self::FinalFailure
            | Self::LoopbackMaster { .. }
            | Self::AllSetAside
            | Self::RestartLoop { .. } => true,
            Self::Succeeded
            | Self::JoinTimeout { .. }
            | Self::RecoveryTimeout { .. }
            | Self::AllLeft => false,
        }
    }

    /// A stable word for it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::BudgetSpent => "budget_spent",
            Self::FinalFailure => "final_failure",
            Self::JoinTimeout { .. } => "join_timeout",
            Self::RecoveryTimeout { .. } => "recovery_timeout",
            Self::AllLeft => "all_left",
            Self::LoopbackMaster { .. } => "loopback_master",
            Self::AllSetAside => "all_set_aside",
            Self::RestartLoop { .. } => "restart_loop",
        }
    }
}
