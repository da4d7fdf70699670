//! Sets the limits on the fields of messages.

use std::time::Duration;

/// Names given by users: run ids, roles, host names, addresses. A DNS name has 253 bytes.
pub(crate) const MAX_NAME_LEN: usize = 256;
/// A path in a report. Linux has the same limit.
pub(crate) const MAX_PATH_LEN: usize = 4096;
/// A text in a report. One failure should stay near 4 KiB, including its message and its tail.
pub(crate) const MAX_TEXT_LEN: usize = 8192;
/// Addresses of one node. A machine with more interfaces sends its first ones.
pub(crate) const MAX_NODE_ADDRESSES: usize = 64;
/// Workers of one node. The sum over all nodes cannot overflow, and no machine runs as many.
pub(crate) const MAX_LOCAL_WORLD_SIZE: u32 = 65_536;
/// Addresses that a worker store admits: as many as a coordinator sends.
pub(crate) const MAX_STORE_CLIENTS: usize = ragent_rendezvous::limits::STORE_CLIENTS_MAX;
/// Nodes in a snapshot.
pub(crate) const MAX_NODES: usize = 65_536;
/// Waits and ages: no timeout is longer than a year.
pub(crate) const MAX_DURATION_MS: u64 = 366 * 24 * 3600 * 1000;
/// The lease of a coordinator: 1.5 times the lease in a job with the most nodes, which is 41 s.
pub(crate) const MAX_LEASE: Duration = Duration::from_secs(60);
