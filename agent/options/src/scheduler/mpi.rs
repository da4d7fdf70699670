//! MPI: the variables that Open MPI, MPICH and its derivatives, MVAPICH and PALS set for each rank.

use std::net::IpAddr;

use super::{Head, Launcher, Placement, PlacementError, Variables, implied_node};
use ragent_base::sys::host::Host;

/// The variables of one launcher, by meaning; several names if versions differ.
struct Names {
    launcher: Launcher,
    rank: &'static [&'static str],
    size: &'static [&'static str],
    local_rank: &'static [&'static str],
    local_size: &'static [&'static str],
    name: &'static [&'static str],
}

/// The job ids of batch systems, used as the name if the launcher has none.
const BATCH_JOBS: [&str; 4] = ["PBS_JOBID", "LSB_JOBID", "JOB_ID", "SLURM_JOB_ID"];

/// Inner launchers come first: PALS sets the variables of Hydra too.
const LAUNCHERS: [Names; 4] = [
    Names {
        launcher: Launcher::OpenMpi,
        rank: &["OMPI_COMM_WORLD_RANK"],
        size: &["OMPI_COMM_WORLD_SIZE"],
        local_rank: &["OMPI_COMM_WORLD_LOCAL_RANK"],
        local_size: &["OMPI_COMM_WORLD_LOCAL_SIZE"],
        name: &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"],
    },
    Names {
        launcher: Launcher::Mvapich,
        rank: &["MV2_COMM_WORLD_RANK"],
        size: &["MV2_COMM_WORLD_SIZE"],
        local_rank: &["MV2_COMM_WORLD_LOCAL_RANK"],
        local_size: &["MV2_COMM_WORLD_LOCAL_SIZE"],
        name: &[],
    },
    Names {
        launcher: Launcher::Pals,
        rank: &["PALS_RANKID"],
        size: &["PALS_SIZE", "PMI_SIZE"],
        local_rank: &["PALS_LOCAL_RANKID", "PMI_LOCAL_RANK"],
        local_size: &["PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"],
        name: &["PALS_APID"],
    },
    Names {
        launcher: Launcher::Hydra,
        rank: &["PMI_RANK"],
        size: &["PMI_SIZE"],
        local_rank: &["MPI_LOCALRANKID", "PMI_LOCAL_RANK"],
        local_size: &["MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"],
        name: &[],
    },
];

/// Returns true if the ranks were started by an MPI launcher whose daemons alone were started by
/// the Slurm step. The PMI variables that `srun` sets are equal to its own.
pub(super) fn is_inside(host: &impl Host) -> bool {
    let is_set = |name: &str| host.env(name).is_some();
    if is_set("OMPI_COMM_WORLD_RANK") || is_set("MV2_COMM_WORLD_RANK") {
        return true;
    }
    let same = |one: &str, other: &str| host.env(one) == host.env(other);
    let of_srun = same("PMI_RANK", "SLURM_PROCID")
        && (same("PMI_SIZE", "SLURM_STEP_NUM_TASKS") || same("PMI_SIZE", "SLURM_NTASKS"));
    is_set("PMI_RANK") && !of_srun
}

pub(super) fn find(host: &impl Host) -> Result<Option<Placement>, PlacementError> {
    let is_used = |names: &&Names| host.env(names.rank[0]).is_some();
    LAUNCHERS.iter().find(is_used).map(|names| read(names, host)).transpose()
}

fn read(names: &Names, host: &impl Host) -> Result<Placement, PlacementError> {
    let launcher = names.launcher;
    let variables = Variables { launcher, host };
    let (rank, size) = (variables.needed(names.rank)?, variables.needed(names.size)?);
    let (local_rank, local_size) = match size {
        // A single rank is the only one on its node, even if other variables are missing.
        1 => (0, 1),
        _ => (variables.needed(names.local_rank)?, variables.needed(names.local_size)?),
    };
    let placement = Placement {
        launcher,
        rank,
        size,
        local_rank,
        local_size,
        node: implied_node(rank, size, local_rank, local_size),
        name: variables
            .first(names.name)
            .or_else(|| variables.first(&BATCH_JOBS))
            .map(|(_, name)| format!("mpi-{name}")),
        head: Head::Unknown,
        hosts: Vec::new(),
        gpus: None,
    };
    let placement = placement.checked()?;
    let head = head(&placement, &variables);
    Ok(named(Placement { head, ..placement }, host, names.rank[0]))
}

/// Names a start on one machine after the process that started it, under Hydra or if it has no
/// name.
fn named(placement: Placement, host: &impl Host, rank: &str) -> Placement {
    let has_name = placement.name.is_some() && placement.launcher != Launcher::Hydra;
    if has_name || placement.head != Head::Here {
        return placement;
    }
    Placement { name: Some(format!("mpi-{}", host.ancestor_without(rank))), ..placement }
}

/// Asks Hydra for the host name of the first rank and a name of the start, which it gives only on
/// request. This uses up the rank's PMI connection, so only programs without MPI can run
/// afterwards.
pub(super) fn ask_launcher(placement: Placement, host: &impl Host) -> Placement {
    let Placement { launcher: Launcher::Hydra, rank, head: Head::Unknown, .. } = placement else {
        return placement;
    };
    let variables = Variables { launcher: Launcher::Hydra, host };
    // The host name by which the launcher itself reached this machine.
    let own_host = variables.text("MPIR_CVAR_CH3_INTERFACE_HOSTNAME");
    match host.ask_pmi(rank, own_host) {
        Some((name, head)) => {
            Placement { name: Some(format!("mpi-{name}")), head: Head::There(head), ..placement }
        }
        None => placement,
    }
}

fn head(placement: &Placement, variables: &Variables<'_, impl Host>) -> Head {
    if placement.local_size == placement.size {
        return Head::Here;
    }
    // A batch system's host list is not used: it exists on some nodes only.
    let uri = variables.text("OMPI_MCA_orte_hnp_uri");
    let address = uri.and_then(|uri| starters_address(&uri));
    address.map_or(Head::Unknown, |address| Head::There(address.to_string()))
}

/// Returns the first non-loopback address in `123.0;tcp://10.0.0.1,10.1.0.1:4000;tcp6://…`: that of
/// the machine on which `mpirun` itself was started.
fn starters_address(uri: &str) -> Option<IpAddr> {
    let transports = uri
        .split(';')
        .filter_map(|part| part.strip_prefix("tcp://").or_else(|| part.strip_prefix("tcp6://")));
    let hosts = transports.filter_map(|part| part.rsplit_once(':')).map(|(hosts, _)| hosts);
    let addresses = hosts.flat_map(|hosts| hosts.split(','));
    let mut addresses = addresses.filter_map(|text| {
        text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().ok()
    });
    addresses.find(|address| !address.is_loopback() && !address.is_unspecified())
}
