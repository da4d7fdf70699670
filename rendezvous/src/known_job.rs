//! A job of the same name, as one process shows it to others.

use crate::ids::{JobUid, VoterAddress};

/// An unfinished job that has completed a round.
///
/// A process that knows no job and is shown one does not begin another one: it asks the job's voters.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct KnownJob {
    /// The job.
    pub uid: JobUid,
    /// The endpoints of its voters, as far as the process knows them.
    pub voters: Vec<VoterAddress>,
}

/// The place of a job among jobs of the same name: the job that was born first comes first.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Seniority {
    /// The time at which its first coordinator was elected, in milliseconds since the epoch. It only orders jobs: clocks may be wrong.
    pub born_ms: u64,
    /// The job.
    pub uid: JobUid,
}
