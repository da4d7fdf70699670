//! Reads the number of workers of a node, and the devices and processors of each.

use std::num::NonZeroU32;

use super::{
    JobSpecError,
    given::{Given, python_int},
};
use crate::{
    cli::LaunchArgs,
    limits,
    sys::host::{
        Host,
        numa::{self, CpuSet, NumaBinding},
    },
};

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
/// Returns [`JobSpecError`] if it is not a number of workers, or accelerators do not exist.
pub(crate) fn asked_workers(
    typed: Option<String>,
    host: &impl Host,
) -> Result<Option<NonZeroU32>, JobSpecError> {
    let args = LaunchArgs { nproc_per_node: typed, ..LaunchArgs::default() };
    let given = Given { args: &args, host, placement: None };
    let is_given = given.typed("nproc_per_node", &args.nproc_per_node).is_some();
    is_given.then(|| given.local_world_size()).transpose()
}

impl<H: Host> Given<'_, H> {
    pub(super) fn local_world_size(&self) -> Result<NonZeroU32, JobSpecError> {
        let Some(given) = self.typed("nproc_per_node", &self.args.nproc_per_node) else {
            return Ok(self.default_workers());
        };
        let counted = |count: Option<NonZeroU32>| {
            let (source_, value) = (given.source.clone(), given.text.clone());
            count.ok_or(JobSpecError::NoAccelerator { source_, value })
        };
        match given.text.as_str() {
            "cpu" => Ok(self.host.cpus()),
            "gpu" => counted(self.host.gpu_count()),
            "xpu" => counted(self.host.xpu_count()),
            "auto" => {
                let accelerators = self.host.gpu_count().or_else(|| self.host.xpu_count());
                Ok(accelerators.unwrap_or_else(|| self.host.cpus()))
            }
            number => python_int(number)
                .and_then(|digits| digits.parse::<NonZeroU32>().ok())
                .filter(|n| n.get() <= limits::MAX_LOCAL_WORLD_SIZE)
                .ok_or(JobSpecError::WorkersPerNode { source_: given.source, value: given.text }),
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
    ) -> Result<Option<VirtualDevices>, JobSpecError> {
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
            return Err(JobSpecError::TooFewDevices {
                variable: given.source,
                value: given.text,
                workers: workers.get(),
            });
        }
        Ok(Some(VirtualDevices { visible, hip: is_hip }))
    }

    /// Returns the processors of each worker; none if workers are not bound.
    pub(super) fn cpus_by_rank(&self, workers: NonZeroU32) -> Result<Vec<CpuSet>, JobSpecError> {
        // torchrun has no variable for this flag.
        let Some(text) = &self.args.numa_binding else { return Ok(Vec::new()) };
        let binding: NumaBinding = text.parse().map_err(|()| JobSpecError::Choice {
            source_: "--numa-binding".to_owned(),
            value: text.clone(),
            choices: "`node`, `socket`, `exclusive` or `core-complex`",
        })?;
        numa::bind(binding, workers.get() as usize, &self.host.gpus(), self.host)
            .map_err(|error| JobSpecError::Numa { value: text.clone(), error })
    }
}
