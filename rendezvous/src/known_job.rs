//! Defines what processes show each other of a job, and which of two jobs of the same name goes on.

use crate::ids::{JobUid, Term, VoterAddress};

/// An unfinished job that has completed a round.
///
/// Voters' messages and registrations contain it. A process without a job that is shown one does
/// not begin another. It asks the voters of the job that was shown.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct KnownJob {
    /// The job.
    pub uid: JobUid,
    /// The addresses of its voters, as far as the process knows them.
    pub voters: Vec<VoterAddress>,
    /// The leadership of the process that shows the job; `None` if that process does not lead.
    pub leads: Option<Leads>,
}

/// The leadership of a process, in a job with a round.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Leads {
    /// The time at which the job's first coordinator began, in milliseconds since the epoch.
    pub born_ms: u64,
    /// The term of the leadership.
    pub term: Term,
    /// True if the job runs, or has enough nodes to run.
    pub has_nodes: bool,
}

/// Orders jobs of the same name. If two meet, the lower one goes on: a job with a round before a
/// job without, then the elder, then the one with the lower uid.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Seniority {
    /// The time at which its first coordinator was elected, in milliseconds since the epoch;
    /// `u64::MAX` for a job without a round. It only orders jobs, because clocks may be wrong.
    pub born_ms: u64,
    /// The job.
    pub uid: JobUid,
}

impl Seniority {
    /// Returns the place of a job that has no round.
    pub fn without_round(uid: JobUid) -> Self {
        Self { born_ms: u64::MAX, uid }
    }
}
