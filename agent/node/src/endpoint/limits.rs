//! The limits of `endpoint`, each with its reason. Sizes are in bytes; times, sizes and numbers
//! are maxima unless stated otherwise.

use std::time::Duration;

pub(crate) use ragent_base::limits::{
    IDENTIFY_TIMEOUT, MAX_IDENTITY_LEN, RETRY_INTERVAL, silent_store_clients,
};

/// Connections to the port of `--metrics-listen`: a few Prometheus servers with several connections each. Any client may open them,
/// so they must not use up the file descriptors that the agent needs.
pub(crate) const MAX_METRICS_CONNECTIONS: usize = 64;
/// The first pause between attempts to find a coordinator at an endpoint; it doubles. Of agents that start at the same time,
/// the first one listens within milliseconds.
pub(crate) const LOCATE_FIRST: Duration = Duration::from_millis(10);
/// The longest pause between these attempts.
pub(crate) const LOCATE_INTERVAL: Duration = Duration::from_millis(500);
/// The time for which the endpoint's port may be in use on this machine although no process accepts connections: an agent
/// that starts at the same time accepts them within milliseconds. After that it is another program.
pub(crate) const HELD_TIMEOUT: Duration = Duration::from_secs(2);
/// The time for which an endpoint may accept connections without answering: a coordinator may be
/// suspended, or busy with a flood of connections. After that it is another program.
pub(crate) const SILENT_TIMEOUT: Duration = Duration::from_secs(20);
#[cfg(feature = "etcd")]
/// The longest pause between attempts to reach etcd: an agent sends one attempt in two seconds to a cluster that does
/// not answer.
pub(crate) const ETCD_RETRY_MAX: Duration = Duration::from_secs(2);
/// The time between lines of an agent that searches for its job's host: a user who looks at the console
/// sees the last one.
pub(crate) const SEARCH_NOTICE_INTERVAL: Duration = Duration::from_secs(60);
/// The time after which an agent warns that it has not reached its coordinator.
pub(crate) const WAIT_WARNING: Duration = Duration::from_secs(5);
/// The secrets with which an agent that searches authenticates each of its datagrams: two while a secret is being replaced,
/// and a reserve.
pub(crate) const SEARCH_SECRETS: usize = 4;
/// The size of a datagram between agents that search for each other; theirs has some two hundred
/// bytes.
pub(crate) const MAX_DATAGRAM: usize = 1024;
/// The number of names of `--discover-hosts` that are looked up at once.
pub(crate) const LOOK_UPS_AT_ONCE: usize = 64;
/// Interval between two lookups of these names.
pub(crate) const LOOK_UP_INTERVAL: Duration = Duration::from_secs(10);
/// The time limit for one attempt to reach the host at an announced address; a host restarts in less.
pub(crate) const PLACE_TIMEOUT: Duration = Duration::from_secs(10);
/// The number of announced addresses that a searching agent tries at once.
pub(crate) const MAX_PLACES: usize = 8;
/// The number of these addresses announced by one sender: the former host's and the present one's.
pub(crate) const MAX_PLACES_OF_SOURCE: usize = 2;
/// The number of addresses without a host that are remembered, each for about a second.
pub(crate) const MAX_RESTING_PLACES: usize = 64;
/// The number of agents of one kind, candidates or agents that announce a host, that have an open question.
pub(crate) const MAX_CHALLENGES: usize = 8;
/// The number of nonces in one datagram, which is then about 600 bytes long.
pub(crate) const MAX_NONCES: usize = 16;
/// The number of these nonces for one host, which may have several agents that ask: others are repeated and have their turn.
pub(crate) const MAX_NONCES_OF_SOURCE: usize = 4;
/// The number of agents that announce a host and are remembered by a searching agent.
pub(crate) const MAX_CLAIMS: usize = 8;
/// The number of other secrets whose agents are reported to the user.
pub(crate) const MAX_OTHER_SECRETS: usize = 8;
/// The number of other hosts of its job that a host, or a member of it, remembers at once.
pub(crate) const MAX_RIVALS: usize = 8;
/// The number of agents that one agent remembers while it searches for a coordinator.
pub(crate) const MAX_CANDIDATES: usize = 20_000;
/// The interval at which the store on the endpoint's port admits newly registered nodes: short compared with the start of a worker. It
/// copies the addresses of all nodes, which takes about a millisecond for 10,000.
pub(crate) const ADMISSION_INTERVAL: Duration = Duration::from_millis(10);
/// The memory of the store on the endpoint's port: enough for a few keys of clients that probe it.
pub(crate) const MAX_PLAIN_STORE: usize = 64 * 1024 * 1024;
/// Death notices that wait for a voter's coordinator; keepers wait while the queue is full.
pub(crate) const DEATH_NOTICES: usize = 64;
/// The time for which a voter without an agent waits for another leader of a job that has ended: several
/// elections.
pub(crate) const NEXT_LEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// The time for the voters to answer which secret they have, before this process serves its own endpoint.
pub(crate) const VOTER_SECRETS_TIMEOUT: Duration = Duration::from_secs(1);
