//! A timer for a loop that runs as long as its process, and wakes up rarely.
//!
//! The runtime sorts its timers into slots of 1 ms, 64 ms, 4 s and so on, and wakes up at the beginning of a coarse slot to
//! sort its timers into finer ones. So it wakes up twice for almost every timer of more than 64 ms. A timer of the kernel
//! wakes it up once, and also counts the time that the machine is suspended.

use std::{future, io, task::Poll, time::Instant};

use nix::sys::{
    time::TimeSpec,
    timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags},
};
use tokio::io::unix::AsyncFd;

use super::{clock, unix};

/// A timer of one loop, set to the earliest of the loop's deadlines.
#[derive(Debug)]
pub struct Alarm {
    /// The timer of the kernel; `None` if there is none, and in tests, whose clock may be paused: the runtime's timers are
    /// used then.
    timer: Option<Timer>,
}

impl Alarm {
    /// Creates an alarm on this runtime.
    #[expect(clippy::new_without_default, reason = "it must be created on a runtime")]
    pub fn new() -> Self {
        Self { timer: if clock::is_real() { Timer::new().ok() } else { None } }
    }

    /// Waits until the earliest of `deadlines`, or for ever if there is none.
    ///
    /// # Cancel safety
    ///
    /// A cancelled call loses nothing.
    pub async fn until(&mut self, deadlines: impl IntoIterator<Item = Option<Instant>>) {
        let Some(deadline) = deadlines.into_iter().flatten().min() else {
            return future::pending().await;
        };
        let waited = match &mut self.timer {
            Some(timer) => timer.until(deadline).await,
            None => Err(io::ErrorKind::Unsupported.into()),
        };
        if waited.is_err() {
            clock::until(Some(deadline)).await;
        }
    }
}

/// Waits until `deadline`, or for ever if there is none, without a timer: the passing of the deadline is noticed when the
/// task is polled, so an [`Alarm`] of the same task must be set to it or to an earlier time.
pub async fn passed(deadline: Option<Instant>) {
    let has_passed = || deadline.is_some_and(|deadline| deadline <= clock::now());
    future::poll_fn(|_| if has_passed() { Poll::Ready(()) } else { Poll::Pending }).await
}

/// A timer of the kernel.
#[derive(Debug)]
struct Timer {
    fd: AsyncFd<unix::KernelTimer>,
    /// The time at which it fires; `None` if it is not set.
    set_to: Option<Instant>,
}

impl Timer {
    fn new() -> io::Result<Self> {
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        let timer = unix::KernelTimer(TimerFd::new(ClockId::CLOCK_BOOTTIME, flags)?);
        Ok(Self { fd: unix::watch_timer(timer)?, set_to: None })
    }

    async fn until(&mut self, deadline: Instant) -> io::Result<()> {
        loop {
            let left = deadline.saturating_duration_since(clock::now());
            if left.is_zero() {
                return Ok(());
            }
            if self.set_to != Some(deadline) {
                let once = Expiration::OneShot(TimeSpec::from_duration(left));
                self.fd.get_ref().0.set(once, TimerSetTimeFlags::empty())?;
                self.set_to = Some(deadline);
            }
            // The runtime is notified of each firing, so the number of firings need not be read.
            self.fd.readable().await?.clear_ready();
            self.set_to = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const TICK: Duration = Duration::from_millis(20);

    /// A timer fires at its deadline, also after it was set to another one and after it has fired.
    #[tokio::test]
    async fn timer_fires_at_its_deadline() {
        let mut timer = Timer::new().unwrap();
        let start = clock::now();
        let hour = start + Duration::from_secs(3600);
        assert!(tokio::time::timeout(TICK, timer.until(hour)).await.is_err());
        for ticks in [3, 4, 4, 6] {
            let deadline = start + ticks * TICK;
            timer.until(deadline).await.unwrap();
            assert!(clock::now() >= deadline);
        }
        // It has fired, although no call waited for it.
        let (missed, next) = (clock::now() + TICK, clock::now() + 3 * TICK);
        // Sets the timer, unless this thread is paused for longer.
        let _ = tokio::time::timeout(Duration::ZERO, timer.until(missed)).await;
        clock::until(Some(missed + TICK)).await;
        timer.until(missed).await.unwrap();
        timer.until(next).await.unwrap();
        assert!(clock::now() >= next);
        assert!(tokio::time::timeout(TICK, timer.until(hour)).await.is_err());
    }

    /// An alarm waits for the earliest deadline, and for ever if there is none; a deadline that has passed is noticed.
    #[tokio::test(start_paused = true)]
    async fn alarm_waits_for_the_earliest_deadline() {
        let mut alarm = Alarm::new();
        let start = clock::now();
        alarm.until([None, Some(start + 2 * TICK), Some(start + TICK)]).await;
        assert_eq!(clock::now(), start + TICK);
        tokio::time::timeout(TICK, passed(Some(start + TICK))).await.unwrap();
        for forever in [None, Some(start + 9 * TICK)] {
            assert!(tokio::time::timeout(TICK, passed(forever)).await.is_err());
        }
        assert!(tokio::time::timeout(TICK, alarm.until([None])).await.is_err());
    }
}
