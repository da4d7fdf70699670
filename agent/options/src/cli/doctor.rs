//! Defines the flags of `ragent doctor`.

use std::path::PathBuf;

use clap::Args;

use super::auth::AuthArgs;

/// Flags of `ragent doctor`.
#[derive(Args, Clone, Debug)]
pub struct DoctorArgs {
    /// Endpoint or voters of the job, as given to its agents [default: check this machine only]
    #[arg(long, value_name = "HOST[:PORT][,…]|auto[:PORT]")]
    pub rdzv_endpoint: Option<String>,
    /// Rendezvous backend of the job. With `etcd`, the endpoint lists the members of etcd, and each is checked
    #[arg(long, value_name = "NAME")]
    pub rdzv_backend: Option<String>,
    /// Name of the job whose record in etcd is checked [default: no record is checked]
    #[arg(long, value_name = "ID")]
    pub rdzv_id: Option<String>,
    /// Settings for the connection to etcd, as given to the agents
    #[arg(long, value_name = "KEY=VALUE,…")]
    pub rdzv_conf: Option<String>,
    /// Number of nodes, as given to the agents of the job. Checks whether two jobs of one name could begin with so many [default: not
    /// checked]
    #[arg(long, value_name = "MIN:MAX")]
    pub nnodes: Option<String>,
    /// The authentication of the job.
    #[command(flatten)]
    pub auth: AuthArgs,
    /// Ask the nodes of the running job to measure the connections between them
    #[arg(long)]
    pub peers: bool,
    /// Number of workers on this node, as for a launch [default: one for each GPU]
    #[arg(long, allow_negative_numbers = true, value_name = "N")]
    pub nproc_per_node: Option<String>,
    /// Not supported any more: a measurement of the modules of standbys
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    pub standby: Option<String>,
    /// Not supported any more: the script for --standby
    #[arg(hide = true, requires = "standby")]
    pub script: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}
