//! Defines the messages between agents and their coordinator, as domain types.
//!
//! Both sides are *level-triggered*, not edge-triggered: a node sends its current [`NodeReport`], and the
//! coordinator the [`Assignment`] that applies to the node. Both are sent again after a broken stream, so a
//! lost or repeated message blocks nothing.
//!
//! - Both name a (term, round) pair. The receiver ignores a pair that is older than the one it knows.
//! - The streams of a node are numbered. Messages on any but the newest stream are ignored.
//! - No message grows with the number of nodes, with one exception: the admission of group rank 0 lists the
//!   addresses that the round's store admits.

mod assignment;
mod failure;
mod health;
mod look;
mod memory;
mod node_report;
mod notice;
mod outcome;
mod refusal;
mod step_progress;

use std::{net::IpAddr, num::NonZeroU32, time::Duration};

use serde::{Deserialize, Serialize};

pub use self::{
    assignment::{Admission, Assignment, EvictReason, Replaced, RestartReason, WaitReason},
    failure::{WorkerEnd, WorkerFailure},
    health::{
        HARDWARE_FACTS_MAX, HEALTH_KIND_MAX, HardwareFact, HealthClass, OomKill, Unhealthy,
        time_text,
    },
    look::{
        Activity, DIGEST_GROUPS_MAX, DIGEST_MAX, DIGEST_WORKERS_MAX, Digest, FACTS_MAX,
        GROUP_NAME_MAX, GroupLook, Hung, LAUNCHES_MAX, LISTED_RANKS_MAX, Launched, Look, LookPart,
        WorkerLook,
    },
    memory::{
        ALL_SOURCES_BYTES_MAX, CheckpointId, DIFFERENT_STEPS, MEMORY_BYTES_MAX, MemoryKind,
        MemoryPlan, MemoryReport, MemoryUnusable, PARTS_MAX, Part, PartPlace, PartSources,
        SOURCES_MAX, UnusableReason,
    },
    node_report::{NodeReport, NodeState},
    notice::{
        Checkpoint, Guidance, NOTICE_HOSTS_MAX, NOTICE_TEXT_MAX, NodeNotice, Notice, NoticeKind,
        Requests, Saved,
    },
    outcome::{DepartedNode, DepartedNodes, Departure, JobResult, Outcome},
    refusal::RefuseReason,
    step_progress::{STEP_MAX, StepProgress, StepSource},
};
use crate::{
    heir::Member,
    ids::{
        GroupRank, JobUid, NodeId, Peer, Round, RoundId, RunId, StreamNumber, Term, VoterAddress,
    },
    known_job::KnownJob,
    shared_settings::{Leases, SharedSettings},
};

/// The longest progress report of workers that is passed on, in bytes: one line.
pub const PROGRESS_MAX: usize = 200;

/// The longest line about memory, a look or the health of a machine, in bytes. Other ones are cut.
pub const LINE_MAX: usize = 200;

/// The most refused addresses of a round's store that are reported.
pub const REFUSED_CLIENTS_MAX: usize = 16;

/// The maximum number of ended jobs in one message: the remembered jobs, and the sender's own job.
pub const ENDED_SHOWN_MAX: usize = 9;

/// The version of the registration protocol in this build. `docs/protocol.md` lists all versions.
pub const PROTOCOL_VERSION: u32 = 6;

/// A reason, for programs and for people.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Explanation {
    /// A stable name.
    pub kind: String,
    /// A sentence fragment with the numbers in it.
    pub text: String,
}

/// The first message of an agent on each of its streams.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Registration {
    /// The unfinished job with a round that the node knows. A process without a state file asks this job's
    /// voters.
    pub job: Option<KnownJob>,
    /// Jobs of this name that are known to the node to have ended; at most [`ENDED_SHOWN_MAX`]. Only the
    /// first registration of an agent has them.
    pub ended: Vec<JobUid>,
    /// The time for which the agent could have been shown an earlier job: the time since its start, or the
    /// longest possible time if no earlier job can exist.
    pub waited: Duration,
    /// The protocol version of the agent.
    pub protocol_version: u32,
    /// The job that the agent wants to join.
    pub run_id: RunId,
    /// The run that the agent belongs to, if known.
    pub job_uid: Option<JobUid>,
    /// The number of the stream.
    pub stream: StreamNumber,
    /// The node.
    pub node: NodeDescription,
    /// The settings of the agent that all nodes must share.
    pub settings: SharedSettings,
    /// The newest round that the node knows, with its size and the node's rank in it.
    pub known_round: KnownRound,
    /// The number of failures charged to the job, as far as the agent knows.
    pub restarts_used: u32,
    /// The last round charged, as far as the agent knows.
    pub charged_through: Round,
    /// The current state of the node.
    pub report: NodeReport,
    /// The checkpoints in the node's memory; `None` if it keeps none.
    pub memory: Option<MemoryReport>,
}

impl Registration {
    /// Describes the first registration of a process that knows no job. No earlier job can exist.
    pub fn new(
        run_id: RunId,
        node: NodeDescription,
        settings: SharedSettings,
        state: NodeState,
    ) -> Self {
        Self {
            job: None,
            ended: Vec::new(),
            waited: Duration::MAX,
            protocol_version: PROTOCOL_VERSION,
            run_id,
            job_uid: None,
            stream: StreamNumber(1),
            node,
            settings,
            known_round: KnownRound::default(),
            restarts_used: 0,
            charged_through: Round(0),
            report: NodeReport::new(RoundId::default(), state),
            memory: None,
        }
    }

    /// Returns the stream that this message opens.
    pub fn peer(&self) -> Peer {
        Peer { node: self.node.node_id.clone(), stream: self.stream }
    }
}

/// The description of a node. It is constant for the life of its agent, except `observed` and `load`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NodeDescription {
    /// The agent's id.
    pub node_id: NodeId,
    /// The machine's host name, for sorting and for people.
    pub host_name: String,
    /// The address at which the other nodes' workers reach this node.
    pub address: String,
    /// The address that its stream comes from, as the coordinator's driver has added it. For a stream from
    /// the coordinator's own machine, it is the announced address, if that machine has it.
    pub observed: Option<IpAddr>,
    /// All addresses from which its workers may connect.
    pub addresses: Vec<IpAddr>,
    /// The port on which its agent listens.
    pub agent_port: u16,
    /// `--role`.
    pub role: String,
    /// The name of the script, module or program that its workers run, without a folder; empty if unknown.
    pub script: String,
    /// The load of the machine when it registered, for people; empty if unknown.
    pub load: String,
    /// The nodes of one failure domain are lost together, for example those of a rack. A copy of a checkpoint
    /// in memory never stays in its domain. If empty, the domain is the host.
    pub failure_domain: String,
    /// The number of workers. Nodes may differ.
    pub local_world_size: NonZeroU32,
    /// `--node-rank`: the group rank if ranks are fixed, else a sort key among newcomers.
    pub node_rank: Option<u32>,
    /// The voter of its agent, if it has one.
    pub voter: Option<Member>,
}

impl NodeDescription {
    /// Describes a node with one worker and the default role. Nothing else is known, the port included.
    pub fn new(node_id: NodeId, host_name: impl Into<String>, address: impl Into<String>) -> Self {
        Self {
            node_id,
            host_name: host_name.into(),
            address: address.into(),
            observed: None,
            addresses: Vec::new(),
            agent_port: 0,
            role: "default".to_owned(),
            script: String::new(),
            load: String::new(),
            failure_domain: String::new(),
            local_world_size: NonZeroU32::MIN,
            node_rank: None,
            voter: None,
        }
    }
}

/// The newest round that a node knows.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct KnownRound {
    /// The round; zero if none.
    pub round: RoundId,
    /// The number of nodes in it.
    pub size: u32,
    /// The node's own rank in it, if it was a member.
    pub group_rank: Option<GroupRank>,
}

impl KnownRound {
    /// Returns the number of nodes in the round, if the node was a member: others may not know it. Returns
    /// `None` if the number is above `max`, which no round of the job exceeds.
    pub(crate) fn size_by_member(&self, max: u32) -> Option<u32> {
        let is_member = self.group_rank.is_some_and(|rank| rank.0 < self.size);
        (is_member && self.size <= max).then_some(self.size)
    }
}

/// The standbys of a node: interpreters that have imported modules and wait for the next round.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct StandbyCounts {
    /// The number of standbys that wait.
    pub ready: u32,
    /// The number of standbys that import modules.
    pub importing: u32,
    /// The number of workers that should have a standby.
    pub size: u32,
    /// The reason why some are missing, at most [`PROGRESS_MAX`] bytes; `None` if they will be started later.
    pub obstacle: Option<String>,
}

/// A message of a node on an open stream.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum FromNode {
    /// Renews the lease. The coordinator echoes it.
    KeepAlive {
        /// The number of the keep-alive. It grows with each keep-alive of the node.
        sequence: u64,
        /// Requests the reason why the next round is not complete. The echo has it.
        asks_reason: bool,
        /// The training step of the node's workers in its newest round, if known.
        progress: Option<StepProgress>,
        /// The newest checkpoint of the node's workers in its newest round, if they have reported one.
        checkpoint: Option<Checkpoint>,
        /// The reason why their last checkpoint could not be written, at most [`PROGRESS_MAX`] bytes.
        save_failed: Option<String>,
    },
    /// The current state of the node.
    NodeReport(NodeReport),
    /// Answers [`ToNode::Probe`].
    Alive {
        /// The round that the probe named.
        round: RoundId,
    },
    /// The latest progress report of the node's workers, for people; empty if none in this round.
    Progress {
        /// At most [`PROGRESS_MAX`] bytes, without control characters.
        text: String,
    },
    /// The node's standbys, for people.
    Standbys(StandbyCounts),
    /// The round's store, which this node serves, has refused clients.
    RefusedClients(RefusedClients),
    /// The node does not reach the round's store, which another node serves.
    StoreUnreached(StoreUnreached),
    /// The checkpoints in the node's memory.
    MemoryReport(MemoryReport),
    /// The node answers a [`Look`].
    Digest(Digest),
    /// The node has received the outcome or its dismissal, and disconnects.
    Goodbye,
}

/// A message of the coordinator to a node.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ToNode {
    /// The stream is accepted. The node's assignment follows.
    Welcome(Welcome),
    /// The stream is refused permanently.
    Refuse(RefuseReason),
    /// Echoes a keep-alive.
    Echo {
        /// The number of the keep-alive.
        sequence: u64,
        /// The reason why the next round is not complete, if the keep-alive requested it and there is one.
        reason: Option<Explanation>,
        /// The time that is left of the coordinator's own lease, if it has one.
        lease_left: Option<Duration>,
        /// The newest checkpoint in memory that is whole. Nodes free older ones.
        memory_whole: Option<CheckpointId>,
    },
    /// Asks for an immediate sign of life.
    Probe {
        /// The round in which a failure occurred.
        round: RoundId,
    },
    /// The node's current assignment.
    Assignment(Assignment),
    /// The coordinator's host is leaving. The job can continue only if it comes back.
    HostLeaving,
    /// What else the nodes of the running round should know.
    Guidance(Guidance),
    /// The store of the node's round has refused clients.
    RefusedClients(RefusedClients),
    /// The voters of the job have changed. Contains their addresses.
    Voters(Vec<VoterAddress>),
}

/// Clients that a round's store has refused, because their addresses are not a member's. A worker of the job
/// may be among them, and then hangs, so every node logs a warning.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RefusedClients {
    /// The round.
    pub round: RoundId,
    /// All addresses refused so far, each once; at most [`REFUSED_CLIENTS_MAX`].
    pub addresses: Vec<IpAddr>,
}

/// A store to which a node cannot open a connection.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StoreUnreached {
    /// The round.
    pub round: RoundId,
    /// The address and port of the store.
    pub address: String,
    /// The error of the last attempt.
    pub why: String,
}

/// The answer to an accepted registration.
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
    /// The addresses of the voters; empty if the job has none.
    pub voters: Vec<VoterAddress>,
    /// The time that is left of the coordinator's own lease, if it has one. The agent's lease is never
    /// longer, because another coordinator may exist afterwards.
    pub lease_left: Option<Duration>,
}
