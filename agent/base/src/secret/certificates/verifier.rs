//! Accepts a peer whose certificate is signed by one of the own authorities and has the required name. Host names are not
//! compared, because agents dial addresses.

use std::sync::Arc;

use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore,
    SignatureScheme,
    client::{
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor,
    },
    crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::{
        ParsedCertificate, WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};

use super::{CertificateFacts, CertificateRefusal, PeerName};
use crate::secret::tls::tls13_signatures;

/// Verifies the certificates of peers, in both roles.
#[derive(Debug)]
pub(super) struct Verifier {
    authorities: Arc<RootCertStore>,
    clients: Arc<dyn ClientCertVerifier>,
    required: PeerName,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Verifier {
    /// Creates a verifier for peers with the name `required`.
    ///
    /// # Errors
    ///
    /// Returns TLS's error if there is no authority.
    pub(super) fn new(
        authorities: RootCertStore,
        required: PeerName,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, Error> {
        let authorities = Arc::new(authorities);
        let builder = WebPkiClientVerifier::builder_with_provider(
            Arc::clone(&authorities),
            Arc::clone(provider),
        );
        // Strangers need not know the authorities.
        let clients = builder.clear_root_hint_subjects().build();
        let clients = clients.map_err(|error| Error::General(error.to_string()))?;
        let algorithms = provider.signature_verification_algorithms;
        Ok(Self { authorities, clients, required, algorithms })
    }

    fn has_required_name(&self, certificate: &CertificateDer<'_>) -> bool {
        let parsed = webpki::EndEntityCert::try_from(certificate);
        parsed.is_ok_and(|parsed| self.required.is_of(&parsed))
    }

    fn schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }

    fn verify_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_server(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), CertificateRefusal> {
        let of_chain = ParsedCertificate::try_from(certificate).and_then(|parsed| {
            let algorithms = self.algorithms.all;
            let authorities = &self.authorities;
            verify_server_cert_signed_by_trust_anchor(
                &parsed,
                authorities,
                intermediates,
                now,
                algorithms,
            )
        });
        of_chain.map_err(|error| match error {
            Error::InvalidCertificate(error) => CertificateRefusal::of_error(&error),
            other => CertificateRefusal::Other(other.to_string()),
        })?;
        match self.has_required_name(certificate) {
            true => Ok(()),
            false => Err(CertificateRefusal::WrongName(Some(self.required.clone()))),
        }
    }
}

/// The certificate of a server that was not accepted, as it is passed through rustls.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("its certificate ({theirs}) is not accepted: {}", refusal.clause(None))]
pub(in crate::secret) struct Rejected {
    /// The certificate.
    pub(in crate::secret) theirs: CertificateFacts,
    /// The reason.
    pub(in crate::secret) refusal: CertificateRefusal,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match self.verify_server(certificate, intermediates, now) {
            Ok(()) => Ok(ServerCertVerified::assertion()),
            Err(refusal) => {
                let rejected = Rejected { theirs: CertificateFacts::of(certificate), refusal };
                Err(CertificateError::Other(OtherError(Arc::new(rejected))).into())
            }
        }
    }

    tls13_signatures!();
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.clients.root_hint_subjects()
    }

    /// Verifies a client. Returns errors of rustls, whose alerts name the reason to the client.
    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.clients.verify_client_cert(certificate, intermediates, now)?;
        match self.has_required_name(certificate) {
            true => Ok(verified),
            false => Err(CertificateError::NotValidForName.into()),
        }
    }

    tls13_signatures!();
}

#[cfg(test)]
mod tests {
    use rcgen::ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
    use rustls::{AlertDescription, ClientConnection, Connection, ServerConnection};

    use super::*;
    use crate::secret::certificates::{
        CertificateRequest, LoadedCertificates, Validity,
        testing::{Authority, Issue, Issued, write},
    };

    const NAME: &str = "node.example";

    /// The certificates of a process with the authority `trusted`.
    fn loaded(trusted: &[&Authority], issued: &Issued, peer: Option<&str>) -> LoadedCertificates {
        let folder = tempfile::tempdir().unwrap();
        let [authorities, certificate, key] = write(folder.path(), trusted, issued);
        let peer = peer.map(|name| PeerName::parse(name).unwrap());
        LoadedCertificates::read(&CertificateRequest { authorities, certificate, key, peer })
            .unwrap()
    }

    /// Shakes hands in memory; returns the error of each end, if it has one.
    fn shake(
        client: &LoadedCertificates,
        server: &LoadedCertificates,
    ) -> (Option<Error>, Option<Error>) {
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let client = ClientConnection::new(Arc::clone(&client.client), name).unwrap();
        let server = ServerConnection::new(Arc::clone(&server.server)).unwrap();
        let mut ends = [Connection::from(client), Connection::from(server)];
        let mut errors = [None, None];
        let mut is_idle = false;
        while !std::mem::replace(&mut is_idle, true) {
            for from in [0, 1] {
                let (to, mut bytes) = (1 - from, Vec::new());
                while ends[from].wants_write() {
                    ends[from].write_tls(&mut bytes).unwrap();
                }
                is_idle &= bytes.is_empty();
                let mut bytes = &bytes[..];
                while !bytes.is_empty() && errors[to].is_none() {
                    ends[to].read_tls(&mut bytes).unwrap();
                    errors[to] = ends[to].process_new_packets().err();
                }
            }
        }
        errors.into()
    }

    fn rejected(error: Option<Error>) -> CertificateRefusal {
        let Some(Error::InvalidCertificate(CertificateError::Other(other))) = error else {
            panic!("{error:?}")
        };
        other.0.downcast_ref::<Rejected>().unwrap().refusal.clone()
    }

    /// Two processes with certificates of one authority and with one name accept each other, with or without a name given.
    #[test]
    fn one_authority_and_name_are_accepted() {
        let authority = Authority::new("ca");
        let issued = || authority.issue(&Issue::with_names(&[NAME, "other"]));
        for peer in [None, Some(NAME), Some("other")] {
            let (one, other) =
                (loaded(&[&authority], &issued(), peer), loaded(&[&authority], &issued(), None));
            assert_eq!(shake(&one, &other), (None, None));
            assert_eq!(shake(&other, &one), (None, None));
        }
        let spiffe = authority.issue(&Issue::with_names(&["spiffe://site/job"]));
        let spiffe = loaded(&[&authority], &spiffe, None);
        assert_eq!(spiffe.required, PeerName::Uri("spiffe://site/job".to_owned()));
        assert_eq!(shake(&spiffe, &spiffe), (None, None));
    }

    /// While an authority is replaced, a file has both.
    #[test]
    fn several_authorities_are_accepted() {
        let (old, new) = (Authority::new("old"), Authority::new("new"));
        let issue = Issue::with_names(&[NAME]);
        let one = loaded(&[&old, &new], &old.issue(&issue), None);
        let other = loaded(&[&old, &new], &new.issue(&issue), None);
        assert_eq!(shake(&one, &other), (None, None));
        assert_eq!(shake(&other, &one), (None, None));
        let only_new = loaded(&[&new], &new.issue(&issue), None);
        assert_eq!(rejected(shake(&only_new, &one).0), CertificateRefusal::UnknownAuthority);
        assert_eq!(shake(&only_new, &other), (None, None));
    }

    /// A server's certificate is refused for each reason, which the client can state.
    #[test]
    fn servers_are_refused() {
        let authority = Authority::new("ca");
        let issue = Issue::with_names(&[NAME]);
        let client = loaded(&[&authority], &authority.issue(&issue), None);
        let refusal = |issued: &Issued| {
            let server = loaded(&[&authority], issued, Some(NAME));
            rejected(shake(&client, &server).0)
        };
        for foreign in [Authority::new("ca"), Authority::new("other")] {
            assert_eq!(refusal(&foreign.issue(&issue)), CertificateRefusal::UnknownAuthority);
        }
        let other = refusal(&authority.issue(&Issue::with_names(&["other.example"])));
        assert_eq!(other, CertificateRefusal::WrongName(PeerName::parse(NAME)));
        let expired = refusal(&authority.issue(&Issue { last: 1_000_000_000, ..issue.clone() }));
        assert!(
            matches!(
                expired,
                CertificateRefusal::NotValid { validity: Validity { last: 1_000_000_000, .. }, now }
                    if now > 1_700_000_000
            ),
            "{expired:?}"
        );
        let early = refusal(&authority.issue(&Issue { first: 4_000_000_000, ..issue.clone() }));
        assert!(
            matches!(
                early,
                CertificateRefusal::NotValid {
                    validity: Validity { first: 4_000_000_000, .. },
                    ..
                }
            ),
            "{early:?}"
        );
        let usage = refusal(&authority.issue(&Issue { usages: vec![ClientAuth], ..issue.clone() }));
        assert_eq!(usage, CertificateRefusal::WrongUsage);
        let own = authority.issue_authority(&issue);
        assert_eq!(refusal(&own), CertificateRefusal::IsAuthority);
    }

    /// A client's certificate is refused for each reason that has an alert. A client without one is refused.
    #[test]
    fn clients_are_refused() {
        let (authority, foreign) = (Authority::new("ca"), Authority::new("other"));
        let issue = Issue::with_names(&[NAME]);
        let server = loaded(&[&authority], &authority.issue(&issue), None);
        let alert = |issued: &Issued| {
            let client = loaded(&[&authority], issued, Some(NAME));
            let (at_client, at_server) = shake(&client, &server);
            assert!(matches!(at_server, Some(Error::InvalidCertificate(_))), "{at_server:?}");
            match at_client {
                Some(Error::AlertReceived(alert)) => alert,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(alert(&foreign.issue(&issue)), AlertDescription::UnknownCA);
        // An authority of the same name with another key.
        let namesake = Authority::new("ca").issue(&issue);
        assert_eq!(alert(&namesake), AlertDescription::DecryptError);
        let other = authority.issue(&Issue::with_names(&["other.example"]));
        assert_eq!(alert(&other), AlertDescription::BadCertificate);
        for (first, last) in [(0, 1_000_000_000), (4_000_000_000, 4_100_000_000)] {
            let issued = authority.issue(&Issue { first, last, ..issue.clone() });
            assert_eq!(alert(&issued), AlertDescription::CertificateExpired);
        }
        let usage = authority.issue(&Issue { usages: vec![ServerAuth], ..issue.clone() });
        assert_eq!(alert(&usage), AlertDescription::UnsupportedCertificate);
        let both =
            authority.issue(&Issue { usages: vec![ServerAuth, ClientAuth], ..issue.clone() });
        assert_eq!(shake(&loaded(&[&authority], &both, None), &server), (None, None));
        let mut nameless = loaded(&[&authority], &authority.issue(&issue), None);
        let mut config = (*nameless.client).clone();
        config.client_auth_cert_resolver = Arc::new(Nobody);
        nameless.client = Arc::new(config);
        let (_, at_server) = shake(&nameless, &server);
        assert_eq!(at_server, Some(Error::NoCertificatesPresented));
    }

    /// A client without a certificate.
    #[derive(Debug)]
    struct Nobody;

    impl rustls::client::ResolvesClientCert for Nobody {
        fn resolve(
            &self,
            _hints: &[&[u8]],
            _schemes: &[SignatureScheme],
        ) -> Option<Arc<rustls::sign::CertifiedKey>> {
            None
        }

        fn has_certs(&self) -> bool {
            false
        }
    }
}
