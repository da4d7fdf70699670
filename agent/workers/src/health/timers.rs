//! Kills workers whose timers expire. Workers set timers with torch's `FileTimerClient`, and must
//! end or renew them in time.
//!
//! Torchrun's server for these timers kills its own agent together with the worker. Here the
//! worker's end is a failure like any other.

use std::{
    fs,
    io::{self, ErrorKind},
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use bytes::{Buf, BytesMut};
use nix::{sys::stat::Mode, unistd};
use serde::Deserialize;
use tokio::{io::AsyncReadExt, net::unix::pipe};
use tracing::{debug, warn};

use crate::limits;

/// A worker's request, in torch's format.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub(crate) struct TimerRequest {
    /// The process to kill.
    pid: i32,
    /// The name of the timer in that process.
    scope_id: String,
    /// Seconds since 1970. A negative value ends the timer.
    expiration_time: f64,
    /// The signal for the process. Zero or less means none.
    signal: i32,
}

/// A running timer.
#[derive(Debug)]
pub(crate) struct HealthTimer {
    at: Instant,
    pub(crate) pid: i32,
    pub(crate) scope_id: String,
    pub(crate) signal: i32,
}

/// The running timers.
#[derive(Debug, Default)]
pub(crate) struct HealthTimers(Vec<HealthTimer>);

impl HealthTimers {
    /// Sets or ends a timer. `wall_time` is the time since 1970 at `now`.
    pub(crate) fn handle(&mut self, now: Instant, wall_time: Duration, request: TimerRequest) {
        let TimerRequest { pid, scope_id, expiration_time, signal } = request;
        self.0.retain(|timer| (timer.pid, &timer.scope_id) != (pid, &scope_id));
        if pid <= 1 || expiration_time < 0.0 {
            return;
        }
        if self.0.len() >= limits::MAX_TIMERS {
            return warn!(pid, scope_id, "timer not set: too many timers");
        }
        let left = (expiration_time - wall_time.as_secs_f64()).clamp(0.0, MAX_SECONDS);
        let at = now + Duration::try_from_secs_f64(left).unwrap_or_default();
        self.0.push(HealthTimer { at, pid, scope_id, signal });
    }

    /// Returns the time at which the next timer expires.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.0.iter().map(|timer| timer.at).min()
    }

    /// Removes and returns the expired timers, earliest first.
    pub(crate) fn expired(&mut self, now: Instant) -> Vec<HealthTimer> {
        let mut expired: Vec<_> = self.0.extract_if(.., |timer| timer.at <= now).collect();
        expired.sort_by_key(|timer| timer.at);
        expired
    }

    /// Removes all timers: the workers that set them are gone.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

/// The maximum time of a timer: one year.
const MAX_SECONDS: f64 = 366.0 * 24.0 * 3600.0;

/// The pipe that workers write to. Dropping this removes it.
#[derive(Debug)]
pub struct TimerPipe {
    path: PathBuf,
    pipe: pipe::Receiver,
    unread: BytesMut,
}

impl TimerPipe {
    /// Creates the pipe. Replaces the pipe of an earlier agent.
    ///
    /// # Errors
    ///
    /// Returns the system's error, or `AlreadyExists` if the path is not a pipe.
    pub fn make(path: &Path) -> io::Result<Self> {
        match fs::symlink_metadata(path) {
            Ok(there) if there.file_type().is_fifo() => fs::remove_file(path)?,
            Ok(_) => return Err(io::Error::new(ErrorKind::AlreadyExists, "it is not a pipe")),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        unistd::mkfifo(path, Mode::S_IRUSR | Mode::S_IWUSR)?;
        // It is opened in both directions, so that it does not reach its end after each client.
        let pipe = pipe::OpenOptions::new().read_write(true).open_receiver(path)?;
        Ok(Self { path: path.to_owned(), pipe, unread: BytesMut::new() })
    }

    /// Returns the path of the pipe.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the next request. Ignores malformed requests.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost if the future is dropped.
    pub(crate) async fn next(&mut self) -> io::Result<TimerRequest> {
        loop {
            while let Some(end) = self.unread.iter().position(|&byte| byte == b'\n') {
                let line = self.unread.split_to(end + 1);
                match serde_json::from_slice(&line) {
                    Ok(request) => return Ok(request),
                    Err(error) => debug!(%error, "malformed timer request ignored"),
                }
            }
            if self.unread.len() > limits::MAX_TIMER_REQUEST {
                // No client of torch writes that much at once.
                self.unread.advance(self.unread.len());
            }
            self.unread.reserve(limits::MAX_TIMER_REQUEST);
            self.pipe.read_buf(&mut self.unread).await?;
        }
    }
}

impl Drop for TimerPipe {
    fn drop(&mut self) {
        // The file may have been removed already.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use ragent_base::sys::clock;

    use super::*;

    const WALL: Duration = Duration::from_secs(1_000_000);

    fn request(scope_id: &str, expiration_time: f64) -> TimerRequest {
        TimerRequest { pid: 77, scope_id: scope_id.to_owned(), expiration_time, signal: 9 }
    }

    fn expired(timers: &mut HealthTimers, now: Instant) -> Vec<String> {
        timers.expired(now).into_iter().map(|timer| timer.scope_id).collect()
    }

    /// A timer expires at its time, unless it was ended or renewed.
    #[test]
    fn timers_expire_in_order() {
        let now = clock::now_blocking();
        let at = |seconds| now + Duration::from_secs(seconds);
        let mut timers = HealthTimers::default();
        for (scope, seconds) in [("a", 1_000_005.0), ("b", 1_000_003.0), ("c", 1_000_001.0)] {
            timers.handle(now, WALL, request(scope, seconds));
        }
        timers.handle(now, WALL, request("c", -1.0));
        timers.handle(now, WALL, request("b", 1_000_004.0));
        assert_eq!(timers.poll_timeout(), Some(at(4)));
        assert_eq!(expired(&mut timers, at(3)), [""; 0]);
        assert_eq!(expired(&mut timers, at(9)), ["b", "a"]);
        assert_eq!(timers.poll_timeout(), None);
    }

    /// No input of a worker ends the agent or fills its memory.
    #[test]
    fn odd_requests_are_no_trouble() {
        let now = clock::now_blocking();
        let mut timers = HealthTimers::default();
        for odd in [f64::NAN, f64::INFINITY, 1e300, 0.0] {
            timers.handle(now, WALL, request("odd", odd));
        }
        for number in 0..=limits::MAX_TIMERS {
            timers.handle(now, WALL, request(&number.to_string(), 2e6));
        }
        assert_eq!(timers.0.len(), limits::MAX_TIMERS);
        timers.handle(now, WALL, TimerRequest { pid: 1, ..request("init", 0.0) });
        assert!(timers.0.iter().all(|timer| timer.pid != 1));
        timers.clear();
        assert_eq!(timers.poll_timeout(), None);
    }

    /// Requests arrive one per line, through a pipe that outlives its clients. The pipe is removed at the end.
    #[tokio::test]
    async fn requests_come_through_the_pipe() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("timer");
        let mut pipe = TimerPipe::make(&path).unwrap();
        let line =
            r#"{"version": 1, "pid": 77, "scope_id": "a", "expiration_time": 5.5, "signal": 9}"#;
        for text in [format!("nonsense\n{line}\n"), format!("{line}\n")] {
            fs::write(&path, text).unwrap();
            assert_eq!(pipe.next().await.unwrap(), request("a", 5.5));
        }
        TimerPipe::make(&path).unwrap();
        fs::write(&path, "a file").unwrap();
        assert_eq!(TimerPipe::make(&path).unwrap_err().kind(), ErrorKind::AlreadyExists);
    }
}
