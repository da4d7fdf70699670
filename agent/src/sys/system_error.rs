//! Errors of the system, with the attempted operation.

use std::io;

/// The system refused something that every launch needs.
#[derive(Debug, thiserror::Error)]
#[error("failed to {attempt}")]
pub struct SystemError {
    /// The operation that failed.
    pub attempt: &'static str,
    /// The system's error.
    #[source]
    pub source: io::Error,
}

/// Adds the attempted operation to an error of the system.
pub(crate) fn system(attempt: &'static str) -> impl Fn(io::Error) -> SystemError {
    move |source| SystemError { attempt, source }
}
