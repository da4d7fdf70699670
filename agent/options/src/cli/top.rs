//! Defines the flags of `ragent top`.

use clap::Args;

use super::AskedJobArgs;

/// Flags of `ragent top`.
#[derive(Args, Clone, Debug)]
pub struct TopArgs {
    /// The job.
    #[command(flatten)]
    pub asked: AskedJobArgs,
}
