//! Defines the flags of `ragent coordinator`.

use clap::Args;

use super::auth::AuthArgs;

/// Flags of `ragent coordinator`.
#[derive(Args, Clone, Debug)]
pub struct CoordinatorArgs {
    /// Refused. Until version 0.3, the command had an address of its own.
    #[arg(long, hide = true)]
    pub host: Option<String>,
    /// Refused, as `--host`.
    #[arg(long, hide = true)]
    pub port: Option<String>,
    /// Name of the job, as given to its nodes
    #[arg(long, value_name = "ID", default_value = "none")]
    pub rdzv_id: String,
    /// Hosts of the job's voters, as given to its nodes, such as node0,node1,node2. This host must be one of them
    ///
    /// The coordinator takes part in the election, and coordinates the job while it is elected.
    #[arg(long, value_name = "HOST,HOST,...[:PORT]")]
    pub rdzv_endpoint: Option<String>,
    /// Also serve the metrics for Prometheus at this address, such as 0.0.0.0:9400. Every client that reaches it can read them without
    /// authentication. Port 0 selects a free port [default: off]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics_listen: Option<String>,
    /// The authentication of the job.
    #[command(flatten)]
    pub auth: AuthArgs,
    /// Append the events of the job to this file while this process coordinates it, one JSON object a line
    #[arg(long, value_name = "FILE")]
    pub journal: Option<String>,
    /// Program that prints the hosts that the job must not use, one on each line, followed by the reason. It runs every minute while this
    /// process coordinates [default: none]
    #[arg(long, value_name = "COMMAND")]
    pub exclude_command: Option<String>,
    /// Number of nodes, as given to the nodes of the job
    #[arg(long, value_name = "N or MIN:MAX")]
    pub nnodes: Option<String>,
}
