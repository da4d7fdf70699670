//! Sets the intervals and time limits of the choice of a host.

use std::time::Duration;

/// The intervals and time limits of the choice of a host.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Pace {
    /// Time without a lower candidate before a candidate hosts.
    pub agreement: Duration,
    /// The first pause between two datagrams. It doubles once there could be agreement.
    pub first_pause: Duration,
    /// The longest pause between two datagrams.
    pub last_pause: Duration,
    /// Silence after which a candidate counts as gone.
    pub patience: Duration,
    /// Minimum interval between two answers to searching agents.
    pub answer: Duration,
    /// Time after which an agent that is waited for is asked whether it is present. It then has [`Self::agreement`] to answer.
    pub doubt: Duration,
    /// Minimum interval between two datagrams that answer these questions.
    pub presence: Duration,
    /// Time that an agent continues to search after a refusal. Another place may be the host of its job.
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
