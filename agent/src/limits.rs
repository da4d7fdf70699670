//! The limits of the agent, each with its reason. Sizes are in bytes; times, sizes and numbers are
//! maxima unless stated otherwise.

use std::time::Duration;

pub use ragent_core::limits::SWEEP_TIMEOUT;

/// Interval between attempts to find a coordinator at an endpoint.
pub const LOCATE_INTERVAL: Duration = Duration::from_millis(500);
/// Pause of a listener after the system refused a connection or a datagram for lack of memory or
/// descriptors.
pub const RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// The size of a worker's datagram to its service manager; systemd allows 4 KiB too.
pub const MAX_NOTICE: usize = 4096;
/// The time for taking the stacks of hung workers, which are killed afterwards in any case.
pub const STACKS_TIMEOUT: Duration = Duration::from_secs(15);
/// The time that a worker has to print its stack after a signal.
pub const STACK_SIGNAL_TIME: Duration = Duration::from_secs(1);
/// The number of processes of a worker, and of threads of a process, whose stacks are taken.
pub const STACK_PROCESSES: usize = 256;
/// The length of the longest path that a Unix socket can have, including the terminating NUL.
pub const MAX_SOCKET_PATH: usize = 108;
/// The time for which a coordinator waits for its state file to be written before it continues: a
/// good part of what a lease can spare, and far more than a healthy disk takes.
pub const STATE_FILE_PATIENCE: Duration = Duration::from_secs(1);
/// The time for removing the state file of a finished job: nothing else waits for the disk then.
pub const STATE_FILE_REMOVAL: Duration = Duration::from_secs(10);
/// Interval at which a coordinator rewrites its state file, so that the file's age shows whether
/// agents may still wait for the job: one small write in place, and far more often than they give
/// up.
pub const STATE_FILE_INTERVAL: Duration = Duration::from_secs(10);
/// The number of entries of the state folder that a cleaning examines: the files of a thousand
/// killed jobs.
pub const MAX_STATE_ENTRIES: usize = 4096;
/// Age at which a file of that folder that does not belong to a job is removed: longer than any
/// process takes between two files that belong together.
pub const FORGOTTEN_AFTER: Duration = Duration::from_secs(3600);
/// The time for reading the error file of a failed worker, or the rest of ssh's stderr.
pub const LAST_WORDS_TIMEOUT: Duration = Duration::from_secs(1);
/// The time after which an agent that reconnects uses the known address instead of waiting for a
/// resolver.
pub const RESOLVE_PATIENCE: Duration = Duration::from_millis(250);
/// Number of times per round that a fork is repeated if the system lacks memory or process ids. A
/// system that lacks them for longer than a second is overloaded.
pub const FORK_ATTEMPTS: u32 = 10;
/// Interval between these attempts.
pub const FORK_INTERVAL: Duration = Duration::from_millis(100);
/// The number of files that an agent has open without workers, with a reserve.
pub const MIN_OPEN_FILES: u64 = 64;
/// The number of files that it has open for each worker at most, during the start: thirteen for
/// each of two streams that go to a file and, line by line, to the console; a socket; and those on
/// their way to the keeper.
pub const OPEN_FILES_PER_WORKER: u64 = 52;
/// Interval at which the driver is asked whether a GPU is free: a call takes tens of microseconds.
pub const HELD_GPU_INTERVAL: Duration = Duration::from_millis(20);
/// The number of bytes that a keeper copies at once from a pipe that its agent has not emptied: any
/// writable pipe takes as many in one piece.
pub const SPILLED_CHUNK: usize = 4096;
/// Descriptors that are sent with one order to start a worker: three, and at most ten for each of
/// two streams.
pub const SPAWN_FDS: usize = 32;
/// The total time for which a keeper waits for consoles that accept no output.
pub const SPILLED_TIMEOUT: Duration = Duration::from_millis(500);
/// The time for opening the files of a round, after which workers start without them: a disk that
/// takes a minute is considered lost.
pub const FILES_TIMEOUT: Duration = Duration::from_secs(60);
/// The time that a driver may take, beyond `--held-gpu-timeout`, to report which processes hold the
/// GPUs.
pub const DRIVER_TIMEOUT: Duration = Duration::from_secs(10);
/// The time for a killed cgroup to become empty: less than a lease.
pub const LEFTOVER_TIMEOUT: Duration = Duration::from_secs(2);
/// The size of a file that is read whole: those in `/sys` have a page, configurations a few. A
/// ConfigMap of Kubernetes has the same limit.
pub const MAX_SMALL_FILE: u64 = 1024 * 1024;
/// The number of workers on one node: more than any machine has processors.
pub const MAX_LOCAL_WORLD_SIZE: u32 = 4096;
/// The size of a file of `/proc` that is read: the sockets of a hundred thousand connections, or the
/// children of a process that has as many as a system allows.
pub const MAX_PROC_FILE: u64 = 64 * 1024 * 1024;
/// The size of the first read of such a file: the kernel produces a page at once.
pub const PROC_READ: usize = 4096;
/// The number of pods of a job: no more agents are supported.
pub const MAX_PODS: u32 = 10_000;
/// The number of addresses of an endpoint; a round-robin name has a few.
pub const MAX_ENDPOINT_ADDRESSES: usize = 16;
/// The time for one attempt to open a connection. A reachable host answers in less than a round
/// trip; one lost SYN is sent again after 1 s.
pub const DIAL_TIMEOUT: Duration = Duration::from_millis(1800);
/// The time for one lookup of a name; libc's resolver gives up after 5 s for each server.
pub const RESOLVE_TIMEOUT: Duration = Duration::from_secs(6);
/// The time for which an endpoint may accept connections without answering: a coordinator may be
/// suspended, or busy with a flood of connections. After that it is another program.
pub const SILENT_TIMEOUT: Duration = Duration::from_secs(20);
/// The time between lines of an agent that searches for its job's host: a user who looks at the console
/// sees the last one.
pub const SEARCH_NOTICE_INTERVAL: Duration = Duration::from_secs(60);
/// The time after which an agent warns that it has not reached its coordinator.
pub const WAIT_WARNING: Duration = Duration::from_secs(5);
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
/// The size of events that wait for a blocked console or file: those of thousands of workers.
pub const MAX_PENDING_EVENTS: usize = 4 * 1024 * 1024;
/// Chunks of output that wait for the console; workers wait while it is full, as they would for the
/// console itself.
pub const CONSOLE_QUEUE: usize = 64;
/// Log lines that wait for the console: about those of a busy minute at level `info`.
pub const LOG_QUEUE: usize = 1024;
/// Requests to write or remove `agent.log` that wait for the disk.
pub const LOG_FILE_QUEUE: usize = 4;
/// Bytes of recent log lines that are kept in memory: about a hundred rounds.
pub const RECENT_LINES: usize = 256 * 1024;
/// The size of a pipe with lines of workers for the console: some chunks with a prefix for each
/// line. Small enough for a user with many agents, whose pipes the kernel limits
/// (`pipe-user-pages-soft`).
pub const STAGED_LINES: usize = 512 * 1024;
/// The size of one read from a worker's pipe that goes to a file: two threads take turns with each,
/// or the worker and one.
pub const TEE_CHUNK: usize = 256 * 1024;
/// Chunks of one stream that are copied before another stream's turn.
pub const COPY_BURST: usize = 16;
/// The size of one read from a worker's pipe: the kernel's pipe buffer.
pub const CONSOLE_CHUNK: usize = 64 * 1024;
/// The size of the end of a worker's stderr that a report contains; together with the rest, a
/// failure stays near 4 KiB.
pub const STDERR_TAIL: usize = 3 * 1024;
/// The size of a worker's error message in a report.
pub const ERROR_MESSAGE: usize = 2 * 1024;
/// The number of last attempts whose folders stay in a temporary folder even if they are empty.
pub const KEPT_ATTEMPTS: u32 = 16;
/// The number of entries of the folder for temporary files that an agent examines when it starts.
pub const MAX_TEMP_ENTRIES: usize = 4096;
/// Age at which an unused temporary folder is removed: a younger one may not be locked yet.
pub const UNUSED_AFTER: Duration = Duration::from_secs(60);
/// The number of temporary folders that are kept for nothing but the log of a failed agent: those of the
/// failures that a user may still compare.
pub const KEPT_AGENT_LOGS: usize = 8;
/// The time for which such a folder is kept: a weekend passes before a failure is examined.
pub const AGENT_LOG_KEPT_FOR: Duration = Duration::from_secs(7 * 24 * 3600);
/// The time within which workers may stop after a signal without a line for people: most do, and a reader
/// waits longer only with an explanation.
pub const QUICK_STOP: Duration = Duration::from_secs(1);
/// The size of an error file that is read; a traceback has a few KiB.
pub const MAX_ERROR_FILE: u64 = 1024 * 1024;
/// The size of the pieces in which a line without an end is printed if it has a prefix.
pub const MAX_CONSOLE_LINE: usize = 64 * 1024;
/// The size of a message between agent and keeper: Linux allows at most 2 MiB of arguments, and
/// JSON encodes each byte in up to four.
pub const MAX_KEEPER_FRAME: usize = 16 * 1024 * 1024;
/// The time from the beginning of a connection to its first whole request, body included: enough
/// for a few lost packets.
pub const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The same for a client of a store: torch resolves the names of both ends before it sends a byte,
/// and a resolver that does not answer takes 6 s or more for each.
pub const STORE_SILENCE: Duration = Duration::from_secs(60);
/// The time for each later request, body included.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The time for which a connection may be open without a request.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of pings to an HTTP/2 peer.
pub const PING_INTERVAL: Duration = Duration::from_secs(10);
/// The time for an HTTP/2 peer to answer a ping: as long as the longest lease, which must not end
/// because of this.
pub const PING_TIMEOUT: Duration = Duration::from_secs(60);
/// The time after which an unknown connection counts towards the quotas: a new member sends its
/// request at once.
pub const STRANGER_GRACE: Duration = Duration::from_secs(1);
/// Unknown connections without a request, in total: more than occur by accident, and a small part
/// of [`MAX_CONNECTIONS`].
pub const MAX_STRANGERS: usize = 512;
/// The same per address, or IPv6 network: one host must not use up the quota of all.
pub const MAX_STRANGERS_PER_ADDRESS: usize = 64;
/// File descriptors reserved for uses other than connections, if the limit allows it.
pub const SPARE_FILES: usize = 1024;
/// Queued progress reports of connections to their port; connections wait while it is full.
pub const PROGRESS_QUEUE: usize = 256;
/// Minimum interval between two renderings of a job's state: all waiting clients get the same one.
pub const STATUS_INTERVAL: Duration = Duration::from_millis(100);
/// The time for which a client of the store waits for it, on a port that serves a new one in each
/// round: workers of other nodes may be faster than the node that serves it.
pub const STORE_DOOR_TIMEOUT: Duration = Duration::from_secs(10);
/// The time for which a coordinator that was stalled receives messages before it expires leases:
/// agents reconnect within 600 ms, and try twice a second until they are connected.
pub const CATCH_UP: Duration = Duration::from_millis(1000);
/// The number of addresses of one node; the protocol has the same limit.
pub const MAX_ADDRESSES: usize = 64;
/// Connections to the agent's port in total: 10,000 agents with a spare connection each.
pub const MAX_CONNECTIONS: usize = 20_480;
/// The time for sending final messages and output when everything else is done.
pub const FAREWELL_TIMEOUT: Duration = Duration::from_secs(2);
/// The time for which an agent waits for its coordinator to end, in addition to the time that
/// agents have to stop: a lease, a last message, and a reserve.
pub const SEE_OFF_MARGIN: Duration = Duration::from_secs(10);
/// The time for the keeper to end.
pub const KEEPER_TIMEOUT: Duration = Duration::from_secs(10);
/// The time for which a keeper tries to deliver its obituary: less than the lease that proves the
/// same.
pub const OBITUARY_TIMEOUT: Duration = Duration::from_millis(500);
/// The number of timers that workers have set at once.
pub const MAX_TIMERS: usize = 16_384;
/// The size of one request for a timer: as much as a pipe takes in one piece.
pub const MAX_TIMER_REQUEST: usize = 4096;
/// The number of ports of a range that are tried for a worker store.
pub const MAX_STORE_PORTS: u16 = 1024;
/// Minimum interval between keep-alives to a service manager, even if it requests a shorter one.
pub const MIN_WATCHDOG: Duration = Duration::from_millis(50);
/// The size of a datagram between agents that search for each other; theirs has some two hundred
/// bytes.
pub const MAX_DATAGRAM: usize = 1024;
/// The time for one check of `ragent doctor`: an interpreter on a cold network file system takes
/// seconds, and so does a GPU driver at its first use since the machine was started.
pub const CHECK_TIMEOUT: Duration = Duration::from_secs(30);
/// The time for a killed process to be reaped, if nothing depends on it.
pub const REAP_TIMEOUT: Duration = Duration::from_secs(1);
/// The size of an interpreter's answer: two words, or a traceback.
pub const MAX_ANSWER: u64 = 64 * 1024;
/// Pause before a node that is measuring for another client is asked again.
pub const REACH_PAUSE: Duration = Duration::from_millis(500);
/// The number of nodes that `ragent doctor --peers` asks, and that each of these tries to reach. In
/// larger jobs they represent the rest.
pub const MAX_REACHED: usize = 256;
/// The number of these nodes that are asked, or tried, at the same time.
pub const REACH_AT_ONCE: usize = 32;
/// The number of connections to each, of which the fastest counts.
pub const REACH_TRIES: u32 = 3;
/// The time for a node to try all others, some of which may drop packets.
pub const REACH_TIMEOUT: Duration = Duration::from_secs(60);
/// The size of its report about them: some hundred bytes for each.
pub const MAX_REACH_LEN: usize = 256 * 1024;
/// The number of findings about peers; further ones usually have the same cause.
pub const MAX_PEER_LINES: usize = 32;
/// The size of a variable's value; Linux allows no longer arguments.
pub const MAX_VARIABLE: usize = 128 * 1024 - 1024;
/// The number of interfaces on which agents look for each other.
pub const MAX_INTERFACES: usize = 64;
/// The number of hosts that are asked without multicast: each is sent every datagram.
pub const MAX_DISCOVER_HOSTS: usize = 1024;
/// The number of names of `--discover-hosts` that are looked up at once.
pub const LOOK_UPS_AT_ONCE: usize = 64;
/// Interval between two lookups of these names.
pub const LOOK_UP_INTERVAL: Duration = Duration::from_secs(10);
/// The time for which an agent waits for the coordinator at an address that a search has returned,
/// before it searches again: a host restarts in less.
pub const SENT_TIMEOUT: Duration = Duration::from_secs(10);
/// The number of other hosts of its job that a host, or a member of it, remembers at once.
pub const MAX_RIVALS: usize = 8;
/// The number of agents that one agent remembers while it searches for a coordinator.
pub const MAX_CANDIDATES: usize = 20_000;
/// Notices that wait for a service manager that does not read; further ones are dropped.
pub const NOTICE_QUEUE: usize = 16;
/// The time for all ranks of one start to appear; a launcher starts thousands in less.
pub const PMI_TIMEOUT: Duration = Duration::from_secs(120);
/// The length of one line from a launcher; PMI-1 allows 1 KiB.
pub const MAX_PMI_LINE: usize = 4096;
/// The number of scripts between a launcher and a rank.
pub const MAX_ANCESTORS: u32 = 32;
/// The number of names in one node list of a scheduler: more than any cluster has nodes.
pub const MAX_LISTED_NODES: usize = 65_536;
/// The size of a state file that is read.
pub const MAX_STATE_FILE: u64 = 64 * 1024;
/// The number of hosts of one `ragent launch`: more agents than a coordinator accepts.
pub const MAX_HOSTS: usize = 16_384;
/// The size of a hostfile or a file of variables that is read.
pub const MAX_LIST_FILE: u64 = 4 * 1024 * 1024;
/// The number of ssh connections that one process opens at once without `--fanout`: an sshd with
/// more refuses some (`MaxStartups`), and each costs a process here.
pub const DEFAULT_FANOUT: u32 = 32;
/// The maximum of `--fanout`.
pub const MAX_FANOUT: u32 = 1024;
/// The time for ssh to reach a host without `--connect-timeout`.
pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The time for a host to start ragent once it is reached: a login shell with its home on a slow
/// disk takes seconds.
pub const GREETING_TIMEOUT: Duration = Duration::from_secs(30);
/// The number of bytes that the shell of a host may print before ragent starts.
pub const MAX_BANNER: usize = 64 * 1024;
/// The size of a message between `ragent launch` and its relays: the environment and the arguments
/// of a job, or all hosts of a tree, with each byte encoded in up to four.
pub const MAX_RELAY_FRAME: usize = 16 * 1024 * 1024;
/// The length of a forwarded line of an agent: a line of a worker as the agent cuts it, with its
/// prefix.
pub const MAX_RELAYED_LINE: usize = MAX_CONSOLE_LINE + 4096;
/// Messages that wait for a relay, a connection or the console; senders wait while it is full.
pub const RELAY_QUEUE: usize = 64;
/// Orders that wait for one connection: a handful in all. Further ones are dropped.
pub const ORDER_QUEUE: usize = 64;
/// The size of the end of ssh's output that the report of its failure contains.
pub const SSH_LAST_WORDS: usize = 1024;
/// Interval of keep-alives to a relay from the process that sends its orders.
pub const ORDER_KEEP_ALIVE: Duration = Duration::from_secs(10);
/// Silence after which a relay considers the launching host lost: long enough for a user who has
/// stopped `ragent launch` with Ctrl-Z to continue it.
pub const ORDER_SILENCE: Duration = Duration::from_secs(300);
/// The number of connections for which the usual limit of 1024 open files is enough: each has
/// three.
pub const PLAIN_CONNECTIONS: usize = 256;
/// The number of attempts for a connection that was refused for a reason that may pass: by an sshd,
/// especially of a jump host, that is busy with others (`MaxStartups`).
pub const SSH_ATTEMPTS: u32 = 4;
/// The unit of the increasing pauses between these attempts.
pub const SSH_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// The number of hosts for which a launch warns that another host could not reach them: further
/// ones usually have the same cause.
pub const DETOUR_WARNINGS: usize = 16;
/// The time for connections to end after the last order.
pub const HANG_UP_TIMEOUT: Duration = Duration::from_secs(5);
/// The time for which agents may stay after one of them has reported that the job has succeeded:
/// they learn it at once, or are evicted within a lease (3 s), and have nothing left to do.
pub const SUCCESS_TIMEOUT: Duration = Duration::from_secs(10);
/// The time for which started hosts wait for each other if some were not reached: all of them start
/// at the same moment.
pub const LAUNCH_LAST_CALL: Duration = Duration::from_secs(5);
/// The memory of the store on the endpoint's port: enough for a few keys of clients that probe it.
pub const MAX_PLAIN_STORE: usize = 64 * 1024 * 1024;
/// Returns how many connections to a store may be silent at once if a round has `world_size`
/// workers: each opens a few at the same time, and a resolver that does not answer delays each for
/// a while.
pub fn silent_store_clients(world_size: u32) -> usize {
    usize::try_from(world_size).unwrap_or(usize::MAX).saturating_mul(4).saturating_add(256)
}
