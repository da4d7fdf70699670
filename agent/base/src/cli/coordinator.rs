//! The flags of `ragent coordinator`.

use clap::Args;

use super::auth::AuthArgs;

/// Flags of `ragent coordinator`.
#[derive(Args, Clone, Debug)]
pub struct CoordinatorArgs {
    /// Address to listen on
    #[arg(long, value_name = "ADDR", default_value = "::")]
    pub host: String,
    /// Port to listen on; 0 selects a free port
    #[arg(long, value_name = "PORT", default_value_t = 29400)]
    pub port: u16,
    /// Name of the job
    #[arg(long, alias = "rdzv_id", value_name = "ID", default_value = "none")]
    pub rdzv_id: String,
    /// Hosts of the job's voters, as on its nodes; this host is one of them
    ///
    /// The coordinator takes part in the election, and coordinates the job while it is elected.
    #[arg(
        long, alias = "rdzv_endpoint", value_name = "HOST,HOST,...[:PORT]", requires = "nnodes",
        conflicts_with_all = ["host", "port"]
    )]
    pub rdzv_endpoint: Option<String>,
    /// Serve the metrics for Prometheus at this address too, to every client that reaches it, without
    /// authentication; port 0 selects a free port [default: off]
    #[arg(long, alias = "metrics_listen", value_name = "ADDRESS:PORT")]
    pub metrics_listen: Option<String>,
    /// The authentication of the job.
    #[command(flatten)]
    pub auth: AuthArgs,
    /// File to which the events of the job are appended while this process coordinates it, as lines of JSON
    #[arg(long, value_name = "FILE")]
    pub journal: Option<String>,
    /// Numbers of nodes of the job, as on its nodes
    #[arg(long, value_name = "N or MIN:MAX", requires = "rdzv_endpoint")]
    pub nnodes: Option<String>,
}
