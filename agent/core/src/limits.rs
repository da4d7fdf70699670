//! Every bound of the node's machines, each with its reason.

use std::time::Duration;

/// Minimum interval between a node's progress messages to the coordinator: 10,000
/// nodes stay below 5,000 messages a second.
pub const SAID_INTERVAL: Duration = Duration::from_secs(2);
/// How often a group that may hang is looked at: not so often that looking, which reads three small
/// files a process, costs anything, and often enough that a hang is reported in time.
pub const HANG_LOOK_MIN: Duration = Duration::from_millis(250);
/// The longest time between two looks.
pub const HANG_LOOK_MAX: Duration = Duration::from_secs(10);
/// A worker is busy that uses more than this part of a processor. Threads that only wait with a
/// time-out, as of NCCL's watchdog or a data loader, stay below a thousandth.
pub const BUSY_SHARE: u32 = 50;
/// How long a keep-alive may stay unanswered before a second connection is tried: two are missing then,
/// and three quarters of the lease are left.
pub const SUSPECT_AFTER: Duration = Duration::from_millis(600);
/// The longest time for which a keep-alive may stay unanswered, when that has been doubled: a quarter of
/// the lease is left for another connection.
pub const SUSPECT_AFTER_MAX: Duration = Duration::from_millis(1_800);
/// An echo that takes less is prompt: the coordinator has no backlog worth speaking of.
pub const PROMPT_ECHO: Duration = Duration::from_millis(300);
/// The pause after the first attempt that failed; it doubles with each further one.
pub const REDIAL_FIRST: Duration = Duration::from_millis(125);
/// The longest pause while connections are refused or time out, which costs the coordinator nothing: a
/// service manager takes about that long to start it again.
pub const REDIAL_MAX: Duration = Duration::from_millis(500);
/// The longest pause while connections are made but not welcomed: each of them is work for a
/// coordinator that may have too much of it.
pub const REDIAL_CONNECTED_MAX: Duration = Duration::from_secs(4);
/// How long an attempt may take to be connected as long as there is a lease to save: longer than a slow
/// resolver is waited for, and short enough for four attempts in one lease.
pub const CONNECT_PATIENCE: Duration = Duration::from_millis(500);
/// How long an attempt may take to be connected in any case: a driver gives up by itself after a look-up
/// (6 s), a connection (1.8 s) and a handshake (3 s).
pub const CONNECT_LIMIT: Duration = Duration::from_secs(12);
/// How long a keeper may take to kill and reap a tree: a worker with hundreds of GiB takes seconds
/// to be freed by the kernel.
pub const SWEEP_TIMEOUT: Duration = Duration::from_secs(60);
/// How often a keeper with workers is pinged.
pub const KEEPER_PING_INTERVAL: Duration = Duration::from_secs(1);
/// How long a ping may stay without an answer: a hung keeper is reported within two seconds.
pub const KEEPER_PATIENCE: Duration = Duration::from_millis(900);
/// How long after the end of the lease a keeper may take to react: half of what the coordinator waits
/// beyond it.
pub const KEEPER_LEASE_MARGIN: Duration = Duration::from_millis(300);
/// Causes for which the coordinator is not reached that are reported between two welcomes: more than a
/// network has ways to fail.
pub const MAX_REPORTED_CAUSES: usize = 16;
