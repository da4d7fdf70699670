//! Reads the files of certificates. A key that others could have read, and a file that they could have written, is not used.

use std::{
    fs::{self, Metadata},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use nix::unistd::geteuid;
use rustls::{
    RootCertStore,
    crypto::CryptoProvider,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
    sign::CertifiedKey,
};
use serde::{Deserialize, Serialize};

use super::{facts::CertificateFacts, peer_name::PeerName};
use crate::secret::{
    file::{self, FileProblem},
    limits,
};

/// The files of a process, and the name of its peers.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct CertificateRequest {
    /// The certificates of the authorities that sign those of peers.
    pub authorities: PathBuf,
    /// The own certificate, and those between it and an authority.
    pub certificate: PathBuf,
    /// The key of the own certificate.
    pub key: PathBuf,
    /// The name of the peers; `None`: the first name of the own certificate.
    pub peer: Option<PeerName>,
}

/// The content of the files.
pub(super) struct Files {
    pub(super) authorities: RootCertStore,
    pub(super) certified: CertifiedKey,
    pub(super) own: CertificateFacts,
    pub(super) required: PeerName,
    pub(super) stamps: Stamps,
}

/// The state of the three files, by which a change is noticed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(in crate::secret) struct Stamps([Option<Stamp>; 3]);

/// Device, inode, size, and the times of the last change of content and of the file, with their nanoseconds.
type Stamp = (u64, u64, u64, (i64, i64), (i64, i64));

fn stamp(about: &Metadata) -> Stamp {
    let content = (about.mtime(), about.mtime_nsec());
    (about.dev(), about.ino(), about.len(), content, (about.ctime(), about.ctime_nsec()))
}

impl Stamps {
    /// Returns the present state of the files.
    pub(in crate::secret) fn of(request: &CertificateRequest) -> Self {
        let files = [&request.authorities, &request.certificate, &request.key];
        Self(files.map(|path| fs::metadata(path).ok().map(|about| stamp(&about))))
    }
}

/// The reason why a file of certificates cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{role} `{}` {problem}", path.display())]
pub struct CertificateError {
    role: &'static str,
    path: PathBuf,
    problem: Problem,
}

const AUTHORITIES: &str = "the file of authorities";
const CERTIFICATE: &str = "the certificate file";
const KEY: &str = "the key file";

/// The reason, as it follows the name of the file.
#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error(transparent)]
    File(#[from] FileProblem),
    #[error("has an invalid certificate (number {number}): {error}")]
    Invalid { number: usize, error: rustls::Error },
    #[error("contains no certificate")]
    NoCertificate,
    #[error("contains no private key without a password")]
    NoKey,
    #[error("has neither a DNS name nor a URI (subject alternative name)")]
    NoName,
    #[error("is not valid PEM: {0}")]
    NotPem(&'static str),
    #[error("is not the key of the certificate in `{0}`")]
    OtherKey(String),
    #[error("cannot be used: {0}")]
    Unusable(String),
    #[error("can be written by other users (mode {0:04o})")]
    Writable(u32),
}

impl CertificateError {
    /// Returns the hint for the user.
    pub fn hint(&self) -> String {
        let path = self.path.display();
        match &self.problem {
            Problem::File(FileProblem::Mode { .. }) => format!("`chmod 600 {path}`"),
            Problem::File(FileProblem::Owner { .. }) => {
                format!("copy it to a file of this user: `install -m 600 {path} FILE`")
            }
            Problem::NoKey => {
                "give the private key of the certificate in PEM; if it has a password, remove it: `openssl pkey -in \
                 FILE -out KEY`, and `chmod 600 KEY`"
                    .to_owned()
            }
            Problem::NoName => {
                "issue a certificate with a name, or give that of the other nodes as `--tls-peer NAME`"
                    .to_owned()
            }
            Problem::OtherKey(_) => {
                "give the certificate and the key that were made together".to_owned()
            }
            Problem::Writable(_) => format!("`chmod o-w {path}`"),
            Problem::File(_)
            | Problem::Invalid { .. }
            | Problem::NoCertificate
            | Problem::NotPem(_)
            | Problem::Unusable(_) => {
                "give the files of this node in PEM: the authorities as `--tls-ca`, its certificate with \
                 its chain as `--tls-cert`, and its key as `--tls-key`"
                    .to_owned()
            }
        }
    }
}

impl CertificateRequest {
    /// Returns the error that the certificate cannot be used by TLS.
    pub(super) fn unusable(&self, error: &rustls::Error) -> CertificateError {
        let problem = Problem::Unusable(error.to_string());
        CertificateError { role: CERTIFICATE, path: self.certificate.clone(), problem }
    }
}

/// Reads all files.
///
/// # Errors
///
/// Returns [`CertificateError`] if one is missing, invalid, or accessible to others.
pub(super) fn read(
    request: &CertificateRequest,
    provider: &Arc<CryptoProvider>,
) -> Result<Files, CertificateError> {
    // If a file is replaced while the others are read, the state is outdated, and they are read again.
    let stamps = Stamps::of(request);
    let CertificateRequest { authorities, certificate, key, peer } = request;
    let failed = |role, path: &Path| {
        let path = path.to_owned();
        move |problem| CertificateError { role, path, problem }
    };
    let roots = read_authorities(authorities).map_err(failed(AUTHORITIES, authorities))?;
    let chain = read_certificates(certificate, limits::MAX_CERTIFICATE_FILE);
    let chain = chain.map_err(failed(CERTIFICATE, certificate))?;
    let own = chain.first().map(CertificateFacts::of).unwrap_or_default();
    let required = match peer.as_ref().or_else(|| own.names.first()) {
        Some(name) => name.clone(),
        None => return Err(failed(CERTIFICATE, certificate)(Problem::NoName)),
    };
    let private = read_key(key).map_err(failed(KEY, key))?;
    let certified = CertifiedKey::from_der(chain, private, provider).map_err(|error| {
        failed(KEY, key)(match error {
            rustls::Error::InconsistentKeys(_) => {
                Problem::OtherKey(certificate.display().to_string())
            }
            other => Problem::Unusable(other.to_string()),
        })
    })?;
    Ok(Files { authorities: roots, certified, own, required, stamps })
}

fn read_authorities(path: &Path) -> Result<RootCertStore, Problem> {
    let certificates = read_certificates(path, limits::MAX_AUTHORITIES_FILE)?;
    let mut store = RootCertStore::empty();
    for (index, certificate) in certificates.into_iter().enumerate() {
        let added = store.add(certificate);
        added.map_err(|error| Problem::Invalid { number: index + 1, error })?;
    }
    Ok(store)
}

/// Reads at least one certificate.
fn read_certificates(path: &Path, size_max: u64) -> Result<Vec<CertificateDer<'static>>, Problem> {
    let (file, about) = file::open(path)?;
    let (owner, mode) = (about.uid(), about.mode() & 0o7777);
    if owner != geteuid().as_raw() && owner != 0 {
        return Err(FileProblem::Owner { owner, mode }.into());
    }
    if mode & 0o022 != 0 {
        return Err(Problem::Writable(mode));
    }
    let text = file::read_all(file, size_max)?;
    let mut certificates = Vec::new();
    for (index, certificate) in CertificateDer::pem_slice_iter(&text).enumerate() {
        let certificate = certificate.map_err(|error| not_pem(&error))?;
        if let Err(error) = rustls::server::ParsedCertificate::try_from(&certificate) {
            return Err(Problem::Invalid { number: index + 1, error });
        }
        certificates.push(certificate);
    }
    if certificates.is_empty() {
        return Err(Problem::NoCertificate);
    }
    Ok(certificates)
}

fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, Problem> {
    let (text, _) = file::read_text(path)?;
    PrivateKeyDer::from_pem_slice(&text).map_err(|error| match error {
        pem::Error::NoItemsFound => Problem::NoKey,
        other => not_pem(&other),
    })
}

/// Returns the reason why a file is not PEM. The error itself contains a line of the file, which may be a key.
fn not_pem(error: &pem::Error) -> Problem {
    Problem::NotPem(match error {
        pem::Error::IllegalSectionStart { .. } => "a section has a malformed first line",
        pem::Error::MissingSectionEnd { .. } => "a section has no last line of the same name",
        pem::Error::Base64Decode(_) => "a section is not valid Base64",
        _ => "it cannot be read",
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::secret::certificates::{
        LoadedCertificates,
        testing::{Authority, Issue, write},
    };

    fn request(folder: &Path, authority: &Authority, issue: &Issue) -> CertificateRequest {
        let [authorities, certificate, key] = write(folder, &[authority], &authority.issue(issue));
        CertificateRequest { authorities, certificate, key, peer: None }
    }

    fn error(request: &CertificateRequest) -> String {
        let error = LoadedCertificates::read(request).unwrap_err();
        assert!(!error.hint().is_empty());
        error.to_string()
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    /// The first name of the own certificate is that of the peers, unless another one is given.
    #[test]
    fn own_name_is_required() {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new("ca");
        let names = ["spiffe://site/job", "b"];
        let mut files = request(folder.path(), &authority, &Issue::with_names(&names));
        assert_eq!(LoadedCertificates::read(&files).unwrap().required.to_string(), names[0]);
        files.peer = PeerName::parse("c");
        assert_eq!(LoadedCertificates::read(&files).unwrap().required.to_string(), "c");
        let files = request(folder.path(), &authority, &Issue::with_names(&[]));
        assert!(
            error(&files).ends_with("has neither a DNS name nor a URI (subject alternative name)")
        );
    }

    /// A key is judged as a secret is; certificates are public, but only their owner may change them.
    #[test]
    fn unsound_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let files = request(folder.path(), &Authority::new("ca"), &Issue::with_names(&["a"]));
        let CertificateRequest { authorities, certificate, key, .. } = &files;
        for mode in [0o400, 0o440, 0o640, 0o600] {
            set_mode(key, mode);
            LoadedCertificates::read(&files).unwrap();
        }
        set_mode(key, 0o644);
        let expected = format!("the key file `{}` is not private: its mode is 0644", key.display());
        assert!(error(&files).starts_with(&expected), "{}", error(&files));
        let hint = LoadedCertificates::read(&files).unwrap_err().hint();
        assert_eq!(hint, format!("`chmod 600 {}`", key.display()));
        set_mode(key, 0o600);
        for (role, path) in [(AUTHORITIES, authorities), (CERTIFICATE, certificate)] {
            for mode in [0o646, 0o664] {
                set_mode(path, mode);
                let path = path.display();
                let expected =
                    format!("{role} `{path}` can be written by other users (mode {mode:04o})");
                assert_eq!(error(&files), expected);
            }
            set_mode(path, 0o644);
            if geteuid().is_root() {
                std::os::unix::fs::chown(path, Some(1234), None).unwrap();
                assert!(error(&files).contains("belongs to uid 1234"), "{}", error(&files));
                std::os::unix::fs::chown(path, Some(0), None).unwrap();
            }
        }
        LoadedCertificates::read(&files).unwrap();
    }

    /// Each file must have what is expected of it, in a limited size.
    #[test]
    fn contents_are_checked() {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new("ca");
        let issue = Issue::with_names(&["a"]);
        let files = || request(folder.path(), &authority, &issue);
        let with = |path: fn(&CertificateRequest) -> &PathBuf, text: &[u8]| {
            let files = files();
            fs::write(path(&files), text).unwrap();
            error(&files)
        };
        let ca = |files: &CertificateRequest| files.authorities.clone();
        let authorities: fn(&CertificateRequest) -> &PathBuf = |files| &files.authorities;
        let certificate: fn(&CertificateRequest) -> &PathBuf = |files| &files.certificate;
        let key: fn(&CertificateRequest) -> &PathBuf = |files| &files.key;
        for path in [authorities, certificate] {
            assert!(with(path, b"nothing").ends_with("contains no certificate"));
            let broken = b"-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n";
            assert!(with(path, broken).contains("is not valid PEM"), "{}", with(path, broken));
            let empty = b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n";
            assert!(with(path, empty).contains("has an invalid certificate (number 1)"));
        }
        assert!(with(authorities, &vec![b'#'; 1024 * 1024 + 1]).ends_with("larger than 1024 KiB"));
        assert!(with(certificate, &vec![b'#'; 64 * 1024 + 1]).ends_with("larger than 64 KiB"));
        assert!(with(key, b"").ends_with("contains no private key without a password"));
        let other = authority.issue(&issue).key_pem;
        // A key whose lines are joined is not part of the error.
        for joined in [other.replace('\n', ""), other.replace("KEY-----\n", "KEY--")] {
            let error = with(key, joined.as_bytes());
            let (_, cause) = error.split_once("is not valid PEM: ").expect(&error);
            assert!(cause.starts_with("a section has "), "{error}");
            assert!(!cause.contains(|c: char| c.is_ascii_digit()), "{error}");
        }
        assert!(with(key, other.as_bytes()).contains("is not the key of the certificate in `"));
        let missing = files();
        fs::remove_file(ca(&missing)).unwrap();
        assert!(error(&missing).ends_with("does not exist"));
    }

    /// Any change of a file is noticed.
    #[test]
    fn changes_are_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new("ca");
        let files = request(folder.path(), &authority, &Issue::with_names(&["a"]));
        let stamps = LoadedCertificates::read(&files).unwrap().stamps;
        assert_eq!(Stamps::of(&files), stamps);
        for path in [&files.authorities, &files.certificate, &files.key] {
            let text = fs::read(path).unwrap();
            let before = Stamps::of(&files);
            let draft = path.with_extension("new");
            fs::write(&draft, text).unwrap();
            fs::rename(draft, path).unwrap();
            assert_ne!(Stamps::of(&files), before, "{}", path.display());
        }
        fs::remove_file(&files.key).unwrap();
        assert_ne!(Stamps::of(&files), stamps);
    }
}
