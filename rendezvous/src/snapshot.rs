//! All that a person or a scraper may see of a job, as one value.

use std::net::IpAddr;

use serde::Serialize;

use crate::{
    ids::{GlobalRank, GroupRank, JobUid, NodeId, Round, RunId, Term},
    message::Outcome,
};

/// What the machine knows, at one moment.
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
    /// Where the job stands.
    pub phase: PhaseName,
    /// The fewest nodes of a round; zero before the first attend.
    pub min_nodes: u32,
    /// The most nodes of a round; zero before the first attend.
    pub max_nodes: u32,
    /// Failures charged so far.
    pub restarts_used: u32,
    /// Failures that may be charged.
    pub max_restarts: u32,
    /// Workers of the newest completed round.
    pub world_size: u32,
    /// Every node that the coordinator knows, members first, by rank.
    pub nodes: Vec<NodeSnapshot>,
    /// Why the next round is not complete yet; none while one runs undisturbed.
    pub incomplete: Option<Explanation>,
    /// Clients that the store of the newest round has refused: their addresses are not a member's.
    pub refused_clients: Vec<IpAddr>,
    /// How the job ended, once it has.
    pub outcome: Option<Outcome>,
}

/// Where a job stands.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PhaseName {
    /// A coordinator that was started anew waits for the members of the last round.
    Recovering,
    /// Nodes are awaited, at first or anew.
    Gathering,
    /// A round runs.
    Running,
    /// A round is being stopped.
    Stopping,
    /// The job is over.
    Closed,
}

/// One node.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct NodeSnapshot {
    /// Its agent.
    pub node_id: NodeId,
    /// Its host name.
    pub host_name: String,
    /// Its address.
    pub address: String,
    /// The address that its stream comes from, where the coordinator's driver knows it; for a stream
    /// from the coordinator's own machine the named address, if that is one of that machine.
    pub observed: Option<IpAddr>,
    /// The port that its agent listens on.
    pub agent_port: u16,
    /// Its rank in the newest completed round, if it is a member.
    pub group_rank: Option<GroupRank>,
    /// `RANK` of its first worker, if it is a member.
    pub first_global_rank: Option<GlobalRank>,
    /// Its workers.
    pub local_world_size: u32,
    /// What it does.
    pub standing: StandingName,
    /// Milliseconds since its last sign of life.
    pub last_seen_ms: u64,
    /// Why it waits, is set aside or lost; none where there is nothing to say.
    pub reason: Option<String>,
    /// What its workers last said of their progress (`STATUS=`), if anything.
    pub said: Option<String>,
}

/// What a node does, as the coordinator sees it.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StandingName {
    /// It attends and makes itself ready.
    Preparing,
    /// It is ready for the round that is being gathered.
    Joined,
    /// Its workers run.
    Running,
    /// Its workers are being stopped.
    Stopping,
    /// One of its workers failed; the others are being stopped.
    Failed,
    /// All its workers exited with 0.
    Succeeded,
    /// It was told to leave.
    Leaving,
    /// It waits for the next round.
    Waiting,
    /// It waits for a place.
    Spare,
    /// It failed too often and is left out.
    SetAside,
    /// It was a member and is gone.
    Lost,
}

/// A reason, for programs and for people.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Explanation {
    /// A stable word.
    pub kind: String,
    /// A sentence fragment with the numbers in it.
    pub text: String,
}
