//! The limits of `voter`, each with its reason. Sizes are in bytes; times, sizes and numbers are maxima
//! unless stated otherwise.

use std::time::Duration;

/// Commands that wait for the voter's thread: an agent sends a few in each round.
pub(super) const COMMANDS: usize = 64;
/// Messages of other voters that wait for the machine: each voter has one request under way.
pub(super) const EVENTS: usize = 64;
/// Requests that wait for one connection: those of a poll and of a few renewals. Further
/// requests are dropped, as if they were lost in transit.
pub(super) const FRAMES: usize = 8;
/// Connections of other voters at the same time: two of each, while one replaces another, and a reserve. At
/// the limit, the oldest is closed.
pub(super) const MAX_CONNECTIONS: usize = 16;
/// Connections from voters' addresses that are not authenticated yet: other processes of those hosts can open some.
pub(super) const MAX_OPENING: usize = 32;
/// The same for each address. A handshake takes a few round trips, so those of other processes of a host rarely replace it.
pub(super) const MAX_OPENING_PER_ADDRESS: usize = 8;
/// The size of a message: twice that of a job's state with the failures that ended its job.
pub(super) const MAX_FRAME: usize = 256 * 1024;
/// Connections from hosts that are not known as voters', which may show a job that this process does not know: five voters and five
/// listed hosts of one, with a reserve.
pub(super) const MAX_STRANGERS: usize = 16;
/// The same for each address: a few agents may run on one machine.
pub(super) const MAX_STRANGERS_PER_ADDRESS: usize = 4;
/// The time for authenticating a connection that was accepted: a few round trips, with lost packets.
pub(super) const OPEN_TIMEOUT: Duration = Duration::from_secs(3);
/// The endpoints that lead to the same process as another one, each of which is reported once.
pub(super) const MAX_DUPLICATES: usize = 16;
/// The time for connecting to another voter, and for authenticating it: a few round trips each. A lost SYN is repeated by
/// another attempt.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_millis(600);
/// The time for which a connection may leave requests unanswered before another one replaces it: two polls. TCP
/// itself may take longer than a lease to continue after an interruption.
pub(super) const SILENCE: Duration = Duration::from_millis(600);
/// The time to wait for a resolver if addresses are known from an earlier lookup.
pub(super) const RESOLVE_PATIENCE: Duration = Duration::from_millis(250);
/// The first pause between attempts to connect; it doubles, with jitter.
pub(super) const REDIAL_FIRST: Duration = Duration::from_millis(100);
/// The longest pause between attempts: a voter that returns is found within a second.
pub(super) const REDIAL_MAX: Duration = Duration::from_secs(1);
/// The time without a leader after which the voters that do not answer are reported: hosts of a job rarely
/// start in the same second.
pub(super) const WAIT_WARNING: Duration = Duration::from_secs(10);
/// The time without a leader after which the loss of the job's state is reported: shorter than `WAIT_WARNING`, whose report
/// it replaces.
pub(super) const STATE_LOSS: Duration = Duration::from_secs(8);
/// The time after which a leader reports a voter that does not answer: longer than a host takes to restart its
/// agent.
pub(super) const LOST_WARNING: Duration = Duration::from_secs(60);
/// The time within which a voter that leaves is replaced by a member: an election (1 s), the registrations of the members (1 s), and
/// the time until the members grant leases, with a reserve.
pub(super) const REPLACE_TIMEOUT: Duration = Duration::from_secs(5);
/// The time for sending the last messages of a voter that leaves.
pub(super) const LEAVE_TIMEOUT: Duration = Duration::from_millis(300);
/// The time after which the system examines an idle connection, the interval of its probes, and the number of
/// probes: a voter whose host has failed is noticed before it is needed for an election.
pub(super) const KEEPALIVE: (Duration, Duration, u32) =
    (Duration::from_secs(5), Duration::from_secs(1), 3);
