//! Describes why requests to etcd fail.

use std::time::Duration;

use ragent_base::net::Endpoint;
use tonic::{Code, Status};

/// The reason why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    /// No connection could be opened.
    #[error("cannot connect to etcd at {member}: {cause}")]
    Connect {
        /// The member.
        member: Endpoint,
        /// The cause.
        cause: String,
    },
    /// The member and this agent do not accept each other's certificates.
    #[error("the connection by TLS to etcd at {member} has failed: {cause}")]
    Tls {
        /// The member.
        member: Endpoint,
        /// The cause.
        cause: String,
    },
    /// The member did not answer in time.
    #[error("etcd at {member} did not answer within {:.1} s", waited.as_secs_f64())]
    Silent {
        /// The member.
        member: Endpoint,
        /// The time waited.
        waited: Duration,
    },
    /// The member has answered with an error.
    #[error("etcd at {member} has answered with an error: {message}")]
    Failed {
        /// The member.
        member: Endpoint,
        /// Its message.
        message: String,
    },
    /// The answer is longer than this agent accepts.
    #[error("failed to read the answer of etcd at {member}, which is too large: {message}")]
    Oversized {
        /// The member.
        member: Endpoint,
        /// The length and the limit.
        message: String,
    },
    /// etcd does not permit the request.
    #[error("etcd at {member} refuses this agent: {message}")]
    Refused {
        /// The member.
        member: Endpoint,
        /// Its message.
        message: String,
    },
    /// A file of this agent cannot be used.
    #[error("{path} cannot be used: {cause}")]
    File {
        /// Its path.
        path: String,
        /// The cause.
        cause: String,
    },
    /// The content of the key is not a record of this version.
    #[error("the key {key} in etcd has a value that is not of this version of ragent: {cause}")]
    Record {
        /// The key.
        key: String,
        /// The cause.
        cause: String,
    },
}

impl EtcdError {
    /// Returns true if the same request would fail again.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Connect { .. }
            | Self::Silent { .. }
            | Self::Failed { .. }
            | Self::Oversized { .. } => false,
            Self::Tls { .. } | Self::Refused { .. } | Self::File { .. } | Self::Record { .. } => {
                true
            }
        }
    }

    /// Returns the member, if another member may accept the request.
    pub fn of_member(&self) -> Option<&Endpoint> {
        match self {
            Self::Connect { member, .. }
            | Self::Tls { member, .. }
            | Self::Silent { member, .. }
            | Self::Failed { member, .. }
            | Self::Oversized { member, .. } => Some(member),
            Self::Refused { .. } | Self::File { .. } | Self::Record { .. } => None,
        }
    }
}

/// Returns true if one side of a connection does not accept the certificate or protocol of the other. The text of the error decides,
/// because several libraries wrap the error.
pub(super) fn is_tls_failure(cause: &str) -> bool {
    ["invalid peer certificate", "received fatal alert", "received corrupt message"]
        .iter()
        .any(|part| cause.contains(part))
}

/// Returns true if etcd refuses the token of a request: it has expired, or users have changed since.
pub(super) fn is_outdated_token(status: &Status) -> bool {
    let message = status.message();
    message.contains("invalid auth token") || message.contains("revision of auth store is old")
}

/// Returns true if etcd does not permit the request to this user. etcd uses `InvalidArgument` for a wrong password and for a request
/// without a user.
pub(super) fn is_refusal(status: &Status) -> bool {
    let message = status.message();
    matches!(status.code(), Code::PermissionDenied | Code::Unauthenticated)
        || message.contains("authentication failed")
        || message.contains("authentication is not enabled")
        || message.contains("user name is empty")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A wrong password, a missing user and a missing permission are refusals. An outdated token and a lost leader are not.
    #[test]
    fn refusals_are_recognised() {
        for (code, message, is_refused, is_outdated) in [
            (
                Code::InvalidArgument,
                "etcdserver: authentication failed, invalid user ID or password",
                true,
                false,
            ),
            (Code::InvalidArgument, "etcdserver: user name is empty", true, false),
            (Code::PermissionDenied, "etcdserver: permission denied", true, false),
            (Code::FailedPrecondition, "etcdserver: authentication is not enabled", true, false),
            (Code::InvalidArgument, "etcdserver: revision of auth store is old", false, true),
            (Code::Unavailable, "etcdserver: no leader", false, false),
            (Code::Unavailable, "etcdserver: request timed out", false, false),
        ] {
            let status = Status::new(code, message);
            assert_eq!(
                (is_refusal(&status), is_outdated_token(&status)),
                (is_refused, is_outdated),
                "{message}"
            );
        }
        for cause in
            ["invalid peer certificate: UnknownIssuer", "received fatal alert: HandshakeFailure"]
        {
            assert!(is_tls_failure(&format!("transport error: {cause}")));
        }
        assert!(!is_tls_failure("Connection refused (os error 111)"));
        // A client that does not log in again is refused for an expired token, too.
        assert!(is_outdated_token(&Status::unauthenticated("etcdserver: invalid auth token")));
    }
}
