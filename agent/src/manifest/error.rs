//! Every mistake that the command line of a manifest can have.

use ragent_rendezvous::settings::NodeRangeError;

use crate::job_spec::{JobSpecError, MethodName};

/// One mistake. `flag` holds it.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ManifestError {
    /// A path that is to be made up, and no place for it.
    #[error("`{flag} auto` needs a volume that all pods share")]
    AutoWithoutVolume {
        /// Where it was given.
        flag: &'static str,
    },
    /// DeepSpeed's configuration is not there, or is none.
    #[error("`--deepspeed-config {value}` {state}")]
    DeepSpeedConfig {
        /// The file.
        value: String,
        /// What is wrong with it.
        state: String,
    },
    /// A flag that must be there.
    #[error("`{flag}` is not given")]
    Missing {
        /// The flag.
        flag: &'static str,
    },
    /// Both `--module` and `--no-python`.
    #[error("`--module` and `--no-python` exclude each other")]
    ModuleWithoutPython,
    /// A variable of which agents take no notice.
    #[error("`--env {name}` would have no effect: the manifest gives agents the flag")]
    NoEffect {
        /// The variable.
        name: String,
        /// The manifest's own flag for it, without the hyphens.
        flag: Option<&'static str>,
    },
    /// Nothing to run.
    #[error("no training script is given")]
    NoScript,
    /// The number of pods cannot be read.
    #[error("`--nnodes {value}` {error}")]
    Nodes {
        /// What was given.
        value: String,
        /// Why not.
        error: NodeRangeError,
    },
    /// A word that a manifest cannot hold.
    #[error("`{word}` is no text, and a manifest is")]
    NotText {
        /// The word, as far as it can be shown.
        word: String,
    },
    /// A flag of a launch method that is not chosen.
    #[error("`{flag} {value}` belongs to `--launch-method {method}`")]
    OnlyWith {
        /// The flag.
        flag: &'static str,
        /// What was given.
        value: String,
        /// The method.
        method: MethodName,
    },
    /// A volume would hide what pods need.
    #[error("`{flag} {value}` is at `{path}`, where pods have something else")]
    Taken {
        /// The flag.
        flag: &'static str,
        /// What was given.
        value: String,
        /// Where it would be.
        path: String,
    },
    /// The same thing is said twice.
    #[error("`{flag}` says twice what `{name}` is")]
    Twice {
        /// The flag.
        flag: &'static str,
        /// What it is about.
        name: String,
    },
    /// A variable that would end every agent.
    #[error("{0}")]
    Variable(JobSpecError),
    /// Not what a flag takes.
    #[error("`{flag} {value}` is not {expected}")]
    Value {
        /// The flag.
        flag: &'static str,
        /// What was given.
        value: String,
        /// What it takes.
        expected: &'static str,
    },
}

impl ManifestError {
    /// What to try.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::AutoWithoutVolume { .. } => {
                "name one with `--volume pvc:CLAIM:/PATH`, or give a path".to_owned()
            }
            Self::DeepSpeedConfig { .. } => {
                "it is a file of this machine; for one of the image give \
                 `--env PET_DEEPSPEED_CONFIG=/PATH`"
                    .to_owned()
            }
            Self::NoEffect { flag: Some(flag), .. } => format!("give `--{flag}` instead"),
            Self::NoEffect { flag: None, .. } => {
                "agents meet at the first pod; leave it out".to_owned()
            }
            Self::Taken { .. } => "mount it at another folder, such as `/data`".to_owned(),
            Self::Variable(error) => return error.hint(),
            Self::Missing { .. } | Self::NoScript => "see `ragent manifest k8s --help`".to_owned(),
            Self::OnlyWith { method, .. } => {
                format!("add `--launch-method {method}`, or leave it out")
            }
            Self::ModuleWithoutPython
            | Self::Nodes { .. }
            | Self::NotText { .. }
            | Self::Twice { .. }
            | Self::Value { .. } => return None,
        })
    }
}
