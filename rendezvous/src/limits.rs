//! Sets the limits that no flag sets, each with its reason.

use std::time::{Duration, Instant};

/// The most nodes known at once, in any job. The goal is ten thousand agents. A node costs about a
/// kilobyte.
pub const NODES_MAX: usize = 16_384;

/// The most departed nodes whose streams are remembered, so that their delayed messages cannot
/// revive them. A message is late by seconds, and even the largest job does not lose all its nodes
/// in that time.
pub(crate) const DEPARTED_STREAMS_MAX: usize = NODES_MAX;

/// The most departed nodes that are remembered until the next round is formed: as many as can be
/// known at once.
pub(crate) const DEPARTURES_MAX: usize = NODES_MAX;

/// The most recent times of steps from which the usual time is computed: about ten seconds of
/// keep-alives, if steps are fast.
pub(crate) const STEP_TIMES_MAX: usize = 32;

/// The most departed nodes that an outcome names: with their reasons, these fill two lines of a terminal.
pub const DEPARTED_NODES_MAX: usize = 4;

/// The most tallies kept for departed agents, until an agent of the same machine takes them over.
pub(crate) const DEPARTED_TALLIES_MAX: usize = 1_024;

/// The highest term or round that is accepted. At one round per microsecond it is reached after
/// 140,000 years, so a higher number is an error. If it were accepted, no higher number would be
/// left for the next round.
pub const NUMBER_MAX: u64 = 1 << 62;

/// The most that a claimed term or round may be ahead of the known one. It allows one per second
/// for twelve days during which the state file could not be written.
pub(crate) const AHEAD_MAX: u64 = 1 << 20;

/// The same limit for a term, with an elected coordinator. It allows as many elections: the low 16
/// bits of such a term do not count.
pub(crate) const TERMS_AHEAD_MAX: u64 = AHEAD_MAX << 16;

/// The highest term that an elected coordinator accepts from an agent, which may not be
/// authenticated. The upper half of all terms is reserved for elections.
pub const AGENT_TERM_MAX: u64 = NUMBER_MAX / 2;

/// The number of keep-alive intervals after which a silent node may be lost. One keep-alive may be late
/// by chance. A second is not.
pub(crate) const KEEP_ALIVES_MISSED: u32 = 2;

/// The most addresses that a worker store admits, which is also the limit of the protocol.
pub const STORE_CLIENTS_MAX: usize = 65_536;

/// The most addresses of one node that a worker store admits. The first ones count. It has room for eight
/// interfaces with two addresses each.
pub(crate) const STORE_ADDRESSES_MAX: usize = 16;

/// The most further failures that an outcome lists after the first: enough to show that all nodes
/// of a switch or a file system failed at once.
pub const FURTHER_FAILURES_MAX: usize = 16;

/// Failures within this time may have one cause, and are listed together: connections between workers break at once, exits are seen late, and
/// the ages of error files on different machines are compared.
pub(crate) const SAME_TIME: Duration = Duration::from_secs(1);

/// The length in bytes to which each text of a further failure is cut: the last line of an
/// exception. An outcome is sent to every node, and must fit into one message between voters.
pub const FURTHER_TEXT_MAX: usize = 512;

/// The interval at which the time account of a running round is stored. A lost coordinator loses no
/// more of it.
pub(crate) const ACCOUNT_INTERVAL: Duration = Duration::from_secs(60);

/// The time after a notice before which a checkpoint in memory does not end its phase. Schedulers and clouds signal
/// the nodes of a job some seconds apart. If all leave, only a checkpoint on disk is of use.
pub(crate) const MEMORY_IS_ENOUGH_AFTER: Duration = Duration::from_secs(5);

/// The shortest time between two requests for a checkpoint that are passed on. A request in between is passed on
/// later.
pub(crate) const SAVE_SPACING: Duration = Duration::from_secs(60);
/// The longest wait for which a deadline is computed. A longer one could overflow the clock.
const WAIT_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// A failure or loss this soon after the start of a round indicates that the node cannot start at
/// all: imports and the first collective are done by then.
pub(crate) const EARLY: Duration = Duration::from_secs(60);

/// The number of early failures or losses after which a node is quarantined. The first may be
/// chance, and the second its consequence. The third is a property of the node.
pub(crate) const STRIKES_MAX: usize = 3;

/// The number of early losses after which a quarantined node is not taken back, even if the job
/// needs it. Losses are free, so a machine that kills its agent could otherwise restart the job
/// forever. Failures need no such limit, because each is charged.
pub(crate) const EARLY_LOSSES_MAX: u32 = 10;

/// The most consecutive rounds that end within [`EARLY`] of their start and are followed by another
/// for free. A node that is lost or unreachable is quarantined long before. This limit ends a job
/// that loses the coordinator's host each time. At most 100 minutes of all nodes are wasted.
pub(crate) const EARLY_FREE_ROUNDS_MAX: u32 = 100;

/// The same limit for rounds that end within [`QUIET_TIME`] of their start. For example, a node
/// that runs out of memory two minutes after each start is neither charged nor quarantined. The
/// limit leaves room for the largest jobs on the worst machines: they lose a node every five
/// minutes, and still run for a quiet time after ten rounds on average.
pub(crate) const FREE_ROUNDS_MAX: u32 = 1_000;

/// The most machines whose tallies are kept across a restart of the coordinator, those with the
/// most suspicions and losses first. A state file easily holds as many.
pub const HOST_TALLIES_MAX: usize = 64;

/// The longest spacing of voluntary rounds. A node that joins waits no longer for one.
pub(crate) const VOLUNTARY_SPACING_MAX: Duration = Duration::from_secs(300);

/// The time in which the nodes that are set aside for one kind of reason are counted. It is long enough for a service that
/// restarts on all machines, one after the other.
pub(crate) const SET_ASIDE_TIME: Duration = Duration::from_secs(600);

/// The most nodes that are set aside in that time: two for each node of the largest job.
pub(crate) const SET_ASIDE_MAX: usize = 20_000;

/// A node is suspected for this long after its last failure: a machine fails again within hours, and is replaced or repaired within a day.
pub(crate) const SUSPECTED_FOR: Duration = Duration::from_secs(24 * 3600);

/// Voluntary rounds, early failures and losses are forgotten after this time, unless another
/// occurs. It is twice the longest spacing, so that a node that flaps at that spacing is still
/// noticed.
pub(crate) const QUIET_TIME: Duration = Duration::from_secs(600);

/// A restarted coordinator waits this much longer than a lease for the members of the last round.
/// Their workers have ended when the lease is over, but their agents need time to find the
/// coordinator.
pub(crate) const RECOVERY_MARGIN: Duration = Duration::from_secs(2);

/// The maximum number of voters of a job. Of five, any two may be lost. More would only add
/// messages.
pub const VOTERS_MAX: usize = 5;

/// The maximum number of members that are reported to the election of the coordinator. It uses the
/// first ones.
pub(crate) const MEMBERS_REPORTED_MAX: usize = 16;

/// The maximum number of successors. They become candidates before all other processes if the
/// leader in an external store is lost. If all of them are lost with it, another process follows
/// after a further lease.
pub const SUCCESSORS_MAX: usize = 3;

/// An elected coordinator waits this long for members whose workers must have ended: TCP repeats a
/// lost SYN after a second.
pub(crate) const TAKEOVER_COURTESY: Duration = Duration::from_secs(1);

/// The number of keep-alives that one coordinator handles per second.
pub(crate) const KEEP_ALIVES_PER_SECOND: u32 = 4_000;

/// The number of nodes that every job serves at least. With the default keep-alive interval, they
/// send as many keep-alives as one coordinator handles.
pub(crate) const NODES_SERVED_MIN: usize = 1_200;

/// Returns a time in whole milliseconds.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the time `wait` after `from`.
pub(crate) fn after(from: Instant, wait: Duration) -> Instant {
    from + wait.min(WAIT_MAX)
}
