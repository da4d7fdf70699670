//! The reasons for which an agent does not get a place in its job.

use std::io;

use super::locate::LocateError;

/// The reason for which an agent has no place at an endpoint.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlaceError {
    /// The system refused something that every launch needs.
    #[error("failed to {attempt}")]
    System {
        /// The operation that failed.
        attempt: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// No process hosts the endpoint, and this node cannot.
    #[error("failed to find the coordinator")]
    Locate(#[from] LocateError),
}

/// Adds the attempted operation to an error of the system.
pub(super) fn system(attempt: &'static str) -> impl Fn(io::Error) -> PlaceError {
    move |source| PlaceError::System { attempt, source }
}
