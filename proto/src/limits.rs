//! How much of a message is believed.

use std::time::Duration;

/// Names that people give: run ids, roles, host names, addresses. A DNS name has 253 bytes.
pub(crate) const MAX_NAME_LEN: usize = 256;
/// A path in a report; Linux' own limit.
pub(crate) const MAX_PATH_LEN: usize = 4096;
/// A text in a report: one failure is to stay near 4 KiB, and its message and its tail share that.
pub(crate) const MAX_TEXT_LEN: usize = 8192;
/// Addresses of one node; a machine with more interfaces names its first ones.
pub(crate) const MAX_NODE_ADDRESSES: usize = 64;
/// Workers of one node, so that those of all nodes can be counted; no machine runs as many.
pub(crate) const MAX_LOCAL_WORLD_SIZE: u32 = 65_536;
/// Addresses that a worker store lets in: as many as a coordinator sends.
pub(crate) const MAX_STORE_CLIENTS: usize = ragent_rendezvous::limits::STORE_CLIENTS_MAX;
/// Nodes in a snapshot, and successors.
pub(crate) const MAX_NODES: usize = 65_536;
/// Waits and ages: a year is no time-out any more.
pub(crate) const MAX_DURATION_MS: u64 = 366 * 24 * 3600 * 1000;
/// The lease of a coordinator: twice that of a job with as many nodes as there may be.
pub(crate) const MAX_LEASE: Duration = Duration::from_secs(60);
