//! Defines the flags of `ragent manifest`.

use clap::{Arg, Args, Subcommand};

use super::JobArgs;

/// Flags of `ragent manifest`.
#[derive(Args, Clone, Debug)]
pub struct ManifestArgs {
    /// The system that runs the job.
    #[command(subcommand)]
    pub target: ManifestTarget,
}

/// A system for which a manifest can be printed.
#[derive(Clone, Debug, Subcommand)]
pub enum ManifestTarget {
    /// Print the Kubernetes objects that run a job, for `kubectl apply -f -`
    #[command(
        infer_long_args = true,
        override_usage = "ragent manifest k8s [OPTIONS] SCRIPT [ARGS]..."
    )]
    K8s(Box<K8sArgs>),
}

/// Flags of `ragent manifest k8s`.
#[derive(Args, Clone, Debug, Default)]
#[command(
    after_help = "With `auto`, --shared-file, --save-path and --checkpoint-path are on the first \
                  volume.",
    mut_args(for_pods)
)]
pub struct K8sArgs {
    /// Name of the job and of its objects
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Image of the pods, with ragent, Python and the script
    #[arg(long, value_name = "IMAGE")]
    pub image: Option<String>,
    /// Namespace of the job [default: the current namespace of kubectl]
    #[arg(long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Pull policy of the image: `Always`, `IfNotPresent` or `Never` [default: chosen by Kubernetes]
    #[arg(long, value_name = "POLICY")]
    pub image_pull_policy: Option<String>,
    /// Kubernetes Secret with the credentials to pull the image. May be repeated
    #[arg(long, value_name = "NAME")]
    pub image_pull_secret: Vec<String>,
    /// Number of whole GPUs of each pod [default: none]
    #[arg(long, allow_negative_numbers = true, value_name = "N")]
    pub gpus_per_pod: Option<String>,
    /// Resource name of a GPU in the cluster [default: nvidia.com/gpu]
    #[arg(long, value_name = "NAME")]
    pub gpu_resource: Option<String>,
    /// Another resource of each pod, such as cpu=8, memory=64Gi or nvidia.com/gpumem=8000. May be repeated
    #[arg(long, value_name = "NAME=QUANTITY")]
    pub resource: Vec<String>,
    /// Label that a machine must have. May be repeated
    #[arg(long, value_name = "LABEL=VALUE")]
    pub node_selector: Vec<String>,
    /// Storage shared by all pods: pvc:CLAIM:/PATH or host:/FOLDER:/PATH. May be repeated
    #[arg(long, value_name = "KIND:SOURCE:/PATH")]
    pub volume: Vec<String>,
    /// Kubernetes Secret with the job's secret under the key `secret`. `new` adds one to the manifest, `none` runs without authentication
    /// [default: NAME-ragent, for several pods]
    #[arg(long, value_name = "NAME|new|none")]
    pub secret: Option<String>,
    /// User and group that pods run as, such as 1000:1000, but not root [default: from the image]
    #[arg(long, value_name = "UID[:GID]")]
    pub run_as: Option<String>,
    /// Namespace whose pods may connect to those of the job. May be repeated [default: only the job's own pods]
    #[arg(long, value_name = "NAMESPACE")]
    pub allow_from: Vec<String>,
    /// Serve the metrics for Prometheus at this port of each pod, such as 0.0.0.0:9400. Clients need no authentication [default: off]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics_listen: Option<String>,
    /// Environment variable of the pods, also one for ragent, such as PET_STANDBY=1. May be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    pub env: Vec<String>,
    /// `etcd`: pods find their coordinator through an etcd cluster. Without it, the first three or five pods elect the coordinator from
    /// --nnodes 2:3 up, and in smaller jobs the first pod runs it
    #[arg(long, value_name = "NAME")]
    pub rdzv_backend: Option<String>,
    /// Members of the etcd cluster, as pods reach them
    #[arg(long, value_name = "HOST[:PORT][,…]")]
    pub rdzv_endpoint: Option<String>,
    /// The job.
    #[command(flatten)]
    pub job: JobArgs,
    /// Number of times that a pod is replaced after its agent has failed [default: 3]
    #[arg(long, allow_negative_numbers = true, value_name = "N")]
    pub pod_restarts: Option<String>,
    /// Path of ragent in the image [default: from PATH]
    #[arg(long, value_name = "PATH")]
    pub ragent: Option<String>,
    /// Output file [default: stdout]
    #[arg(long, value_name = "FILE")]
    pub output: Option<String>,
}

/// Replaces the help of flags that mean something else for pods. All flags are shown in one list.
fn for_pods(arg: Arg) -> Arg {
    let arg = arg.help_heading(None::<&str>).hide_short_help(false);
    let help = match arg.get_id().as_str() {
        "deepspeed_config" => {
            "Configuration for `deepspeed`, a JSON file of this machine, which becomes part of the manifest"
        }
        "nnodes" => {
            "Number of pods: N, or MIN:MAX for an elastic job, such as 2:8, or MIN:MAX:UNIT [default: 1]"
        }
        "nproc_per_node" => {
            "Number of workers of each pod [default: its number of whole GPUs, else 1]"
        }
        "script" => {
            "Path of the training script in the image, and its arguments. All flags of ragent come before it"
        }
        _ => return arg,
    };
    arg.help(help)
}
