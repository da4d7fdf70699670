//! The mistakes that the command line of a manifest can have.

use ragent_rendezvous::settings::NodeRangeError;

use crate::spec::{JobSpecError, MethodName};

/// One mistake. `flag` contains it.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum ManifestError {
    /// `auto` needs a path on a shared volume, and there is none.
    #[error("`{flag} auto` needs a volume that all pods share")]
    AutoWithoutVolume {
        /// The flag with `auto`.
        flag: &'static str,
    },
    /// DeepSpeed's configuration does not exist, or is malformed.
    #[error("`--deepspeed-config {value}` {state}")]
    DeepSpeedConfig {
        /// The file.
        value: String,
        /// The problem with it.
        state: String,
    },
    /// A required flag is missing.
    #[error("`{flag}` is not given")]
    Missing {
        /// The flag.
        flag: &'static str,
    },
    /// `--module` and `--no-python` were both given.
    #[error("`--module` and `--no-python` cannot be used together")]
    ModuleWithoutPython,
    /// A variable would be ignored by the agents.
    #[error("`--env {name}` would have no effect: the manifest passes the flag to agents")]
    NoEffect {
        /// The variable.
        name: String,
        /// The manifest's own flag for it, without the hyphens.
        flag: Option<&'static str>,
    },
    /// The training script is missing.
    #[error("no training script is given")]
    NoScript,
    /// The number of pods cannot be parsed.
    #[error("`--nnodes {value}` {error}")]
    Nodes {
        /// Its value.
        value: String,
        /// The error.
        error: NodeRangeError,
    },
    /// An argument is not UTF-8, as a manifest must be.
    #[error("`{word}` is not valid UTF-8, which a manifest requires")]
    NotText {
        /// The argument, as far as it can be shown.
        word: String,
    },
    /// A flag belongs to a launch method that is not selected.
    #[error("`{flag} {value}` requires `--launch-method {method}`")]
    OnlyWith {
        /// The flag.
        flag: &'static str,
        /// Its value.
        value: String,
        /// The method that the flag belongs to.
        method: MethodName,
    },
    /// A volume would hide a path that pods need.
    #[error("`{flag} {value}` uses the path `{path}`, which pods need for other files")]
    Taken {
        /// The flag.
        flag: &'static str,
        /// Its value.
        value: String,
        /// The path.
        path: String,
    },
    /// The same name or path is given twice.
    #[error("`{flag}` gives `{name}` twice")]
    Twice {
        /// The flag.
        flag: &'static str,
        /// The name or path.
        name: String,
    },
    /// A variable would make every agent fail.
    #[error("{0}")]
    Variable(JobSpecError),
    /// A value is not valid for its flag.
    #[error("`{flag} {value}` is not {expected}")]
    Value {
        /// The flag.
        flag: &'static str,
        /// Its value.
        value: String,
        /// A description of valid values.
        expected: &'static str,
    },
}

impl ManifestError {
    /// Returns a suggestion for the user.
    pub(crate) fn hint(&self) -> Option<String> {
        Some(match self {
            Self::AutoWithoutVolume { .. } => {
                "add a volume with `--volume pvc:CLAIM:/PATH`, or give a path".to_owned()
            }
            Self::DeepSpeedConfig { .. } => {
                "the flag takes a file of this machine; for a file of the image, give `--env \
                 PET_DEEPSPEED_CONFIG=/PATH`"
                    .to_owned()
            }
            Self::NoEffect { flag: Some(flag), .. } => format!("give `--{flag}` instead"),
            Self::NoEffect { flag: None, .. } => {
                "omit it: the first pod hosts the coordinator".to_owned()
            }
            Self::Taken { .. } => "mount the volume at another folder, such as `/data`".to_owned(),
            Self::Variable(error) => return error.hint(),
            Self::Missing { .. } | Self::NoScript => "see `ragent manifest k8s --help`".to_owned(),
            Self::OnlyWith { method, .. } => {
                format!("add `--launch-method {method}`, or omit the flag")
            }
            Self::ModuleWithoutPython
            | Self::Nodes { .. }
            | Self::NotText { .. }
            | Self::Twice { .. }
            | Self::Value { .. } => return None,
        })
    }
}
