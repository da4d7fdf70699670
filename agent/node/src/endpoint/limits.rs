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
/// Time for one attempt to reach an agent that searches, or a host, at an announced address.
pub(crate) const DIAL_TIMEOUT: Duration = Duration::from_secs(5);
/// Announced addresses that an agent dials at once.
pub(crate) const MAX_DIALS: usize = 8;
/// Announced addresses that one agent remembers while it searches: two for each node of a job.
pub(crate) const MAX_PLACES: usize = 20_000;
/// Agents that one datagram answers although a broadcast may not reach them. Others repeat their datagrams.
pub(crate) const MAX_PEERS: usize = 64;
/// How long this host remembers the answer of another host until it is elected itself. The other one answers twice in this time.
pub(crate) const RIVAL_COUNTS: Duration = Duration::from_secs(1);
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
/// Connections that wait for the service of checkpoints in memory. The port lets others wait in addition.
pub(crate) const MEMORY_CONNECTIONS: usize = 16;
