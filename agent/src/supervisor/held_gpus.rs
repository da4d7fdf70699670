//! Waits for GPUs that processes of an earlier round hold still: a driver takes its time to free what
//! a killed process had, and the next worker would find its memory full.
//!
//! Nothing of ours lives when this is asked, so only processes that have ended are waited for: what
//! the driver lists of them is on its way, or stuck. In a container, where the driver's process numbers
//! mean nothing, nobody is.

use std::{
    fmt, fs,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use nix::{errno::Errno, sys::signal::kill, unistd::Pid};
use nvml_wrapper::{Nvml, enums::device::UsedGpuMemory, error::NvmlError};
use tokio::{task::spawn_blocking, time::timeout};
use tracing::{info, warn};

use crate::{clock, limits, state_file};

/// The GPUs of this node; their driver is opened when it is first asked.
#[derive(Debug)]
pub(super) struct HeldGpus {
    timeout: Duration,
    driver: OnceLock<Option<Nvml>>,
    /// The driver has not answered, and is not asked again.
    is_stuck: AtomicBool,
}

/// A process that holds a GPU.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Holder {
    gpu: u32,
    pid: u32,
    memory: u64,
}

impl HeldGpus {
    /// They are waited for at most for `timeout`.
    pub(super) fn new(timeout: Duration) -> Self {
        Self { timeout, driver: OnceLock::new(), is_stuck: AtomicBool::new(false) }
    }

    /// Waits until no process that has ended holds a GPU, or the time is over.
    pub(super) async fn wait(self: Arc<Self>) {
        if self.timeout.is_zero() || self.is_stuck.load(Ordering::Relaxed) {
            return;
        }
        let limit = self.timeout + limits::DRIVER_TIMEOUT;
        let gpus = Arc::clone(&self);
        if timeout(limit, spawn_blocking(move || gpus.wait_blocking())).await.is_err() {
            warn!("the driver does not answer who holds the GPUs; not asking again");
            self.is_stuck.store(true, Ordering::Relaxed);
        }
    }

    fn wait_blocking(&self) {
        // Without a driver this is an error, and no more.
        let open = || is_on_the_host().then(|| Nvml::init().ok()).flatten();
        let Some(driver) = self.driver.get_or_init(open) else { return };
        let deadline = clock::now_blocking() + self.timeout;
        let mut is_told = false;
        loop {
            let holders = match holders(driver) {
                Ok(holders) if holders.is_empty() => return,
                Ok(holders) => holders,
                // It has been asked in vain; workers find out for themselves.
                Err(error) => return warn!(%error, "the driver does not say who holds the GPUs"),
            };
            if clock::now_blocking() >= deadline {
                for holder in &holders {
                    warn!(%holder, seconds = self.timeout.as_secs_f64(), "a GPU stays held; going on");
                }
                return;
            }
            if !is_told {
                info!(holder = %holders[0], "waiting for a GPU that is held");
                is_told = true;
            }
            pause();
        }
    }
}

/// Processes that have ended and hold a GPU.
fn holders(driver: &Nvml) -> Result<Vec<Holder>, NvmlError> {
    let mut holders = Vec::new();
    for gpu in 0..driver.device_count()? {
        for process in driver.device_by_index(gpu)?.running_compute_processes()? {
            let memory = match process.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => bytes,
                UsedGpuMemory::Unavailable => 0,
            };
            if has_ended(process.pid) {
                holders.push(Holder { gpu, pid: process.pid, memory });
            }
        }
    }
    Ok(holders)
}

/// Whether there is no such process, or only what is left of one until its parent takes note.
fn has_ended(pid: u32) -> bool {
    match kill(Pid::from_raw(pid.cast_signed()), None) {
        Err(Errno::ESRCH) => true,
        Ok(()) => state_file::began(pid).is_none(),
        // Another user's.
        Err(_) => false,
    }
}

/// Whether process numbers are those that the driver knows.
fn is_on_the_host() -> bool {
    /// The kernel's first namespace of processes: `PROC_PID_INIT_INO`.
    const FIRST: &str = "pid:[4026531836]";
    fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link.as_os_str() == FIRST)
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mebibytes = self.memory / (1024 * 1024);
        write!(f, "GPU {}: process {}, which has ended, has {mebibytes} MiB", self.gpu, self.pid)
    }
}

#[expect(clippy::disallowed_methods, reason = "a driver tells nobody that a GPU is free")]
fn pause() {
    std::thread::sleep(limits::HELD_GPU_INTERVAL);
}
