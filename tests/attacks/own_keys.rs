//! Provides both ends of TLS with a key of the attacker. They accept all keys of the other side.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use rcgen::{KeyPair, PKCS_ED25519};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig,
    SignatureScheme,
    client::{
        AlwaysResolvesClientRawPublicKeys, ResolvesClientCert,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::ring::{default_provider, sign::any_eddsa_type},
    pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime},
    server::{
        AlwaysResolvesServerRawPublicKeys,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::CertifiedKey,
    version::TLS13,
};

/// Accepts all keys, and counts those of servers.
#[derive(Debug, Default)]
pub(crate) struct AnyKey {
    servers: AtomicUsize,
}

impl AnyKey {
    /// Returns the number of servers that have sent a key.
    pub(crate) fn servers(&self) -> usize {
        self.servers.load(Ordering::Relaxed)
    }
}

impl ServerCertVerifier for AnyKey {
    fn verify_server_cert(
        &self,
        _key: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.servers.fetch_add(1, Ordering::Relaxed);
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _key: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(CertificateError::BadSignature.into())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _key: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for AnyKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _key: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _key: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(CertificateError::BadSignature.into())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _key: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// Announces a raw public key, and has none.
#[derive(Debug)]
pub(crate) struct NoKey;

impl ResolvesClientCert for NoKey {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        None
    }

    fn only_raw_public_keys(&self) -> bool {
        true
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// A key that was made for this purpose.
fn new_key() -> Arc<CertifiedKey> {
    let pair = KeyPair::generate_for(&PKCS_ED25519).unwrap();
    let signing = any_eddsa_type(&PrivatePkcs8KeyDer::from(pair.serialize_der())).unwrap();
    let public = CertificateDer::from(signing.public_key().unwrap().to_vec());
    Arc::new(CertifiedKey::new(vec![public], signing))
}

/// Returns a client with a new key.
pub(crate) fn with_key() -> Arc<dyn ResolvesClientCert> {
    Arc::new(AlwaysResolvesClientRawPublicKeys::new(new_key()))
}

/// Returns the client's end of TLS with this key, and its verifier.
pub(crate) fn client(own: Arc<dyn ResolvesClientCert>) -> (ClientConfig, Arc<AnyKey>) {
    let verifier = Arc::new(AnyKey::default());
    let client = ClientConfig::builder_with_provider(Arc::new(default_provider()));
    let client = client.with_protocol_versions(&[&TLS13]).unwrap().dangerous();
    let client = client.with_custom_certificate_verifier(Arc::clone(&verifier) as Arc<_>);
    (client.with_client_cert_resolver(own), verifier)
}

/// Returns the server's end of TLS with a new key.
pub(crate) fn server() -> ServerConfig {
    let server = ServerConfig::builder_with_provider(Arc::new(default_provider()));
    let server = server.with_protocol_versions(&[&TLS13]).unwrap();
    let server = server.with_client_cert_verifier(Arc::new(AnyKey::default()));
    server.with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(new_key())))
}
