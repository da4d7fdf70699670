//! The error of a process that has no credentials.

use super::{certificates::CertificateError, file::FileError};

/// No usable credentials were found.
#[derive(Debug, thiserror::Error)]
pub enum PlacesError {
    /// A file of certificates cannot be used.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// A file of secrets cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// A secret is required, and there is none.
    #[error("`--auth secret` requires a secret, and there is none (searched: {})", searched.join(", "))]
    NoSecret {
        /// The places.
        searched: Vec<String>,
    },
}

impl PlacesError {
    /// Returns the hint for the user.
    pub fn hint(&self) -> String {
        match self {
            Self::Certificate(error) => error.hint(),
            Self::File(error) => error.hint(),
            Self::NoSecret { .. } => NO_SECRET_HINT.to_owned(),
        }
    }
}

const NO_SECRET_HINT: &str =
    "make one with `ragent secret --init`, or name its file with `--secret-file`";
