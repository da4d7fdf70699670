//! Slurm: `srun` sets the placement of each task of a step.

use std::num::NonZeroU32;

use super::{Head, Launcher, Placement, PlacementError, Variables, node_list};
use ragent_base::sys::host::Host;

/// The first of the special step numbers. No tasks are started in these steps: shells of batch scripts
/// and of interactive allocations, and processes of a whole job.
const FIRST_SPECIAL_STEP: u32 = 0xffff_fff0;

/// Returns true if this process, or an ancestor of it, was started in a Slurm step.
pub(super) fn is_in_step(host: &impl Host) -> bool {
    host.env("SLURM_STEP_ID").or_else(|| host.env("SLURM_STEPID")).is_some()
}

pub(super) fn find(host: &impl Host) -> Result<Option<Placement>, PlacementError> {
    let launcher = Launcher::Slurm;
    let variables = Variables { launcher, host };
    let step = variables.number(&["SLURM_STEP_ID", "SLURM_STEPID"])?;
    let Some(step) = step.filter(|step| *step < FIRST_SPECIAL_STEP) else { return Ok(None) };
    let (node, nodes) = (
        variables.needed(&["SLURM_NODEID"])?,
        variables.needed(&["SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"])?,
    );
    let job = variables.needed(&["SLURM_JOB_ID", "SLURM_JOBID"])?;
    let hosts = hosts(&variables, node, nodes)?;
    let starts = variables.number(&["SLURM_RESTART_COUNT"])?.unwrap_or(0);
    let placement = Placement {
        launcher,
        rank: variables.needed(&["SLURM_PROCID"])?,
        size: variables.needed(&["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"])?,
        local_rank: variables.needed(&["SLURM_LOCALID"])?,
        local_size: local_size(&variables, node)?,
        node: Some((node, nodes)),
        // A requeued job must not use the state that its earlier start left.
        name: Some(match starts {
            0 => format!("slurm-{job}.{step}"),
            starts => format!("slurm-{job}.{step}-{starts}"),
        }),
        // Tasks fill nodes in the order of the list, so its first node runs the first task.
        head: hosts.first().cloned().map_or(Head::Here, Head::There),
        hosts,
        gpus: granted_gpus(&variables),
    };
    placement.checked().map(Some)
}

fn local_size(variables: &Variables<'_, impl Host>, node: u32) -> Result<u32, PlacementError> {
    let (launcher, names) =
        (variables.launcher, ["SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"]);
    let missing = PlacementError::Missing { launcher, name: names[0] };
    let (name, value) = variables.first(&names).ok_or(missing)?;
    let counts = node_list::counts(&value).map_err(|error| {
        let (name, value) = (name.clone(), value.clone());
        PlacementError::List { launcher, name, value, error }
    })?;
    counts.get(node as usize).copied().ok_or_else(|| PlacementError::Contradiction {
        launcher,
        first: format!("SLURM_NODEID={node}"),
        second: format!("{name}={value}"),
    })
}

/// Returns the names of the step's nodes by number; none if there is one node only.
fn hosts(
    variables: &Variables<'_, impl Host>,
    node: u32,
    nodes: u32,
) -> Result<Vec<String>, PlacementError> {
    if nodes == 1 {
        return Ok(Vec::new());
    }
    let (launcher, names) = (variables.launcher, ["SLURM_STEP_NODELIST", "SLURM_NODELIST"]);
    let missing = PlacementError::Missing { launcher, name: names[0] };
    let (name, value) = variables.first(&names).ok_or(missing)?;
    let list = node_list::names(&value).map_err(|error| {
        let (name, value) = (name.clone(), value.clone());
        PlacementError::List { launcher, name, value, error }
    })?;
    let own = variables.text("SLURMD_NODENAME");
    if list.len() != nodes as usize
        || own.as_ref().is_some_and(|own| list.get(node as usize) != Some(own))
    {
        let own = own.unwrap_or_default();
        let first = format!("SLURM_NODEID={node} of {nodes} ({own})");
        return Err(PlacementError::Contradiction {
            launcher,
            first,
            second: format!("{name}={value}"),
        });
    }
    Ok(list)
}

fn granted_gpus(variables: &Variables<'_, impl Host>) -> Option<NonZeroU32> {
    // Older versions put the GPU type in front of the number. If this is not a number, the driver
    // counts.
    variables.text("SLURM_GPUS_ON_NODE")?.rsplit(':').next()?.parse().ok()
}
