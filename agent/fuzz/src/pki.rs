//! An authority, and the files of a process with a certificate of it, in a folder of this process.

use std::{fs, path::PathBuf, sync::LazyLock};

use ragent_base::secret::{
    CertificateRequest, Credentials,
    testing::{Authority, Issue, Issued, write},
};
use tempfile::TempDir;

/// The folder, which stays until the process ends, and the certificate.
static FOLDER: LazyLock<(TempDir, Issued)> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let authority = Authority::new("ca");
    let issued = authority.issue(&Issue::with_names(&["node0.example", "spiffe://site/node"]));
    write(folder.path(), &[&authority], &issued);
    (folder, issued)
});

/// The names of the files: the authorities, the certificate and its key.
pub(crate) const FILES: [&str; 3] = ["ca.pem", "cert.pem", "key.pem"];

/// Returns the content of a file.
pub(crate) fn content(file: usize) -> Vec<u8> {
    fs::read(FOLDER.0.path().join(FILES[file])).expect("a file")
}

/// Returns the certificate.
pub(crate) fn certificate() -> Vec<u8> {
    FOLDER.1.certificate.to_vec()
}

/// Returns the files; `other` replaces the one with this number.
pub(crate) fn request(other: Option<(usize, PathBuf)>) -> CertificateRequest {
    let mut files = FILES.map(|name| FOLDER.0.path().join(name));
    if let Some((file, path)) = other {
        files[file] = path;
    }
    let [authorities, certificate, key] = files;
    CertificateRequest { authorities, certificate, key, peer: None }
}

/// Returns the credentials of a process with the certificate.
pub(crate) fn credentials() -> Credentials {
    Credentials::with_certificates(request(None)).expect("the files are valid")
}
