//! Keeps the state of a round on this node. The next admission replaces it.

use std::{net::IpAddr, time::Instant};

use ragent_rendezvous::{
    ids::{Round, RoundId},
    message::{Admission, StoreUnreached, WaitReason, WorkerFailure},
};

use super::{looks::Looks, reports::TrainingReports};

/// The newest round in which this node was a member.
#[derive(Debug, Default)]
pub(super) struct NodeRound {
    pub(super) id: RoundId,
    /// The failures charged to the job before this round, and the last round that was charged.
    pub(super) charges: (u32, Round),
    /// The failure of the oldest event on this node, with ages as of that moment.
    pub(super) failure: Option<(WorkerFailure, Instant)>,
    /// True if the lease ended while workers ran.
    pub(super) lease_expired: bool,
    pub(super) training: TrainingReports,
    /// Addresses that the store is known to have refused.
    pub(super) refused_clients: Vec<IpAddr>,
    /// The store, if this node does not reach it.
    pub(super) unreached_store: Option<StoreUnreached>,
    pub(super) looks: Looks,
    /// True if the user knows that memory is off.
    pub(super) is_memory_off: bool,
    /// The reason why this node waits for the next round, as the user knows.
    pub(super) waiting: Option<(RoundId, WaitReason)>,
}

impl NodeRound {
    /// Returns the state at the beginning of a round. `is_secured` is true if content is encrypted on a network.
    pub(super) fn new(admission: &Admission, is_secured: bool) -> Self {
        Self {
            id: admission.round,
            charges: (admission.restart_count, admission.charged_through),
            looks: Looks::new(admission, is_secured),
            ..Self::default()
        }
    }
}
