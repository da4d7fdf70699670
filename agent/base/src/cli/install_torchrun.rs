//! The flags of `ragent install-torchrun`.

use std::path::PathBuf;

use clap::Args;

/// Flags of `ragent install-torchrun`.
#[derive(Args, Clone, Debug)]
pub struct InstallTorchrunArgs {
    /// The folder for the link, such as the one that has torchrun now, or one that precedes it in PATH
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// Remove the link, and restore the torchrun that it replaced
    #[arg(long)]
    pub undo: bool,
}
