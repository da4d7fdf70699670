//! The only place where a clock is read.
//!
//! `Instant::now` does not advance while the machine is suspended. Leases must include that time, because
//! others have applied their end meanwhile, so `CLOCK_BOOTTIME` is read instead. In a virtual machine
//! that its hypervisor pauses, no clock includes the pause.

#[cfg(any(test, feature = "testing"))]
use std::sync::atomic::{AtomicBool, Ordering};
use std::{
    sync::OnceLock,
    time::{Duration, Instant},
};

use nix::time::{ClockId, clock_gettime};

/// True once [`include_suspensions`] was called.
#[cfg(any(test, feature = "testing"))]
static IS_PROGRAM: AtomicBool = AtomicBool::new(false);

/// Selects the clock of the program, which includes suspensions. Builds for tests have tokio's clock until then, as unit tests
/// pause it.
pub fn include_suspensions() {
    #[cfg(any(test, feature = "testing"))]
    IS_PROGRAM.store(true, Ordering::Relaxed);
}

/// Returns true if the kernel's clock is read. False in builds for tests until [`include_suspensions`] is called.
pub(super) fn is_real() -> bool {
    #[cfg(any(test, feature = "testing"))]
    return IS_PROGRAM.load(Ordering::Relaxed);
    #[cfg(not(any(test, feature = "testing")))]
    true
}

/// Returns the current time, for machines.
#[expect(clippy::disallowed_methods, reason = "this is the clock")]
pub fn now() -> Instant {
    if is_real() { now_blocking() } else { tokio::time::Instant::now().into_std() }
}

/// Returns the current time outside a runtime.
#[expect(clippy::disallowed_methods, reason = "this is the clock")]
pub fn now_blocking() -> Instant {
    /// The first reading of both clocks.
    static FIRST: OnceLock<(Instant, Duration)> = OnceLock::new();
    let Ok(boot) = clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from) else {
        // The clock exists on every Linux since 2.6.39.
        return Instant::now();
    };
    let (instant, first) = FIRST.get_or_init(|| (Instant::now(), boot));
    *instant + boot.saturating_sub(*first)
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
/// one. A timer stands still while the machine is suspended, so it may be late after that.
#[expect(clippy::disallowed_methods, reason = "this is the clock")]
pub async fn until(deadline: Option<Instant>) {
    let Some(deadline) = deadline else { return std::future::pending().await };
    let left = deadline.saturating_duration_since(now());
    if !left.is_zero() {
        tokio::time::sleep_until(tokio::time::Instant::now() + left).await;
    }
}

/// Returns the local time of day at a time since the epoch.
pub(crate) fn time_of_day_at(unix_ms: u64) -> String {
    let at = i64::try_from(unix_ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    let at =
        at.map(|at| at.to_zoned(jiff::tz::TimeZone::system()).strftime("%H:%M:%S").to_string());
    at.unwrap_or_else(|| "an unknown time".to_owned())
}

/// Returns the local time of day, for people at a terminal: `14:03:07`.
pub(crate) fn local_time_of_day() -> String {
    jiff::Zoned::now().strftime("%H:%M:%S").to_string()
}

/// Returns the time of day in UTC with milliseconds, as in ISO 8601: `2026-11-21T20:31:07.412Z`.
pub fn timestamp() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string()
}

/// Returns the time since 1970, for people and files; compared only to compute the age of files.
#[expect(clippy::disallowed_methods, reason = "this is the clock")]
pub fn wall_time() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

/// Returns the seconds since 1970, as in certificates.
pub fn wall_second() -> i64 {
    i64::try_from(wall_time().as_secs()).unwrap_or(i64::MAX)
}
