//! Defines the flags of `ragent status`.

use clap::Args;

use super::auth::AuthArgs;

/// Flags that select the job of a command.
#[derive(Args, Clone, Debug)]
pub struct AskedJobArgs {
    /// Endpoint of the job or of one of its agents, or the list of voters [default: your running job on this machine]
    #[arg(long, value_name = "HOST[:PORT][,…]|auto[:PORT]")]
    pub rdzv_endpoint: Option<String>,
    /// The authentication of the job.
    #[command(flatten)]
    pub auth: AuthArgs,
}

/// Flags of `ragent status`.
#[derive(Args, Clone, Debug)]
pub struct StatusArgs {
    /// The job.
    #[command(flatten)]
    pub asked: AskedJobArgs,
    /// Print a row for each node, with its address. Otherwise nodes in the same state share a row
    #[arg(long, conflicts_with = "json")]
    pub nodes: bool,
    /// Print the status again after each change, until the job is closed
    #[arg(long, short)]
    pub watch: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}
