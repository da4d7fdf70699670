//! Reads the number of workers of a node, and the devices and processors of each.

use std::num::NonZeroU32;

use super::{Argument, UsageError, arguments::Arguments};
use ragent_base::sys::host::{
    Host,
    numa::{self, CpuSet, NumaBinding},
};

use crate::cli::{JobArgs, LaunchArgs};

/// The devices of workers that see one each: torchrun's `--virtual-local-rank`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct VirtualDevices {
    /// `CUDA_VISIBLE_DEVICES` of each worker, by local rank.
    pub visible: Vec<String>,
    /// True if `HIP_VISIBLE_DEVICES` is set too.
    pub hip: bool,
}

/// Reads the number of workers for a command that starts none, as for a launch: from the argument,
/// else from `PET_NPROC_PER_NODE`. Returns `None` if neither is given.
///
/// # Errors
///
/// Returns [`UsageError`] if it is not a number of workers, or accelerators do not exist.
pub fn asked_workers(
    typed: Option<String>,
    host: &impl Host,
) -> Result<Option<NonZeroU32>, UsageError> {
    let job = JobArgs { nproc_per_node: typed, ..JobArgs::default() };
    let args = LaunchArgs { job, ..LaunchArgs::default() };
    let arguments = Arguments { args: &args, host, placement: None };
    let is_given = arguments.argument("nproc_per_node", &args.job.nproc_per_node).is_some();
    is_given.then(|| arguments.local_world_size()).transpose()
}

impl<H: Host> Arguments<'_, H> {
    pub(super) fn local_world_size(&self) -> Result<NonZeroU32, UsageError> {
        let Some(given) = self.argument("nproc_per_node", &self.args.job.nproc_per_node) else {
            return Ok(self.default_workers());
        };
        let counted = |count: Option<NonZeroU32>| {
            count.ok_or_else(|| {
                given.invalid("needs a GPU, but this machine has none that is visible").with_hint(
                    "check variables such as CUDA_VISIBLE_DEVICES, which may hide it; `auto` \
                     falls back to processors",
                )
            })
        };
        match given.text.as_str() {
            "cpu" => Ok(self.host.cpus()),
            "gpu" => counted(self.host.gpu_count()),
            "xpu" => counted(self.host.xpu_count()),
            "auto" => {
                let accelerators = self.host.gpu_count().or_else(|| self.host.xpu_count());
                Ok(accelerators.unwrap_or_else(|| self.host.cpus()))
            }
            _ => given.workers(),
        }
    }

    /// Returns one, as with torchrun, or one for each GPU if a launcher determines how the nodes
    /// meet.
    fn default_workers(&self) -> NonZeroU32 {
        let Some(placement) = &self.placement else { return NonZeroU32::MIN };
        let found = self.host.gpu_count().or_else(|| self.host.xpu_count());
        // A driver may show more GPUs than were granted, and a launcher may grant hidden ones.
        [found, placement.gpus].into_iter().flatten().min().unwrap_or(NonZeroU32::MIN)
    }

    pub(super) fn virtual_devices(
        &self,
        workers: NonZeroU32,
    ) -> Result<Option<VirtualDevices>, UsageError> {
        if !self.switch("virtual_local_rank", self.args.virtual_local_rank)? {
            return Ok(None);
        }
        let hip = self.variable("HIP_VISIBLE_DEVICES").filter(|given| !given.text.is_empty());
        let is_hip = hip.is_some();
        let Some(given) = hip.or_else(|| self.variable("CUDA_VISIBLE_DEVICES")) else {
            let visible = (0..workers.get()).map(|rank| rank.to_string()).collect();
            return Ok(Some(VirtualDevices { visible, hip: false }));
        };
        let devices = given.text.split(',').take(workers.get() as usize);
        let visible: Vec<String> = devices.map(|device| device.trim().to_owned()).collect();
        if visible.len() < workers.get() as usize {
            let Argument { source, text } = given;
            return Err(UsageError::new(format!(
                "`--virtual-local-rank` needs a device for each of {workers} workers, but {source} \
                 is `{text}`"
            ))
            .with_hint("start fewer workers, or list more devices"));
        }
        Ok(Some(VirtualDevices { visible, hip: is_hip }))
    }

    /// Returns the processors of each worker; none if workers are not bound.
    pub(super) fn cpus_by_rank(&self, workers: NonZeroU32) -> Result<Vec<CpuSet>, UsageError> {
        // torchrun has no variable for this flag.
        let Some(given) = Argument::of_flag("--numa-binding", &self.args.numa_binding) else {
            return Ok(Vec::new());
        };
        let choices = "`node`, `socket`, `exclusive` or `core-complex`";
        let binding: NumaBinding = given.choice(choices, |text| text.parse().ok())?;
        numa::bind(binding, workers.get() as usize, &self.host.gpus(), self.host)
            .map_err(|error| given.invalid(format_args!("is not possible: {error}")))
    }
}
