//! The limits of the agent, each with its reason. Sizes are in bytes; times, sizes and numbers
//! are maxima unless stated otherwise.

use std::time::Duration;

pub use ragent_core::limits::CLEANUP_TIMEOUT;

/// Pause of a listener after the system refused a connection or a datagram for lack of memory or
/// descriptors.
pub const RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// How long an agent waits for a saved job to end. Only then can it take part in the next job of that name.
pub const SAVED_JOB_ENDS: Duration = Duration::from_secs(10);
/// The pause between two attempts to take part in the next job meanwhile.
pub const SAVED_JOB_PAUSE: Duration = Duration::from_secs(1);

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
/// The number of addresses of an endpoint; a round-robin name has a few.
pub const MAX_ENDPOINT_ADDRESSES: usize = 16;
/// The time for the process at the endpoint to identify itself.
pub const IDENTIFY_TIMEOUT: Duration = Duration::from_secs(3);
/// The size of an answer to an identity request; ragent's has a few hundred bytes.
pub const MAX_IDENTITY_LEN: usize = 4096;
/// Messages to or from one stream that wait for their reader. A stream that exceeds this is
/// dropped; each side sends its whole state, so its successor loses nothing.
pub const STREAM_QUEUE: usize = 64;
/// Commands and reports between the agent's tasks.
pub const TASK_QUEUE: usize = 256;
/// The size of one read from a worker's pipe: the kernel's pipe buffer.
pub const CONSOLE_CHUNK: usize = 64 * 1024;
/// The size of an interpreter's answer: two words, or a traceback.
pub const MAX_ANSWER: u64 = 64 * 1024;
/// The size of an error file that is read; a traceback has a few KiB.
pub const MAX_ERROR_FILE: u64 = 1024 * 1024;
/// The size of a message between agent and keeper: Linux allows at most 2 MiB of arguments, and
/// JSON encodes each byte in up to four.
pub const MAX_KEEPER_FRAME: usize = 16 * 1024 * 1024;
/// The time for sending final messages and output when everything else is done.
pub const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// The time that an agent waits for its coordinator to end, in addition to the time that
/// agents have to stop: a lease, a last message, and a reserve.
pub const COORDINATOR_END_MARGIN: Duration = Duration::from_secs(10);
/// The number of nodes that `ragent doctor --peers` asks, and that each of these tries to reach. In
/// larger jobs they represent the rest.
pub const MAX_REACHED: usize = 256;
/// The number of these nodes that are asked, or tried, at the same time.
pub const REACH_AT_ONCE: usize = 32;
/// The length of a host's name: that of a DNS name.
pub const MAX_HOST_NAME: usize = 253;
/// The number of names in one node list of a scheduler: more than any cluster has nodes.
pub const MAX_LISTED_NODES: usize = 65_536;
/// The size of a state file that is read.
pub const MAX_STATE_FILE: u64 = 64 * 1024;
/// Returns how many connections to a store may be silent at once if a round has `world_size`
/// workers: each opens a few at the same time, and a resolver that does not answer delays each for
/// a while.
pub fn silent_store_clients(world_size: u32) -> usize {
    usize::try_from(world_size).unwrap_or(usize::MAX).saturating_mul(4).saturating_add(256)
}
