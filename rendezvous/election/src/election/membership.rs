//! Keeps what a leader knows of the members that may become voters, and of the voters that leave.

use std::time::Instant;

use ragent_rendezvous::{
    heir::Member,
    ids::{NodeId, VoterId},
};

/// Members that may become voters, and voters that leave.
#[derive(Debug)]
pub(super) struct Membership {
    /// The voters of the members, as they were reported.
    pub(super) members: Vec<Member>,
    /// The number of voters that the job should have.
    pub(super) wanted: usize,
    /// The voters that leave, and their processes.
    pub(super) leaving: Vec<(VoterId, NodeId)>,
    /// The beginning of the leadership. The silence of a voter is not counted from before.
    pub(super) since: Instant,
    /// The time of the last change of the voters.
    pub(super) changed: Option<Instant>,
    /// Step 2 of a change has begun, but is not yet stored by a majority.
    pub(super) is_completing: bool,
}

impl Membership {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            members: Vec::new(),
            wanted: 0,
            leaving: Vec::new(),
            since: now,
            changed: None,
            is_completing: false,
        }
    }
}
