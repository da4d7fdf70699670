//! Waits for GPUs that processes of an earlier round hold still: a driver takes its time to free what
//! a killed process had, and the next worker would find its memory full.
//!
//! Nothing of ours lives when this is asked; what the driver lists all the same is on its way, or
//! stuck. Processes of other jobs on the same GPUs are not waited for.

use std::{
    collections::BTreeSet,
    fmt, fs,
    sync::{Mutex, OnceLock, PoisonError},
    time::Duration,
};

use nvml_wrapper::{Nvml, enums::device::UsedGpuMemory, error::NvmlError};
use ragent_rendezvous::ids::RunId;
use tracing::{info, warn};

use crate::{clock, limits};

/// The GPUs of this node, opened when they are first asked for.
#[derive(Debug)]
pub(super) struct HeldGpus {
    run_id: RunId,
    timeout: Duration,
    driver: OnceLock<Option<Driver>>,
}

#[derive(Debug)]
struct Driver {
    nvml: Nvml,
    /// Processes of other jobs.
    foreign: Mutex<BTreeSet<u32>>,
}

/// A process that holds a GPU.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Holder {
    gpu: u32,
    pid: u32,
    memory: u64,
}

impl HeldGpus {
    /// Those that workers of the job `run_id` may use; they are waited for at most for `timeout`.
    pub(super) fn new(run_id: RunId, timeout: Duration) -> Self {
        Self { run_id, timeout, driver: OnceLock::new() }
    }

    /// Waits until no process of this job holds a GPU, or the time is over. Blocks.
    pub(super) fn wait(&self) {
        if self.timeout.is_zero() {
            return;
        }
        let Some(driver) = self.driver.get_or_init(Driver::open) else { return };
        let deadline = clock::now_blocking() + self.timeout;
        let mut is_told = false;
        loop {
            let holders = match self.holders(driver) {
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
            if !std::mem::replace(&mut is_told, true) {
                info!(holder = %holders[0], "waiting for a GPU that is held");
            }
            pause();
        }
    }

    /// Processes that hold a GPU and are, or were, this job's.
    fn holders(&self, driver: &Driver) -> Result<Vec<Holder>, NvmlError> {
        let mut foreign = driver.foreign.lock().unwrap_or_else(PoisonError::into_inner);
        let mut holders = Vec::new();
        for gpu in 0..driver.nvml.device_count()? {
            let processes = driver.nvml.device_by_index(gpu)?.running_compute_processes()?;
            for process in processes {
                let pid = process.pid;
                if !foreign.contains(&pid) && self.is_foreign(pid) {
                    foreign.insert(pid);
                }
                if !foreign.contains(&pid) {
                    let memory = match process.used_gpu_memory {
                        UsedGpuMemory::Used(bytes) => bytes,
                        UsedGpuMemory::Unavailable => 0,
                    };
                    holders.push(Holder { gpu, pid, memory });
                }
            }
        }
        Ok(holders)
    }

    /// Whether a process that lives is none of this job. One that does not is ours, as far as anybody
    /// can tell: the driver is cleaning up.
    fn is_foreign(&self, pid: u32) -> bool {
        let Ok(environment) = fs::read(format!("/proc/{pid}/environ")) else {
            // Another user's, if it is there.
            return fs::exists(format!("/proc/{pid}")).unwrap_or(false);
        };
        let own = format!("TORCHELASTIC_RUN_ID={}", self.run_id);
        let is_ended = environment.is_empty();
        !is_ended && !environment.split(|&byte| byte == 0).any(|entry| entry == own.as_bytes())
    }
}

impl Driver {
    fn open() -> Option<Self> {
        // Without a driver this is an error, and no more.
        let nvml = Nvml::init().ok()?;
        let driver = Self { nvml, foreign: Mutex::default() };
        Some(driver)
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = fs::read_to_string(format!("/proc/{}/comm", self.pid)).unwrap_or_default();
        let name = if name.is_empty() { "a process that has ended" } else { name.trim_end() };
        let mebibytes = self.memory / (1024 * 1024);
        write!(f, "GPU {}: {name} (pid {}) has {mebibytes} MiB", self.gpu, self.pid)
    }
}

#[expect(clippy::disallowed_methods, reason = "a driver tells nobody that a GPU is free")]
fn pause() {
    std::thread::sleep(limits::HELD_GPU_INTERVAL);
}
