//! Errors of the system, with the attempted operation.

use std::io;

use nix::libc;

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

/// Returns true if the system lacks processes or memory at present: a later attempt may succeed.
pub fn is_shortage(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOMEM))
}

/// Adds the attempted operation to an error of the system.
pub fn system(attempt: &'static str) -> impl Fn(io::Error) -> SystemError {
    move |source| SystemError { attempt, source }
}
