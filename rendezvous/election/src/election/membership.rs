//! The members that could become voters, as a leader knows them.

use std::time::Instant;

use ragent_rendezvous::{
    heir::Member,
    ids::{NodeId, VoterId},
};

/// The members that could become voters, and the voters that leave, as a leader knows them.
#[derive(Debug)]
pub(super) struct Membership {
    /// The voters of the members, those with the lowest ranks first.
    pub(super) members: Vec<Member>,
    /// The number of voters that the job should have.
    pub(super) wanted: usize,
    /// The voters that leave, and their processes.
    pub(super) leaving: Vec<(VoterId, NodeId)>,
    /// The beginning of the leadership: no voter is silent for longer than that.
    pub(super) since: Instant,
    /// The time of the last change of the voters.
    pub(super) changed: Option<Instant>,
    /// The number of reports of the members.
    pub(super) reports: u32,
    /// True while the last step of a change is being copied to a majority of the new voters.
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
            reports: 0,
            is_completing: false,
        }
    }
}
