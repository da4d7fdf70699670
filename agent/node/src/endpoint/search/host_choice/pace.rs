//! The intervals and time limits of an election.

use std::time::Duration;

/// The intervals and time limits of an election.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Pace {
    /// The time for which no lower candidate may be seen before a candidate hosts.
    pub agreement: Duration,
    /// The pause between two datagrams until there could be agreement; afterwards it doubles.
    pub first_pause: Duration,
    /// The longest pause between two datagrams.
    pub last_pause: Duration,
    /// A candidate that was silent for this long is gone.
    pub patience: Duration,
    /// Minimum interval between two answers to agents that look.
    pub answer: Duration,
    /// The time after which an agent that is waited for is asked whether it is present. It then has [`Self::agreement`] to answer.
    pub doubt: Duration,
    /// Minimum interval between two datagrams that answer these questions.
    pub presence: Duration,
    /// The time for which an agent continues after a place has refused it: another one may be that of its job.
    pub refusal: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            agreement: Duration::from_secs(1),
            first_pause: Duration::from_millis(100),
            last_pause: Duration::from_secs(3),
            patience: Duration::from_secs(10),
            answer: Duration::from_millis(100),
            doubt: Duration::from_millis(250),
            presence: Duration::from_millis(20),
            refusal: Duration::from_secs(3),
        }
    }
}
