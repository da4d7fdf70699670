//! MPI: what Open MPI, MPICH and its descendants, MVAPICH and PALS tell each rank.

use std::net::IpAddr;

use super::{Head, Launcher, Placement, PlacementError, Variables, implied_node, node_file};
use crate::host::Host;

/// The variables of one launcher, by what they hold; several names where versions differ.
struct Names {
    launcher: Launcher,
    rank: &'static [&'static str],
    size: &'static [&'static str],
    local_rank: &'static [&'static str],
    local_size: &'static [&'static str],
    name: &'static [&'static str],
}

/// The inner ones first: PALS sets the variables of Hydra too.
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

pub(super) fn find(host: &impl Host) -> Result<Option<Placement>, PlacementError> {
    let is_used = |names: &&Names| host.env(names.rank[0]).is_some();
    LAUNCHERS.iter().find(is_used).map(|names| read(names, host)).transpose()
}

fn read(names: &Names, host: &impl Host) -> Result<Placement, PlacementError> {
    let launcher = names.launcher;
    let variables = Variables { launcher, host };
    let (rank, size) = (variables.needed(names.rank)?, variables.needed(names.size)?);
    let (local_rank, local_size) = match size {
        // Where there is one rank, it is the only one of its node, whatever else is not said.
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
        name: variables.first(names.name).map(|(_, name)| format!("mpi-{name}")),
        head: Head::Unknown,
        gpus: None,
    };
    let placement = placement.checked()?;
    let head = head(&placement, &variables);
    Ok(named(Placement { head, ..placement }, host))
}

/// Ranks that all run on one machine are the children of one process there, for want of another name.
fn named(placement: Placement, host: &impl Host) -> Placement {
    if placement.name.is_some() || placement.head != Head::Here || placement.size == 1 {
        return placement;
    }
    Placement { name: Some(format!("mpi-{}", host.parent())), ..placement }
}

/// What Hydra says only where it is asked: where the first rank runs, and a name. Ranks that ask use up
/// their way of asking, so that only programs without MPI come after it.
pub(super) fn ask_launcher(placement: Placement, host: &impl Host) -> Placement {
    let Placement { launcher: Launcher::Hydra, rank, head: Head::Unknown, .. } = placement else {
        return placement;
    };
    let variables = Variables { launcher: Launcher::Hydra, host };
    // The name by which the launcher itself has reached this host.
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
    let listed = node_file::first_host(variables.host).map(Head::There);
    let starter = || {
        let uri = variables.text("OMPI_MCA_orte_hnp_uri")?;
        starters_address(&uri).map(|address| Head::There(address.to_string()))
    };
    listed.or_else(starter).unwrap_or(Head::Unknown)
}

/// The first address that others reach in `123.0;tcp://10.0.0.1,10.1.0.1:4000;tcp6://…`: that of the
/// machine on which `mpirun` itself was started.
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
