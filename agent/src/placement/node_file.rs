//! The file in which batch systems list the hosts of a job: PBS, LSF, Grid Engine.

use std::path::Path;

use crate::host::Host;

/// Variables that name such a file; in all of them a line begins with a host.
const VARIABLES: [&str; 4] =
    ["PBS_NODEFILE", "LSB_DJOB_HOSTFILE", "PE_HOSTFILE", "COBALT_NODEFILE"];

/// The host of the first line, where there is such a file on this machine.
pub(super) fn first_host(host: &impl Host) -> Option<String> {
    let text = VARIABLES.iter().find_map(|name| host.read(Path::new(&host.env(name)?)))?;
    let mut words = text.lines().filter_map(|line| line.split_whitespace().next());
    words.next().map(str::to_owned)
}
