//! Defines the flags of `ragent install-torchrun`.

use std::path::PathBuf;

use clap::Args;

/// Flags of `ragent install-torchrun`.
#[derive(Args, Clone, Debug)]
pub struct InstallTorchrunArgs {
    /// Folder for the link: the folder of the present torchrun, or a folder before it in PATH
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// Remove the link, and restore the torchrun that it replaced
    #[arg(long)]
    pub undo: bool,
}
