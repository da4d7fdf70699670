//! The authentication of other processes: what they name in their identity, the secret that is used with them, and whether
//! certificates are accepted on both sides.

use std::net::SocketAddr;

use ragent_store::server::{Owner, Owners};
use tokio::time::timeout;
use tracing::warn;

use super::http_client::{self, ExchangeEnd, HttpPage};
use crate::{
    net::limits,
    secret::{ClientTls, Credentials, Mismatch, NamedAuth, READ_INTERVAL},
    sys::{clock, users},
};

/// The path of an agent's identity.
pub const IDENTITY_PATH: &str = "/v1/identity";

/// Asks the process at `address` for its authentication; `None` if it does not answer as ragent.
pub async fn ask(address: SocketAddr) -> Option<NamedAuth> {
    let (len_max, limit) = (limits::MAX_IDENTITY_LEN, limits::IDENTIFY_TIMEOUT);
    let exchange = http_client::get(address, IDENTITY_PATH, len_max, limit).await;
    let page = HttpPage::parse(&exchange.received).filter(|page| page.status == 200)?;
    serde_json::from_str(page.body).ok()
}

/// Compares the credentials of this process with those of the process at `address`, which messages call `place`. With
/// certificates, opens a connection, which shows whether each side accepts that of the other one. A process that does not
/// answer has no mismatch.
///
/// # Errors
///
/// Returns [`Mismatch`] if the two processes cannot authenticate each other.
pub async fn compare(
    address: SocketAddr,
    place: &str,
    theirs: &NamedAuth,
    credentials: &Credentials,
) -> Result<(), Mismatch> {
    credentials.compare(place, theirs)?;
    match mismatch_of_certificates(address, credentials).await {
        Some(mismatch) => Err(mismatch.at(place)),
        None => Ok(()),
    }
}

/// Returns the reason why the process at `address` and this one do not accept each other's certificates, if they do
/// not.
pub async fn mismatch_of_certificates(
    address: SocketAddr,
    credentials: &Credentials,
) -> Option<Mismatch> {
    if !credentials.has_certificate() {
        return None;
    }
    let (len_max, limit) = (limits::MAX_IDENTITY_LEN, limits::IDENTIFY_TIMEOUT);
    let path = IDENTITY_PATH;
    let asked = http_client::get_as_member(address, credentials, path, len_max, limit).await;
    match asked.end {
        ExchangeEnd::Failed(error) => error.get_ref()?.downcast_ref::<Mismatch>().cloned(),
        ExchangeEnd::Complete | ExchangeEnd::TimedOut => None,
    }
}

/// Checks that the process at the loopback address `remote`, which has answered on the connection from `local`, belongs to this user
/// or to root: without a secret, processes of one machine authenticate each other by their user.
///
/// # Errors
///
/// Returns [`UserError`] if it belongs to another user, or has closed the connection meanwhile.
pub fn check_user(
    local: SocketAddr,
    remote: SocketAddr,
    credentials: &Credentials,
) -> Result<(), UserError> {
    let is_private = remote.ip().to_canonical().is_loopback();
    if !is_private || credentials.is_secured() || credentials.is_declined() {
        return Ok(());
    }
    match Owners::new().of_peer(clock::now(), local, remote) {
        Owner::User(uid) if !users::is_trusted(uid) => {
            Err(UserError::Other(Mismatch::of_user(&remote.to_string(), uid)))
        }
        Owner::Nobody => Err(UserError::Closed),
        // If the kernel does not answer, the machine is assumed to have one user.
        Owner::User(_) | Owner::Later(_) | Owner::Unknown => Ok(()),
    }
}

/// The reason why a process is not known to belong to this user.
#[derive(Debug)]
pub enum UserError {
    /// It belongs to another one.
    Other(Mismatch),
    /// Its end of the connection is closed, so that it has no owner any more.
    Closed,
}

/// Returns the configuration for a connection to `address`: with several secrets, the newest that the process there
/// names as well. Returns `None` without a secret and a certificate.
pub async fn choose(address: SocketAddr, credentials: &Credentials) -> Option<ClientTls> {
    if credentials.has_certificate() {
        read_again(credentials).await;
    }
    let clients = credentials.clients();
    if clients.len() <= 1 {
        return clients.into_iter().next();
    }
    let theirs = ask(address).await.unwrap_or_default().ids();
    let is_common = |client: &&ClientTls| client.id.is_some_and(|id| theirs.contains(&id));
    clients.iter().find(is_common).or_else(|| clients.first()).cloned()
}

/// Returns true if a client that sends this server name may know a secret. If the name is unknown, the file is read again,
/// which may have a new secret. With certificates, any client is verified, and changed files are read again.
pub(super) async fn knows(credentials: &Credentials, name: Option<&str>) -> bool {
    if !credentials.has_certificate() && credentials.knows(name) {
        return true;
    }
    read_again(credentials).await;
    credentials.knows(name)
}

/// Reads the files of the credentials again, which may have changed. Does not wait for a file system that does not answer.
pub async fn read_again(credentials: &Credentials) {
    let _ = timeout(limits::READ_AGAIN_PATIENCE, credentials.read_again(clock::now())).await;
    if let Some(why) = credentials.newly_outdated(clock::wall_second()) {
        warn!("other processes do not accept the certificate of this one: {why}; renew it");
    }
}

/// Reads the own secrets again, and waits until the other process has done so too: each process reads its files every [`READ_INTERVAL`]. For
/// example, you have added a secret on both hosts, and only one of them has read it. Then a second attempt succeeds.
pub async fn await_newer_secrets(credentials: &Credentials) {
    read_again(credentials).await;
    clock::until(Some(clock::now() + READ_INTERVAL + limits::READ_AGAIN_PATIENCE)).await;
}
