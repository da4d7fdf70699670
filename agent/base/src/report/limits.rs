//! The limits of `report`, each with its reason. Sizes are in bytes; times, sizes and numbers
//! are maxima unless stated otherwise.

use std::time::Duration;

/// Log lines that wait for the console: about those of a busy minute at level `info`.
pub(crate) const LOG_QUEUE: usize = 1024;
/// Requests to write or remove `agent.log` that wait for the disk.
pub(crate) const LOG_FILE_QUEUE: usize = 4;
/// Bytes of recent log lines that are kept in memory: about a hundred rounds.
pub(crate) const RECENT_LINES: usize = 256 * 1024;
/// The time within which workers may stop after a signal without a line on the console: most do, and a reader
/// waits longer only with an explanation.
pub(crate) const QUICK_STOP: Duration = Duration::from_secs(1);
/// Minimum interval between keep-alives to a service manager, even if it requests a shorter one.
pub(crate) const MIN_WATCHDOG: Duration = Duration::from_millis(50);
/// Notices that wait for a service manager that does not read; further ones are dropped.
pub(crate) const NOTICE_QUEUE: usize = 16;
/// The time that the smallest margin of a lease is remembered: more than the usual interval between two scrapes.
pub(super) const MARGIN_WINDOW: Duration = Duration::from_secs(60);
