//! The limits of `memory`, each with its reason.
//!
//! Sizes are in bytes. Times, sizes and numbers are maxima unless stated otherwise.

use std::time::Duration;

/// Events that wait for the driver. Workers and transfers wait while it is full.
pub(super) const EVENTS: usize = 64;
/// Size of a message between a worker and its agent, in either direction.
pub(super) const MAX_PACKET: usize = 4096;
/// Connections to the socket of one worker that wait to be accepted. A worker needs one.
pub(super) const WORKER_BACKLOG: i32 = 4;
/// Size of one piece of content: large enough that system calls take no time, and small enough for a processor's cache.
pub(super) const PIECE: usize = 1 << 20;
/// Size of the blocks that have a checksum of their own: a range of a few bytes needs one, and sums take 0.03 % of memory.
pub(super) const SUMMED_BLOCK: usize = 1 << 16;
/// Size of the pieces in which the pages of a buffer are made. A piece takes about 50 ms.
pub(super) const PAGES_PIECE: u64 = 64 << 20;
/// Threads that compute, copy and send. Each of 16 workers may have a transfer, a checksum and a buffer at once; further
/// work waits.
pub(super) const THREADS: usize = 48;
/// Time after which an idle thread ends.
pub(super) const THREAD_IDLE: Duration = Duration::from_secs(10);
/// Time for a place and the greetings on a new connection: as for the first request on the agent's port.
pub(super) const GREETING_TIMEOUT: Duration = Duration::from_secs(5);
/// Time that a connection may be open without a request.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Time without a byte after which a transfer ends, and time for the decision of this agent's machine.
pub(super) const SILENCE: Duration = Duration::from_secs(10);
/// Connections of other agents that are authenticated: those of four agents. As many to other agents.
pub(super) const MAX_CONNECTIONS: usize = 16;
/// The same per address, and connections to one address: enough to use a fast network, because each has a processor.
pub(super) const MAX_CONNECTIONS_PER_ADDRESS: usize = 4;
/// Time after which no further attempt to read ranges begins, and the pauses between attempts. A holder may have no free
/// connection for a while, since the workers of all nodes read at once.
pub(super) const RANGES_PATIENCE: Duration = Duration::from_secs(60);
pub(super) const RANGES_RETRY_FIRST: Duration = Duration::from_millis(250);
pub(super) const RANGES_RETRY_MAX: Duration = Duration::from_secs(4);
/// Time until the next connection is accepted after a failure, such as a lack of descriptors.
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_secs(1);
/// Interval of [`Effect::WatchMemory`](ragent_core::memory::Effect::WatchMemory).
pub(super) const WATCH_INTERVAL: Duration = Duration::from_secs(1);
