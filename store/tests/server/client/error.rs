//! Errors of the client.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use ragent_store::wire::LimitError;

/// A store cannot be reached.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    /// No connection, for a reason that the operating system gives.
    #[error("failed to connect to `{addr}`")]
    Connect {
        /// The address of the store.
        addr: SocketAddr,
        /// The operating system's error.
        #[source]
        source: io::Error,
    },
    /// A peer accepted the connection, but it does not behave like a store.
    #[error("the program at `{addr}` is not a store")]
    Greeting {
        /// The address of the peer.
        addr: SocketAddr,
        /// The error in the first exchange.
        #[source]
        source: RequestError,
    },
    /// The connection took too long.
    #[error("`{addr}` did not answer within {limit:?}")]
    TimedOut {
        /// The address of the store.
        addr: SocketAddr,
        /// The time limit.
        limit: Duration,
    },
}

/// A request was not answered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestError {
    /// The store closed the connection, as it does when a request breaks a rule.
    #[error("the store closed the connection")]
    Closed,
    /// An earlier request failed or was dropped, so answers cannot be matched to requests any more.
    #[error("an earlier request was interrupted")]
    Interrupted,
    /// The connection broke.
    #[error("the connection to the store broke")]
    Io(#[from] io::Error),
    /// The store would refuse the request; it was not sent.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// No store gives such an answer.
    #[error("the store sent an invalid answer")]
    Protocol,
}

/// A wait has not ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WaitError {
    /// The request failed.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The wait did not end in time, and was canceled.
    #[error("the wait did not end within {0:?}")]
    TimedOut(Duration),
}
