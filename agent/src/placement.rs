//! Reads where a scheduler or an MPI launcher has put this process: its rank among all that were
//! started, those of its node, and on which node the first one runs.
//!
//! Launchers say so in the environment of each process that they start, and in no other: the shell of
//! a batch script has no place. Where one launcher was started by another, as `mpirun` by Slurm, the
//! inner one counts.

mod mpi;
pub mod node_list;
pub(crate) mod pmi;
mod slurm;

use std::{fmt, num::NonZeroU32};

pub use self::node_list::NodeListError;
use crate::host::Host;

/// Who has started this process as one of several.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Launcher {
    /// MPICH's launcher, also by the names of its descendants, such as Intel MPI's.
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

/// Where a launcher has put this process.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Placement {
    /// Who says so.
    pub launcher: Launcher,
    /// Rank of this process among all that were started together.
    pub rank: u32,
    /// How many were.
    pub size: u32,
    /// Rank among those on its node.
    pub local_rank: u32,
    /// How many are on its node.
    pub local_size: u32,
    /// The number of its node and how many there are, where the launcher says or implies it.
    pub node: Option<(u32, u32)>,
    /// A name that this start has and no other one that runs; none where the launcher has none.
    pub name: Option<String>,
    /// Where the process with rank 0 runs.
    pub head: Head,
    /// How many GPUs of this node were granted, where the launcher says so.
    pub gpus: Option<NonZeroU32>,
}

/// Where the process with rank 0 runs.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Head {
    /// On this machine, as all others.
    Here,
    /// On the host with this name or address.
    There(String),
    /// The launcher does not say.
    Unknown,
}

/// Why the variables of a launcher cannot be used.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum PlacementError {
    /// Two variables that cannot both be true.
    #[error("{launcher} sets `{first}` and `{second}`, which contradict each other")]
    Contradiction {
        /// Who has set them.
        launcher: Launcher,
        /// One, with its value.
        first: String,
        /// The other one.
        second: String,
    },
    /// A list that cannot be read.
    #[error("{launcher} sets `{name}={value}`: {error}")]
    List {
        /// Who has set it.
        launcher: Launcher,
        /// The variable.
        name: String,
        /// What it holds.
        value: String,
        /// Why not.
        error: NodeListError,
    },
    /// A variable that the launcher sets always.
    #[error("{launcher} has started this process, but `{name}` is not set")]
    Missing {
        /// Who should have set it.
        launcher: Launcher,
        /// The variable.
        name: &'static str,
    },
    /// A variable that holds no number.
    #[error("{launcher} sets `{name}={value}`, which is no number from 0 on")]
    Number {
        /// Who has set it.
        launcher: Launcher,
        /// The variable.
        name: String,
        /// What it holds.
        value: String,
    },
}

impl Placement {
    /// What the environment says; nothing where no launcher has started this process.
    ///
    /// # Errors
    ///
    /// Returns [`PlacementError`] if it says so incompletely, or contradicts itself.
    pub fn find(host: &impl Host) -> Result<Option<Self>, PlacementError> {
        // `srun` sets the variables of a library beside its own, and not all of them.
        if slurm::is_in_step(host) && !mpi::is_inside(host) {
            return slurm::find(host);
        }
        match mpi::find(host)? {
            Some(placement) => Ok(Some(placement)),
            None => slurm::find(host),
        }
    }

    /// The same with the host of rank 0, if the launcher says it only where it is asked.
    ///
    /// All ranks must ask, and wait for each other. What this process becomes can then use no MPI.
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

/// The number of the node and how many there are, where ranks fill equal nodes one after the other.
fn implied_node(rank: u32, size: u32, local_rank: u32, local_size: u32) -> Option<(u32, u32)> {
    let is_even =
        local_size > 0 && size.is_multiple_of(local_size) && rank % local_size == local_rank;
    is_even.then(|| (rank / local_size, size / local_size))
}

/// The variables that one launcher sets.
struct Variables<'a, H> {
    launcher: Launcher,
    host: &'a H,
}

impl<H: Host> Variables<'_, H> {
    fn text(&self, name: &str) -> Option<String> {
        let text = self.host.env(name)?.to_string_lossy().into_owned();
        Some(text).filter(|text| !text.is_empty())
    }

    /// The first of several names that is set, and what it holds.
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
