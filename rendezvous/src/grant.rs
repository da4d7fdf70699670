//! Why a process may coordinate the job, and until when.

use std::time::Instant;

use crate::ids::{NodeId, Term};

/// The leadership that a majority of the voters, or the record in etcd, has granted to a process.
///
/// The only process that can coordinate a job has none: nobody can take its place, so its right does not end.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Grant {
    /// Its term, which no other process has.
    pub term: Term,
    /// Its end, unless it is extended.
    pub until: Instant,
    /// The time until which workers under earlier leaders may run.
    pub workers_until: Instant,
    /// The leader before, if one is known.
    pub former: Option<NodeId>,
}
