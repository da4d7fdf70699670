//! The certificates of a process (X.509), for sites with a PKI: `--auth tls`.
//!
//! `files` reads the three files, and judges whether others could have changed them. `facts` reads from a certificate what
//! messages name, and `peer_name` is the name that a peer must have. `verifier` accepts the
//! certificates of peers, and `refusal` describes why one is not accepted.

mod facts;
mod files;
mod peer_name;
mod refusal;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod verifier;

use std::sync::Arc;

use rustls::{ClientConfig, ServerConfig, server::ResolvesServerCert, sign::SingleCertAndKey};

use self::{files::Files, verifier::Verifier};
use super::tls;

pub use self::{
    facts::{CertificateFacts, Validity, utc},
    refusal::is_of_certificate,
};
pub(super) use self::{files::Stamps, refusal::CertificateRefusal, verifier::Rejected};
pub use self::{
    files::{CertificateError, CertificateRequest},
    peer_name::PeerName,
};

/// The certificates of this process, as they were read last.
#[derive(Debug)]
pub(super) struct LoadedCertificates {
    /// The own certificate.
    pub(super) own: CertificateFacts,
    /// The name that peers must have.
    pub(super) required: PeerName,
    /// The state of the files at the time of reading.
    pub(super) stamps: Stamps,
    /// The configuration of connections that this process opens.
    pub(super) client: Arc<ClientConfig>,
    /// The configuration of connections that this process accepts.
    pub(super) server: Arc<ServerConfig>,
}

impl LoadedCertificates {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// Returns [`CertificateError`] if a file cannot be used.
    pub(super) fn read(request: &CertificateRequest) -> Result<Self, CertificateError> {
        let provider = Arc::new(tls::provider());
        let Files { authorities, certified, own, required, stamps } =
            files::read(request, &provider)?;
        let unusable = |error: rustls::Error| request.unusable(&error);
        let verifier = Verifier::new(authorities, required.clone(), &provider);
        let verifier = Arc::new(verifier.map_err(|error| request.unusable(&error))?);
        let identity = Arc::new(SingleCertAndKey::from(certified));
        let client =
            tls::client_config(Arc::clone(&provider), Arc::clone(&verifier) as _, identity.clone());
        let resolver: Arc<dyn ResolvesServerCert> = identity;
        let server = tls::server_config(provider, verifier, resolver).map_err(unusable)?;
        let client = Arc::new(client.map_err(unusable)?);
        Ok(Self { own, required, stamps, client, server: Arc::new(server) })
    }
}
