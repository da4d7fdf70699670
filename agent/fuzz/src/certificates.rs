//! Certificates of strangers, and the own files of certificates.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
};

use ragent_base::{
    secret::{CertificateFacts, Credentials, PeerName, utc},
    testing::assert_printable,
};
use rustls::pki_types::CertificateDer;

use super::pki;

/// A common name of at most 256 characters, and four names of the same length.
const FACTS_MAX: usize = (1 + 4) * (4 * 256 + 8) + 64;

/// The first byte selects the kind of the rest: a certificate, one of the three files, changes to one of the three files, or
/// changes to a certificate.
pub fn certificates(input: &[u8]) {
    let Some((&kind, rest)) = input.split_first() else { return };
    match usize::from(kind) % 8 {
        0 => describe(rest),
        kind @ 1..=3 => read(kind - 1, rest),
        7 => describe(&changed(pki::certificate(), rest)),
        kind => read(kind - 4, &changed(pki::content(kind - 4), rest)),
    }
}

/// Describes a certificate, as messages do.
fn describe(certificate: &[u8]) {
    let facts = CertificateFacts::of(&CertificateDer::from(certificate));
    let text = facts.to_string();
    assert_printable(&text);
    assert!(!text.contains(['\n', '\t']) && text.len() <= FACTS_MAX, "{text}");
    assert!(facts.names.len() <= 64);
    for name in &facts.names {
        let text = name.to_string();
        assert!(text.bytes().all(|byte| byte.is_ascii_graphic()), "{text}");
        assert_eq!(PeerName::parse(&text).as_ref(), Some(name));
    }
    if let Some(validity) = facts.validity {
        assert!(validity.first <= validity.last, "{validity:?}");
        for second in [validity.first, validity.last] {
            assert!(utc(second).ends_with('Z'), "{second}");
        }
    }
}

/// Reads the files of a process, of which one has this content.
fn read(file: usize, content: &[u8]) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("file.pem");
    fs::write(&path, content).expect("a file");
    fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("a file");
    match Credentials::with_certificates(pki::request(Some((file, path)))) {
        Ok(credentials) => {
            assert!(credentials.is_secured() && credentials.has_certificate());
            let own = credentials.certificate().expect("it has a certificate");
            assert!(own.facts.names.contains(&own.required));
            assert_printable(&own.facts.to_string());
        }
        Err(error) => {
            for text in [error.to_string(), error.hint()] {
                assert_printable(&text);
                // A line of the file, which may be a key, is longer.
                assert!(text.len() <= 512, "{text}");
            }
        }
    }
}

/// Returns valid content with changes: the place in two bytes, and the byte there.
fn changed(mut content: Vec<u8>, changes: &[u8]) -> Vec<u8> {
    for change in changes.chunks_exact(3) {
        let place = usize::from(u16::from_le_bytes([change[0], change[1]])) % content.len();
        content[place] = change[2];
    }
    content
}
