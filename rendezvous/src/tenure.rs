//! The right of a process to coordinate the job, and its end.

use std::time::{Duration, Instant};

use crate::ids::{NodeId, Term};

/// The right of a process to coordinate the job.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Tenure {
    /// The job has one endpoint, so no other process can coordinate it; the right does not end.
    Sole,
    /// A majority of voters has elected this process.
    Elected(Elected),
}

/// A leadership that a majority of voters has granted.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Elected {
    /// Its term, which no other process has.
    pub term: Term,
    /// Its end, unless it is extended.
    pub until: Instant,
    /// The time until which workers under earlier leaders may run.
    pub workers_until: Instant,
    /// The leader before, if one is known.
    pub former: Option<NodeId>,
}

impl Tenure {
    /// Returns the end of the right; `None` if it has none.
    pub(crate) fn until(&self) -> Option<Instant> {
        match self {
            Self::Sole => None,
            Self::Elected(elected) => Some(elected.until),
        }
    }

    /// Returns the time that is left of it; `None` if it has no end.
    pub(crate) fn left(&self, now: Instant) -> Option<Duration> {
        self.until().map(|until| until.saturating_duration_since(now))
    }
}
