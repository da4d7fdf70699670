//! Defines the flags of `ragent secret`.

use clap::Args;

/// Flags of `ragent secret`.
#[derive(Args, Clone, Debug)]
pub struct SecretArgs {
    /// Write the secret to your own file, which must not exist yet, and print only its public name
    #[arg(long, conflicts_with = "rotate")]
    pub init: bool,
    /// Put the secret on top of your own file. It is used from now on, and the others are still accepted
    #[arg(long)]
    pub rotate: bool,
    /// The file to write [default: ~/.config/ragent/secret]
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<std::path::PathBuf>,
}
