//! Defines the flags for the authentication of a job.

use clap::Args;

use super::job::SECURITY;

/// Flags of all commands that communicate with the processes of a job.
#[derive(Args, Clone, Debug, Default)]
pub struct AuthArgs {
    /// Authentication between the processes of the job. `auto` uses certificates or a secret if you have one. `secret` and `tls` require a
    /// secret or certificates. `none` uses neither [default: auto]
    #[arg(long, value_name = "MODE", help_heading = SECURITY, hide_short_help = true)]
    pub auth: Option<String>,
    /// File with the secret, the same on all nodes. `ragent secret` makes one. `-` is stdin [default: the credential ragent-secret of a
    /// service, else ~/.config/ragent/secret]
    #[arg(long, value_name = "FILE", help_heading = SECURITY, hide_short_help = true)]
    pub secret_file: Option<String>,
    /// PEM file with the authorities that sign the certificates of the nodes
    #[arg(long, value_name = "FILE", help_heading = SECURITY, hide_short_help = true)]
    pub tls_ca: Option<String>,
    /// PEM file with the certificate of this node, followed by intermediate certificates, if there are any
    #[arg(long, value_name = "FILE", help_heading = SECURITY, hide_short_help = true)]
    pub tls_cert: Option<String>,
    /// PEM file with the private key of that certificate
    #[arg(long, value_name = "FILE", help_heading = SECURITY, hide_short_help = true)]
    pub tls_key: Option<String>,
    /// DNS name or URI that the certificates of all other nodes must have, such as job.example [default: the first one in this node's
    /// certificate]
    #[arg(long, value_name = "NAME", help_heading = SECURITY, hide_short_help = true)]
    pub tls_peer: Option<String>,
}
