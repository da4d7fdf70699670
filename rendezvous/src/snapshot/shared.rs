//! Takes a cheap snapshot, and counts nodes.
//!
//! The snapshot shares the texts of its nodes with the machine. With 10,000 nodes, copying them took several
//! milliseconds of the coordinator's loop.

use std::{sync::Arc, time::Duration};

use crate::{
    ids::{GlobalRank, GroupRank},
    message::{NodeDescription, StandbyCounts},
    snapshot::{NodeSnapshot, NodeStateName, Snapshot},
};

/// The state of the machine at one moment. It is converted to a [`Snapshot`] outside of the coordinator's
/// loop.
#[derive(Debug)]
pub struct SharedSnapshot {
    /// The snapshot, without these nodes.
    pub job: Snapshot,
    /// The nodes by id.
    pub(crate) nodes: Vec<SharedNode>,
}

/// One node.
#[derive(Debug)]
pub(crate) struct SharedNode {
    pub(crate) description: Arc<NodeDescription>,
    /// True if its stream is open.
    pub(crate) is_attached: bool,
    /// Its rank in the newest completed round, and the `RANK` of its first worker, if it was a member when
    /// the round began.
    pub(crate) ranks: Option<(GroupRank, GlobalRank)>,
    /// True if it is still a member.
    pub(crate) is_member: bool,
    pub(crate) state: NodeStateName,
    pub(crate) last_seen_ms: u64,
    pub(crate) reason: Option<&'static str>,
    pub(crate) progress: Option<Arc<str>>,
    pub(crate) progress_age_ms: Option<u64>,
    pub(crate) standbys: Option<Arc<StandbyCounts>>,
    /// The reason why its machine is unhealthy. Few nodes have one.
    pub(crate) unhealthy: Option<String>,
    pub(crate) excluded: Option<Arc<str>>,
}

impl From<SharedSnapshot> for Snapshot {
    fn from(SharedSnapshot { mut job, mut nodes }: SharedSnapshot) -> Self {
        nodes
            .sort_by_key(|node| node.ranks.map_or((true, GroupRank(0)), |(rank, _)| (false, rank)));
        job.nodes.extend(nodes.into_iter().map(NodeSnapshot::from));
        job
    }
}

impl From<Snapshot> for SharedSnapshot {
    fn from(job: Snapshot) -> Self {
        Self { job, nodes: Vec::new() }
    }
}

impl From<SharedNode> for NodeSnapshot {
    fn from(node: SharedNode) -> Self {
        let (description, ranks) = (&node.description, node.ranks.filter(|_| node.is_member));
        Self {
            node_id: description.node_id.clone(),
            host_name: description.host_name.clone(),
            address: description.address.clone(),
            observed: description.observed.filter(|_| node.is_attached),
            agent_port: description.agent_port,
            group_rank: ranks.map(|(group_rank, _)| group_rank),
            first_global_rank: ranks.map(|(_, first_global_rank)| first_global_rank),
            local_world_size: description.local_world_size.get(),
            state: node.state,
            last_seen_ms: node.last_seen_ms,
            reason: node.reason.map(str::to_owned),
            progress: node.progress.as_deref().map(str::to_owned),
            progress_age_ms: node.progress_age_ms,
            standbys: node.standbys.as_deref().cloned(),
            load: Some(description.load.clone()).filter(|load| !load.is_empty()),
            unhealthy: node.unhealthy,
            excluded: node.excluded.as_deref().map(str::to_owned),
        }
    }
}

/// A snapshot without its nodes, and the numbers of nodes.
#[derive(Debug)]
pub struct JobCounts {
    /// The snapshot, without its nodes.
    pub job: Snapshot,
    /// The numbers of nodes.
    pub nodes: NodeCounts,
    /// The longest silence of a node that is not lost.
    pub longest_silence: Duration,
}

/// The numbers of nodes and of their standbys.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct NodeCounts {
    by_state: [u64; NodeStateName::ALL.len()],
    /// The number of standbys that wait.
    pub standbys_ready: u64,
    /// The number of standbys that import modules.
    pub standbys_importing: u64,
    /// The number of workers that should have a standby.
    pub standbys_wanted: u64,
}

impl NodeCounts {
    /// Returns the number of nodes in each state.
    pub fn states(&self) -> [(NodeStateName, u64); NodeStateName::ALL.len()] {
        let mut counts = self.by_state.iter().copied();
        NodeStateName::ALL.map(|state| (state, counts.next().unwrap_or(0)))
    }

    /// Adds a node.
    pub fn add(&mut self, state: NodeStateName, standbys: Option<&StandbyCounts>) {
        if let Some(count) = self.by_state.get_mut(state as usize) {
            *count += 1;
        }
        if let Some(StandbyCounts { ready, importing, size, .. }) = standbys {
            self.standbys_ready += u64::from(*ready);
            self.standbys_importing += u64::from(*importing);
            self.standbys_wanted += u64::from(*size);
        }
    }
}
