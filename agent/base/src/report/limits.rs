//! The limits of `report`, each with its reason. Sizes are in bytes; times, sizes and numbers
//! are maxima unless stated otherwise.

use std::time::Duration;

/// The size of events that wait for a blocked console: those of thousands of workers.
pub(crate) const MAX_PENDING_EVENTS: usize = 4 * 1024 * 1024;
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
/// The time that a start is not shown on a terminal: most restarts take less, and a block that appears and disappears
/// distracts.
pub(crate) const START_DELAY: Duration = Duration::from_millis(500);
/// The time between two drawings of the block: its times have seconds.
pub(crate) const START_INTERVAL: Duration = Duration::from_secs(1);
/// Rows for nodes in different states: with all others at most [`START_LINES`].
pub(super) const START_STATES: usize = 3;
/// Lines for the reason of a wait: those of a long reason on 80 columns.
pub(super) const START_REASON: usize = 2;
/// Lines of the block: few of the 24 rows of a usual terminal.
pub(super) const START_LINES: usize = 8;
/// Bytes of a name or of a reason in the block: more than a wide terminal shows.
pub(super) const START_TEXT: usize = 512;
/// The time that the removal of the block is awaited before workers start: a terminal takes less than a millisecond,
/// unless it is stopped.
pub(crate) const START_FLUSH: Duration = Duration::from_millis(500);
