//! The flags for the authentication of a job.

use clap::Args;

use super::job::SECURITY;

/// Flags of all commands that communicate with the processes of a job.
#[derive(Args, Clone, Debug, Default)]
pub struct AuthArgs {
    /// Authentication of the job's processes: by certificates or a secret if there are some (`auto`), always by a
    /// secret (`secret`) or by certificates (`tls`), or none (`none`) [default: auto]
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
    /// File with the certificates of the authorities that sign those of the nodes (PEM)
    #[arg(
        long,
        alias = "tls_ca",
        value_name = "FILE",
        help_heading = SECURITY,
        hide_short_help = true
    )]
    pub tls_ca: Option<String>,
    /// File with the certificate of this node, followed by those between it and an authority (PEM)
    #[arg(
        long,
        alias = "tls_cert",
        value_name = "FILE",
        help_heading = SECURITY,
        hide_short_help = true
    )]
    pub tls_cert: Option<String>,
    /// File with the key of that certificate (PEM)
    #[arg(
        long,
        alias = "tls_key",
        value_name = "FILE",
        help_heading = SECURITY,
        hide_short_help = true
    )]
    pub tls_key: Option<String>,
    /// DNS name or URI that the certificates of all other nodes must have [default: the first one of
    /// this node's certificate]
    #[arg(
        long,
        alias = "tls_peer",
        value_name = "NAME",
        help_heading = SECURITY,
        hide_short_help = true
    )]
    pub tls_peer: Option<String>,
}
