//! The limits of a node, each with its reason.
//!
//! Sizes are in bytes. Times, sizes and numbers are maxima unless stated otherwise.

use std::time::Duration;

pub(super) use ragent_base::limits::{
    FLUSH_TIMEOUT, STREAM_QUEUE, TASK_QUEUE, silent_store_clients,
};

/// Time after a signal in which the agent ignores the same signal from a worker. A broadcast reaches both.
pub(super) const REPEATED_SIGNAL: Duration = Duration::from_secs(1);
/// Addresses of one node. The protocol has the same limit.
pub(super) const MAX_ADDRESSES: usize = 64;
/// Connections to a store that wait until a member is asked to confirm their users: as many as 16,384 workers that connect at once. If it
/// is full, the store refuses further ones, and their clients connect again.
pub(super) const UNCHECKED_QUEUE: usize = 16_384;
/// Time from the start of a round until a node tests whether it reaches the round's store. A node may wait twice as long, so that not all
/// nodes test at the same time. The store admits no client before its own node has started the round.
pub(super) const STORE_TEST_PAUSE: Duration = Duration::from_secs(1);
/// Time that the connection of this test stays open. A store that has its user confirmed waits 2 s.
pub(super) const STORE_TEST_HELD: Duration = Duration::from_secs(3);
/// Requests for owners of connections that may wait, each for up to 256 connections. One takes a millisecond, or up to 100 ms where the
/// kernel cannot look up a single socket. Further requests are ignored, and their connections are refused after 2 s.
pub(super) const OWNER_LOOKUPS_MAX: usize = 64;
