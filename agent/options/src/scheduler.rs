//! Reads where a scheduler or an MPI launcher has placed this process: its rank among all
//! processes, its rank on its node, and the node of the first process.
//!
//! Launchers set this in the environment of each process that they start, and in no other: the
//! shell of a batch script has no placement. If one launcher was started by another, as `mpirun` by
//! Slurm, the inner one counts.

mod mpi;
pub mod node_list;
mod slurm;

use std::{fmt, num::NonZeroU32};

pub use self::node_list::NodeListError;
use ragent_base::sys::host::Host;

/// The launcher that started this process as one of several.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Launcher {
    /// MPICH's launcher and its derivatives, such as Intel MPI's.
    Hydra,
    /// MVAPICH's own launcher.
    Mvapich,
    /// Open MPI's `mpirun`.
    OpenMpi,
    /// HPE's `mpiexec`.
    Pals,
    /// `srun`.
    Slurm,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hydra => "Hydra",
            Self::Mvapich => "MVAPICH",
            Self::OpenMpi => "Open MPI",
            Self::Pals => "PALS",
            Self::Slurm => "Slurm",
        })
    }
}

/// The placement of this process by a launcher.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Placement {
    /// The launcher.
    pub launcher: Launcher,
    /// Rank of this process among all that were started together.
    pub rank: u32,
    /// The number of these processes.
    pub size: u32,
    /// Rank among the processes on its node.
    pub local_rank: u32,
    /// The number of processes on its node.
    pub local_size: u32,
    /// The number of its node and the number of nodes, if the launcher gives or implies them.
    pub node: Option<(u32, u32)>,
    /// A name that no other running start has; `None` if the launcher gives none.
    pub name: Option<String>,
    /// The machine of the process with rank 0.
    pub head: Head,
    /// The names of all hosts in the order of their numbers; empty if the launcher does not give
    /// them.
    pub hosts: Vec<String>,
    /// The number of GPUs granted on this node, if the launcher gives it.
    pub gpus: Option<NonZeroU32>,
}

/// The machine of the process with rank 0.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Head {
    /// This machine, which also has all other processes.
    Here,
    /// The machine with this host name or address.
    There(String),
    /// Unknown: the launcher does not give it.
    Unknown,
}

/// An error in the variables of a launcher.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum PlacementError {
    /// Two variables contradict each other.
    #[error("{launcher} sets `{first}` and `{second}`, which contradict each other")]
    Contradiction {
        /// The launcher that set them.
        launcher: Launcher,
        /// One variable, with its value.
        first: String,
        /// The other variable, with its value.
        second: String,
    },
    /// A list cannot be parsed.
    #[error("{launcher} sets `{name}={value}`: {error}")]
    List {
        /// The launcher that set it.
        launcher: Launcher,
        /// The variable.
        name: String,
        /// Its value.
        value: String,
        /// The error in the list.
        error: NodeListError,
    },
    /// A variable that the launcher always sets is missing.
    #[error("{launcher} has started this process, but `{name}` is not set")]
    Missing {
        /// The launcher.
        launcher: Launcher,
        /// The variable.
        name: &'static str,
    },
    /// A variable is not a number.
    #[error("{launcher} sets `{name}={value}`, which is not a whole number, 0 or greater")]
    Number {
        /// The launcher that set it.
        launcher: Launcher,
        /// The variable.
        name: String,
        /// Its value.
        value: String,
    },
}

impl Placement {
    /// Reads the placement from the environment; `None` if no launcher started this process.
    ///
    /// # Errors
    ///
    /// Returns [`PlacementError`] if the variables are incomplete or contradict each other.
    pub fn find(host: &impl Host) -> Result<Option<Self>, PlacementError> {
        // `srun` also sets some of the variables of an MPI library, but not all of them.
        if slurm::is_in_step(host) && !mpi::is_inside(host) {
            return slurm::find(host);
        }
        match mpi::find(host)? {
            Some(placement) => Ok(Some(placement)),
            None => slurm::find(host),
        }
    }

    /// Returns the placement with the machine of rank 0, for launchers that give it only on
    /// request.
    ///
    /// All ranks must call this, and wait for each other. Afterwards this process cannot use MPI.
    pub fn ask_launcher(self, host: &impl Host) -> Self {
        mpi::ask_launcher(self, host)
    }

    fn checked(self) -> Result<Self, PlacementError> {
        let Self { launcher, rank, size, local_rank, local_size, .. } = self;
        let contradiction = |first: String, second: String| {
            Err(PlacementError::Contradiction { launcher, first, second })
        };
        if rank >= size {
            return contradiction(format!("rank {rank}"), format!("{size} ranks"));
        }
        if local_rank >= local_size {
            let second = format!("{local_size} ranks on this node");
            return contradiction(format!("local rank {local_rank}"), second);
        }
        if local_size > size {
            let first = format!("{local_size} ranks on this node");
            return contradiction(first, format!("{size} ranks"));
        }
        match self.node {
            Some((node, nodes)) if node >= nodes => {
                contradiction(format!("node {node}"), format!("{nodes} nodes"))
            }
            Some(_) | None => Ok(self),
        }
    }
}

/// Returns the number of the node and the number of nodes, if ranks fill nodes of equal size one
/// after the other.
fn implied_node(rank: u32, size: u32, local_rank: u32, local_size: u32) -> Option<(u32, u32)> {
    let is_even =
        local_size > 0 && size.is_multiple_of(local_size) && rank % local_size == local_rank;
    is_even.then(|| (rank / local_size, size / local_size))
}

/// Access to the variables that one launcher sets.
struct Variables<'a, H> {
    launcher: Launcher,
    host: &'a H,
}

impl<H: Host> Variables<'_, H> {
    fn text(&self, name: &str) -> Option<String> {
        let text = self.host.env(name)?.to_string_lossy().into_owned();
        Some(text).filter(|text| !text.is_empty())
    }

    /// The first of several names that is set, and its value.
    fn first(&self, names: &[&str]) -> Option<(String, String)> {
        names.iter().find_map(|name| Some(((*name).to_owned(), self.text(name)?)))
    }

    fn number(&self, names: &[&str]) -> Result<Option<u32>, PlacementError> {
        let Some((name, value)) = self.first(names) else { return Ok(None) };
        match value.trim().parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(PlacementError::Number { launcher: self.launcher, name, value }),
        }
    }

    fn needed(&self, names: &[&'static str]) -> Result<u32, PlacementError> {
        let missing = PlacementError::Missing { launcher: self.launcher, name: names[0] };
        self.number(names)?.ok_or(missing)
    }
}

#[cfg(test)]
mod tests;
