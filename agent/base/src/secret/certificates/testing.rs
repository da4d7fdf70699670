//! An authority that issues certificates, for tests.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, DnValue, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, SanType, date_time_ymd,
};
use rustls::pki_types::CertificateDer;

/// An authority.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// A certificate to issue. Times are in seconds since 1970.
#[derive(Clone, Debug)]
pub struct Issue {
    /// The common name of the subject.
    pub subject: String,
    /// The names: DNS names, and URIs.
    pub names: Vec<String>,
    /// The first second at which it is valid.
    pub first: i64,
    /// The last second at which it is valid.
    pub last: i64,
    /// Its usages; if there are none, the certificate has no such extension.
    pub usages: Vec<ExtendedKeyUsagePurpose>,
}

/// An issued certificate with its key.
#[derive(Debug)]
pub struct Issued {
    /// The certificate.
    pub certificate: CertificateDer<'static>,
    /// The same, as a file has it.
    pub certificate_pem: String,
    /// Its key, as a file has it.
    pub key_pem: String,
}

/// The first second of 2000, and the last of 2100: the default validity.
const VALIDITY: [i64; 2] = [946_684_800, 4_133_980_799];

impl Issue {
    /// A valid certificate with these names.
    pub fn with_names(names: &[&str]) -> Self {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        let [first, last] = VALIDITY;
        Self { subject: "node".to_owned(), names, first, last, usages: Vec::new() }
    }
}

impl Authority {
    /// Creates an authority with a key of its own.
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("the parameters are valid");
        let pem = params.self_signed(&key).expect("the parameters are valid").pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// The certificate of the authority.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Issues a certificate with a new key.
    pub fn issue(&self, issue: &Issue) -> Issued {
        self.issue_as(issue, IsCa::NoCa)
    }

    /// Issues a certificate of another authority, as `openssl req -x509` makes them by default.
    #[cfg(test)]
    pub fn issue_authority(&self, issue: &Issue) -> Issued {
        self.issue_as(issue, IsCa::Ca(BasicConstraints::Unconstrained))
    }

    fn issue_as(&self, issue: &Issue, is_ca: IsCa) -> Issued {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        let subject = DnValue::Utf8String(issue.subject.clone());
        params.distinguished_name.push(DnType::CommonName, subject);
        params.distinguished_name.push(DnType::OrganizationName, "site");
        let san = |name: &String| match name.contains("://") {
            true => SanType::URI(name.as_str().try_into().expect("the parameters are valid")),
            false => SanType::DnsName(name.as_str().try_into().expect("the parameters are valid")),
        };
        params.subject_alt_names = issue.names.iter().map(san).collect();
        params.extended_key_usages.clone_from(&issue.usages);
        params.is_ca = is_ca;
        let time = |second: i64| {
            date_time_ymd(1970, 1, 1)
                + Duration::from_secs(second.try_into().expect("the parameters are valid"))
        };
        (params.not_before, params.not_after) = (time(issue.first), time(issue.last));
        let key = KeyPair::generate().expect("the parameters are valid");
        let certificate = params.signed_by(&key, &self.issuer).expect("the parameters are valid");
        Issued {
            certificate: certificate.der().clone(),
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
        }
    }
}

/// Writes the three files of a process into a folder, and returns their paths: the authorities that it trusts, its
/// certificate and its key. Files that are there are replaced.
pub fn write(folder: &Path, trusted: &[&Authority], own: &Issued) -> [PathBuf; 3] {
    fs::create_dir_all(folder).expect("the folder can be written");
    let authorities: String = trusted.iter().map(|authority| authority.pem()).collect();
    let files = [
        ("ca.pem", authorities.as_str(), 0o644),
        ("cert.pem", &own.certificate_pem, 0o644),
        ("key.pem", &own.key_pem, 0o600),
    ];
    files.map(|(name, text, mode)| {
        let (path, draft) = (folder.join(name), folder.join(format!("{name}.new")));
        fs::write(&draft, text).expect("the folder can be written");
        fs::set_permissions(&draft, Permissions::from_mode(mode))
            .expect("the folder can be written");
        fs::rename(&draft, &path).expect("the folder can be written");
        path
    })
}
