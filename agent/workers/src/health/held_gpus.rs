//! Waits for GPUs that processes of an earlier round still hold.
//!
//! A driver needs time to free the memory of a killed process, and the next worker would find the
//! GPU full. No worker of this agent is alive during the wait, so only ended processes are waited
//! for: the driver is still freeing their memory, or is stuck.
//!
//! In a container there is no wait, because the driver's process ids have no meaning there.

use std::{
    collections::BTreeSet,
    fmt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use nix::{errno::Errno, sys::signal::kill, unistd::Pid};
use nvml_wrapper::{Nvml, enums::device::UsedGpuMemory, error::NvmlError};
use ragent_base::sys::{clock, proc};
use tokio::{task::spawn_blocking, time::timeout};
use tracing::{info, warn};

use crate::limits;

/// The GPUs of this node. Their driver is open only during a wait: it resets no GPU that a process has open.
#[derive(Debug)]
pub(crate) struct HeldGpus {
    timeout: Duration,
    /// True if the driver has not answered in time. It is not asked again.
    is_stuck: AtomicBool,
}

/// Returns the GPUs whose device files a process has open, as the end of a sentence; nothing if there are none. Reads no more than the
/// files of the process, because a driver that hangs must not delay what follows.
pub(crate) fn gpus_open_in(pid: u32) -> String {
    let files = proc::numbers(&format!("{pid}/fd")).into_iter().take(limits::FILES_LOOKED_AT);
    let links = files.filter_map(|fd| proc::link(&format!("{pid}/fd/{fd}")));
    let gpus: BTreeSet<u32> = links.filter_map(|link| gpu_of(&link)).collect();
    let numbers: Vec<String> = gpus.iter().map(u32::to_string).collect();
    match &numbers[..] {
        [] => String::new(),
        [number] => format!(", while it had GPU {number} open"),
        [..] => format!(", while it had GPUs {} open", numbers.join(", ")),
    }
}

/// Returns the number of the GPU of a device file.
fn gpu_of(device: &Path) -> Option<u32> {
    device.to_str()?.strip_prefix("/dev/nvidia")?.parse().ok()
}

/// A process that holds a GPU.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Holder {
    gpu: u32,
    pid: u32,
    memory: u64,
}

impl HeldGpus {
    /// Creates a handle. Each wait lasts at most `timeout`.
    pub(crate) fn new(timeout: Duration) -> Self {
        Self { timeout, is_stuck: AtomicBool::new(false) }
    }

    /// Waits until no ended process holds a GPU, or until the timeout.
    pub(crate) async fn wait(self: Arc<Self>) {
        if self.timeout.is_zero() || self.is_stuck.load(Ordering::Relaxed) {
            return;
        }
        let limit = self.timeout + limits::DRIVER_TIMEOUT;
        let gpus = Arc::clone(&self);
        if timeout(limit, spawn_blocking(move || gpus.wait_blocking())).await.is_err() {
            warn!(
                "the GPU driver did not list the processes on the GPUs in time; not waiting for \
                 GPUs again"
            );
            self.is_stuck.store(true, Ordering::Relaxed);
        }
    }

    fn wait_blocking(&self) {
        // Without a driver, this returns an error at once.
        let Some(driver) = is_on_the_host().then(|| Nvml::init().ok()).flatten() else { return };
        let deadline = clock::now_blocking() + self.timeout;
        let mut is_reported = false;
        loop {
            let holders = match holders(&driver) {
                Ok(holders) if holders.is_empty() => return,
                Ok(holders) => holders,
                // Waiting is not possible. Workers notice by themselves if memory is short.
                Err(error) => return warn!(%error, "failed to list the processes on the GPUs"),
            };
            if clock::now_blocking() >= deadline {
                for holder in &holders {
                    warn!(
                        %holder, seconds = self.timeout.as_secs_f64(),
                        "a GPU is still in use by a process that has ended; continuing"
                    );
                }
                return;
            }
            if !is_reported {
                info!(
                    holder = %holders[0],
                    "waiting for a GPU that is in use by a process that has ended"
                );
                is_reported = true;
            }
            pause();
        }
    }
}

/// Returns the processes that have ended and still hold a GPU.
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

/// Returns true if the process is gone or a zombie.
fn has_ended(pid: u32) -> bool {
    match kill(Pid::from_raw(pid.cast_signed()), None) {
        Err(Errno::ESRCH) => true,
        Ok(()) => proc::start_time(pid).is_none(),
        // The process belongs to another user.
        Err(_) => false,
    }
}

/// Returns true if this process has the same PID namespace as the driver.
fn is_on_the_host() -> bool {
    /// The kernel's first PID namespace: `PROC_PID_INIT_INO`.
    const FIRST: &str = "pid:[4026531836]";
    proc::link("self/ns/pid").is_some_and(|link| link.as_os_str() == FIRST)
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mebibytes = self.memory / (1024 * 1024);
        write!(f, "GPU {}: process {}, which has ended, has {mebibytes} MiB", self.gpu, self.pid)
    }
}

#[expect(clippy::disallowed_methods, reason = "the driver has no notification of a freed GPU")]
fn pause() {
    std::thread::sleep(limits::HELD_GPU_INTERVAL);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only the device files of GPUs have a number.
    #[test]
    fn device_files_of_gpus() {
        for (path, gpu) in [
            ("/dev/nvidia0", Some(0)),
            ("/dev/nvidia12", Some(12)),
            ("/dev/nvidiactl", None),
            ("/dev/nvidia-uvm", None),
            ("/dev/null", None),
            ("socket:[5]", None),
        ] {
            assert_eq!(gpu_of(Path::new(path)), gpu, "{path}");
        }
        assert_eq!(gpus_open_in(std::process::id()), "");
    }
}
