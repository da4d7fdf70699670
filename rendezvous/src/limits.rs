//! Every number that no flag sets, with its reason.

use std::time::{Duration, Instant};

use crate::settings::{Leases, NodeRange};

/// Nodes known at once, whatever the job. Ten thousand agents are the goal; a node costs about a kilobyte.
pub const NODES_MAX: usize = 16_384;

/// Nodes remembered after they are gone, so that what they said last cannot revive them. A late
/// attend is seconds late, and even the largest job does not lose all its nodes in that time.
pub(crate) const FORMER_MAX: usize = NODES_MAX;

/// Tallies kept for agents that are gone, until an agent of the same machine inherits them.
pub(crate) const HEIRLOOMS_MAX: usize = 1_024;

/// The highest term or round that is believed. One round a microsecond reaches it in 140,000 years,
/// so a higher one is a mistake; believing it would leave no number for the next.
pub(crate) const NUMBER_MAX: u64 = 1 << 62;

/// How far a claimed term or round may be ahead of the known one: one a second for twelve days, all of
/// them completed while the state file could not be written.
pub(crate) const AHEAD_MAX: u64 = 1 << 20;

/// Keep-alive intervals after which a silent node may be lost: one may be late, the second one is not
/// without a reason.
pub(crate) const KEEP_ALIVES_MISSED: u32 = 2;

/// Addresses that a worker store admits, also the limit on the wire.
pub const STORE_CLIENTS_MAX: usize = 65_536;

/// Addresses of one node that a worker store admits, its first ones: eight interfaces with two each.
pub(crate) const STORE_ADDRESSES_MAX: usize = 16;

/// Further failures that an outcome lists after the first: enough to show that all nodes of a switch or a
/// file system failed at once.
pub const FURTHER_FAILURES_MAX: usize = 16;

/// Failures so close together are listed together: clocks of error files and exits of different
/// machines are compared by ages, over messages that take their time.
pub(crate) const SAME_TIME: Duration = Duration::from_secs(1);

/// Length in bytes to which the message of such a failure is cut: an exception's last line. An outcome is
/// sent to every node.
pub(crate) const FURTHER_MESSAGE_MAX: usize = 512;

/// The longest wait that a deadline is computed for; longer ones could overflow the clock.
const WAIT_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// How long after the start of a round a failure or loss says that the node cannot start at all:
/// imports and the first collective are over by then.
pub(crate) const EARLY: Duration = Duration::from_secs(60);

/// Early failures or losses after which a node is set aside. One may be chance and the next its
/// echo; the third is a property of the node.
pub(crate) const STRIKES_MAX: usize = 3;

/// Early losses after which a node that was set aside is not taken back, however much the job
/// needs it. Losses are free, so without this a machine that kills its agent would restart the job
/// forever; failures need no such limit, because each of them is charged.
pub(crate) const EARLY_LOSSES_MAX: u32 = 10;

/// Rounds that end within [`EARLY`] of their start and are followed by another one for free, in a row.
/// Nodes that are lost or cut off are set aside long before; this ends a job whose coordinator's host
/// is lost each time. At most 100 minutes of all nodes are wasted.
pub(crate) const EARLY_FREE_ROUNDS_MAX: u32 = 100;

/// The same for rounds that end within [`QUIET_TIME`] of their start: a node that runs
/// out of memory two minutes after each start is neither charged nor set aside. The largest jobs on the
/// worst machines, losing a node every five minutes, run for a quiet time after ten rounds on average.
pub(crate) const FREE_ROUNDS_MAX: u32 = 1_000;

/// Machines whose tallies are remembered across a restart of the coordinator: those with the most
/// losses, as many as a state file easily holds.
pub(crate) const HOST_TALLIES_MAX: usize = 64;

/// The longest distance between voluntary rounds: a node that joins is not kept waiting longer.
pub(crate) const VOLUNTARY_SPACING_MAX: Duration = Duration::from_secs(300);

/// After this long without one, voluntary rounds, early failures and losses are forgotten. Twice
/// the longest spacing, so that a node that flaps at that distance is still noticed.
pub(crate) const QUIET_TIME: Duration = Duration::from_secs(600);

/// What a coordinator that was started anew waits beyond a lease for the members of the last
/// round. By the end of the lease their workers are dead; this is for their agents to find it.
pub(crate) const RECOVERY_MARGIN: Duration = Duration::from_secs(2);

/// Keep-alives that one coordinator takes in a second.
const KEEP_ALIVES_PER_SECOND: u32 = 4_000;

/// Nodes that every job serves: with the default keep-alive interval they send as many keep-alives as
/// one coordinator takes.
const NODES_SERVED_MIN: usize = 1_200;

/// The moment `wait` after `from`.
pub(crate) fn after(from: Instant, wait: Duration) -> Instant {
    from + wait.min(WAIT_MAX)
}

/// The number of nodes that a job serves, members and spares: a tenth more than a round takes.
///
/// Leases are sized by it, so it must not change during the job: a member that was granted a longer
/// lease than another one would outlive the wait for it.
pub(crate) fn nodes_served(nodes: NodeRange) -> usize {
    let max = nodes.max() as usize;
    max.saturating_add(max.div_ceil(10)).clamp(NODES_SERVED_MIN, NODES_MAX)
}

/// The leases of a job: as given, but stretched, all alike, where keep-alives of all the nodes that it
/// serves would be more than one coordinator takes.
pub(crate) fn leases(given: Leases, nodes: NodeRange) -> Leases {
    let nodes = u32::try_from(nodes_served(nodes)).unwrap_or(u32::MAX);
    let interval = Duration::from_secs(1) * nodes / KEEP_ALIVES_PER_SECOND;
    if interval <= given.keep_alive_interval || given.keep_alive_interval.is_zero() {
        return given;
    }
    let stretch = interval.as_secs_f64() / given.keep_alive_interval.as_secs_f64();
    Leases {
        keep_alive_interval: interval,
        agent: given.agent.mul_f64(stretch),
        coordinator: given.coordinator.mul_f64(stretch),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn up_to(max: u32) -> NodeRange {
        NodeRange::new(1, max).expect("a range")
    }

    /// Leases stay as given up to 1,200 nodes with their spares, and are stretched in proportion beyond.
    #[test]
    fn leases_are_stretched_with_the_most_nodes() {
        let given = Leases::default();
        assert_eq!(leases(given, up_to(1_090)), given);
        let stretched = leases(given, up_to(10_000));
        assert_eq!(stretched.keep_alive_interval, Duration::from_millis(2_750));
        assert_eq!(stretched.agent, Duration::from_secs(22));
        assert_eq!(stretched.coordinator, Duration::from_millis(27_500));
        assert!((stretched.stretch() - 55.0 / 6.0).abs() < 1e-9);
        assert!((given.stretch() - 1.0).abs() < 1e-9);
    }

    /// Spares are a tenth of the most nodes, and at least as many as default leases allow.
    #[test]
    fn number_of_nodes_served() {
        let served = [1, 1_000, 1_091, 10_000, u32::MAX].map(|max| nodes_served(up_to(max)));
        assert_eq!(served, [1_200, 1_200, 1_201, 11_000, NODES_MAX]);
    }
}
