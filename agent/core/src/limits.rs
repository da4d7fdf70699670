//! Every bound of the node's machines, each with its reason.

use std::time::Duration;

/// How often at most a node tells the coordinator what its workers say of their progress: 10,000
/// nodes stay below 5,000 messages a second.
pub const SAID_INTERVAL: Duration = Duration::from_secs(2);
/// How often a group that may hang is looked at: not so often that looking, which reads three small
/// files a process, costs anything, and often enough that a hang is not told much too late.
pub const HANG_LOOK_MIN: Duration = Duration::from_millis(250);
/// The longest time between two looks.
pub const HANG_LOOK_MAX: Duration = Duration::from_secs(10);
/// A worker is busy that uses more than this part of a processor. Threads that only wait with a
/// time-out, as of NCCL's watchdog or a data loader, stay below a thousandth.
pub const BUSY_SHARE: u32 = 50;
/// A fresh attempt to reach a coordinator that may be there: as architecture.md, section 4.
pub const REDIAL_INTERVAL: Duration = Duration::from_millis(250);
/// The same while it is known to be gone: a service manager takes about that long to restart it.
pub const REDIAL_INTERVAL_LOST: Duration = Duration::from_millis(500);
/// How long a keep-alive may stay unanswered before a second connection is tried.
pub const SUSPECT_AFTER: Duration = Duration::from_millis(600);
/// Attempts under way at once: those of one dial time-out at one redial interval.
pub const MAX_DIALS: usize = 8;
/// How long a keeper may take to kill and reap a tree: a worker with hundreds of GiB takes seconds
/// to be freed by the kernel.
pub const SWEEP_TIMEOUT: Duration = Duration::from_secs(60);
