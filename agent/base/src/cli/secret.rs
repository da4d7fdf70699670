//! The flags of `ragent secret`.

use clap::Args;

/// Flags of `ragent secret`.
#[derive(Args, Clone, Debug)]
pub struct SecretArgs {
    /// Write the secret to this user's file, which must not exist yet, and print only its public name
    #[arg(long, conflicts_with = "rotate")]
    pub init: bool,
    /// Put the secret on top of this user's file: it is used from now on, and the others are still accepted
    #[arg(long)]
    pub rotate: bool,
    /// The file to write [default: ~/.config/ragent/secret]
    #[arg(long, alias = "secret_file", value_name = "FILE")]
    pub secret_file: Option<std::path::PathBuf>,
}
