//! Defines why a process may coordinate the job, and until when.

use std::time::Instant;

use crate::ids::{NodeId, Term};

/// The leadership that a majority of the voters, or the record in etcd, has granted to a process.
///
/// A job with a single possible coordinator has no grant: no process can take its place, so its
/// leadership does not end.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Grant {
    /// Its term, which no other process has.
    pub term: Term,
    /// Its end, unless it is extended.
    pub until: Instant,
    /// The time until which workers of earlier leaders may run.
    pub workers_until: Instant,
    /// The previous leader, if one is known.
    pub former: Option<NodeId>,
}
