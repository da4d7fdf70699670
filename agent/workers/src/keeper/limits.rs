//! The limits of `keeper`, each with its reason.
//!
//! Sizes are in bytes. Times, sizes and numbers are maxima unless stated otherwise.

use std::time::Duration;

pub(crate) use ragent_base::limits::{MAX_ENDPOINT_ADDRESSES, MAX_KEEPER_FRAME};

/// Size of one read of orders. An order to start a worker has a few KiB.
pub(crate) const READ: usize = 16 * 1024;
/// Signals that are handled before orders and the lease have their turn again. A worker may send signals in a loop. The kernel keeps each
/// of the four kinds once, so 8 is more than can be pending at once.
pub(crate) const SIGNALS: usize = 8;
/// Repetitions of a fork per round if the system lacks memory or process ids. A system that lacks
/// them for a second is overloaded.
pub(crate) const FORK_ATTEMPTS: u32 = 10;
/// Interval between these attempts.
pub(crate) const FORK_INTERVAL: Duration = Duration::from_millis(100);
/// Descriptors that are sent with one order to start a worker: three, and at most four for each of two streams.
pub(crate) const SPAWN_FDS: usize = 11;
/// Total time that a keeper waits for consoles that accept no output. On an overloaded machine their readers may get no CPU for a second.
/// The death notice is sent before, so no other node waits for this.
pub(crate) const SPILLED_TIMEOUT: Duration = Duration::from_secs(5);
/// Time that a keeper tries to deliver its death notice: less than the lease, which proves the same.
pub(crate) const DEATH_NOTICE_TIMEOUT: Duration = Duration::from_millis(500);
/// Size of the variables of one worker that are sent to a standby: below the smallest default of a
/// socket's buffer, so that the message never waits.
pub(crate) const MAX_STANDBY_MESSAGE: usize = 128 * 1024;
/// Reports that are read from one standby. The hook sends two.
pub(crate) const STANDBY_REPORTS: usize = 8;
/// Size of a report of a standby. The hook sends at most 60,000 bytes.
pub(crate) const MAX_STANDBY_REPORT: usize = 64 * 1024;
