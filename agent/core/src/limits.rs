//! Sets the limits of the node's machines, each with its reason.

use std::time::Duration;

/// Minimum interval between a node's progress messages to the coordinator: 10,000 nodes stay below 5,000
/// messages a second.
pub const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);
/// Minimum interval at which training steps of the workers are passed on, and captured output is searched for
/// them. It is several times between two keep-alives, but too rare to cost anything.
pub const STEP_INTERVAL: Duration = Duration::from_millis(100);
/// The time until a node that waits requests the reason, and between two requests. Nodes of a job rarely start
/// in the same second, and a user learns soon enough that something has changed.
pub const WAIT_QUESTION: Duration = Duration::from_secs(5);
/// The time after which the reason of a wait is reported again although it is still the same: the time that is
/// left has changed.
pub const WAIT_REPEAT: Duration = Duration::from_secs(30);
/// Minimum interval at which a group that may hang is examined. Reading three small files per process costs
/// nothing at this rate, and a hang is reported in time.
pub const HANG_LOOK_MIN: Duration = Duration::from_millis(250);
/// Maximum interval at which a group that may hang is examined.
pub const HANG_LOOK_MAX: Duration = Duration::from_secs(10);
/// A worker is busy if it uses more than one part in this many of a processor. Threads that only
/// wait with a time-out, such as NCCL's watchdog or a data loader, stay below a thousandth.
pub const BUSY_SHARE: u32 = 50;
/// The interval at which a stopped worker that others wait for is examined.
pub const STOPPED_LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The time for which such a worker is stopped before it is killed: a person who has stopped it by mistake has noticed.
pub const STOPPED_TIME: Duration = Duration::from_secs(30);
/// The most nodes that look at their workers at the same moment. As many answers of 2 KiB are half a megabyte.
pub const LOOKS_AT_ONCE: u32 = 256;
/// The time over which more nodes spread their looks: 10,000 nodes stay below 5,000 answers a second.
pub const LOOK_SPREAD: Duration = Duration::from_secs(2);
/// A second connection is tried after this time without an answer to a keep-alive. Two answers are missing
/// then, and three quarters of the lease are left.
pub const SUSPECT_AFTER: Duration = Duration::from_millis(600);
/// The maximum of [`SUSPECT_AFTER`] after doubling. A quarter of the lease is then left for another
/// connection.
pub const SUSPECT_AFTER_MAX: Duration = Duration::from_millis(1_800);
/// An echo within this time is prompt: the coordinator has no considerable backlog.
pub const PROMPT_ECHO: Duration = Duration::from_millis(300);
/// The pause after the first failed attempt. It doubles with each further one.
pub const REDIAL_FIRST: Duration = Duration::from_millis(125);
/// The longest pause while connections are refused or time out. Such attempts cost the coordinator nothing,
/// and a service manager takes about that long to restart it.
pub const REDIAL_MAX: Duration = Duration::from_millis(500);
/// The longest pause while connections are made but not welcomed. Each of them is work for a coordinator that
/// may have too much of it.
pub const REDIAL_CONNECTED_MAX: Duration = Duration::from_secs(4);
/// The time for an attempt to connect while a lease can be saved. It is longer than the wait for a slow
/// resolver, and allows four attempts in one lease.
pub const CONNECT_PATIENCE: Duration = Duration::from_millis(500);
/// The time for an attempt to connect in any case. A driver gives up earlier, after a look-up (6 s), a
/// connection (1.8 s) and a handshake (3 s).
pub const CONNECT_LIMIT: Duration = Duration::from_secs(12);
/// The time that a keeper has to kill and reap a process tree. The kernel takes seconds to free a worker with
/// hundreds of GiB.
pub const CLEANUP_TIMEOUT: Duration = Duration::from_secs(60);
/// The interval between pings to a keeper with workers.
pub const KEEPER_PING_INTERVAL: Duration = Duration::from_secs(1);
/// A ping may be sent this much early, together with a renewal of the lease. It is the interval of
/// keep-alives, because each echo renews the lease.
pub const KEEPER_PING_EARLY: Duration = Duration::from_millis(300);
/// A keeper is reported after this time without an answer to a ping. So a hung keeper is reported within two
/// seconds.
pub const KEEPER_PATIENCE: Duration = Duration::from_millis(900);
/// The time that a keeper has to react after the end of the lease: half of what the coordinator waits beyond
/// it.
pub const KEEPER_LEASE_MARGIN: Duration = Duration::from_millis(300);
/// The number of causes for an unreachable coordinator that are reported between two welcomes: more than a
/// network has ways to fail.
pub const MAX_REPORTED_CAUSES: usize = 16;
/// The granularity of file times, which follow the kernel's tick. A file written so shortly before a group
/// began to stop cannot be distinguished from a consequence of the stop.
pub const FILE_TIME_GRANULARITY: Duration = Duration::from_millis(10);
/// The memory that a standby is assumed to need until one has reported its own, in bytes. With torch and
/// torch._dynamo imported, a process has 0.37 GB of its own.
pub const STANDBY_BYTES: u64 = 400 * 1024 * 1024;
/// The interval between readings of the available memory, while there are standbys or too little memory for
/// them. Workers take tens of seconds to fill the memory of a node, and a reading takes two files.
pub const STANDBY_MEMORY_INTERVAL: Duration = Duration::from_secs(10);
/// A younger round gets no new standbys. Its workers use the processors for their own start, and the rounds
/// of a crash loop rarely become older.
pub const STANDBY_ROUND_AGE: Duration = Duration::from_secs(10);
/// A round without heartbeats gets new standbys from this age. Most workers have finished their imports and
/// first steps by then.
pub const STANDBY_ROUND_PATIENCE: Duration = Duration::from_secs(30);
/// Missing standbys are started at once after this time without a round. The next round of a crash loop
/// follows within milliseconds, and an import takes longer than this pause.
pub const STANDBY_IDLE: Duration = Duration::from_secs(1);
/// The time limit for the import of one standby. A first import from a shared file
/// system takes minutes. An import that takes longer than this probably hangs.
pub const STANDBY_IMPORT_TIMEOUT: Duration = Duration::from_secs(600);
/// The pause after the first start of a standby that fails for lack of processes or memory. It doubles with
/// each further failure. Processes of another job on the machine end within seconds.
pub const STANDBY_START_PAUSE: Duration = Duration::from_secs(1);
/// The longest of these pauses. One attempt per minute costs little, and a round usually lasts longer.
pub const STANDBY_START_PAUSE_MAX: Duration = Duration::from_secs(60);
/// The number of such failures in a row after which they are reported. A brief shortage is not.
pub const STANDBY_START_FAILURES: u32 = 3;
/// The number of standbys of one slot that may end in a row without a round. One may be killed by hand or for
/// lack of memory. A third such end has a lasting cause.
pub const MAX_STANDBY_ENDS: u32 = 3;
/// The time that a node which joins a running job waits for its standbys. An import from a shared file system
/// usually takes less. A node that needs longer joins without them.
pub const IMPORT_TIMEOUT: Duration = Duration::from_secs(60);
/// Different secrets of this process and the coordinator are an error after this time. A process reads a
/// changed file after 1 s.
pub const MISMATCH_PATIENCE: Duration = Duration::from_secs(3);
/// The time for which a new round waits for a reading of the hardware, which takes milliseconds once the driver is in use.
pub const HEALTH_READING: Duration = Duration::from_millis(200);
/// The longest pause between checks on a node without workers. A repaired machine gets a place soon after, and a check takes less than a
/// second.
pub const HEALTH_INTERVAL: Duration = Duration::from_secs(600);
/// The pause after a run of the program without a result.
pub const HEALTH_AGAIN: Duration = Duration::from_secs(60);
/// The reports of the hardware that are remembered: a few for each GPU and port of a machine.
pub const HARDWARE_NOTED_MAX: usize = 64;
/// The time after a serious error of a GPU in which its other errors count as consequences. They follow within seconds.
pub const HARDWARE_CONSEQUENCES: Duration = Duration::from_secs(60);
/// The ports that are remembered as active. Machines have up to 18.
pub const PORTS_MAX: usize = 64;
