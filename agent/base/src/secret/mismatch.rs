//! The comparison of this process's credentials with those of another process, so that two nodes that do not agree get an
//! error that names both sides. Nothing else depends on it: the names in an identity are public and not proven.

use std::{error::Error as StdError, fmt};

use rustls::{CertificateError, Error as TlsError};
use serde::{Deserialize, Serialize};

use super::{
    certificates::{CertificateFacts, CertificateRefusal, Rejected, is_of_certificate},
    credentials::{Credentials, OwnCertificate, Unsecured},
    form::SecretId,
    limits,
};

/// The authentication of a process, as its identity names it.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct NamedAuth {
    /// `secret`, `tls` or `none`; processes of earlier versions name nothing.
    #[serde(default)]
    auth: String,
    /// The public names of its secrets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    ids: Vec<String>,
}

const SECRET: &str = "secret";
const TLS: &str = "tls";

/// A kind of authentication.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Method {
    Secret,
    Certificates,
    None,
}

impl NamedAuth {
    /// Returns what this process names.
    pub fn of(credentials: &Credentials) -> Self {
        let auth = match credentials.method() {
            Method::Secret => SECRET,
            Method::Certificates => TLS,
            Method::None => "none",
        };
        let ids = credentials.ids().iter().map(ToString::to_string).collect();
        Self { auth: auth.to_owned(), ids }
    }

    /// Returns the valid names of secrets.
    pub fn ids(&self) -> Vec<SecretId> {
        let ids = self.ids.iter().filter_map(|id| SecretId::parse(id));
        ids.take(limits::MAX_SECRETS).collect()
    }

    fn method(&self) -> Method {
        match self.auth.as_str() {
            SECRET => Method::Secret,
            TLS => Method::Certificates,
            _ => Method::None,
        }
    }
}

/// The reason why two processes cannot authenticate each other.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Mismatch(Box<Sides>);

#[derive(Clone, Debug, Eq, PartialEq)]
struct Sides {
    /// The address or the endpoint of the other process.
    place: String,
    kind: MismatchKind,
}

#[derive(Clone, Debug, Eq, PartialEq)]
enum MismatchKind {
    /// The other process has another secret.
    OtherSecret { theirs: String, ours: String, origin: String },
    /// The other process has a secret or a certificate (`theirs`), and this one has neither.
    NoneHere { theirs: Needed, reason: Unsecured },
    /// The other process belongs to this user of the machine, and neither has a secret.
    OtherUser { uid: u32 },
    /// This process has a secret, and the other one has none.
    NoneThere { ours: String, origin: String },
    /// This process has a certificate, and the other one has none.
    NoCertificateThere { ours: OwnCertificate },
    /// This process has a secret, and the other one a certificate.
    SecretHere { ours: String, origin: String },
    /// This process has a certificate, and the other one a secret.
    SecretThere { theirs: String, ours: OwnCertificate },
    /// The certificate of the other process is not accepted here.
    NotAcceptedHere { theirs: CertificateFacts, ours: OwnCertificate, refusal: CertificateRefusal },
    /// The certificate of this process is not accepted there.
    NotAcceptedThere {
        theirs: Option<CertificateFacts>,
        ours: OwnCertificate,
        refusal: CertificateRefusal,
    },
}

/// The part that a process without credentials lacks.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Needed {
    /// A secret with one of these names.
    Secret(String),
    Certificate,
}

impl Credentials {
    fn method(&self) -> Method {
        match (self.unsecured_reason(), self.certificate()) {
            (Some(_), _) => Method::None,
            (None, Some(_)) => Method::Certificates,
            (None, None) => Method::Secret,
        }
    }

    /// Compares these credentials with those of the process at `place`. With certificates on both sides, only a handshake
    /// shows whether they agree.
    pub fn compare(&self, place: &str, theirs: &NamedAuth) -> Result<(), Mismatch> {
        let mismatch = |kind| Err(Mismatch(Box::new(Sides { place: place.to_owned(), kind })));
        let their_ids = theirs.ids();
        if let Some(reason) = self.unsecured_reason() {
            let needed = match theirs.method() {
                Method::None => return Ok(()),
                Method::Secret => Needed::Secret(list(&their_ids)),
                Method::Certificates => Needed::Certificate,
            };
            return mismatch(MismatchKind::NoneHere { theirs: needed, reason: reason.clone() });
        }
        if let Some(ours) = self.certificate() {
            return match theirs.method() {
                Method::None => mismatch(MismatchKind::NoCertificateThere { ours }),
                Method::Secret => {
                    mismatch(MismatchKind::SecretThere { theirs: list(&their_ids), ours })
                }
                Method::Certificates => Ok(()),
            };
        }
        let ids = self.ids();
        let origin = self.origin().map(ToString::to_string).unwrap_or_default();
        let ours = list(&ids);
        match theirs.method() {
            Method::None => mismatch(MismatchKind::NoneThere { ours, origin }),
            Method::Certificates => mismatch(MismatchKind::SecretHere { ours, origin }),
            Method::Secret if their_ids.iter().any(|id| ids.contains(id)) => Ok(()),
            Method::Secret => {
                mismatch(MismatchKind::OtherSecret { theirs: list(&their_ids), ours, origin })
            }
        }
    }

    /// Returns the reason for a failed connection to the process at `place` if a certificate was not accepted, by either
    /// side. `theirs` is the certificate of the other process, if it was accepted; `now` is the wall clock in seconds since
    /// 1970.
    pub(crate) fn explain(
        &self,
        place: &str,
        theirs: Option<CertificateFacts>,
        error: &TlsError,
        now: i64,
    ) -> Option<Mismatch> {
        let ours = self.certificate()?;
        let kind = match error {
            TlsError::AlertReceived(alert) if is_of_certificate(*alert) => {
                let refusal = CertificateRefusal::of_alert(*alert, &ours.facts, now);
                MismatchKind::NotAcceptedThere { theirs, ours, refusal }
            }
            TlsError::InvalidCertificate(CertificateError::Other(other)) => {
                let Rejected { theirs, refusal } = other.0.downcast_ref::<Rejected>()?.clone();
                MismatchKind::NotAcceptedHere { theirs, ours, refusal }
            }
            _ => return None,
        };
        Some(Mismatch(Box::new(Sides { place: place.to_owned(), kind })))
    }
}

fn list(ids: &[SecretId]) -> String {
    ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for Needed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Secret(ids) => write!(f, "a secret ({ids})"),
            Self::Certificate => f.write_str("a certificate"),
        }
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sides { place, kind } = &*self.0;
        match kind {
            MismatchKind::OtherSecret { theirs, ours, origin } => write!(
                f,
                "the process at {place} has another secret ({theirs}) than this one ({ours}, from \
                 {origin})"
            ),
            MismatchKind::NoneHere { theirs, reason: Unsecured::Chosen } => write!(
                f,
                "the process at {place} requires {theirs}, and this one was started with \
                 `--auth none`"
            ),
            MismatchKind::NoneHere { theirs, reason: Unsecured::NotFound { searched } } => write!(
                f,
                "the process at {place} requires {theirs}, and this one has none (searched: {})",
                searched.join(", ")
            ),
            MismatchKind::OtherUser { uid } => write!(
                f,
                "the process at {place} belongs to uid {uid} of this machine, not to this user or to root"
            ),
            MismatchKind::NoneThere { ours, origin } => write!(
                f,
                "the process at {place} has no secret; this one has one ({ours}, from {origin}) and does \
                 not communicate without it"
            ),
            MismatchKind::NoCertificateThere { ours } => write!(
                f,
                "the process at {place} has no certificate; this one has one ({ours}) and does not \
                 communicate without it"
            ),
            MismatchKind::SecretHere { ours, origin } => write!(
                f,
                "the process at {place} authenticates itself by a certificate, and this one by a secret \
                 ({ours}, from {origin})"
            ),
            MismatchKind::SecretThere { theirs, ours } => write!(
                f,
                "the process at {place} authenticates itself by a secret ({theirs}), and this one by a \
                 certificate ({ours})"
            ),
            MismatchKind::NotAcceptedHere { theirs, ours, refusal } => write!(
                f,
                "the certificate of the process at {place} ({theirs}) is not accepted by this one \
                 ({ours}): {}",
                refusal.clause(Some(&ours.request.authorities))
            ),
            MismatchKind::NotAcceptedThere { theirs, ours, refusal } => {
                write!(f, "the process at {place} ")?;
                if let Some(theirs) = theirs {
                    write!(f, "({theirs}) ")?;
                }
                let why = refusal.clause(None);
                write!(f, "does not accept the certificate of this one ({ours}): {why}")
            }
        }
    }
}

impl StdError for Mismatch {}

impl Mismatch {
    /// Returns the mismatch with a process at `place`, which belongs to another user of this machine.
    pub(crate) fn of_user(place: &str, uid: u32) -> Self {
        Self(Box::new(Sides { place: place.to_owned(), kind: MismatchKind::OtherUser { uid } }))
    }

    /// Returns true if both processes have secrets: one of them may not have read its file again.
    pub fn is_of_secrets(&self) -> bool {
        matches!(self.0.kind, MismatchKind::OtherSecret { .. })
    }

    /// Returns the same for another name of the other process's address.
    pub(crate) fn at(mut self, place: &str) -> Self {
        place.clone_into(&mut self.0.place);
        self
    }

    /// Returns the hint for the user.
    pub fn hint(&self) -> String {
        let place = &self.0.place;
        match &self.0.kind {
            MismatchKind::OtherSecret { .. } => "copy the secret file of one node to all others, or give the same \
                 file to all with `--secret-file`"
                .to_owned(),
            MismatchKind::NoneHere { theirs: Needed::Certificate, .. } => {
                "give this process a certificate with `--tls-ca`, `--tls-cert` and `--tls-key`".to_owned()
            }
            MismatchKind::NoneHere { reason: Unsecured::Chosen, .. } => {
                "give the secret of the other process with `--secret-file FILE`, or use `--auth none` on all \
                 nodes"
                    .to_owned()
            }
            MismatchKind::NoneHere { reason: Unsecured::NotFound { searched }, .. } => {
                let file = searched.last().filter(|place| place.starts_with('/'));
                let file = file.and_then(|place| place.split(" (").next());
                let copy = file.map_or_else(
                    || "copy its secret file to this machine".to_owned(),
                    |path| format!("copy its secret file to {path} (mode 0600)"),
                );
                format!("{copy}, or name the file with `--secret-file`")
            }
            MismatchKind::OtherUser { .. } => "choose another port with `--rdzv-endpoint`, or give the agents of both users the \
                 same `--secret-file`"
                .to_owned(),
            MismatchKind::NoneThere { origin, .. } => {
                let file = if origin.starts_with('/') { origin } else { "FILE" };
                format!(
                    "start it with the same secret (`--secret-file {file}`), or all nodes with `--auth none`"
                )
            }
            MismatchKind::NoCertificateThere { .. } => "start it with a certificate (`--tls-ca`, `--tls-cert`, \
                 `--tls-key`), or all nodes with `--auth none`"
                .to_owned(),
            MismatchKind::SecretHere { .. } => "give this process a certificate with `--tls-ca`, `--tls-cert` and \
                 `--tls-key`, or start all nodes with the same secret (`--auth secret`)"
                .to_owned(),
            MismatchKind::SecretThere { .. } => "start that one with a certificate (`--tls-ca`, `--tls-cert`, \
                 `--tls-key`), or all nodes with the same secret (`--auth secret`)"
                .to_owned(),
            MismatchKind::NotAcceptedHere { refusal, .. } => refusal.hint(place, "this process"),
            MismatchKind::NotAcceptedThere { refusal, .. } => refusal.hint("this process", place),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::{AlertDescription, OtherError};

    use super::*;
    use crate::secret::{
        CertificateRequest, Origin, PeerName, Secret,
        certificates::testing::{Authority, Issue, write},
    };

    const PLACE: &str = "n0:1";

    fn secured(characters: &[&str]) -> Credentials {
        let secrets = characters.iter().map(|c| Secret::new(&c.repeat(43)).unwrap()).collect();
        Credentials::new(secrets, Origin::File("/s".into()))
    }

    fn unsecured() -> Credentials {
        let searched = vec!["PET_SECRET_FILE".to_owned(), "/h/secret".to_owned()];
        Credentials::unsecured(Unsecured::NotFound { searched })
    }

    fn compare(here: &Credentials, there: &Credentials) -> Result<(), (String, String)> {
        let mismatch = here.compare(PLACE, &NamedAuth::of(there));
        mismatch.map_err(|mismatch| (mismatch.to_string(), mismatch.hint()))
    }

    /// Processes with a common secret agree, and those without one.
    #[test]
    fn same_secrets_agree() {
        assert_eq!(compare(&secured(&["a"]), &secured(&["a"])), Ok(()));
        assert_eq!(compare(&secured(&["b", "a"]), &secured(&["a"])), Ok(()));
        assert_eq!(compare(&secured(&["a"]), &secured(&["b", "a"])), Ok(()));
        let declined = Credentials::unsecured(Unsecured::Chosen);
        assert_eq!(compare(&unsecured(), &declined), Ok(()));
        assert_eq!(unsecured().compare(PLACE, &NamedAuth::default()), Ok(()), "an earlier version");
    }

    /// Each error names both sides, and what to do.
    #[test]
    fn mismatches_are_explained() {
        let id = |credentials: &Credentials| credentials.ids()[0];
        let (a, b) = (secured(&["a"]), secured(&["b"]));
        let (text, hint) = compare(&a, &b).unwrap_err();
        let expected = format!(
            "the process at n0:1 has another secret ({}) than this one ({}, from /s)",
            id(&b),
            id(&a)
        );
        assert_eq!(text, expected);
        assert!(hint.contains("--secret-file"), "{hint}");
        let (text, hint) = compare(&unsecured(), &b).unwrap_err();
        let expected = format!(
            "the process at n0:1 requires a secret ({}), and this one has none (searched: \
             PET_SECRET_FILE, /h/secret)",
            id(&b)
        );
        assert_eq!(text, expected);
        assert!(hint.starts_with("copy its secret file to /h/secret (mode 0600)"), "{hint}");
        let declined = Credentials::unsecured(Unsecured::Chosen);
        assert!(compare(&declined, &b).unwrap_err().0.ends_with("with `--auth none`"));
        let (text, hint) = compare(&a, &unsecured()).unwrap_err();
        let expected = format!(
            "the process at n0:1 has no secret; this one has one ({}, from /s) and does not communicate \
             without it",
            id(&a)
        );
        assert_eq!(text, expected);
        assert!(hint.contains("`--secret-file /s`") && hint.contains("--auth none"), "{hint}");
    }

    /// Names of secrets come from strangers: only valid ones are used, and a limited number of them.
    #[test]
    fn names_are_checked() {
        let text = r#"{"auth":"secret","ids":["\u001b[2J","12345678","0x123456",""]}"#;
        let named: NamedAuth = serde_json::from_str(text).unwrap();
        assert_eq!(list(&named.ids()), "12345678");
        let many = NamedAuth { auth: SECRET.to_owned(), ids: vec!["00000000".to_owned(); 99] };
        assert_eq!(many.ids().len(), limits::MAX_SECRETS);
    }

    /// Credentials with a certificate of this name, and the folder of its files.
    fn certified(name: &str) -> (Credentials, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new("ca");
        let issued = authority.issue(&Issue::with_names(&[name]));
        let [authorities, certificate, key] = write(folder.path(), &[&authority], &issued);
        let request = CertificateRequest { authorities, certificate, key, peer: None };
        (Credentials::with_certificates(request).unwrap(), folder)
    }

    /// Certificates agree with neither a secret nor nothing; whether two agree shows the handshake.
    #[test]
    fn certificates_are_compared() {
        let (certified, folder) = certified("a");
        let ours = format!("CN=node; name: a, from {}/cert.pem", folder.path().display());
        let secured = secured(&["a"]);
        let id = secured.ids()[0];
        assert_eq!(compare(&certified, &certified), Ok(()));
        let (text, hint) = compare(&certified, &secured).unwrap_err();
        let expected = format!(
            "the process at n0:1 authenticates itself by a secret ({id}), and this one by a certificate \
             ({ours})"
        );
        assert_eq!(text, expected);
        assert!(hint.contains("--tls-ca") && hint.contains("--auth secret"), "{hint}");
        let (text, hint) = compare(&secured, &certified).unwrap_err();
        let expected = format!(
            "the process at n0:1 authenticates itself by a certificate, and this one by a secret ({id}, \
             from /s)"
        );
        assert_eq!(text, expected);
        assert!(hint.contains("--tls-cert") && hint.contains("--auth secret"), "{hint}");
        let (text, hint) = compare(&certified, &unsecured()).unwrap_err();
        let expected = format!(
            "the process at n0:1 has no certificate; this one has one ({ours}) and does not communicate \
             without it"
        );
        assert_eq!(text, expected);
        assert!(hint.contains("--tls-key") && hint.contains("--auth none"), "{hint}");
        let (text, hint) = compare(&unsecured(), &certified).unwrap_err();
        assert_eq!(
            text,
            "the process at n0:1 requires a certificate, and this one has none (searched: \
             PET_SECRET_FILE, /h/secret)"
        );
        assert!(hint.contains("--tls-ca"), "{hint}");
        let declined = Credentials::unsecured(Unsecured::Chosen);
        let (text, hint) = compare(&declined, &certified).unwrap_err();
        assert!(
            text.ends_with("requires a certificate, and this one was started with `--auth none`")
        );
        assert!(hint.contains("--tls-ca"), "{hint}");
    }

    /// A certificate that is not accepted is named together with that of the other side.
    #[test]
    fn certificates_that_are_not_accepted_are_explained() {
        let (certified, folder) = certified("a");
        let ours = format!("CN=node; name: a, from {}/cert.pem", folder.path().display());
        let theirs = CertificateFacts {
            names: vec![PeerName::parse("b").unwrap()],
            ..CertificateFacts::default()
        };
        let explain =
            |theirs, error: TlsError| certified.explain(PLACE, theirs, &error, 1_700_000_000);
        let refusal = CertificateRefusal::WrongName(PeerName::parse("a"));
        let rejected = Rejected { theirs: theirs.clone(), refusal };
        let other = CertificateError::Other(OtherError(Arc::new(rejected)));
        let here = explain(None, other.into()).unwrap();
        let expected = format!(
            "the certificate of the process at n0:1 (name: b) is not accepted by this one \
             ({ours}): it does not have the required name `a`"
        );
        assert_eq!(here.to_string(), expected);
        assert!(here.hint().starts_with("give this process the name"), "{}", here.hint());
        assert!(here.at("e:2").to_string().contains("the process at e:2 (name: b"));
        let alert = |alert| TlsError::AlertReceived(alert);
        let there = explain(Some(theirs), alert(AlertDescription::UnknownCA)).unwrap();
        let expected = format!(
            "the process at n0:1 (name: b) does not accept the certificate of this one \
             ({ours}): none of its authorities has signed it"
        );
        assert_eq!(there.to_string(), expected);
        assert!(there.hint().contains("the file that n0:1 has as `--tls-ca`"), "{}", there.hint());
        let clock = explain(None, alert(AlertDescription::CertificateExpired)).unwrap();
        assert!(
            clock.to_string().ends_with("the clock of this machine is at 2023-11-14T22:13:20Z")
        );
        assert_eq!(explain(None, TlsError::EncryptError), None);
        let secured = secured(&["a"]);
        let error = alert(AlertDescription::UnknownCA);
        assert_eq!(secured.explain(PLACE, None, &error, 0), None);
    }

    /// The authentication is named as in `--auth`.
    #[test]
    fn authentication_is_named() {
        let named =
            |credentials: &Credentials| serde_json::to_value(NamedAuth::of(credentials)).unwrap();
        assert_eq!(named(&certified("a").0), serde_json::json!({ "auth": "tls" }));
        assert_eq!(named(&unsecured()), serde_json::json!({ "auth": "none" }));
        assert_eq!(named(&secured(&["a"]))["auth"], "secret");
    }
}
