//! Reports the time of its start as a worker, and then waits until it is killed.
//!
//! It sends one line, `GROUP_RANK RANK WORLD_SIZE PID NANOSECONDS`, as a datagram to the UNIX socket that `BENCH_STAMPS` names. All
//! processes of a machine share `CLOCK_MONOTONIC`, from which the nanoseconds are. So they can be compared with the time of a fault.

use std::{os::unix::net::UnixDatagram, process, time::Duration};

use anyhow::{Context as _, Result};
use nix::{
    time::{ClockId, clock_gettime},
    unistd,
};

fn main() -> Result<()> {
    let started = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC)?);
    let stamp = format!(
        "{} {} {} {} {}",
        variable("GROUP_RANK")?,
        variable("RANK")?,
        variable("WORLD_SIZE")?,
        process::id(),
        started.as_nanos(),
    );
    let stamps = variable("BENCH_STAMPS")?;
    UnixDatagram::unbound()?.send_to(stamp.as_bytes(), &stamps).context("nobody takes stamps")?;
    loop {
        unistd::pause();
    }
}

#[expect(clippy::disallowed_methods, reason = "a worker has all settings from its environment")]
fn variable(name: &str) -> Result<String> {
    std::env::var(name).with_context(|| format!("{name} is not set"))
}
