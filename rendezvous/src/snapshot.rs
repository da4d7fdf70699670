//! The state of a job for people and monitoring, as one value.

use std::{net::IpAddr, time::Duration};

use serde::{Serialize, Serializer};

use crate::{
    ids::{GlobalRank, GroupRank, JobUid, NodeId, Round, RunId, Term},
    message::{Outcome, StandbyCounts},
};

/// The state of the machine at one moment.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Snapshot {
    /// The job.
    pub run_id: RunId,
    /// The run.
    pub job_uid: JobUid,
    /// The coordinator's term.
    pub term: Term,
    /// The newest completed round.
    pub round: Round,
    /// The phase of the job.
    pub phase: PhaseName,
    /// The fewest nodes of a round; zero before the first attend.
    pub min_nodes: u32,
    /// The most nodes of a round; zero before the first attend.
    pub max_nodes: u32,
    /// The number of failures charged so far.
    pub restarts_used: u32,
    /// The number of failures that may be charged.
    pub max_restarts: u32,
    /// The number of workers in the newest completed round.
    pub world_size: u32,
    /// Every node that the coordinator knows, members first, by rank.
    pub nodes: Vec<NodeSnapshot>,
    /// The reason why the next round is not complete yet; `None` while one runs undisturbed.
    pub incomplete: Option<Explanation>,
    /// The clients that the store of the newest round has refused, because their addresses are not
    /// a member's.
    pub refused_clients: Vec<IpAddr>,
    /// The processes without the right credentials that the port of the coordinator has refused, by address, as its service has
    /// added them; at most [`REFUSED_PEERS_MAX`].
    pub refused_peers: Vec<RefusedPeer>,
    /// The outcome of the job, if it has ended.
    pub outcome: Option<Outcome>,
    /// The endpoint of the leader: the voter that coordinates the job, or the agent that was chosen through etcd; `None`
    /// if the job has one endpoint.
    pub leader: Option<String>,
    /// The voters that elect the coordinator, by place, as the coordinator's driver has added them; empty if the job
    /// has one endpoint, or uses etcd.
    pub voters: Vec<VoterStatus>,
}

impl Snapshot {
    /// Adds the voters that elect the coordinator.
    pub fn set_voters(&mut self, voters: Vec<VoterStatus>) {
        let leader = voters.iter().find(|voter| voter.is_leader);
        self.leader = leader.map(|voter| voter.endpoint.clone());
        self.voters = voters;
    }
}

/// The maximum number of [`RefusedPeer`] values: more than a person reads.
pub const REFUSED_PEERS_MAX: usize = 64;

/// The refused connections and requests from one address.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct RefusedPeer {
    /// The address.
    pub address: IpAddr,
    /// Their number.
    pub count: u64,
    /// The reason for the last one.
    pub reason: String,
}

/// One voter.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct VoterStatus {
    /// Its endpoint.
    pub endpoint: String,
    /// True if its process coordinates the job.
    pub is_leader: bool,
    /// The time since it last answered the leader, or since the leader was elected.
    #[serde(rename = "silent_ms", serialize_with = "as_millis")]
    pub silent_for: Duration,
}

fn as_millis<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).serialize(serializer)
}

/// The phase of a job.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PhaseName {
    /// A restarted coordinator waits for the members of the last round.
    Recovering,
    /// The coordinator waits for nodes, for the first round or the next one.
    Gathering,
    /// A round runs.
    Running,
    /// A round is being stopped.
    Stopping,
    /// The job has ended.
    Closed,
}

/// One node.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct NodeSnapshot {
    /// The id of its agent.
    pub node_id: NodeId,
    /// Its host name.
    pub host_name: String,
    /// Its address.
    pub address: String,
    /// The address that its stream comes from, if the coordinator's driver knows it; for a stream
    /// from the coordinator's own machine the named address, if that machine has it.
    pub observed: Option<IpAddr>,
    /// The port on which its agent listens.
    pub agent_port: u16,
    /// Its rank in the newest completed round, if it is a member.
    pub group_rank: Option<GroupRank>,
    /// `RANK` of its first worker, if it is a member.
    pub first_global_rank: Option<GlobalRank>,
    /// The number of its workers.
    pub local_world_size: u32,
    /// The state of the node.
    pub standing: StandingName,
    /// The time since its last sign of life, in milliseconds.
    pub last_seen_ms: u64,
    /// The reason why it waits, is quarantined or was lost, if there is one.
    pub reason: Option<String>,
    /// The latest progress report of its workers (`STATUS=`), if any.
    pub progress: Option<String>,
    /// Its standbys, if it has any.
    pub standbys: Option<StandbyCounts>,
}

/// The state of a node, as the coordinator sees it.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StandingName {
    /// The node is registered and prepares for a round.
    Preparing,
    /// The node is ready for the round that is being gathered.
    Joined,
    /// The node's workers run.
    Running,
    /// The node's workers are being stopped.
    Stopping,
    /// One of the node's workers failed; the others are being stopped.
    Failed,
    /// All workers of the node exited with 0.
    Succeeded,
    /// The node is leaving.
    Leaving,
    /// The node waits for the next round.
    Waiting,
    /// The node waits for a place in a full round.
    Spare,
    /// The node failed too often and is quarantined.
    Quarantined,
    /// The node was a member and is gone.
    Lost,
}

/// A reason, for programs and for people.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Explanation {
    /// A stable name.
    pub kind: String,
    /// A sentence fragment with the numbers in it.
    pub text: String,
}
