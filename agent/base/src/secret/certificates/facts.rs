//! The parts of a certificate that messages name: its subject, its names and its period of validity.

use std::fmt;

use jiff::{Timestamp, civil::DateTime, tz::TimeZone};
use ragent_proto::printable_line;
use rustls::pki_types::CertificateDer;

use super::{
    der::{Element, Elements, SEQUENCE},
    peer_name::PeerName,
};

/// The parts of a certificate that messages name. Of the own certificate, the first name is also the default of `--tls-peer`.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct CertificateFacts {
    /// The subject, such as `CN=node0, O=site`.
    pub subject: String,
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

/// The names of a certificate that are kept, and the length of each text: more than a person reads.
const MAX_NAMES: usize = 64;
const MAX_TEXT: usize = 256;
/// The names that a message contains.
const MAX_SHOWN: usize = 4;

/// Object identifiers, as they are encoded.
const SUBJECT_ALTERNATIVE_NAME: &[u8] = &[0x55, 0x1d, 0x11];
const ATTRIBUTES: [(&[u8], &str); 6] = [
    (&[0x55, 0x04, 0x03], "CN"),
    (&[0x55, 0x04, 0x06], "C"),
    (&[0x55, 0x04, 0x07], "L"),
    (&[0x55, 0x04, 0x08], "ST"),
    (&[0x55, 0x04, 0x0a], "O"),
    (&[0x55, 0x04, 0x0b], "OU"),
];

const SET: u8 = 0x31;
const OBJECT_IDENTIFIER: u8 = 0x06;
const OCTET_STRING: u8 = 0x04;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;
const DNS_NAME: u8 = 0x82;
const URI: u8 = 0x86;

impl CertificateFacts {
    /// Reads a certificate. Parts that are not valid are left out.
    pub fn of(certificate: &CertificateDer<'_>) -> Self {
        read(certificate).unwrap_or_default()
    }
}

fn read(certificate: &[u8]) -> Option<CertificateFacts> {
    let mut certificate = Elements::new(certificate).within(SEQUENCE)?;
    let mut fields = certificate.within(SEQUENCE)?;
    let first = fields.next()?;
    if first.tag == VERSION {
        // The serial number.
        fields.next()?;
    }
    let (_algorithm, _issuer) = (fields.expect(SEQUENCE)?, fields.expect(SEQUENCE)?);
    let mut validity = fields.within(SEQUENCE)?;
    let validity = validity.next().and_then(time).zip(validity.next().and_then(time));
    let validity = validity.map(|(first, last)| Validity { first, last });
    let subject = subject(fields.within(SEQUENCE)?);
    let extensions = fields.find(|field| field.tag == EXTENSIONS);
    let extensions = extensions.and_then(|all| Elements::new(all.content).within(SEQUENCE));
    let names = extensions.and_then(|mut all| all.find_map(names)).unwrap_or_default();
    Some(CertificateFacts { subject, names, validity })
}

/// Reads a time of a certificate, which is in UTC.
fn time(element: Element<'_>) -> Option<i64> {
    let text = str::from_utf8(element.content).ok()?.strip_suffix('Z')?;
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let (year, rest) = match (element.tag, text.len()) {
        (UTC_TIME, 12) if digits => {
            let year: i16 = text[..2].parse().ok()?;
            (year + if year < 50 { 2000 } else { 1900 }, &text[2..])
        }
        (GENERALIZED_TIME, 14) if digits => (text[..4].parse().ok()?, &text[4..]),
        _ => return None,
    };
    let part = |at: usize| rest[at..at + 2].parse::<i8>().ok();
    let time = DateTime::new(year, part(0)?, part(2)?, part(4)?, part(6)?, part(8)?, 0).ok()?;
    Some(time.to_zoned(TimeZone::UTC).ok()?.timestamp().as_second())
}

/// Returns the attributes of a name, in its order.
fn subject(sets: Elements<'_>) -> String {
    let attributes = sets.filter(|set| set.tag == SET).filter_map(|set| {
        let mut attribute = Elements::new(set.content).within(SEQUENCE)?;
        let kind = attribute.expect(OBJECT_IDENTIFIER)?;
        let (_, kind) = ATTRIBUTES.iter().find(|(known, _)| *known == kind)?;
        Some(format!("{kind}={}", text(attribute.next()?.content)))
    });
    attributes.take(ATTRIBUTES.len()).collect::<Vec<_>>().join(", ")
}

/// Returns the names in an extension; `None` if it is another extension.
fn names(extension: Element<'_>) -> Option<Vec<PeerName>> {
    let mut parts = Elements::new(extension.content);
    if parts.expect(OBJECT_IDENTIFIER)? != SUBJECT_ALTERNATIVE_NAME {
        return None;
    }
    let value = parts.find(|part| part.tag == OCTET_STRING)?.content;
    let names = Elements::new(value).within(SEQUENCE)?;
    let names = names.filter_map(|name| match name.tag {
        DNS_NAME | URI => {
            let parsed = PeerName::parse(str::from_utf8(name.content).ok()?)?;
            // The tag of the certificate counts.
            let is_uri = matches!(parsed, PeerName::Uri(_));
            (is_uri == (name.tag == URI)).then_some(parsed)
        }
        _ => None,
    });
    Some(names.take(MAX_NAMES).collect())
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

/// The subject and the names.
impl fmt::Display for CertificateFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let subject = if self.subject.is_empty() { "no subject" } else { &self.subject };
        write!(f, "{subject}; ")?;
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

    /// Subject, names in their order, and both times are read.
    #[test]
    fn certificates_are_described() {
        let names = ["spiffe://site/a", "b.example", "c.example"];
        let (first, last) = (1_000_000_000, 1_000_086_400);
        let issue = Issue { first, last, ..Issue::with_names(&names) };
        let facts = CertificateFacts::of(&Authority::new("ca").issue(&issue).certificate);
        assert_eq!(facts.to_string(), format!("CN=node, O=site; names: {}", names.join(", ")));
        assert_eq!(facts.names.first(), PeerName::parse(names[0]).as_ref());
        assert_eq!(facts.validity, Some(Validity { first, last }));
        assert_eq!(utc(first), "2001-09-09T01:46:40Z");
        let late = Issue { last: 4_000_000_000, ..Issue::with_names(&[]) };
        let facts = CertificateFacts::of(&Authority::new("ca").issue(&late).certificate);
        assert_eq!(facts.validity.map(|validity| validity.last), Some(4_000_000_000));
        assert_eq!(facts.to_string(), "CN=node, O=site; no names");
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
        assert_eq!(facts.to_string(), "CN=a[2J b, O=site; name: n");
    }

    proptest! {
        /// Certificates with changed bytes are read without a panic.
        #[test]
        fn damaged_certificates_are_read(at in 0..600_usize, byte: u8, len in 0..600_usize) {
            let issued = Authority::new("ca").issue(&Issue::with_names(&["a", "spiffe://b/c"]));
            let mut bytes = issued.certificate.to_vec();
            let at = at % bytes.len();
            bytes[at] = byte;
            let _ = read(&bytes).map(|facts| facts.to_string());
            bytes.truncate(len);
            let _ = read(&bytes).map(|facts| facts.to_string());
        }
    }
}
