//! The configurations of TLS 1.3 with raw public keys (RFC 7250): both ends have the key that is derived from the secret,
//! prove that they have it, and accept no other key.
//!
//! The server name (SNI) in the first message of the client is derived from the secret as well. It selects the key
//! while a secret is being replaced, and a server does no public-key operation for a client that does not know it.
//!
//! With certificates (`certificates`), the verifiers and the identity differ, and nothing else does.

use std::sync::Arc;

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig,
    SignatureScheme,
    client::{
        AlwaysResolvesClientRawPublicKeys, ResolvesClientCert, Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, ring, verify_tls13_signature_with_raw_key},
    pki_types::{
        CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
    },
    server::{
        ClientHello, NoServerSessionStorage, ResolvesServerCert,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::CertifiedKey,
    version::TLS13,
};
use zeroize::Zeroizing;

use super::form::{KeyLabel, Secret, SecretId};

/// gRPC.
pub const ALPN_HTTP2: &[u8] = b"h2";
/// HTTP/1.1.
pub const ALPN_HTTP1: &[u8] = b"http/1.1";
/// The protocol between voters.
pub const ALPN_VOTER: &[u8] = b"ragent-voter";
/// The protocol in which agents send checkpoints to each other.
pub const ALPN_MEMORY: &[u8] = b"ragent-memory";

/// The end of the server names in first messages, which no resolver knows.
const DOMAIN: &str = "ragent.invalid";

/// The configuration of connections that this process opens, with one secret or with a certificate.
#[derive(Clone, Debug)]
pub struct ClientTls {
    /// The secret; `None` with a certificate.
    pub id: Option<SecretId>,
    /// The configuration.
    pub config: Arc<ClientConfig>,
    /// The name of the server, which is sent to it; `None` with a certificate: none is sent.
    pub name: Option<ServerName<'static>>,
}

/// The configuration of connections that this process accepts, with all of its secrets.
#[derive(Clone, Debug)]
pub(super) struct ServerTls {
    pub(super) config: Arc<ServerConfig>,
    keys: Arc<Keys>,
}

impl ServerTls {
    /// Returns true if a client that sends this server name knows one of the secrets.
    pub(super) fn knows(&self, name: Option<&str>) -> bool {
        self.keys.find(name).is_some()
    }
}

/// Returns the configurations for a list of secrets.
pub(super) fn configurations(secrets: &[Secret]) -> Result<(ServerTls, Vec<ClientTls>), Error> {
    let provider = Arc::new(provider());
    let keys = secrets.iter().map(SecretKey::new).collect::<Result<_, _>>()?;
    let keys = Arc::new(Keys(keys));
    let clients = keys.0.iter().map(|key| key.client(&provider)).collect::<Result<_, _>>()?;
    let verifier = KeyVerifier::new(&provider, keys.0.iter());
    let resolver = Arc::clone(&keys) as Arc<dyn ResolvesServerCert>;
    let config = server_config(provider, Arc::new(verifier), resolver)?;
    Ok((ServerTls { config: Arc::new(config), keys }, clients))
}

/// Returns the configuration of a server, which accepts the clients that `verifier` accepts.
pub(super) fn server_config(
    provider: Arc<CryptoProvider>,
    verifier: Arc<dyn ClientCertVerifier>,
    own: Arc<dyn ResolvesServerCert>,
) -> Result<ServerConfig, Error> {
    let builder =
        ServerConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13])?;
    let mut config = builder.with_client_cert_verifier(verifier).with_cert_resolver(own);
    config.alpn_protocols = [ALPN_HTTP2, ALPN_HTTP1, ALPN_VOTER, ALPN_MEMORY].map(Vec::from).into();
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// Returns the configuration of a client, which accepts the servers that `verifier` accepts. This is the only place in
/// which a verifier of servers other than rustls's own is set.
pub(super) fn client_config(
    provider: Arc<CryptoProvider>,
    verifier: Arc<dyn ServerCertVerifier>,
    own: Arc<dyn ResolvesClientCert>,
) -> Result<ClientConfig, Error> {
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_protocol_versions(&[&TLS13])?.dangerous();
    let builder = builder.with_custom_certificate_verifier(verifier);
    let mut config = builder.with_client_cert_resolver(own);
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// X25519, and AES-128-GCM or ChaCha20-Poly1305: every build of this program has them.
pub(super) fn provider() -> CryptoProvider {
    CryptoProvider {
        cipher_suites: vec![
            ring::cipher_suite::TLS13_AES_128_GCM_SHA256,
            ring::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ],
        kx_groups: vec![ring::kx_group::X25519],
        ..ring::default_provider()
    }
}

/// The key of one secret.
#[derive(Debug)]
struct SecretKey {
    id: SecretId,
    server_name: String,
    certified: Arc<CertifiedKey>,
    public: CertificateDer<'static>,
}

/// The beginning of an Ed25519 key in PKCS #8; the end is the seed (RFC 8410).
const PKCS8: [u8; 16] = [48, 46, 2, 1, 0, 48, 5, 6, 3, 43, 101, 112, 4, 34, 4, 32];

impl SecretKey {
    fn new(secret: &Secret) -> Result<Self, Error> {
        let seed: Zeroizing<[u8; 32]> = secret.key(KeyLabel::Tls);
        let mut pkcs8 = Zeroizing::new([0; PKCS8.len() + 32]);
        pkcs8[..PKCS8.len()].copy_from_slice(&PKCS8);
        pkcs8[PKCS8.len()..].copy_from_slice(&*seed);
        let private = PrivatePkcs8KeyDer::from(&pkcs8[..]);
        let signing = ring::sign::any_eddsa_type(&private)?;
        let missing = || Error::General("the key has no public part".to_owned());
        let public = signing.public_key().ok_or_else(missing)?;
        let public = CertificateDer::from(public.as_ref().to_vec());
        let server_name: Zeroizing<[u8; 16]> = secret.key(KeyLabel::ServerName);
        Ok(Self {
            id: secret.id(),
            server_name: format!("{:032x}.{DOMAIN}", u128::from_be_bytes(*server_name)),
            certified: Arc::new(CertifiedKey::new(vec![public.clone()], signing)),
            public,
        })
    }

    fn client(&self, provider: &Arc<CryptoProvider>) -> Result<ClientTls, Error> {
        let verifier = KeyVerifier::new(provider, [self]);
        let own = AlwaysResolvesClientRawPublicKeys::new(Arc::clone(&self.certified));
        let config = client_config(Arc::clone(provider), Arc::new(verifier), Arc::new(own))?;
        let name = ServerName::try_from(self.server_name.clone());
        let name = name.map_err(|_| Error::General("the name of the server is invalid".into()))?;
        Ok(ClientTls { id: Some(self.id), config: Arc::new(config), name: Some(name) })
    }
}

/// The keys of a server. The server name selects one.
#[derive(Debug)]
struct Keys(Vec<SecretKey>);

impl Keys {
    fn find(&self, name: Option<&str>) -> Option<&SecretKey> {
        self.0.iter().find(|key| name == Some(&key.server_name))
    }
}

impl ResolvesServerCert for Keys {
    /// Without a key, the handshake ends with an alert.
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.find(hello.server_name()).map(|key| Arc::clone(&key.certified))
    }

    fn only_raw_public_keys(&self) -> bool {
        true
    }
}

/// Accepts the derived public keys and no other key.
#[derive(Debug)]
struct KeyVerifier {
    provider: Arc<CryptoProvider>,
    accepted: Vec<CertificateDer<'static>>,
}

impl KeyVerifier {
    fn new<'a>(
        provider: &Arc<CryptoProvider>,
        keys: impl IntoIterator<Item = &'a SecretKey>,
    ) -> Self {
        let accepted = keys.into_iter().map(|key| key.public.clone()).collect();
        Self { provider: Arc::clone(provider), accepted }
    }

    fn verify_key(&self, key: &CertificateDer<'_>) -> Result<(), Error> {
        let is_known = self.accepted.iter().any(|accepted| accepted == key);
        let unknown = CertificateError::ApplicationVerificationFailure;
        if is_known { Ok(()) } else { Err(unknown.into()) }
    }

    fn schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn verify_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(key.as_ref());
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature_with_raw_key(message, &key, signature, algorithms)
    }
}

/// The methods that verifiers of servers and of clients share. No configuration allows TLS 1.2.
macro_rules! tls13_signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            _message: &[u8],
            _certificate: &CertificateDer<'_>,
            _signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(Error::General("TLS 1.2 is not supported".to_owned()))
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            self.verify_signature(message, certificate, signature)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.schemes()
        }
    };
}
pub(super) use tls13_signatures;

impl ServerCertVerifier for KeyVerifier {
    fn verify_server_cert(
        &self,
        key: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.verify_key(key).map(|()| ServerCertVerified::assertion())
    }

    tls13_signatures!();

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for KeyVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        key: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.verify_key(key).map(|()| ClientCertVerified::assertion())
    }

    tls13_signatures!();

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use rustls::{ClientConnection, Connection, ServerConnection, client::ResolvesClientCert};

    use super::*;

    fn secret(character: &str) -> Secret {
        Secret::new(&character.repeat(43)).unwrap()
    }

    fn client(secret: &Secret) -> ClientTls {
        configurations(std::slice::from_ref(secret)).unwrap().1.remove(0)
    }

    /// Shakes hands in memory; returns the error of the end that fails first.
    fn shake(
        client: ClientConfig,
        name: ServerName<'static>,
        server: &ServerTls,
    ) -> Result<(), Error> {
        let mut client = Connection::from(ClientConnection::new(Arc::new(client), name).unwrap());
        let server = ServerConnection::new(Arc::clone(&server.config)).unwrap();
        let mut server = Connection::from(server);
        while client.is_handshaking() || server.is_handshaking() {
            for (from, to) in [(0, 1), (1, 0)] {
                let ends = [&mut client, &mut server];
                let mut bytes = Vec::new();
                while ends[from].wants_write() {
                    ends[from].write_tls(&mut bytes).unwrap();
                }
                let mut bytes = &bytes[..];
                while !bytes.is_empty() {
                    ends[to].read_tls(&mut bytes).unwrap();
                    ends[to].process_new_packets()?;
                }
            }
        }
        Ok(())
    }

    fn with_config(tls: &ClientTls) -> (ClientConfig, ServerName<'static>) {
        ((*tls.config).clone(), tls.name.clone().unwrap())
    }

    /// Both ends with one secret shake hands, also while it is being replaced.
    #[test]
    fn members_shake_hands() {
        let (old, new) = (secret("a"), secret("b"));
        let (server, _) = configurations(&[new.clone(), old.clone()]).unwrap();
        for secret in [&old, &new] {
            let (config, name) = with_config(&client(secret));
            shake(config, name, &server).unwrap();
        }
    }

    /// A client with another secret is refused at its first message.
    #[test]
    fn unknown_server_name_is_refused() {
        let (server, _) = configurations(&[secret("a")]).unwrap();
        let (config, name) = with_config(&client(&secret("b")));
        let error = shake(config, name.clone(), &server).unwrap_err();
        assert!(error.to_string().contains("no server certificate chain resolved"), "{error}");
        let text = name.to_str();
        assert!(!server.knows(Some(&text)) && !server.knows(None));
        assert!(server.knows(Some(&client(&secret("a")).name.unwrap().to_str())));
    }

    /// The server name is sent in plain text. A client that knows it and has another key is refused.
    #[test]
    fn client_with_another_key_is_refused() {
        let (server, _) = configurations(&[secret("a")]).unwrap();
        let right = client(&secret("a"));
        let wrong = client(&secret("b"));
        // It accepts the server's key, but has its own.
        let mut config = (*right.config).clone();
        config.client_auth_cert_resolver = Arc::clone(&wrong.config.client_auth_cert_resolver);
        let error = shake(config, right.name.clone().unwrap(), &server).unwrap_err();
        assert!(matches!(error, Error::InvalidCertificate(_)), "{error}");
    }

    /// Supports raw public keys, and has none.
    #[derive(Debug)]
    struct NoKey;

    impl ResolvesClientCert for NoKey {
        fn resolve(
            &self,
            _issuers: &[&[u8]],
            _schemes: &[SignatureScheme],
        ) -> Option<Arc<CertifiedKey>> {
            None
        }

        fn only_raw_public_keys(&self) -> bool {
            true
        }

        fn has_certs(&self) -> bool {
            true
        }
    }

    /// A client that knows the server name and has no key is refused, too.
    #[test]
    fn client_without_a_key_is_refused() {
        let (server, _) = configurations(&[secret("a")]).unwrap();
        let right = client(&secret("a"));
        let mut config = (*right.config).clone();
        config.client_auth_cert_resolver = Arc::new(NoKey);
        let error = shake(config, right.name.unwrap(), &server).unwrap_err();
        assert_eq!(error, Error::NoCertificatesPresented);
    }

    /// A server that knows the server name and has another key is refused.
    #[test]
    fn server_with_another_key_is_refused() {
        let right = client(&secret("a"));
        let mut key = SecretKey::new(&secret("b")).unwrap();
        key.server_name = right.name.as_ref().unwrap().to_str().into_owned();
        let keys = Arc::new(Keys(vec![key]));
        let (mut server, _) = configurations(&[secret("b")]).unwrap();
        let mut config = (*server.config).clone();
        config.cert_resolver = Arc::clone(&keys) as Arc<dyn ResolvesServerCert>;
        server = ServerTls { config: Arc::new(config), keys };
        let (config, name) = with_config(&right);
        let error = shake(config, name, &server).unwrap_err();
        assert!(matches!(error, Error::InvalidCertificate(_)), "{error}");
    }
}
