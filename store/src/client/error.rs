//! Why the client could not do what it was asked to.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::wire::LimitError;

/// A store cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No connection, for a reason that the operating system gives.
    #[error("failed to connect to `{addr}`")]
    Connect {
        /// Where to.
        addr: SocketAddr,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Something is connected, but it does not behave like a store.
    #[error("what listens on `{addr}` is no store")]
    Greeting {
        /// Where.
        addr: SocketAddr,
        /// What went wrong.
        #[source]
        source: RequestError,
    },
    /// It took too long.
    #[error("`{addr}` did not answer within {limit:?}")]
    TimedOut {
        /// Who did not.
        addr: SocketAddr,
        /// The time it was given.
        limit: Duration,
    },
}

/// A request was not answered.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The store closed the connection, as it does when a request breaks a rule.
    #[error("the store closed the connection")]
    Closed,
    /// An earlier request failed or was dropped, so answers can no longer be told apart.
    #[error("an earlier request was interrupted")]
    Interrupted,
    /// The connection broke.
    #[error("the connection to the store broke")]
    Io(#[from] io::Error),
    /// The store would refuse the request; it was not sent.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// The answer is none that a store gives.
    #[error("the store gave an impossible answer")]
    Protocol,
}

/// A wait has not come true.
#[derive(Debug, thiserror::Error)]
pub enum WaitError {
    /// It could not be asked for.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// It did not come true in time, and was given up.
    #[error("it was not over within {0:?}")]
    TimedOut(Duration),
}
