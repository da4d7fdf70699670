//! `ragent manifest k8s`: generates the manifest with which Kubernetes runs a job.
//!
//! The arguments become a `ManifestSpec`, or all mistakes in them at once. The spec becomes
//! objects with the types of Kubernetes, and these become text. No cluster is contacted, and no
//! file is read but DeepSpeed's configuration.

mod container;
mod flag_values;
mod job;
mod metadata;
mod names;
mod objects;
mod spec;
mod variables;
mod volume;

use std::{
    fs,
    io::{self, Write},
    path::Path,
    process::ExitCode,
};

use self::{
    spec::{ManifestSpec, Method},
    volume::{SharedVolume, VolumeSource},
};
use super::error::{LaunchError, system, unwritable};
use crate::{
    cli::{K8sArgs, ManifestArgs, ManifestTarget},
    spec::majority_warning,
    sys::host::Host,
};

/// Prints the manifest, or writes it to a file.
///
/// # Errors
///
/// Returns [`LaunchError`] if `args` has a mistake, or the manifest cannot be written.
pub fn print(args: ManifestArgs, host: &impl Host) -> Result<ExitCode, LaunchError> {
    let ManifestTarget::K8s(args) = args.target;
    let output = args.output.clone();
    let text = k8s(*args, host)?;
    match output {
        Some(path) => {
            fs::write(&path, text).map_err(unwritable("--output", Path::new(&path)))?;
        }
        None => io::stdout().write_all(text.as_bytes()).map_err(system("print the manifest"))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the manifest for Kubernetes: YAML documents.
fn k8s(args: K8sArgs, host: &impl Host) -> Result<String, LaunchError> {
    let spec = ManifestSpec::resolve(args, host)?;
    if let Some(warning) = majority_warning(spec.voters, spec.nodes, "to begin and to continue") {
        // A closed console does not change the manifest.
        let _ = writeln!(io::stderr(), "ragent: warning: {warning}");
    }
    objects::text(&spec).map_err(|error| system("write YAML")(io::Error::other(error)))
}

#[cfg(test)]
mod tests;
