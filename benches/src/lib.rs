//! What the load generators share: the clock, the CPU time of another process, and many clients.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};

pub mod clients;

/// The present moment.
#[expect(clippy::disallowed_methods, reason = "a load generator measures time")]
pub fn now() -> Instant {
    Instant::now()
}

/// The CPU time that all threads of a process have had.
///
/// # Errors
///
/// Returns an error if there is no such process.
pub fn cpu_time(pid: u32) -> Result<Duration> {
    let mut ns = 0;
    for thread in fs::read_dir(format!("/proc/{pid}/task")).context("no such server")? {
        let stat = fs::read_to_string(thread?.path().join("schedstat"))?;
        let running = stat.split_whitespace().next().context("empty schedstat")?;
        ns += running.parse::<u64>()?;
    }
    Ok(Duration::from_nanos(ns))
}
