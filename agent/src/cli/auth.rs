//! The flags for the authentication of a job.

use clap::Args;

use super::job::SECURITY;

/// Flags of all commands that communicate with the processes of a job.
#[derive(Args, Clone, Debug, Default)]
pub struct AuthArgs {
    /// Authentication of the job's processes: by a secret if there is one (`auto`), always by a secret
    /// (`secret`), or none (`none`) [default: auto]
    #[arg(long, value_name = "MODE", help_heading = SECURITY, hide_short_help = true)]
    pub auth: Option<String>,
    /// File with the secret, the same on all nodes; `-` is stdin [default: the credential ragent-secret
    /// of a service, else ~/.config/ragent/secret]
    #[arg(
        long,
        alias = "secret_file",
        value_name = "FILE",
        help_heading = SECURITY,
        hide_short_help = true
    )]
    pub secret_file: Option<String>,
}
