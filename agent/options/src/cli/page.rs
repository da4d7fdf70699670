//! Defines the flags of `ragent page`.

use clap::Args;

use super::AskedJobArgs;

/// Flags of `ragent page`.
#[derive(Args, Clone, Debug)]
pub struct PageArgs {
    /// The job.
    #[command(flatten)]
    pub asked: AskedJobArgs,
    /// Port on 127.0.0.1, for example a port that `ssh -L` forwards [default: a free port]
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    pub port: u16,
}
