//! The name that the certificate of a peer must have.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A name in a certificate (subject alternative name).
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PeerName {
    /// A DNS name.
    Dns(String),
    /// A URI, such as a SPIFFE ID.
    Uri(String),
}

/// The maximum length of a name, which is that of a SPIFFE ID.
const MAX_LEN: usize = 2048;

impl PeerName {
    /// Parses a name: a URI if it has a scheme, else a DNS name. Returns `None` if it can be neither.
    pub fn parse(text: &str) -> Option<Self> {
        let is_visible = text.bytes().all(|byte| byte.is_ascii_graphic());
        if text.is_empty() || text.len() > MAX_LEN || !is_visible {
            return None;
        }
        if text.contains("://") || text.starts_with("urn:") {
            return Some(Self::Uri(text.to_owned()));
        }
        let is_dns = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.*".contains(&byte);
        // The names of agents are not their addresses, which may change.
        let is_address = text.parse::<std::net::IpAddr>().is_ok();
        (text.bytes().all(is_dns) && !is_address).then(|| Self::Dns(text.to_owned()))
    }

    /// Returns true if the certificate has this name. No pattern is expanded: `*` equals `*` only.
    pub(super) fn is_of(&self, certificate: &webpki::EndEntityCert<'_>) -> bool {
        match self {
            Self::Dns(name) => {
                certificate.valid_dns_names().any(|other| name.eq_ignore_ascii_case(other))
            }
            Self::Uri(name) => certificate.valid_uri_names().any(|other| name == other),
        }
    }
}

impl fmt::Display for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Dns(name) | Self::Uri(name)) = self;
        f.write_str(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::certificates::testing::{Authority, Issue};

    /// A name with a scheme is a URI; an address is not accepted.
    #[test]
    fn names_are_parsed() {
        let dns = |name: &str| Some(PeerName::Dns(name.to_owned()));
        assert_eq!(PeerName::parse("node0.example"), dns("node0.example"));
        assert_eq!(PeerName::parse("*.example"), dns("*.example"));
        for uri in ["spiffe://site/ns/a/sa/b", "urn:uuid:1"] {
            assert_eq!(PeerName::parse(uri), Some(PeerName::Uri(uri.to_owned())));
        }
        for other in ["", "a b", "10.0.0.1", "::1", "a/b", "é.example", "a\n", &"a".repeat(2049)] {
            assert_eq!(PeerName::parse(other), None, "{other:?}");
        }
    }

    /// One of the names must be equal; DNS names are equal in upper and lower case.
    #[test]
    fn one_name_must_be_equal() {
        let names = ["a.example", "*.b.example", "spiffe://site/c"];
        let issued = Authority::new("ca").issue(&Issue::with_names(&names));
        let certificate = webpki::EndEntityCert::try_from(&issued.certificate).unwrap();
        let has = |name: &str| PeerName::parse(name).unwrap().is_of(&certificate);
        for name in ["a.example", "A.Example", "*.b.example", "spiffe://site/c"] {
            assert!(has(name), "{name}");
        }
        for name in
            ["b.example", "x.b.example", "a.example.org", "spiffe://site/C", "spiffe://site"]
        {
            assert!(!has(name), "{name}");
        }
        // The common name of the subject is not a name.
        assert!(!has("node"));
    }
}
