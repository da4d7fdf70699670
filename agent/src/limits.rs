//! Every bound of the agent, each with its reason.

use std::time::Duration;

pub use ragent_core::limits::SWEEP_TIMEOUT;

/// Interval between attempts to find a coordinator at an endpoint.
pub const LOCATE_INTERVAL: Duration = Duration::from_millis(500);
/// Pause of a listener after the system refused a connection or a datagram for lack of memory or
/// descriptors.
pub const RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// A datagram of a worker to its service manager; systemd takes 4 KiB too.
pub const MAX_NOTICE: usize = 4096;
/// How long stacks of hung workers may take: they are killed afterwards in any case.
pub const STACKS_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a worker has to print its stack after a signal.
pub const STACK_SIGNAL_TIME: Duration = Duration::from_secs(1);
/// Processes of a worker, and threads of a process, whose stacks are taken.
pub const STACK_PROCESSES: usize = 256;
/// The longest path that a Unix socket can have, its end included.
pub const MAX_SOCKET_PATH: usize = 108;
/// How long a coordinator waits for the disk of its state file before it goes on: a good part of what
/// a lease can spare, and far more than a disk takes that is well.
pub const STATE_FILE_PATIENCE: Duration = Duration::from_secs(1);
/// How often a coordinator rewrites its state file, so that its age shows whether agents may still wait
/// for the job: one small write in place, and far more often than they give up.
pub const STATE_FILE_INTERVAL: Duration = Duration::from_secs(10);
/// Entries of the state folder that a cleaning examines: the files of a thousand killed jobs.
pub const MAX_STATE_ENTRIES: usize = 4096;
/// Age at which a file of that folder that does not belong to a job is removed: longer than any process
/// takes between two files that belong together.
pub const FORGOTTEN_AFTER: Duration = Duration::from_secs(3600);
/// The granularity of file times, which follow the kernel's tick: a file written within it before a
/// group began to stop cannot be distinguished from an echo of the stop.
pub const FILE_TIME_GRANULARITY: Duration = Duration::from_millis(10);
/// How long reading what a failed worker has left may take.
pub const LAST_WORDS_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a resolver may take before an agent that dials again uses the address that it knows.
pub const RESOLVE_PATIENCE: Duration = Duration::from_millis(250);
/// How often in a round a fork is tried again that the system refuses for want of memory or numbers,
/// and how long after one another: what is short of them for longer than a second is short of more.
pub const FORK_ATTEMPTS: u32 = 10;
/// See [`FORK_ATTEMPTS`].
pub const FORK_INTERVAL: Duration = Duration::from_millis(100);
/// Files that an agent has open without workers, and some to spare.
pub const MIN_OPEN_FILES: u64 = 64;
/// Files that it has open for each worker at most, while they are started: thirteen for each of two streams
/// that go to a file and, line by line, to the console; a socket; and what is on its way to the keeper.
pub const OPEN_FILES_PER_WORKER: u64 = 52;
/// How often a driver is asked whether a GPU is free: a call takes tens of microseconds.
pub const HELD_GPU_INTERVAL: Duration = Duration::from_millis(20);
/// What a keeper copies at once of a pipe that its agent has not emptied: what any pipe takes whole
/// where it is ready to be written to.
pub const SPILLED_CHUNK: usize = 4096;
/// Descriptors that go with one order to start a worker: three, and at most ten for each of two streams.
pub const SPAWN_FDS: usize = 32;
/// How long a keeper waits in all for consoles that take nothing.
pub const SPILLED_TIMEOUT: Duration = Duration::from_millis(500);
/// How long the files of a round may take to be opened before workers start without them: a disk that
/// takes a minute for it is gone.
pub const FILES_TIMEOUT: Duration = Duration::from_secs(60);
/// How much longer than it was asked to a driver may take to say who holds the GPUs.
pub const DRIVER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a cgroup that was killed may take to be empty: less than a lease.
pub const LEFTOVER_TIMEOUT: Duration = Duration::from_secs(2);
/// A file that is read whole: those of `/sys` have a page, configurations a few; as much as Kubernetes
/// takes in a ConfigMap.
pub const MAX_SMALL_FILE: u64 = 1024 * 1024;
/// Workers on one node: more than any machine has processors.
pub const MAX_LOCAL_WORLD_SIZE: u32 = 4096;
/// Pods of a job: no more agents than that are promised to work.
pub const MAX_PODS: u32 = 10_000;
/// What an endpoint may resolve to; a round-robin name has a few addresses.
pub const MAX_ENDPOINT_ADDRESSES: usize = 16;
/// One attempt to open a connection. A reachable host answers in less than a round trip; one lost
/// SYN is sent again after 1 s.
pub const DIAL_TIMEOUT: Duration = Duration::from_millis(1800);
/// One look-up of a name; libc's resolver gives up after 5 s for each server.
pub const RESOLVE_TIMEOUT: Duration = Duration::from_secs(6);
/// How long whoever answers the endpoint may take to say who it is.
pub const IDENTIFY_TIMEOUT: Duration = Duration::from_secs(3);
/// What an answer to "who are you" may have; ours has a few hundred bytes.
pub const MAX_IDENTITY_LEN: usize = 4096;
/// Messages to or from one stream that wait for their reader. A stream that falls this far behind
/// is dropped; both sides are level, so its successor loses nothing.
pub const STREAM_QUEUE: usize = 64;
/// Inputs that wait for the coordinator's machine; senders wait where it is full.
pub const COORDINATOR_QUEUE: usize = 1024;
/// Commands and reports between the agent's tasks.
pub const TASK_QUEUE: usize = 256;
/// Events that wait for a console or a file that is blocked: those of thousands of workers.
pub const MAX_PENDING_EVENTS: usize = 4 * 1024 * 1024;
/// Chunks of output that wait for the console; workers wait where it is full, as they would for
/// the console itself.
pub const CONSOLE_QUEUE: usize = 64;
/// Log lines that wait for the console: what a busy minute of `info` has.
pub const LOG_QUEUE: usize = 1024;
/// Lines of workers on their way to the console: some chunks with a prefix for each line. Few enough for a
/// user with many agents, whose pipes the kernel bounds (`pipe-user-pages-soft`).
pub const STAGED_LINES: usize = 512 * 1024;
/// One read from a worker's pipe where it goes to a file: two threads take turns with each, or the worker and one.
pub const TEE_CHUNK: usize = 256 * 1024;
/// Chunks of one stream that are copied before another stream's turn.
pub const COPY_BURST: usize = 16;
/// One read from a worker's pipe: the kernel's pipe buffer.
pub const CONSOLE_CHUNK: usize = 64 * 1024;
/// What is kept of a worker's stderr for the report; with the rest a failure stays near 4 KiB.
pub const STDERR_TAIL: usize = 3 * 1024;
/// What is kept of a worker's error message.
pub const ERROR_MESSAGE: usize = 2 * 1024;
/// Attempts whose folders stay in a temporary folder although nothing was written there.
pub const KEPT_ATTEMPTS: u32 = 16;
/// Entries of the folder for temporary files that are looked at when an agent starts.
pub const MAX_TEMP_ENTRIES: usize = 4096;
/// How old a temporary folder is that nobody uses: one that is younger may not be locked yet.
pub const UNUSED_AFTER: Duration = Duration::from_secs(60);
/// An error file that is read at all; a traceback has a few KiB.
pub const MAX_ERROR_FILE: u64 = 1024 * 1024;
/// A line without an end is printed in pieces of this size when it carries a prefix.
pub const MAX_CONSOLE_LINE: usize = 64 * 1024;
/// A message between agent and keeper: Linux takes at most 2 MiB of arguments, and JSON spells each
/// byte as up to four.
pub const MAX_KEEPER_FRAME: usize = 16 * 1024 * 1024;
/// How long a connection may take from its beginning to its first whole request, body included: a few
/// lost packets, and no more.
pub const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The same for a client of a store: torch resolves the names of both ends before it sends a byte, and a
/// resolver that does not answer takes 6 s and more for each.
pub const STORE_SILENCE: Duration = Duration::from_secs(60);
/// How long each later request may take, body included.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection may be open without a request.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// How often an HTTP/2 peer is pinged.
pub const PING_INTERVAL: Duration = Duration::from_secs(10);
/// How long an HTTP/2 peer may take to answer a ping: as long as the longest lease, which must not end
/// because of this.
pub const PING_TIMEOUT: Duration = Duration::from_secs(60);
/// How long an unknown connection may take before it counts towards the quotas: a new member sends its
/// request at once.
pub const STRANGER_GRACE: Duration = Duration::from_secs(1);
/// Unknown connections without a request, in all: more than occur by accident, and a small part of all places.
pub const MAX_STRANGERS: usize = 512;
/// The same per address, or IPv6 network: one host must not use up the quota of all.
pub const MAX_STRANGERS_PER_ADDRESS: usize = 64;
/// File descriptors reserved for other uses than connections, where the limit allows it.
pub const SPARE_FILES: usize = 1024;
/// Queued progress reports of connections to their port; connections wait while it is full.
pub const PROGRESS_QUEUE: usize = 256;
/// Minimum interval between two renderings of a job's state: all waiting clients get the same one.
pub const STATUS_INTERVAL: Duration = Duration::from_millis(100);
/// How long a client of the store waits for one, where a port serves another one each round: workers
/// of other nodes may be faster than the node that serves it.
pub const STORE_DOOR_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a coordinator that stood still listens before it expires anybody: agents dial again
/// within 600 ms, and twice a second until they are connected.
pub const CATCH_UP: Duration = Duration::from_millis(1000);
/// Addresses of one node; as many as the wire takes.
pub const MAX_ADDRESSES: usize = 64;
/// Connections in all on the agent's port; 10,000 agents with a spare each.
pub const MAX_CONNECTIONS: usize = 20_480;
/// How long the last words may take to leave when everything else is done.
pub const FAREWELL_TIMEOUT: Duration = Duration::from_secs(2);
/// How much longer than its agents may take to stop a coordinator is waited for: a lease, a farewell,
/// and time to spare.
pub const SEE_OFF_MARGIN: Duration = Duration::from_secs(10);
/// How long the keeper may take to be there, and to go.
pub const KEEPER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a keeper tries to deliver its obituary: less than the lease that proves the same.
pub const OBITUARY_TIMEOUT: Duration = Duration::from_millis(500);
/// Timers that workers have set at once.
pub const MAX_TIMERS: usize = 16_384;
/// One request for a timer: as much as a pipe takes in one piece.
pub const MAX_TIMER_REQUEST: usize = 4096;
/// Ports of a pinned range that are tried for a worker store.
pub const MAX_STORE_PORTS: u16 = 1024;
/// How often a service manager is told at most that the agent lives, whatever it asks for.
pub const MIN_WATCHDOG: Duration = Duration::from_millis(50);
/// What agents that look for each other say at once; theirs has some two hundred bytes.
pub const MAX_DATAGRAM: usize = 1024;
/// How long one check of `ragent doctor` may take: an interpreter on a cold network file system takes
/// seconds, and so does a driver of GPUs that nobody has used since the machine was started.
pub const CHECK_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a process that was killed may take to be gone, where nothing depends on it.
pub const REAP_TIMEOUT: Duration = Duration::from_secs(1);
/// What an interpreter may say about itself: two words, or a traceback.
pub const MAX_ANSWER: u64 = 64 * 1024;
/// How long after one another a node is asked again that is measuring for somebody else.
pub const REACH_PAUSE: Duration = Duration::from_millis(500);
/// Nodes that one node tries to reach for `ragent doctor --peers`, and that are asked: in larger jobs
/// these stand for the rest.
pub const MAX_REACHED: usize = 256;
/// How many of them at once.
pub const REACH_AT_ONCE: usize = 32;
/// Connections to each, of which the fastest counts.
pub const REACH_TRIES: u32 = 3;
/// How long a node may take to try all others, of which some may swallow packets.
pub const REACH_TIMEOUT: Duration = Duration::from_secs(60);
/// What it says of them: some hundred bytes for each.
pub const MAX_REACH_LEN: usize = 256 * 1024;
/// Lines about peers; what is wrong with more is the same.
pub const MAX_PEER_LINES: usize = 32;
/// A variable's value; Linux takes no longer words.
pub const MAX_VARIABLE: usize = 128 * 1024 - 1024;
/// Interfaces on which agents look for each other.
pub const MAX_INTERFACES: usize = 64;
/// Hosts that are asked where there is no multicast: each is sent every datagram.
pub const MAX_DISCOVER_HOSTS: usize = 1024;
/// Names of `--discover-hosts` that are looked up at once, and how long after one another.
pub const LOOK_UPS_AT_ONCE: usize = 64;
/// See [`LOOK_UPS_AT_ONCE`].
pub const LOOK_UP_INTERVAL: Duration = Duration::from_secs(10);
/// How long somebody may not answer where an agent was sent before it looks elsewhere too: a host that
/// is started again takes less.
pub const SENT_TIMEOUT: Duration = Duration::from_secs(10);
/// Other hosts of its job that a host, or a member of it, remembers at once.
pub const MAX_RIVALS: usize = 8;
/// Agents that one agent remembers while it looks for a coordinator.
pub const MAX_CANDIDATES: usize = 20_000;
/// What waits for a service manager that takes nothing; more is not said.
pub const NOTICE_QUEUE: usize = 16;
/// How long the ranks of one start may take to be there; a launcher starts thousands in less.
pub const PMI_TIMEOUT: Duration = Duration::from_secs(120);
/// One line of a launcher; PMI-1 allows 1 KiB.
pub const MAX_PMI_LINE: usize = 4096;
/// Scripts that may stand between a launcher and a rank.
pub const MAX_ANCESTORS: u32 = 32;
/// Names that one list of a scheduler stands for: more than any cluster has nodes.
pub const MAX_LISTED_NODES: usize = 65_536;
/// A state file that is read at all.
pub const MAX_STATE_FILE: u64 = 64 * 1024;
/// Hosts of one `ragent launch`: more than a coordinator takes agents.
pub const MAX_HOSTS: usize = 16_384;
/// A hostfile or a file of variables that is read at all.
pub const MAX_LIST_FILE: u64 = 4 * 1024 * 1024;
/// Connections of ssh that one process opens unless `--fanout` says otherwise: an sshd that is asked
/// for more at once refuses some (`MaxStartups`), and each costs a process here.
pub const DEFAULT_FANOUT: u32 = 32;
/// The most that `--fanout` takes.
pub const MAX_FANOUT: u32 = 1024;
/// How long ssh has to reach a host unless `--connect-timeout` says otherwise.
pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How much longer a host may take to start ragent once it is reached: a login shell whose home is on a
/// slow disk takes seconds.
pub const GREETING_TIMEOUT: Duration = Duration::from_secs(30);
/// What shells of hosts may print before ragent says a word.
pub const MAX_BANNER: usize = 64 * 1024;
/// A message between `ragent launch` and its relays: the environment and the words of a job, or all
/// hosts of a tree, with each byte spelled as up to four.
pub const MAX_RELAY_FRAME: usize = 16 * 1024 * 1024;
/// A line of an agent on its way: a line of a worker as the agent cuts it, with its prefix.
pub const MAX_RELAYED_LINE: usize = MAX_CONSOLE_LINE + 4096;
/// Messages that wait for a relay, a connection or the console; whoever has more of them waits.
pub const RELAY_QUEUE: usize = 64;
/// Orders that wait for one connection: a handful in all, and what has none left is not served.
pub const ORDER_QUEUE: usize = 64;
/// What is kept of ssh's words for the report that it failed.
pub const SSH_LAST_WORDS: usize = 1024;
/// How often whoever gives a relay its orders says that it is still there.
pub const ORDER_KEEP_ALIVE: Duration = Duration::from_secs(10);
/// After what silence a relay takes the launching host for gone: long enough for somebody who has
/// stopped `ragent launch` with Ctrl-Z to think again.
pub const ORDER_SILENCE: Duration = Duration::from_secs(300);
/// Connections for which any process may open files enough: the usual limit is 1024, and each has three.
pub const PLAIN_CONNECTIONS: usize = 256;
/// How often a connection is tried that was refused in a way that may pass, and how long after one
/// another: an sshd, of a jump host above all, that is busy with others (`MaxStartups`).
pub const SSH_ATTEMPTS: u32 = 4;
/// See [`SSH_ATTEMPTS`].
pub const SSH_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// How long connections may take to end when all is said.
pub const HANG_UP_TIMEOUT: Duration = Duration::from_secs(5);
/// How long agents may stay once one of them has said that the job has succeeded: they hear it at once,
/// or are evicted within a lease (3 s), and have nothing left to do.
pub const SUCCESS_TIMEOUT: Duration = Duration::from_secs(10);
/// How long hosts that are told to start may wait for each other where some were not reached: they
/// are all told in the same moment.
pub const LAUNCH_LAST_CALL: Duration = Duration::from_secs(5);
/// Memory of the store on the endpoint's port: enough for a few keys of clients that probe it.
pub const MAX_PLAIN_STORE: usize = 64 * 1024 * 1024;
/// Connections to a store that may be silent at once, where a round has `world_size` workers: each
/// opens a few, all of them at once, and a resolver that does not answer holds up each for a while.
pub fn silent_store_clients(world_size: u32) -> usize {
    usize::try_from(world_size).unwrap_or(usize::MAX).saturating_mul(4).saturating_add(256)
}
