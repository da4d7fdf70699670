//! The reason why a certificate is not accepted, in words.

use std::path::Path;

use rustls::{AlertDescription, CertificateError};

use super::{
    facts::{CertificateFacts, Validity, second, utc},
    peer_name::PeerName,
};

/// The reason why a certificate is not accepted. Times are in seconds since 1970.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(in crate::secret) enum CertificateRefusal {
    /// The clock of one of the two machines is outside of its period of validity.
    NotValid {
        /// Its period of validity.
        validity: Validity,
        /// The clock of this machine.
        now: i64,
    },
    /// No authority of the verifying process has signed it.
    UnknownAuthority,
    /// It is the certificate of an authority, with which no node can authenticate itself.
    IsAuthority,
    /// It does not have the name that the verifying process requires; `None` if that is not known here.
    WrongName(Option<PeerName>),
    /// Its extended key usage does not permit the role of its process in the handshake. Each process has both roles.
    WrongUsage,
    /// Any other reason, in the words of TLS.
    Other(String),
}

/// Returns true if a process sends this alert because it does not accept a certificate, or needs one.
pub fn is_of_certificate(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::AccessDenied
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRequired
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateUnknown
            | AlertDescription::DecryptError
            | AlertDescription::UnknownCA
            | AlertDescription::UnsupportedCertificate
    )
}

impl CertificateRefusal {
    /// Returns the reason for an error of rustls's verifier of servers.
    pub(in crate::secret) fn of_error(error: &CertificateError) -> Self {
        match error {
            CertificateError::ExpiredContext { time, not_after } => Self::NotValid {
                validity: Validity { first: i64::MIN, last: second(*not_after) },
                now: second(*time),
            },
            CertificateError::NotValidYetContext { time, not_before } => Self::NotValid {
                validity: Validity { first: second(*not_before), last: i64::MAX },
                now: second(*time),
            },
            // An authority of the same name with another key gives the second one.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                Self::UnknownAuthority
            }
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
                Self::WrongUsage
            }
            CertificateError::Other(error)
                if error.0.downcast_ref() == Some(&webpki::Error::CaUsedAsEndEntity) =>
            {
                Self::IsAuthority
            }
            other => Self::Other(other.to_string()),
        }
    }

    /// Returns the reason why another process has sent `alert` about the certificate `own`, as far as it can be seen
    /// from here.
    pub(in crate::secret) fn of_alert(
        alert: AlertDescription,
        own: &CertificateFacts,
        now: i64,
    ) -> Self {
        match (alert, own.validity) {
            (AlertDescription::CertificateExpired, Some(validity)) => {
                Self::NotValid { validity, now }
            }
            (AlertDescription::UnknownCA | AlertDescription::DecryptError, _) => {
                Self::UnknownAuthority
            }
            (AlertDescription::BadCertificate, _) => Self::WrongName(None),
            (AlertDescription::UnsupportedCertificate, _) => Self::WrongUsage,
            (other, _) => Self::Other(format!("the alert of TLS is {other:?}")),
        }
    }

    /// Returns the reason as a clause. `authorities`: the file of the verifying process, if that is this one.
    pub(in crate::secret) fn clause(&self, authorities: Option<&Path>) -> String {
        match self {
            Self::NotValid { validity: Validity { first, last }, now } => {
                let why = if now > last {
                    format!("it has expired at {}", utc(*last))
                } else if now < first {
                    format!("it is not valid before {}", utc(*first))
                } else {
                    format!("it is valid from {} to {} only", utc(*first), utc(*last))
                };
                format!("{why}; the clock of this machine is at {}", utc(*now))
            }
            Self::UnknownAuthority => match authorities {
                Some(file) => format!("no authority in {} has signed it", file.display()),
                None => "none of its authorities has signed it".to_owned(),
            },
            Self::WrongName(Some(required)) => {
                format!("it does not have the required name `{required}`")
            }
            Self::WrongName(None) => "it does not have the name that is required there".to_owned(),
            Self::WrongUsage => {
                "its extended key usage does not permit both roles of TLS, client and server"
                    .to_owned()
            }
            Self::IsAuthority => "it is the certificate of an authority (CA:TRUE)".to_owned(),
            Self::Other(words) => words.clone(),
        }
    }

    /// Returns the hint for the user. `whose`: the process whose certificate it is.
    pub(in crate::secret) fn hint(&self, whose: &str, verifying: &str) -> String {
        match self {
            Self::NotValid { .. } => {
                format!("renew the certificate of {whose}, or correct the clocks")
            }
            Self::UnknownAuthority => format!(
                "use certificates of one authority on all nodes, or add the authority of {whose} to the \
                 file that {verifying} has as `--tls-ca`"
            ),
            Self::WrongName(_) => format!(
                "give {verifying} the name that all nodes have as `--tls-peer NAME`, or put the required \
                 name into the certificate of {whose}"
            ),
            Self::WrongUsage => format!(
                "issue a certificate with the usages serverAuth and clientAuth, or without any, for {whose}"
            ),
            Self::IsAuthority => {
                format!("issue a certificate that is signed by that authority for {whose}")
            }
            Self::Other(_) => format!("use another certificate for {whose}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustls::pki_types::UnixTime;

    use super::*;

    fn time(second: u64) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs(second))
    }

    /// Errors about the time state the clock of this machine; other errors state the words of rustls.
    #[test]
    fn errors_have_reasons() {
        let clause = |error: CertificateError| {
            CertificateRefusal::of_error(&error).clause(Some("/ca.pem".as_ref()))
        };
        let expired = CertificateError::ExpiredContext { time: time(120), not_after: time(60) };
        assert_eq!(
            clause(expired),
            "it has expired at 1970-01-01T00:01:00Z; the clock of this machine is at \
             1970-01-01T00:02:00Z"
        );
        let early = CertificateError::NotValidYetContext { time: time(0), not_before: time(60) };
        assert_eq!(
            clause(early),
            "it is not valid before 1970-01-01T00:01:00Z; the clock of this machine is at \
             1970-01-01T00:00:00Z"
        );
        let unknown = clause(CertificateError::UnknownIssuer);
        assert_eq!(unknown, "no authority in /ca.pem has signed it");
        assert_eq!(clause(CertificateError::BadEncoding), "BadEncoding");
    }

    /// The reason for an alert follows from the own certificate and the own clock.
    #[test]
    fn alerts_have_reasons() {
        let validity = Some(Validity { first: 100, last: 200 });
        let own = CertificateFacts { validity, ..CertificateFacts::default() };
        let of_alert = |alert, now| CertificateRefusal::of_alert(alert, &own, now);
        for (now, part) in [
            (201, "it has expired at 1970-01-01T00:03:20Z; the clock"),
            (99, "it is not valid before 1970-01-01T00:01:40Z; the clock"),
            (150, "it is valid from 1970-01-01T00:01:40Z to 1970-01-01T00:03:20Z only; the clock"),
        ] {
            let clause = of_alert(AlertDescription::CertificateExpired, now).clause(None);
            assert!(clause.starts_with(part), "{clause}");
        }
        assert_eq!(
            of_alert(AlertDescription::UnknownCA, 150),
            CertificateRefusal::UnknownAuthority
        );
        let name = of_alert(AlertDescription::BadCertificate, 150);
        assert_eq!(name.clause(None), "it does not have the name that is required there");
        let usage = of_alert(AlertDescription::UnsupportedCertificate, 150);
        let clause = "its extended key usage does not permit both roles of TLS, client and server";
        assert_eq!(usage.clause(None), clause);
        let other = of_alert(AlertDescription::CertificateRevoked, 150);
        assert_eq!(other.clause(None), "the alert of TLS is CertificateRevoked");
    }

    /// Each hint names the node on which something must be changed.
    #[test]
    fn hints_name_a_node() {
        let hint = |refusal: CertificateRefusal| refusal.hint("this node", "the other node");
        let validity = Validity { first: 0, last: 0 };
        let expired = hint(CertificateRefusal::NotValid { validity, now: 1 });
        assert_eq!(expired, "renew the certificate of this node, or correct the clocks");
        assert!(
            hint(CertificateRefusal::UnknownAuthority)
                .contains("that the other node has as `--tls-ca`")
        );
        assert!(
            hint(CertificateRefusal::WrongName(None)).starts_with("give the other node the name")
        );
        let usage = hint(CertificateRefusal::WrongUsage);
        assert!(usage.contains("serverAuth and clientAuth") && usage.ends_with("for this node"));
        assert!(hint(CertificateRefusal::IsAuthority).ends_with("for this node"));
        assert!(hint(CertificateRefusal::Other(String::new())).ends_with("for this node"));
    }
}
