//! Defines the intervals of an election, and the condition between its leases.

use std::time::Duration;

use ragent_rendezvous::settings::{Leases, NodeRange};

/// The intervals of an election; the same for all voters of a job.
///
/// No worker of a lost leader runs when the next one is elected, provided that `(leader_lease +
/// K)·(1 + ρ) <= voter_lease·(1 - ρ)`. Here ρ is the largest drift of a clock, and K the longest
/// time that a keeper needs to kill the workers after a lease.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Timers {
    /// The interval at which the leader renews its lease at each voter.
    pub renewal: Duration,
    /// The leader's lease. It begins when the newest renewal that a majority has granted was sent.
    pub leader_lease: Duration,
    /// A voter's lease. It begins when the newest renewal was received. For the same time after its
    /// start, a voter does not vote, unless no earlier job can exist.
    pub voter_lease: Duration,
    /// The time for which a candidate waits for answers.
    pub poll: Duration,
    /// The pause after a failed candidacy. It doubles with each further one.
    pub pause: Duration,
    /// The longest pause.
    pub pause_max: Duration,
    /// The delay between the candidacies of two neighbours in the newest list of voters, and the
    /// maximum of the random delay added to it.
    pub stagger: Duration,
}

impl Timers {
    /// Returns the intervals for a job of this size, scaled like the leases of its agents.
    pub fn for_nodes(nodes: NodeRange) -> Self {
        let leases = Leases::default().for_nodes(nodes);
        let default = Self::default();
        Self {
            renewal: default.renewal.mul_f64(leases.factor()),
            leader_lease: leases.agent,
            voter_lease: leases.coordinator,
            ..default
        }
    }

    /// Returns the interval at which a process shows its job to others, or asks for theirs. A few
    /// of them fit into a voter's lease: a process without a state file listens for that long
    /// before it may be elected.
    pub(super) fn hello(&self) -> Duration {
        self.voter_lease / 6
    }

    /// Returns the time after which something no longer counts: a job that no process shows, or a
    /// job without a leader while another one has one.
    pub fn patience(&self) -> Duration {
        PATIENCE.max(self.voter_lease * 3)
    }
}

/// The least patience. A host restarts its agent in less.
const PATIENCE: Duration = Duration::from_secs(30);

impl Default for Timers {
    fn default() -> Self {
        let leases = Leases::default();
        Self {
            renewal: Duration::from_millis(200),
            leader_lease: leases.agent,
            voter_lease: leases.coordinator,
            poll: Duration::from_millis(300),
            pause: Duration::from_millis(100),
            pause_max: Duration::from_millis(800),
            stagger: Duration::from_millis(50),
        }
    }
}
