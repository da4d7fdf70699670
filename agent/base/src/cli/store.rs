//! Defines the flags of `ragent store`.

use clap::Args;

/// Flags of `ragent store`.
#[derive(Args, Clone, Debug)]
pub struct StoreArgs {
    /// Address to listen on. `::` accepts connections from all hosts that can reach this one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1")]
    pub host: String,
    /// Port to listen on; 0 selects a free port
    #[arg(long, value_name = "PORT", default_value_t = 29500)]
    pub port: u16,
    /// End when the parent process ends
    #[arg(long, alias = "exit_with_parent")]
    pub exit_with_parent: bool,
}
