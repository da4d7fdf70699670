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
/// Time from the start of a round until a node tests whether it reaches the round's store. A node may wait twice as long, so that not all
/// nodes test at the same time. The store admits no client before its own node has started the round.
pub(super) const STORE_TEST_PAUSE: Duration = Duration::from_secs(1);
