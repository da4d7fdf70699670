//! The only place where a clock is read.

use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

/// Returns the current time, for machines; follows tokio's paused clock in tests.
#[expect(clippy::disallowed_methods, reason = "this is the clock")]
pub fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Returns the current time outside a runtime.
#[expect(clippy::disallowed_methods, reason = "this is the clock")]
pub fn now_blocking() -> Instant {
    Instant::now()
}

/// Returns the time since boot, suspended time included, in nanoseconds; comparable between
/// processes of one machine.
pub fn boot_time() -> Duration {
    // The clock exists on every Linux since 2.6.39, so this cannot fail on a supported one.
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::MAX, Duration::from)
}

/// Waits until `deadline`, or for ever if there is none.
///
/// Returns at once if `deadline` has passed: a timer counts whole milliseconds, and would wait for
/// one.
pub async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) if deadline <= now() => {}
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

/// Returns the local time of day, for people at a terminal: `14:03:07`.
pub(crate) fn local_time_of_day() -> String {
    jiff::Zoned::now().strftime("%H:%M:%S").to_string()
}

/// Returns the time since 1970, for people and files; compared only to compute the age of files.
#[expect(clippy::disallowed_methods, reason = "this is the clock")]
pub fn wall_time() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}
