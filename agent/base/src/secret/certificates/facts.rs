//! The parts of a certificate that messages name: its common name, its names and its period of validity. webpki reads them.

use std::{fmt, time::Duration};

use jiff::Timestamp;
use ragent_proto::printable_line;
use rustls::pki_types::{CertificateDer, UnixTime};
use webpki::{EndEntityCert, Error, KeyUsage};

use super::peer_name::PeerName;

/// The parts of a certificate that messages name. Of the own certificate, the first name is also the default of `--tls-peer`.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct CertificateFacts {
    /// The common name of its subject, if it has one.
    pub common_name: Option<String>,
    /// The names, in the order of the certificate.
    pub names: Vec<PeerName>,
    /// The first and the last second at which it is valid, counted from 1970.
    pub validity: Option<Validity>,
}

/// The period of validity of a certificate: the first and the last second, counted from 1970.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Validity {
    /// The first second.
    pub first: i64,
    /// The last second.
    pub last: i64,
}

impl Validity {
    /// Returns true if the certificate is valid at `second`.
    pub(in crate::secret) fn contains(self, second: i64) -> bool {
        (self.first..=self.last).contains(&second)
    }
}

/// The names of a certificate that are kept, and the length of each text: more than a person reads.
const MAX_NAMES: usize = 64;
const MAX_TEXT: usize = 256;
/// The names that a message contains.
const MAX_SHOWN: usize = 4;

/// The object identifier of a common name, as it is encoded in a subject.
const COMMON_NAME: &[u8] = &[0x06, 0x03, 0x55, 0x04, 0x03];

impl CertificateFacts {
    /// Reads a certificate. Parts that are not valid are left out.
    pub fn of(certificate: &CertificateDer<'_>) -> Self {
        let Ok(certificate) = EndEntityCert::try_from(certificate) else { return Self::default() };
        let dns = certificate.valid_dns_names().map(|name| (name, false));
        let uris = certificate.valid_uri_names().map(|name| (name, true));
        let mut names: Vec<_> = dns.chain(uris).collect();
        // These texts are parts of the certificate, so their addresses have its order.
        names.sort_by_key(|(name, _)| name.as_ptr());
        let parsed = names.into_iter().filter_map(|(name, is_uri)| {
            PeerName::parse(name).filter(|name| matches!(name, PeerName::Uri(_)) == is_uri)
        });
        Self {
            common_name: common_name(certificate.subject()),
            names: parsed.take(MAX_NAMES).collect(),
            validity: validity(&certificate),
        }
    }
}

/// Returns the common name in a subject. It has at most 64 characters, so its length is one byte, after the one of the kind of text.
fn common_name(subject: &[u8]) -> Option<String> {
    let at = subject.windows(COMMON_NAME.len()).position(|part| part == COMMON_NAME)?;
    let (&[_kind, len], rest) = subject.get(at + COMMON_NAME.len()..)?.split_first_chunk()?;
    rest.get(..usize::from(len)).map(text)
}

/// Returns the period of validity. webpki names its ends in the errors for a time before and for a time after it.
fn validity(certificate: &EndEntityCert<'_>) -> Option<Validity> {
    let error_at = |at| {
        let time = UnixTime::since_unix_epoch(Duration::from_secs(at));
        let usage = KeyUsage::client_auth();
        certificate.verify_for_usage(&[], &[], &[], time, usage, None, None).err()
    };
    let first = match error_at(0) {
        Some(Error::CertNotValidYet { not_before, .. }) => second(not_before),
        _ => 0,
    };
    match error_at(u64::MAX) {
        Some(Error::CertExpired { not_after, .. }) => {
            Some(Validity { first, last: second(not_after) })
        }
        _ => None,
    }
}

/// Returns a time in seconds since 1970.
pub(super) fn second(time: UnixTime) -> i64 {
    i64::try_from(time.as_secs()).unwrap_or(i64::MAX)
}

/// Returns a text in one line.
fn text(bytes: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(bytes).chars().take(MAX_TEXT).collect();
    printable_line(&text)
}

/// Writes a second, counted from 1970.
pub fn utc(second: i64) -> String {
    Timestamp::from_second(second).map_or_else(|_| format!("second {second}"), |at| at.to_string())
}

/// The common name and the names.
impl fmt::Display for CertificateFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = &self.common_name {
            write!(f, "CN={name}; ")?;
        }
        let shown = self.names.iter().take(MAX_SHOWN).map(|name| text(name.to_string().as_bytes()));
        let shown: Vec<String> = shown.collect();
        match (shown.len(), self.names.len() - shown.len()) {
            (0, _) => f.write_str("no names"),
            (1, _) => write!(f, "name: {}", shown[0]),
            (_, 0) => write!(f, "names: {}", shown.join(", ")),
            (_, more) => write!(f, "names: {} and {more} more", shown.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::secret::certificates::testing::{Authority, Issue};

    /// Common name, names in their order, and both times are read.
    #[test]
    fn certificates_are_described() {
        let names = ["spiffe://site/a", "b.example", "c.example"];
        let (first, last) = (1_000_000_000, 1_000_086_400);
        let issue = Issue { first, last, ..Issue::with_names(&names) };
        let facts = CertificateFacts::of(&Authority::new("ca").issue(&issue).certificate);
        assert_eq!(facts.to_string(), format!("CN=node; names: {}", names.join(", ")));
        assert_eq!(facts.names.first(), PeerName::parse(names[0]).as_ref());
        assert_eq!(facts.validity, Some(Validity { first, last }));
        assert_eq!(utc(first), "2001-09-09T01:46:40Z");
        let late = Issue { last: 4_000_000_000, ..Issue::with_names(&[]) };
        let facts = CertificateFacts::of(&Authority::new("ca").issue(&late).certificate);
        assert_eq!(facts.validity.map(|validity| validity.last), Some(4_000_000_000));
        assert_eq!(facts.to_string(), "CN=node; no names");
        let many: Vec<String> = (0..7).map(|number| format!("n{number}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let facts = CertificateFacts::of(
            &Authority::new("ca").issue(&Issue::with_names(&many)).certificate,
        );
        assert!(facts.to_string().ends_with("names: n0, n1, n2, n3 and 3 more"), "{facts}");
    }

    /// Control characters of a stranger's certificate are not printed.
    #[test]
    fn subjects_are_printable() {
        let issue = Issue { subject: "a\u{1b}[2J\nb".to_owned(), ..Issue::with_names(&["n"]) };
        let facts = CertificateFacts::of(&Authority::new("ca").issue(&issue).certificate);
        assert_eq!(facts.to_string(), "CN=a[2J b; name: n");
    }

    proptest! {
        /// Certificates with changed bytes are read without a panic.
        #[test]
        fn damaged_certificates_are_read(at in 0..600_usize, byte: u8, len in 0..600_usize) {
            let issued = Authority::new("ca").issue(&Issue::with_names(&["a", "spiffe://b/c"]));
            let mut bytes = issued.certificate.to_vec();
            let at = at % bytes.len();
            bytes[at] = byte;
            let _ = CertificateFacts::of(&bytes.clone().into()).to_string();
            bytes.truncate(len);
            let _ = CertificateFacts::of(&bytes.into()).to_string();
        }
    }
}
