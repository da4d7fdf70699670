//! Defines the settings of the machine, which are given once at its start.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

pub use crate::shared_settings::{
    Leases, MEMORY_COPIES_MAX, NodeRange, NodeRangeError, SharedSettings, StoreAccess, Timeouts,
};
use crate::{
    account::TimeTotals,
    event::{RestartCause, RestartSum},
    ids::{GroupRank, JobUid, NodeId, ProofKey, Round, RunId, Term, VoterAddress},
    limits,
    message::Outcome,
    training::Training,
    voter_count::VoterCount,
};

/// The settings of one coordinator's machine.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Settings {
    /// The job.
    pub run_id: RunId,
    /// The name of this start of the coordinator.
    pub coordinator: String,
    /// The node that runs in the coordinator's own process, if any.
    pub host: Option<NodeId>,
    /// The settings that all nodes share. A standalone coordinator takes them from the first registration.
    pub shared: Option<SharedSettings>,
    /// The addresses of the voters that elect the coordinator; empty if the job has none. Agents receive them
    /// with the welcome.
    pub voters: Vec<VoterAddress>,
    /// The number of voters of the job, if as many members can be voters.
    pub voter_count: VoterCount,
    /// True if the next run keeps the charges of a run from which no member registers. Set if a service
    /// manager starts both, rather than a user who wants the job to run once more.
    pub keeps_charges: bool,
    /// The leases and the keep-alive interval. They are scaled by the most nodes of a round once `shared` is
    /// known.
    pub leases: Leases,
    /// The first round of the job is not completed before this time: until then, a node may still report that
    /// the job has begun already. `None` for an elected coordinator, whose voters have waited before they
    /// elected it.
    pub begins_at: Option<Instant>,
}

impl Settings {
    /// Returns the most nodes that the job may have, or the limit of all jobs while that is unknown.
    pub fn nodes_max(&self) -> usize {
        self.shared.as_ref().map_or(limits::NODES_MAX, |shared| shared.nodes.max() as usize)
    }
}

/// The state that outlives a coordinator's process, in its state file or copied to the voters.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct JobState {
    /// The run that this state belongs to.
    pub job_uid: JobUid,
    /// The time at which its first coordinator began, in milliseconds since the epoch. It orders two jobs of
    /// the same name.
    pub born_ms: u64,
    /// The term of the coordinator that wrote it.
    pub term: Term,
    /// The newest completed round; zero if none.
    pub round: Round,
    /// The number of nodes in that round.
    pub round_size: u32,
    /// True if the round was learned from a node: this coordinator has not completed it, and did not find it
    /// completed in its state file.
    pub is_adopted: bool,
    /// The node in the coordinator's own process, if it was a member of that round.
    pub host: Option<HostMember>,
    /// Failures charged so far.
    pub restarts_used: u32,
    /// The last round that was charged.
    pub charged_through: Round,
    /// The early failures and losses of machines; at most 64.
    pub host_tallies: Vec<HostTally>,
    /// The number of consecutive rounds that did not run for a quiet time and were followed by another one
    /// for free.
    pub free_rounds: u32,
    /// The same number for rounds that ended shortly after their start.
    pub early_free_rounds: u32,
    /// True if the newest round had run for less than a minute when this was written.
    pub is_early: bool,
    /// The outcome of the job, from its end until every node has received it.
    pub closed: Option<Outcome>,
    /// The time account of the job.
    pub time: TimeTotals,
    /// What is known about the training.
    pub training: Training,
    /// The restarts of the job, in the order of [`RestartCause::ALL`](crate::event::RestartCause::ALL).
    pub restarts: [RestartSum; RestartCause::ALL.len()],
    /// The key of the proofs of node ids; `None` until a coordinator has generated one. The machine does not
    /// read it.
    pub proof_key: Option<ProofKey>,
}

/// The member of a round that runs in the coordinator's own process, and ends with it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HostMember {
    /// Its rank.
    pub rank: GroupRank,
    /// The agent that had that rank.
    pub node: NodeId,
    /// Its host name.
    pub host_name: String,
    /// True if it is known that no process of that agent is left.
    pub is_confirmed_dead: bool,
}

/// The early failures and losses of a machine, across its successive agents.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct HostTally {
    /// Its host name.
    pub host_name: String,
    /// Its address, which distinguishes machines of the same name.
    pub address: String,
    /// The number of recent early failures and losses.
    pub strikes: u32,
    /// The number of early losses, which are free.
    pub early_losses: u32,
    /// The number of recent failures for which it is suspected.
    #[serde(default)]
    pub suspicions: u32,
    /// The time since the last of them.
    #[serde(default)]
    pub suspected_for: Duration,
}

impl JobState {
    /// Returns the state of a job that has just begun.
    pub fn new(job_uid: JobUid) -> Self {
        Self {
            job_uid,
            born_ms: 0,
            term: Term(0),
            round: Round(0),
            round_size: 0,
            is_adopted: false,
            host: None,
            restarts_used: 0,
            charged_through: Round(0),
            host_tallies: Vec::new(),
            free_rounds: 0,
            early_free_rounds: 0,
            is_early: false,
            closed: None,
            time: TimeTotals::default(),
            training: Training::default(),
            restarts: Default::default(),
            proof_key: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    /// Until the first node registers, a coordinator does not know how many nodes its job may have.
    #[test]
    fn most_nodes_are_known_with_the_settings() {
        let shared = SharedSettings::new(NodeRange::new(2, 7).expect("a range"));
        let known = fixture::settings(shared);
        let unknown = Settings { shared: None, ..known.clone() };
        assert_eq!((known.nodes_max(), unknown.nodes_max()), (7, limits::NODES_MAX));
    }
}
