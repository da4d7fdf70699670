//! Reads the files for connections to etcd: certificates, a key, a password.
//!
//! They are read for each connection, because they may have been replaced.

use std::{fs::File, io::Read, path::Path};

use ragent_options::spec::EtcdTls;
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use super::{error::EtcdError, limits};

/// Reads the files for TLS.
pub(super) fn tls_config(tls: &EtcdTls) -> Result<ClientTlsConfig, EtcdError> {
    let authorities = Certificate::from_pem(read_file(&tls.authorities)?);
    let config = ClientTlsConfig::new().ca_certificate(authorities);
    let Some((certificate, key)) = &tls.identity else { return Ok(config) };
    Ok(config.identity(Identity::from_pem(read_file(certificate)?, read_file(key)?)))
}

/// Returns the paths of the files for TLS.
pub(super) fn file_names(tls: &EtcdTls) -> String {
    let identity = tls.identity.iter().flat_map(|(certificate, key)| [certificate, key]);
    let files = std::iter::once(&tls.authorities).chain(identity);
    files.map(|file| file.display().to_string()).collect::<Vec<_>>().join(" or ")
}

/// Reads a small file.
pub(super) fn read_file(path: &Path) -> Result<Vec<u8>, EtcdError> {
    let mut content = Vec::new();
    File::open(path)
        .and_then(|file| file.take(limits::MAX_TLS_FILE).read_to_end(&mut content))
        .map_err(|error| unusable_file(path, &error.to_string()))?;
    Ok(content)
}

/// Returns the error of a file that cannot be used.
pub(super) fn unusable_file(path: &Path, cause: &str) -> EtcdError {
    EtcdError::File { path: path.display().to_string(), cause: cause.to_owned() }
}
