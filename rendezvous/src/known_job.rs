//! What processes show each other of a job, and which of two jobs of the same name goes on.

use crate::ids::{JobUid, Term, VoterAddress};

/// An unfinished job that has completed a round.
///
/// Messages between voters and registrations contain it. A process that knows no job and is shown one does not begin another one: it
/// asks the job's voters.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct KnownJob {
    /// The job.
    pub uid: JobUid,
    /// The endpoints of its voters, as far as the process knows them.
    pub voters: Vec<VoterAddress>,
    /// The leadership of the process that shows the job; `None` if it does not lead.
    pub leads: Option<Leads>,
}

/// The leadership of a process in a job that has a round.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Leads {
    /// The time at which the job's first coordinator began, in milliseconds since the epoch.
    pub born_ms: u64,
    /// The term of the leadership.
    pub term: Term,
    /// True if the job runs, or has enough nodes to.
    pub has_nodes: bool,
}

/// The place of a job among jobs of the same name. If two meet, the one that comes first goes on: a job with a round before one
/// without, then the one that was born first, then the one with the lower uid.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Seniority {
    /// The time at which its first coordinator was elected, in milliseconds since the epoch. It only orders jobs: clocks may be wrong.
    /// `u64::MAX` for a job without a round.
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
