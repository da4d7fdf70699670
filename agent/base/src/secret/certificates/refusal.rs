//! The reason why a certificate is not accepted, in words.

use rustls::{AlertDescription, CertificateError};

use super::{
    facts::{CertificateFacts, Validity, utc},
    peer_name::PeerName,
};

/// The reason why a certificate is not accepted. Times are in seconds since 1970.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(in crate::secret) enum CertificateRefusal {
    /// The clock of this machine is past its end.
    Expired {
        /// Its last second.
        last: i64,
        /// The clock of this machine.
        now: i64,
    },
    /// The clock of this machine is before its beginning.
    NotYetValid {
        /// Its first second.
        first: i64,
        /// The clock of this machine.
        now: i64,
    },
    /// It is valid by the clock of this machine, but not by that of the other one.
    OtherClock {
        /// Its period of validity.
        validity: Option<Validity>,
        /// The clock of this machine.
        now: i64,
    },
    /// No authority of the verifying process has signed it.
    UnknownAuthority,
    /// It is the certificate of an authority, with which no node can authenticate itself.
    IsAuthority,
    /// It does not have the name that the verifying process requires; `None` if that is not known here.
    WrongName(Option<PeerName>),
    /// Its extended key usage does not permit the role of its process in the handshake.
    WrongUsage(Role),
    /// Any other reason, in the words of TLS.
    Other(String),
}

/// A role in a handshake.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::secret) enum Role {
    /// The process that has opened the connection.
    Client,
    /// The process that has accepted it.
    Server,
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
        let second =
            |time: &rustls::pki_types::UnixTime| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        match error {
            CertificateError::ExpiredContext { time, not_after } => {
                Self::Expired { last: second(not_after), now: second(time) }
            }
            CertificateError::NotValidYetContext { time, not_before } => {
                Self::NotYetValid { first: second(not_before), now: second(time) }
            }
            // An authority of the same name with another key gives the second one.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                Self::UnknownAuthority
            }
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
                Self::WrongUsage(Role::Server)
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
        let validity = own.validity;
        match alert {
            AlertDescription::CertificateExpired => validity
                .and_then(|validity| Self::of_validity(validity, now))
                .unwrap_or(Self::OtherClock { validity, now }),
            AlertDescription::UnknownCA | AlertDescription::DecryptError => Self::UnknownAuthority,
            AlertDescription::BadCertificate => Self::WrongName(None),
            AlertDescription::UnsupportedCertificate => Self::WrongUsage(Role::Client),
            other => Self::Other(format!("the alert of TLS is {other:?}")),
        }
    }

    /// Returns the reason why a certificate with this validity cannot be used at `now`.
    pub(in crate::secret) fn of_validity(validity: Validity, now: i64) -> Option<Self> {
        let Validity { first, last } = validity;
        match now {
            _ if now > last => Some(Self::Expired { last, now }),
            _ if now < first => Some(Self::NotYetValid { first, now }),
            _ => None,
        }
    }

    /// Returns the reason as a clause. `authorities`: the file of the verifying process, if that is this one.
    pub(in crate::secret) fn clause(&self, authorities: Option<&str>) -> String {
        let clock = |now: &i64| format!("the clock of this machine is at {}", utc(*now));
        match self {
            Self::Expired { last, now } => {
                format!("it has expired at {}; {}", utc(*last), clock(now))
            }
            Self::NotYetValid { first, now } => {
                format!("it is not valid before {}; {}", utc(*first), clock(now))
            }
            Self::OtherClock { validity: Some(Validity { first, last }), now } => {
                format!("it is valid from {} to {} only; {}", utc(*first), utc(*last), clock(now))
            }
            Self::OtherClock { validity: None, now } => {
                format!("it is not valid at present; {}", clock(now))
            }
            Self::UnknownAuthority => match authorities {
                Some(file) => format!("no authority in {file} has signed it"),
                None => "none of its authorities has signed it".to_owned(),
            },
            Self::WrongName(Some(required)) => {
                format!("it does not have the required name `{required}`")
            }
            Self::WrongName(None) => "it does not have the name that is required there".to_owned(),
            Self::WrongUsage(Role::Client) => {
                "its extended key usage does not permit the role of a TLS client".to_owned()
            }
            Self::WrongUsage(Role::Server) => {
                "its extended key usage does not permit the role of a TLS server".to_owned()
            }
            Self::IsAuthority => "it is the certificate of an authority (CA:TRUE)".to_owned(),
            Self::Other(words) => words.clone(),
        }
    }

    /// Returns the hint for the user. `whose`: the process whose certificate it is.
    pub(in crate::secret) fn hint(&self, whose: &str, verifying: &str) -> String {
        match self {
            Self::Expired { .. } | Self::NotYetValid { .. } => {
                format!("renew the certificate of {whose}, or correct the clocks")
            }
            Self::OtherClock { .. } => "correct the clocks of both machines".to_owned(),
            Self::UnknownAuthority => format!(
                "use certificates of one authority on all nodes, or add the authority of {whose} to the \
                 file that {verifying} has as `--tls-ca`"
            ),
            Self::WrongName(_) => format!(
                "give {verifying} the name that all nodes have as `--tls-peer NAME`, or put the required \
                 name into the certificate of {whose}"
            ),
            Self::WrongUsage(_) => format!(
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
        let clause =
            |error: CertificateError| CertificateRefusal::of_error(&error).clause(Some("/ca.pem"));
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
        let expired = AlertDescription::CertificateExpired;
        assert_eq!(of_alert(expired, 201), CertificateRefusal::Expired { last: 200, now: 201 });
        assert_eq!(of_alert(expired, 99), CertificateRefusal::NotYetValid { first: 100, now: 99 });
        assert_eq!(of_alert(expired, 150), CertificateRefusal::OtherClock { validity, now: 150 });
        assert_eq!(
            of_alert(AlertDescription::UnknownCA, 150),
            CertificateRefusal::UnknownAuthority
        );
        let name = of_alert(AlertDescription::BadCertificate, 150);
        assert_eq!(name.clause(None), "it does not have the name that is required there");
        let usage = of_alert(AlertDescription::UnsupportedCertificate, 150);
        let clause = "its extended key usage does not permit the role of a TLS client";
        assert_eq!(usage.clause(None), clause);
        let other = of_alert(AlertDescription::CertificateRevoked, 150);
        assert_eq!(other.clause(None), "the alert of TLS is CertificateRevoked");
    }

    /// Each hint names the node on which something must be changed.
    #[test]
    fn hints_name_a_node() {
        let hint = |refusal: CertificateRefusal| refusal.hint("this node", "the other node");
        let expired = hint(CertificateRefusal::Expired { last: 0, now: 1 });
        assert_eq!(expired, "renew the certificate of this node, or correct the clocks");
        assert!(
            hint(CertificateRefusal::UnknownAuthority)
                .contains("that the other node has as `--tls-ca`")
        );
        assert!(
            hint(CertificateRefusal::WrongName(None)).starts_with("give the other node the name")
        );
        let clocks = CertificateRefusal::OtherClock { validity: None, now: 1 };
        assert_eq!(hint(clocks), "correct the clocks of both machines");
        let usage = hint(CertificateRefusal::WrongUsage(Role::Client));
        assert!(usage.contains("serverAuth and clientAuth") && usage.ends_with("for this node"));
        assert!(hint(CertificateRefusal::IsAuthority).ends_with("for this node"));
        assert!(hint(CertificateRefusal::Other(String::new())).ends_with("for this node"));
    }
}
