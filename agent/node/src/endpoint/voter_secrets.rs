//! Compares the credentials of this process with those of the voters that answer.
//!
//! So a wrong secret or certificate is an error at the start, and not an unreachable voter later.

use std::net::SocketAddr;

use ragent_base::{
    net::{self, Endpoint, authentication},
    secret::{Credentials, Mismatch},
};
use ragent_options::spec::VoterList;
use tokio::{task::JoinSet, time::timeout};

use super::error::LocateError;
use crate::endpoint::limits;

/// Checks that at least one of the answering voters accepts the credentials of this process. If no voter answers, there is no error. If the
/// secrets differ, asks once more, because a secret may have been replaced a moment ago.
///
/// # Errors
///
/// Returns [`LocateError::Auth`] if voters answer, but none accepts.
pub async fn check(list: &VoterList, credentials: &Credentials) -> Result<(), LocateError> {
    match check_once(list, credentials).await {
        Err(mismatch) if mismatch.is_of_secrets() => {
            authentication::await_newer_secrets(credentials).await;
            check_once(list, credentials).await
        }
        checked => checked,
    }
    .map_err(LocateError::Auth)
}

async fn check_once(list: &VoterList, credentials: &Credentials) -> Result<(), Mismatch> {
    let mut asked: JoinSet<Option<Result<(), Mismatch>>> = JoinSet::new();
    for endpoint in list.endpoints().to_vec() {
        let credentials = credentials.clone();
        asked.spawn(async move { compare(&endpoint, &credentials).await });
    }
    let mut mismatch = None;
    let first_match = async {
        while let Some(answer) = asked.join_next().await {
            match answer.ok().flatten() {
                Some(Ok(())) => return true,
                Some(Err(other)) => mismatch = Some(other),
                None => {}
            }
        }
        false
    };
    // A voter that does not answer in time does not count.
    let has_match = timeout(limits::VOTER_SECRETS_TIMEOUT, first_match).await.unwrap_or(false);
    match mismatch.filter(|_| !has_match) {
        Some(mismatch) => Err(mismatch),
        None => Ok(()),
    }
}

async fn compare(endpoint: &Endpoint, credentials: &Credentials) -> Option<Result<(), Mismatch>> {
    let addresses: Vec<SocketAddr> = net::resolve(endpoint).await.ok()?;
    for address in addresses {
        if let Some(theirs) = authentication::ask(address).await {
            let place = endpoint.to_string();
            return Some(authentication::compare(address, &place, &theirs, credentials).await);
        }
    }
    None
}
