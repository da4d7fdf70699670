//! The limits of `endpoint`, each with its reason.
//!
//! Sizes are in bytes. Times, sizes and numbers are maxima unless stated otherwise.

use std::time::Duration;

pub(crate) use ragent_base::limits::{
    IDENTIFY_TIMEOUT, MAX_IDENTITY_LEN, RETRY_INTERVAL, silent_store_clients,
};

/// Connections to the port of `--metrics-listen`: a few Prometheus servers with several connections each. Any client may open them, so they
/// must leave file descriptors for the agent.
pub(crate) const MAX_METRICS_CONNECTIONS: usize = 64;
/// The first pause between attempts to find a coordinator at an endpoint. It doubles. If agents start at the same time, the first one
/// listens within milliseconds.
pub(crate) const LOCATE_FIRST: Duration = Duration::from_millis(10);
/// The longest pause between these attempts.
pub(crate) const LOCATE_INTERVAL: Duration = Duration::from_millis(500);
/// Time that the endpoint's port may be in use on this machine without accepting connections. An agent that starts at the same time accepts
/// them within milliseconds. After this time it counts as another program.
pub(crate) const HELD_TIMEOUT: Duration = Duration::from_secs(2);
/// Time that an endpoint may accept connections without answering. A coordinator may be suspended,
/// or busy with a flood of connections. After this time it counts as another program.
pub(crate) const SILENT_TIMEOUT: Duration = Duration::from_secs(20);
#[cfg(feature = "etcd")]
/// The longest pause between attempts to reach etcd: one attempt every two seconds, if the cluster does not answer.
pub(crate) const ETCD_RETRY_MAX: Duration = Duration::from_secs(2);
/// Time between two lines of an agent that searches for the host. A user who looks at the console sees the last one.
pub(crate) const SEARCH_NOTICE_INTERVAL: Duration = Duration::from_secs(60);
/// Time after which an agent warns that it has not reached its coordinator.
pub(crate) const WAIT_WARNING: Duration = Duration::from_secs(5);
/// Secrets that authenticate each datagram of a searching agent: two while a secret is being replaced, and a reserve.
pub(crate) const SEARCH_SECRETS: usize = 4;
/// Size of a datagram between searching agents. Most have about two hundred bytes.
pub(crate) const MAX_DATAGRAM: usize = 1024;
/// Names of `--discover-hosts` that are looked up at once.
pub(crate) const LOOK_UPS_AT_ONCE: usize = 64;
/// Interval between two lookups of these names.
pub(crate) const LOOK_UP_INTERVAL: Duration = Duration::from_secs(10);
/// Time for one attempt to reach the host at an announced address. A host restarts in less.
pub(crate) const PLACE_TIMEOUT: Duration = Duration::from_secs(10);
/// Announced addresses that a searching agent tries at once.
pub(crate) const MAX_PLACES: usize = 8;
/// Such addresses from one sender: the former host's and the current host's.
pub(crate) const MAX_PLACES_OF_SOURCE: usize = 2;
/// Addresses without a host that are remembered, each for about a second.
pub(crate) const MAX_RESTING_PLACES: usize = 64;
/// Agents with an open question, of each kind: candidates, and agents that announce a host.
pub(crate) const MAX_CHALLENGES: usize = 8;
/// Nonces in one datagram, which then has about 600 bytes.
pub(crate) const MAX_NONCES: usize = 16;
/// Such nonces for one host, on which several agents may ask. Others repeat their questions and are answered later.
pub(crate) const MAX_NONCES_OF_SOURCE: usize = 4;
/// Agents that announce a host, as a searching agent remembers them.
pub(crate) const MAX_CLAIMS: usize = 8;
/// Other secrets that are reported to the user.
pub(crate) const MAX_OTHER_SECRETS: usize = 8;
/// Other hosts of its job that a host, or a member, remembers.
pub(crate) const MAX_RIVALS: usize = 8;
/// Agents that one agent remembers while it searches.
pub(crate) const MAX_CANDIDATES: usize = 20_000;
/// Interval at which the store on the endpoint's port admits new nodes: short compared with the start of a worker. Each time it copies the
/// addresses of all nodes, which takes about a millisecond for 10,000.
pub(crate) const ADMISSION_INTERVAL: Duration = Duration::from_millis(10);
/// Memory of the store on the endpoint's port: enough for a few keys of clients that probe it.
pub(crate) const MAX_PLAIN_STORE: usize = 64 * 1024 * 1024;
/// Death notices that wait for a voter's coordinator. Keepers wait while the queue is full.
pub(crate) const DEATH_NOTICES: usize = 64;
/// Time that a voter without an agent waits for another leader after the job has ended: several elections.
pub(crate) const NEXT_LEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for the voters to answer which secret they have, before this process serves its own endpoint.
pub(crate) const VOTER_SECRETS_TIMEOUT: Duration = Duration::from_secs(1);
/// Connections that wait for the service of checkpoints in memory, in addition to those that the port lets wait.
pub(crate) const MEMORY_CONNECTIONS: usize = 16;
