//! Generates the manifest with which Kubernetes runs a job: `ragent manifest k8s`.
//!
//! 1. The arguments become a `ManifestSpec`, or all mistakes in them are reported at once.
//! 2. The spec becomes JSON values with the fields of Kubernetes' objects.
//! 3. They become YAML documents.
//!
//! No cluster is contacted, and no file is read except DeepSpeed's configuration.

mod access;
mod container;
mod flag_values;
mod job;
mod metadata;
mod metrics;
mod names;
mod objects;
mod spec;
mod variables;
mod volume;

use std::{
    fs::{OpenOptions, Permissions},
    io::{self, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::Path,
    process::ExitCode,
};

use ragent_base::sys::host::Host;
use ragent_options::{
    cli::{K8sArgs, ManifestArgs, ManifestTarget},
    spec::majority_warning,
};

use self::{
    access::JobSecret,
    spec::{ManifestSpec, Method},
    volume::{SharedVolume, VolumeSource},
};
use super::error::{LaunchError, system, unwritable};

/// Prints the manifest, or writes it to a file.
///
/// # Errors
///
/// Returns [`LaunchError`] if `args` has a mistake, or the manifest cannot be written.
pub fn print(args: ManifestArgs, host: &impl Host) -> Result<ExitCode, LaunchError> {
    let ManifestTarget::K8s(args) = args.target;
    let output = args.output.clone();
    let (text, is_secret) = k8s(*args, host)?;
    match output {
        Some(path) => {
            write(&path, &text, is_secret).map_err(unwritable("--output", Path::new(&path)))?;
        }
        None => io::stdout().write_all(text.as_bytes()).map_err(system("print the manifest"))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes a manifest. If it contains a secret, only this user can read it.
fn write(path: &str, text: &str, is_secret: bool) -> io::Result<()> {
    let mode = if is_secret { 0o600 } else { 0o666 };
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(mode).open(path)?;
    if is_secret {
        file.set_permissions(Permissions::from_mode(mode))?;
    }
    file.write_all(text.as_bytes())
}

/// Returns the manifest for Kubernetes as YAML documents, and true if it contains a secret.
fn k8s(args: K8sArgs, host: &impl Host) -> Result<(String, bool), LaunchError> {
    let spec = ManifestSpec::resolve(args, host)?;
    if let Some(warning) = majority_warning(spec.voters, spec.nodes, "to begin and to continue") {
        // The manifest is the same if stderr is closed.
        let _ = writeln!(io::stderr(), "ragent: warning: {warning}");
    }
    if let Some(note) = spec.secret.note(spec.namespace.as_deref()) {
        let _ = writeln!(io::stderr(), "ragent: {note}");
    }
    let text = objects::text(&spec);
    let text = text.map_err(|error| system("write YAML")(io::Error::other(error)))?;
    Ok((text, matches!(spec.secret, JobSecret::New(..))))
}

#[cfg(test)]
mod tests;
