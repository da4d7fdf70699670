//! Provides what the load generators share: the clock, the CPU time of processes, and many clients.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};

pub mod clients;
pub mod observers;

/// Returns the current time.
#[expect(clippy::disallowed_methods, reason = "a load generator measures time")]
pub fn now() -> Instant {
    Instant::now()
}

/// Returns the CPU time that all threads of a process have used.
///
/// # Errors
///
/// Returns an error if there is no such process.
pub fn cpu_time(pid: u32) -> Result<Duration> {
    schedstat(pid, 0)
}

/// Returns the time that the threads of a process were runnable while others ran.
///
/// # Errors
///
/// Returns an error if there is no such process.
pub fn waiting_time(pid: u32) -> Result<Duration> {
    schedstat(pid, 1)
}

fn schedstat(pid: u32, field: usize) -> Result<Duration> {
    let mut ns = 0;
    for thread in fs::read_dir(format!("/proc/{pid}/task")).context("no such process")? {
        let stat = fs::read_to_string(thread?.path().join("schedstat"))?;
        let value = stat.split_whitespace().nth(field).context("a short schedstat")?;
        ns += value.parse::<u64>()?;
    }
    Ok(Duration::from_nanos(ns))
}
