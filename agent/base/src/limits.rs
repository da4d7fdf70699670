//! The limits of the agent, each with its reason. Sizes are in bytes; times, sizes and numbers
//! are maxima unless stated otherwise.

use std::time::Duration;

pub use ragent_core::limits::SWEEP_TIMEOUT;

/// Pause of a listener after the system refused a connection or a datagram for lack of memory or
/// descriptors.
pub const RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// Age at which a folder without a lock is removed: a younger one may not be locked yet.
pub(crate) const UNUSED_AFTER: Duration = Duration::from_secs(60);
/// The number of entries of the state folder that a cleaning examines: the files of a thousand
/// killed jobs.
pub const MAX_STATE_ENTRIES: usize = 4096;
/// The time for reading the error file of a failed worker, or the rest of ssh's stderr.
pub const FAILURE_OUTPUT_TIMEOUT: Duration = Duration::from_secs(1);
/// The number of files that an agent has open without workers, with a reserve.
pub const MIN_OPEN_FILES: u64 = 64;
/// The number of files that it has open for each worker at most, during the start: thirteen for
/// each of two streams that go to a file and, line by line, to the console; a socket; and those on
/// their way to the keeper.
pub const OPEN_FILES_PER_WORKER: u64 = 52;
/// The number of workers on one node: more than any machine has processors.
pub const MAX_LOCAL_WORLD_SIZE: u32 = 4096;
/// The number of pods of a job: no more agents are supported.
pub const MAX_PODS: u32 = 10_000;
/// The number of voters: five tolerate two failures, and more would only add messages.
pub(crate) const MAX_VOTERS: usize = 5;
/// The number of members of etcd that are listed: etcd recommends seven at most.
pub(crate) const MAX_ETCD_MEMBERS: usize = 9;
/// The number of addresses of an endpoint; a round-robin name has a few.
pub const MAX_ENDPOINT_ADDRESSES: usize = 16;
/// The time for the process at the endpoint to identify itself.
pub const IDENTIFY_TIMEOUT: Duration = Duration::from_secs(3);
/// The size of an answer to an identity request; ragent's has a few hundred bytes.
pub const MAX_IDENTITY_LEN: usize = 4096;
/// Messages to or from one stream that wait for their reader. A stream that exceeds this is
/// dropped; each side sends its whole state, so its successor loses nothing.
pub const STREAM_QUEUE: usize = 64;
/// Inputs that wait for the coordinator's machine; senders wait while it is full.
pub const COORDINATOR_QUEUE: usize = 1024;
/// Commands and reports between the agent's tasks.
pub const TASK_QUEUE: usize = 256;
/// After a signal, the agent ignores the same signal from a worker for this long: a broadcast reaches both.
pub const REPEATED_SIGNAL: Duration = Duration::from_secs(1);
/// The size of one read from a worker's pipe: the kernel's pipe buffer.
pub const CONSOLE_CHUNK: usize = 64 * 1024;
/// The size of an interpreter's answer: two words, or a traceback.
pub const MAX_ANSWER: u64 = 64 * 1024;
/// The size of an error file that is read; a traceback has a few KiB.
pub const MAX_ERROR_FILE: u64 = 1024 * 1024;
/// The size of a message between agent and keeper: Linux allows at most 2 MiB of arguments, and
/// JSON encodes each byte in up to four.
pub const MAX_KEEPER_FRAME: usize = 16 * 1024 * 1024;
/// The number of addresses of one node; the protocol has the same limit.
pub const MAX_ADDRESSES: usize = 64;
/// The time for sending final messages and output when everything else is done.
pub const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// The time for which an agent waits for its coordinator to end, in addition to the time that
/// agents have to stop: a lease, a last message, and a reserve.
pub const COORDINATOR_END_MARGIN: Duration = Duration::from_secs(10);
/// The time for the keeper to end.
pub const KEEPER_TIMEOUT: Duration = Duration::from_secs(10);
/// The number of ports of a range that are tried for a worker store.
pub(crate) const MAX_STORE_PORTS: u16 = 1024;
/// The number of nodes that `ragent doctor --peers` asks, and that each of these tries to reach. In
/// larger jobs they represent the rest.
pub const MAX_REACHED: usize = 256;
/// The number of these nodes that are asked, or tried, at the same time.
pub const REACH_AT_ONCE: usize = 32;
/// The number of hosts that are asked without multicast: each is sent every datagram.
pub(crate) const MAX_DISCOVER_HOSTS: usize = 1024;
/// The length of a host's name: that of a DNS name.
pub(crate) const MAX_HOST_NAME: usize = 253;
/// The number of names in one node list of a scheduler: more than any cluster has nodes.
pub const MAX_LISTED_NODES: usize = 65_536;
/// The size of a state file that is read.
pub const MAX_STATE_FILE: u64 = 64 * 1024;
/// The connections to a store that wait until a member is asked to vouch for them: those of 16,384 workers that connect at
/// once. When full, the store refuses further ones, and their clients connect again.
pub const UNVOUCHED_QUEUE: usize = 16_384;
/// The time from the start of a round until a node tests whether it reaches the store of the round; up to twice as long, so that not all
/// nodes do so at the same time. The store admits no client before its own node starts the round.
pub const STORE_TEST_PAUSE: Duration = Duration::from_secs(1);
/// The time for which the connection of this test stays open: a store that wants it to be vouched for waits for 2 s.
pub const STORE_TEST_HELD: Duration = Duration::from_secs(3);
/// The requests for owners of connections that may wait, of up to 256 connections each. One takes a millisecond, or up to 100 ms
/// where the kernel cannot look up a single socket. Further ones are ignored: their connections are refused after 2 s.
pub const OWNER_LOOKUPS_MAX: usize = 64;
/// The interval at which an agent asks for the state of the job while it shows a start on a terminal, without the jitter of up
/// to a half.
pub const START_QUESTION: Duration = Duration::from_secs(1);
/// The number of nodes of a job up to which all agents on terminals ask; in larger jobs only the host of the coordinator does.
pub const START_NODES_ASKED: u32 = 64;
/// Returns how many connections to a store may be silent at once if a round has `world_size`
/// workers: each opens a few at the same time, and a resolver that does not answer delays each for
/// a while.
pub fn silent_store_clients(world_size: u32) -> usize {
    usize::try_from(world_size).unwrap_or(usize::MAX).saturating_mul(4).saturating_add(256)
}
