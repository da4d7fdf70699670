//! Compares the secret of this process with those of the voters that answer, so that a wrong secret is an error at the
//! start, and not an unreachable voter later.

use std::net::SocketAddr;

use tokio::{task::JoinSet, time::timeout};

use super::error::LocateError;
use crate::{
    endpoint::limits,
    net::{self, authentication},
    secret::{Credentials, Mismatch},
    spec::{Endpoint, VoterList},
};

/// Checks that at least one of the voters that answer has the secret of this process, if any answers.
///
/// # Errors
///
/// Returns [`LocateError::Auth`] if all that answer have another one.
pub(crate) async fn check(list: &VoterList, credentials: &Credentials) -> Result<(), LocateError> {
    let mut asked: JoinSet<Option<Result<(), Mismatch>>> = JoinSet::new();
    for endpoint in list.endpoints().to_vec() {
        let credentials = credentials.clone();
        asked.spawn(async move { compare(&endpoint, &credentials).await });
    }
    let first_match = async {
        let mut mismatch = None;
        while let Some(answer) = asked.join_next().await {
            match answer.ok().flatten() {
                Some(Ok(())) => return None,
                Some(Err(other)) => mismatch = Some(other),
                None => {}
            }
        }
        mismatch
    };
    match timeout(limits::VOTER_SECRETS_TIMEOUT, first_match).await {
        Ok(Some(mismatch)) => Err(LocateError::Auth(mismatch)),
        Ok(None) | Err(_) => Ok(()),
    }
}

async fn compare(endpoint: &Endpoint, credentials: &Credentials) -> Option<Result<(), Mismatch>> {
    let addresses: Vec<SocketAddr> = net::resolve(endpoint).await.ok()?;
    for address in addresses {
        if let Some(theirs) = authentication::ask(address).await {
            return Some(credentials.compare(&endpoint.to_string(), &theirs));
        }
    }
    None
}
