//! The limits of `voters`, each with its reason.
//!
//! Sizes are in bytes. Times, sizes and numbers are maxima unless stated otherwise.

use std::time::Duration;

/// Commands that wait for the voter's thread: an agent sends a few in each round.
pub(super) const COMMANDS: usize = 64;
/// Messages of other voters that wait for the machine. Each voter has one request in flight.
pub(super) const EVENTS: usize = 64;
/// Requests that wait for one connection: a poll and a few renewals. Further requests are dropped,
/// as if lost in transit.
pub(super) const FRAMES: usize = 8;
/// Connections from other voters: two from each, while one replaces another, and a reserve. At the limit, the oldest is closed.
pub(super) const MAX_CONNECTIONS: usize = 16;
/// Connections from voters' addresses that are not authenticated yet. Other processes on those hosts can open some.
pub(super) const MAX_OPENING: usize = 32;
/// The same per address. A handshake takes only a few round trips, so other processes of a host rarely replace a voter's connection.
pub(super) const MAX_OPENING_PER_ADDRESS: usize = 8;
/// Size of a message: twice the largest state of a job, with the failures that ended it.
pub(super) const MAX_FRAME: usize = 256 * 1024;
/// Connections from hosts that are not known as voters' hosts. They may show a job that this process does not know: five voters and five
/// listed hosts of one job, with a reserve.
pub(super) const MAX_STRANGERS: usize = 16;
/// The same per address. A few agents may run on one machine.
pub(super) const MAX_STRANGERS_PER_ADDRESS: usize = 4;
/// Time for authenticating an accepted connection: a few round trips, with lost packets.
pub(super) const OPEN_TIMEOUT: Duration = Duration::from_secs(3);
/// Endpoints that are reported because they lead to the same process as another one.
pub(super) const MAX_DUPLICATES: usize = 16;
/// Time for connecting to another voter, and again for authenticating it: a few round trips each. Another attempt repeats a lost SYN.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_millis(600);
/// Time without answers after which a connection is replaced: two polls. TCP itself may need longer than a lease to continue after an
/// interruption.
pub(super) const SILENCE: Duration = Duration::from_millis(600);
/// Time that a resolver gets if addresses are known from an earlier lookup.
pub(super) const RESOLVE_PATIENCE: Duration = Duration::from_millis(250);
/// The first pause between attempts to connect; it doubles, with jitter.
pub(super) const REDIAL_FIRST: Duration = Duration::from_millis(100);
/// The longest pause between attempts: a voter that returns is found within a second.
pub(super) const REDIAL_MAX: Duration = Duration::from_secs(1);
/// Time without a leader after which silent voters are reported: hosts of a job rarely start in the same second.
pub(super) const WAIT_WARNING: Duration = Duration::from_secs(10);
/// Time without a leader after which a loss of the job's state is reported: shorter than `WAIT_WARNING`, because it replaces that report.
pub(super) const STATE_LOSS: Duration = Duration::from_secs(8);
/// Time after which a leader reports a silent voter: longer than a host needs to restart its agent.
pub(super) const LOST_WARNING: Duration = Duration::from_secs(60);
/// Time for a member to replace a voter that leaves: an election (1 s), the registrations of the members (1 s), the members' first leases,
/// and a reserve.
pub(super) const REPLACE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for sending the last messages of a voter that leaves.
pub(super) const LEAVE_TIMEOUT: Duration = Duration::from_millis(300);
/// Idle time before the system probes a connection, the interval of its probes, and their number. So the loss of a voter's host is noticed
/// before the voter is needed for an election.
pub(super) const KEEPALIVE: (Duration, Duration, u32) =
    (Duration::from_secs(5), Duration::from_secs(1), 3);
