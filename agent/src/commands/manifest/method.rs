//! Reads the launch method of a manifest.

use std::path::Path;

use super::{ManifestError, SharedVolume, typed::wrong};
use crate::{
    cli::K8sArgs,
    spec::{Errors, MethodName, read_deepspeed_config},
    sys::host::Host,
};

/// The launch method: how workers get their ranks in addition to the environment.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) enum Method {
    /// `basic`.
    Basic {
        /// `--shared-file`, in ragent's form.
        shared_file: Option<String>,
    },
    /// `deepspeed`.
    DeepSpeed {
        /// The text of DeepSpeed's configuration.
        config: Option<String>,
    },
    /// `torchrun`.
    #[default]
    Torchrun,
}

/// Returns a path in ragent's form; `auto` alone would be in the image of the pod, so it becomes a
/// path on the first volume.
pub(super) fn job_path(
    flag: &'static str,
    typed: &Option<String>,
    volumes: &[SharedVolume],
) -> Result<Option<String>, ManifestError> {
    match typed.as_deref() {
        None | Some("") => Ok(None),
        Some("auto") => match volumes.first() {
            Some(volume) => Ok(Some(format!("auto:{}", volume.mount_path))),
            None => Err(ManifestError::AutoWithoutVolume { flag }),
        },
        Some(path) => Ok(Some(path.to_owned())),
    }
}

pub(super) fn method(
    args: &K8sArgs,
    volumes: &[SharedVolume],
    host: &impl Host,
    errors: &mut Errors<ManifestError>,
) -> Method {
    let name = match args.launch_method.as_deref() {
        None => MethodName::Torchrun,
        Some(text) => match MethodName::parse(text) {
            Some(name) => name,
            None => {
                errors.0.push(wrong("--launch-method", text, MethodName::CHOICES));
                return Method::Torchrun;
            }
        },
    };
    let files = [
        ("--shared-file", &args.shared_file, MethodName::Basic),
        ("--deepspeed-config", &args.deepspeed_config, MethodName::DeepSpeed),
    ];
    for (flag, typed, method) in files {
        if let Some(value) = typed.clone().filter(|_| method != name) {
            errors.0.push(ManifestError::OnlyWith { flag, value, method });
        }
    }
    match name {
        MethodName::Basic => {
            let shared_file = job_path("--shared-file", &args.shared_file, volumes);
            Method::Basic { shared_file: errors.or_default(shared_file) }
        }
        MethodName::DeepSpeed => {
            let config = args.deepspeed_config.as_ref().map(|path| {
                read_deepspeed_config(host, Path::new(path))
                    .map_err(|state| ManifestError::DeepSpeedConfig { value: path.clone(), state })
            });
            Method::DeepSpeed { config: errors.or_default(config.transpose()) }
        }
        MethodName::Torchrun => Method::Torchrun,
    }
}
