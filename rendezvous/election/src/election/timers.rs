//! The leases of an election, and the conditions between them.

use std::time::Duration;

use ragent_rendezvous::settings::{Leases, NodeRange};

/// The intervals of an election; the same for all voters of a job.
///
/// Let clocks drift by at most ρ, and let a keeper need at most K to kill the workers at the end of
/// a lease. Then no worker of a lost leader runs when the next one is elected, provided that
/// `(leader_lease + K)·(1 + ρ) <= voter_lease·(1 - ρ)`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Timers {
    /// The interval at which the leader renews its lease at each voter.
    pub renewal: Duration,
    /// The leader's lease, from the sending of the newest renewal that a majority has granted.
    pub leader_lease: Duration,
    /// A voter's lease, from the receipt of the newest renewal; also the time after its
    /// start for which it does not vote, unless no earlier job can exist.
    pub voter_lease: Duration,
    /// The time for which a candidate waits for answers.
    pub poll: Duration,
    /// The pause after a failed candidacy; it doubles with each further one.
    pub pause: Duration,
    /// The longest pause.
    pub pause_max: Duration,
    /// The delay between the candidacies of two neighbours in the list as the user gave it, and the maximum of the
    /// random delay that is added to it.
    pub stagger: Duration,
}

impl Timers {
    /// Returns the intervals for a job of this size; the leases are scaled like those of its
    /// agents.
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

    /// The interval at which a process shows its job to others, or asks them for theirs. A few of these fit into a voter's lease,
    /// for which a process without a state file listens before it may be elected.
    pub(super) fn hello(&self) -> Duration {
        self.voter_lease / 6
    }

    /// The time after which something is given up: a job that no process shows any more, or a job without a leader while another one
    /// has a leader.
    pub fn patience(&self) -> Duration {
        PATIENCE.max(self.voter_lease * 3)
    }
}

/// The least patience: a host restarts its agent in less.
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
