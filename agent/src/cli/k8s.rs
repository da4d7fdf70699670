//! The flags of `ragent manifest k8s`.

use std::ffi::OsString;

use clap::{Args, Subcommand};

/// Flags of `ragent manifest`.
#[derive(Args, Clone, Debug)]
pub struct ManifestArgs {
    /// For whom.
    #[command(subcommand)]
    pub target: ManifestTarget,
}

/// For whom a manifest is printed.
#[derive(Clone, Debug, Subcommand)]
pub enum ManifestTarget {
    /// Prints what Kubernetes is to be told to run a job: pipe it into `kubectl apply -f -`.
    #[command(
        infer_long_args = true,
        override_usage = "ragent manifest k8s [OPTIONS] SCRIPT [ARGS]..."
    )]
    K8s(Box<K8sArgs>),
}

/// Flags of `ragent manifest k8s`.
#[derive(Args, Clone, Debug, Default)]
pub struct K8sArgs {
    /// Name of the job, and of everything that belongs to it
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Image of the pods, which has ragent, Python and the script
    #[arg(long, value_name = "IMAGE")]
    pub image: Option<String>,
    /// Namespace of the job [default: that of whoever applies the manifest]
    #[arg(long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// When nodes pull the image: `Always`, `IfNotPresent` or `Never` [default: Kubernetes' own]
    #[arg(long, alias = "image_pull_policy", value_name = "POLICY")]
    pub image_pull_policy: Option<String>,
    /// Secret with which they pull it; may be repeated
    #[arg(long, alias = "image_pull_secret", value_name = "NAME")]
    pub image_pull_secret: Vec<String>,
    /// Pods of the job: N, or MIN:MAX for an elastic one, or MIN:MAX:UNIT [default: 1]
    #[arg(long, value_name = "N|MIN:MAX[:UNIT]")]
    pub nnodes: Option<String>,
    /// Workers of each pod [default: its whole GPUs, else 1]
    #[arg(long, alias = "nproc_per_node", allow_negative_numbers = true, value_name = "N")]
    pub nproc_per_node: Option<String>,
    /// Whole GPUs of each pod [default: none]
    #[arg(long, alias = "gpus_per_pod", allow_negative_numbers = true, value_name = "N")]
    pub gpus_per_pod: Option<String>,
    /// What the cluster calls a GPU [default: nvidia.com/gpu]
    #[arg(long, alias = "gpu_resource", value_name = "NAME")]
    pub gpu_resource: Option<String>,
    /// Any other resource of each pod, such as cpu=8, memory=64Gi, nvidia.com/gpumem=8000; may be
    /// repeated
    #[arg(long, value_name = "NAME=QUANTITY")]
    pub resource: Vec<String>,
    /// Label that a machine must have; may be repeated
    #[arg(long, alias = "node_selector", value_name = "LABEL=VALUE")]
    pub node_selector: Vec<String>,
    /// Storage that all pods share: pvc:CLAIM:/PATH or host:/FOLDER:/PATH; may be repeated
    #[arg(long, value_name = "KIND:SOURCE:/PATH")]
    pub volume: Vec<String>,
    /// Variable of the pods, also any flag of ragent by its PET_ variable; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    pub env: Vec<String>,
    /// Failures of the job that are followed by a new round [default: 0]
    #[arg(long, alias = "max_restarts", allow_negative_numbers = true, value_name = "N")]
    pub max_restarts: Option<String>,
    /// How often each pod is replaced when its agent has failed [default: 3]
    #[arg(long, alias = "pod_restarts", allow_negative_numbers = true, value_name = "N")]
    pub pod_restarts: Option<String>,
    /// Seconds that workers have to end after a signal [default: 30]
    #[arg(long, alias = "shutdown_timeout", allow_negative_numbers = true, value_name = "SECONDS")]
    pub shutdown_timeout: Option<String>,
    /// What workers are told beside their environment: `torchrun`, `basic` or `deepspeed`; as when
    /// launching [default: torchrun]
    #[arg(long, alias = "launch_method", value_name = "METHOD")]
    pub launch_method: Option<String>,
    /// With `basic`: workers meet by a file; `auto` puts it on the first volume
    #[arg(long, alias = "shared_file", value_name = "PATH|auto[:FOLDER]")]
    pub shared_file: Option<String>,
    /// With `deepspeed`: its configuration, a file of this machine that is carried along
    #[arg(long, alias = "deepspeed_config", value_name = "FILE")]
    pub deepspeed_config: Option<String>,
    /// A folder of the job, passed to all workers as --save_path; `auto` makes one on the first volume
    #[arg(long, alias = "save_path", value_name = "PATH|auto[:FOLDER]")]
    pub save_path: Option<String>,
    /// A file of the job, passed to all workers as --checkpoint_path; `auto` names one on the first
    /// volume
    #[arg(long, alias = "checkpoint_path", value_name = "PATH|auto[:FOLDER]")]
    pub checkpoint_path: Option<String>,
    /// The script is a Python module, run as with `python -m`
    #[arg(short, long)]
    pub module: bool,
    /// The script is a program of its own, run without Python
    #[arg(long, alias = "no_python")]
    pub no_python: bool,
    /// Where the image has ragent [default: in its PATH]
    #[arg(long, value_name = "PATH")]
    pub ragent: Option<String>,
    /// File that gets the manifest [default: stdout]
    #[arg(long, value_name = "FILE")]
    pub output: Option<String>,
    /// The training script, as the image has it
    #[arg(value_name = "SCRIPT")]
    pub script: Option<OsString>,
    /// Its arguments, passed through untouched
    #[arg(value_name = "ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
    pub args: Vec<OsString>,
}
