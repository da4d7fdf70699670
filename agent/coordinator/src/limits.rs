//! The limits of `coordinator`, each with its reason. Sizes are in bytes; times, sizes and numbers
//! are maxima unless stated otherwise.

use std::time::Duration;

pub(crate) use ragent_base::limits::{
    FLUSH_TIMEOUT, IDENTIFY_TIMEOUT, MAX_REACHED, REACH_AT_ONCE, STREAM_QUEUE,
};

/// Inputs that wait for the coordinator's machine; senders wait while it is full.
pub(super) const COORDINATOR_QUEUE: usize = 1024;

/// The time after which an agent that reconnects uses the known address instead of waiting for a
/// resolver.
pub(crate) const RESOLVE_PATIENCE: Duration = Duration::from_millis(250);
/// Minimum interval between two renderings of a job's state: all waiting clients get the same one.
pub(crate) const STATUS_INTERVAL: Duration = Duration::from_millis(100);
/// The processes that are asked for a page of a job, one after the other: the one that is known and, after two
/// takeovers in short order, those that they name.
pub(crate) const STATUS_HOPS: usize = 3;
/// The events that a journal keeps: those of hundreds of restarts.
pub(super) const JOURNAL_EVENTS: usize = 10_000;
/// The size of the events that a journal keeps.
pub(super) const JOURNAL_BYTES: usize = 4 << 20;
/// The size of the part of a journal that is sent at once.
pub(super) const JOURNAL_PART: usize = 64 << 10;
/// The events that wait to be written to a file: more than the losses of all nodes of the largest job at once.
pub(super) const JOURNAL_QUEUE: usize = 20_000;
/// The time after which a reader that does not read loses its place.
pub(super) const READER_PATIENCE: Duration = Duration::from_secs(60);
/// The interval at which an empty line is sent to a client that reads lines, so that its loss is noticed.
pub(super) const FOLLOWER_HEARTBEAT: Duration = Duration::from_secs(30);
/// The time after which a client that reads a page gives it up if nothing is received: two heartbeats and a margin.
pub(super) const PAGE_SILENCE_LIMIT: Duration = Duration::from_secs(75);
/// The time for which the end of a coordinator waits until its last events are in the file.
pub(super) const JOURNAL_PATIENCE: Duration = Duration::from_millis(500);
/// The clients that follow a journal or watch the state at once, in one process, and those that read the journal once: each
/// holds a part of it.
pub(super) const READERS: usize = 64;
/// The places for clients of unknown origin. The other places are for users and hosts of the job.
pub(super) const UNKNOWN_READERS: usize = READERS / 2;
/// The size of a state of a job as JSON that is received: up to 2 KiB for each of 16,384 nodes.
pub(super) const MAX_STATE: usize = 32 << 20;
/// The size of a line of another page that is received: at most 256 KiB are sent, unless one event or the description of one
/// node is longer.
pub(super) const MAX_PAGE_LINE: usize = 1 << 20;
/// The size of the reason that is received for a refusal: a few lines.
pub(super) const MAX_REFUSAL: usize = 4 << 10;
/// The least interval between two measurements of the connections to other nodes: strangers may ask for one in a job without a secret.
pub(super) const REACH_INTERVAL: Duration = Duration::from_secs(1);
/// The interval between two states of a client that watches, if no event is recorded: as fast as people read.
pub(super) const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// The time for which the end of a process waits for clients that follow the job, so that they receive its last state.
pub(super) const LAST_STATE_PATIENCE: Duration = Duration::from_millis(250);
/// The time for which the document of the page waits for the state of the job, which only browsers without scripts need in it.
pub(super) const PAGE_TEXT_PATIENCE: Duration = Duration::from_secs(1);
/// The events that a page receives at first: as many as people scroll through.
pub(super) const PAGE_EVENTS: usize = 200;
/// The size of a part of the page's state, so that no message holds up the others.
pub(super) const PAGE_PART: usize = 256 << 10;
/// The interval between two states of the page when events follow each other quickly.
pub(super) const PAGE_PAUSE: Duration = Duration::from_millis(250);
/// The silence of a node that the page shows: longer than several lost keep-alives, in milliseconds.
pub(super) const PAGE_SILENCE_MS: u64 = 3_000;
/// The age of a training step that the page shows: a pause, as the account of time counts it, in milliseconds.
pub(super) const PAGE_STALL_MS: u64 = 10_000;
/// The seconds after which a client may try again when all places of readers are taken.
pub(super) const READERS_RETRY_S: u32 = 10;
/// After a pause, the coordinator receives messages for this long before it expires leases. Agents reconnect within 600 ms, and try twice a second until they are connected.
pub(crate) const CATCH_UP: Duration = Duration::from_millis(1000);
/// The time for which a voter keeps a death notice for the next leader: far longer than an election takes.
pub(crate) const DEATH_NOTICE_AGE: Duration = Duration::from_secs(60);
/// The time for which a voter holds a registration until a coordinator is elected: two leases of an agent. The
/// agent asks another voter after one.
pub(crate) const HELD_TIMEOUT: Duration = Duration::from_secs(5);
/// The size of a death notice, with a reserve: it has a node id, a job uid and a proof.
pub(crate) const MAX_DEATH_NOTICE: usize = 1024;
/// The size of a message of an agent. The largest one names 256 connections to a store, and has 30 KiB.
pub(crate) const MAX_AGENT_MESSAGE: usize = 64 << 10;
/// The size of a message of a coordinator. The largest one has the addresses of 65,536 clients of a store, of at most 41 bytes.
pub(crate) const MAX_COORDINATOR_MESSAGE: usize = 4 << 20;
/// The number of death notices that a voter keeps; further ones replace the oldest. A node whose death notice is lost
/// is evicted at the end of its lease.
pub(crate) const MAX_DEATH_NOTICES: usize = 512;
/// The number of connections to each, of which the fastest counts.
pub(crate) const REACH_TRIES: u32 = 3;
