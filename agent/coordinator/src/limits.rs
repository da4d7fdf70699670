//! The limits of `coordinator`, each with its reason.
//!
//! Sizes are in bytes. Times, sizes and numbers are maxima unless stated otherwise.

use std::time::Duration;

pub(crate) use ragent_base::limits::{
    FLUSH_TIMEOUT, IDENTIFY_TIMEOUT, MAX_IDENTITY_LEN, MAX_REACHED, REACH_AT_ONCE, STREAM_QUEUE,
};

/// Inputs that wait for the coordinator's machine. Senders wait while it is full.
pub(super) const COORDINATOR_QUEUE: usize = 1024;

/// Time that a reconnecting agent gives a resolver before it uses the known address.
pub(crate) const RESOLVE_PATIENCE: Duration = Duration::from_millis(250);
/// Minimum interval between two collections of a job's state. Clients that wait share one.
pub(crate) const STATUS_INTERVAL: Duration = Duration::from_millis(100);
/// Processes that are asked for a page, one after the other: the known one, and two more after two quick takeovers.
pub(crate) const STATUS_HOPS: usize = 3;
/// Events that a journal keeps: enough for hundreds of restarts.
pub(super) const JOURNAL_EVENTS: usize = 10_000;
/// Size of the events that a journal keeps.
pub(super) const JOURNAL_BYTES: usize = 4 << 20;
/// Size of the part of a journal that is sent at once.
pub(super) const JOURNAL_PART: usize = 64 << 10;
/// Events that wait to be written to a file: more than if all nodes of the largest job are lost at once.
pub(super) const JOURNAL_QUEUE: usize = 20_000;
/// Time without reading after which a reader loses its place.
pub(super) const READER_PATIENCE: Duration = Duration::from_secs(60);
/// Interval of empty lines to a client that reads lines. They show whether the client is lost.
pub(super) const FOLLOWER_HEARTBEAT: Duration = Duration::from_secs(30);
/// Time without data after which a client gives a page up: two heartbeats and a margin.
pub(super) const PAGE_SILENCE_LIMIT: Duration = Duration::from_secs(75);
/// Time that the last events of a coordinator have to reach the file.
pub(super) const JOURNAL_PATIENCE: Duration = Duration::from_millis(500);
/// Clients that follow, in one process. Clients that read the journal once have as many places. Each holds a part of the journal.
pub(super) const READERS: usize = 64;
/// Places for clients of unknown origin. The other places are for users and hosts of the job.
pub(super) const UNKNOWN_READERS: usize = READERS / 2;
/// Size of a received state as JSON: up to 2 KiB for each of 16,384 nodes.
pub(super) const MAX_STATE: usize = 32 << 20;
/// Size of a received line of another page. At most 256 KiB are sent, unless one event or one node's description is longer.
pub(super) const MAX_PAGE_LINE: usize = 1 << 20;
/// Size of a received line with the output of a worker. At most 256 KiB are sent, which JSON may make six times as long.
pub(super) const MAX_OUTPUT_LINE: usize = 2 << 20;
/// Size of the received reason for a refusal: a few lines.
pub(super) const MAX_REFUSAL: usize = 4 << 10;
/// Minimum interval between two measurements of the connections to other nodes. Without a secret, strangers may ask for one.
pub(super) const REACH_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between two states for a client that watches, without events: as fast as people read.
pub(super) const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// Time that the end of a process waits for clients that follow, so that they receive the last state.
pub(super) const LAST_STATE_PATIENCE: Duration = Duration::from_millis(250);
/// Time that the document of the page waits for the job's state. Only browsers without scripts need the state in it.
pub(super) const PAGE_TEXT_PATIENCE: Duration = Duration::from_secs(1);
/// Events that a page receives at first: as many as people scroll through.
pub(super) const PAGE_EVENTS: usize = 200;
/// Size of a part of the page's state, so that one message does not hold up the others.
pub(super) const PAGE_PART: usize = 256 << 10;
/// Interval between two states of the page when events follow each other quickly.
pub(super) const PAGE_PAUSE: Duration = Duration::from_millis(250);
/// Silence of a node that the page shows, in milliseconds: longer than several lost keep-alives.
pub(super) const PAGE_SILENCE_MS: u64 = 3_000;
/// Seconds after which a client may try again if all places of readers are taken.
pub(super) const READERS_RETRY_S: u32 = 10;
/// Size of the output of workers that is sent at once, so that a client with many connections needs little memory.
pub(super) const OUTPUT_SENT: usize = 64 << 10;
/// Streams of workers that a client may have open, including those of older rounds that it has not read to their ends.
pub(super) const OUTPUT_STREAMS: usize = 256;
/// Interval between two parts of output when lines follow each other quickly: less than people notice.
pub(super) const OUTPUT_PAUSE: Duration = Duration::from_millis(100);
/// Time that a coordinator receives messages after a pause before it expires leases. Agents reconnect within 600 ms, and try twice a second
/// until they are connected.
pub(crate) const CATCH_UP: Duration = Duration::from_millis(1000);
/// Time that a voter keeps a death notice for the next leader: far longer than an election takes.
pub(crate) const DEATH_NOTICE_AGE: Duration = Duration::from_secs(60);
/// Time that a voter holds a registration until a coordinator is elected: two leases of an agent. The agent asks another voter after one.
pub(crate) const HELD_TIMEOUT: Duration = Duration::from_secs(5);
/// Size of a death notice: a node id, a job uid and a proof, with a reserve.
pub(crate) const MAX_DEATH_NOTICE: usize = 1024;
/// Size of a message of an agent. The largest one names 256 connections to a store, and has 30 KiB.
pub(crate) const MAX_AGENT_MESSAGE: usize = 64 << 10;
/// Size of a message of a coordinator. The largest one has the addresses of 65,536 clients of a store, at most 41 bytes each, and those of
/// the holders of a checkpoint in memory, at most 768 KiB.
pub(crate) const MAX_COORDINATOR_MESSAGE: usize = 4 << 20;
/// Death notices that a voter keeps. Further ones replace the oldest. A node that loses its notice is evicted at the end of its lease.
pub(crate) const MAX_DEATH_NOTICES: usize = 512;
/// How long a port for one connection of a measurement is open. Two attempts to connect take this long.
pub(crate) const FREE_PORT_TIMEOUT: Duration = Duration::from_secs(6);
/// Connections to each node in a measurement. The fastest one counts.
pub(crate) const REACH_TRIES: u32 = 3;
/// The lines about the hardware of a node on its page, of 200 bytes each: 16 KiB with their frame.
pub(crate) const FACTS_LINES: usize = 72;

/// The time between two runs of the program of `--exclude-command`: a drained node is rarely urgent, and asking a scheduler costs
/// something.
pub(crate) const EXCLUDE_INTERVAL: Duration = Duration::from_secs(60);
/// The time before another run while there is no list at all.
pub(crate) const EXCLUDE_RETRY: Duration = Duration::from_secs(5);
/// The time that such a run may take.
pub(crate) const EXCLUDE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a round waits for the first list. A scheduler answers within some seconds.
pub(crate) const EXCLUDED_AWAITED_FOR: Duration = Duration::from_secs(10);
