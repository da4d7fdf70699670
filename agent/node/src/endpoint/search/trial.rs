//! Tries an address that a datagram names as the host.

use std::net::SocketAddr;

use ragent_base::{
    secret::{Credentials, Mismatch},
    spec::Endpoint,
};
use ragent_rendezvous::ids::RunId;
use tokio::time::timeout;

use crate::endpoint::{
    error::LocateError,
    identity, limits,
    locate::{self, Located},
};

/// The result of a trial.
#[derive(Debug)]
pub(super) enum Trial {
    /// An agent of the job has answered. If the job has a secret or certificates, it has authenticated itself.
    There,
    /// The address belongs to this machine, but no process has answered.
    Here,
    /// An agent has answered, but the two do not accept each other.
    Refused(Mismatch),
    /// No agent of the job has answered, for this reason.
    NotThere(String),
}

/// Tries the address `at` for the job `run_id`, at most for [`limits::PLACE_TIMEOUT`].
pub(super) async fn try_place(at: SocketAddr, run_id: &RunId, credentials: &Credentials) -> Trial {
    let tried = timeout(limits::PLACE_TIMEOUT, try_it(at, run_id, credentials)).await;
    tried.unwrap_or_else(|_| Trial::NotThere(format!("{at} did not answer in time")))
}

async fn try_it(at: SocketAddr, run_id: &RunId, credentials: &Credentials) -> Trial {
    let endpoint = Endpoint { host: at.ip().to_string(), port: at.port() };
    match locate::try_endpoint(credentials, &endpoint, limits::PLACE_TIMEOUT).await {
        Ok(Located::Here { .. }) => Trial::Here,
        Ok(Located::There(_)) => match identity::job_at(at, credentials).await {
            Ok(name) if name == run_id.as_str() => Trial::There,
            Ok(name) => {
                Trial::NotThere(format!("{at} serves another job, {}", name.escape_default()))
            }
            Err(cause) => Trial::NotThere(cause),
        },
        Err(LocateError::Auth(mismatch)) => Trial::Refused(mismatch),
        Err(error) => Trial::NotThere(error.to_string()),
    }
}
