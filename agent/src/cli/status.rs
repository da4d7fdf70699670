//! The flags of `ragent status`.

use clap::Args;

use super::auth::AuthArgs;

/// Flags of `ragent status`.
#[derive(Args, Clone, Debug)]
pub struct StatusArgs {
    /// Endpoint of the job or of one of its agents, or the list of voters [default: the running job
    /// of this user]
    #[arg(long, alias = "rdzv_endpoint", value_name = "HOST[:PORT][,…]|auto[:PORT]")]
    pub rdzv_endpoint: Option<String>,
    /// The authentication of the job.
    #[command(flatten)]
    pub auth: AuthArgs,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}
