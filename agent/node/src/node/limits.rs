//! The limits of a node, each with its reason. Sizes are in bytes; times, sizes and numbers are maxima unless stated otherwise.

use std::time::Duration;

pub(super) use ragent_base::limits::{
    FLUSH_TIMEOUT, STREAM_QUEUE, TASK_QUEUE, silent_store_clients,
};

/// After a signal, the agent ignores the same signal from a worker for this long: a broadcast reaches both.
pub(super) const REPEATED_SIGNAL: Duration = Duration::from_secs(1);
/// The number of addresses of one node; the protocol has the same limit.
pub(super) const MAX_ADDRESSES: usize = 64;
/// The connections to a store that wait until a member is asked to confirm their users: those of 16,384 workers that
/// connect at once. When full, the store refuses further ones, and their clients connect again.
pub(super) const UNCHECKED_QUEUE: usize = 16_384;
/// The time from the start of a round until a node tests whether it reaches the store of the round; up to twice as long, so that not all
/// nodes do so at the same time. The store admits no client before its own node starts the round.
pub(super) const STORE_TEST_PAUSE: Duration = Duration::from_secs(1);
/// The time for which the connection of this test stays open: a store that has its user confirmed waits for 2 s.
pub(super) const STORE_TEST_HELD: Duration = Duration::from_secs(3);
/// The requests for owners of connections that may wait, of up to 256 connections each. One takes a millisecond, or up to 100 ms
/// where the kernel cannot look up a single socket. Further ones are ignored: their connections are refused after 2 s.
pub(super) const OWNER_LOOKUPS_MAX: usize = 64;
/// The interval at which an agent asks for the state of the job while it shows a start on a terminal, without the jitter of up
/// to a half.
pub(super) const START_QUESTION: Duration = Duration::from_secs(1);
/// The number of nodes of a job up to which all agents on terminals ask; in larger jobs only the host of the coordinator does.
pub(super) const START_NODES_ASKED: u32 = 64;
