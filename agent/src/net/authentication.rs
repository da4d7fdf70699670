//! The authentication of other processes: what they name in their identity, and the secret that is used with them.

use std::net::SocketAddr;

use tokio::time::timeout;

use super::http_client::{self, Page};
use crate::{
    net::limits,
    secret::{ClientTls, Credentials, NamedAuth, READ_INTERVAL},
    sys::clock,
};

/// The path of an agent's identity.
pub(crate) const IDENTITY_PATH: &str = "/v1/identity";

/// Asks the process at `address` for its authentication; `None` if it does not answer as ragent.
pub(crate) async fn ask(address: SocketAddr) -> Option<NamedAuth> {
    let (len_max, limit) = (limits::MAX_IDENTITY_LEN, limits::IDENTIFY_TIMEOUT);
    let exchange = http_client::get(address, IDENTITY_PATH, len_max, limit).await;
    let page = Page::parse(&exchange.received).filter(|page| page.status == 200)?;
    serde_json::from_str(page.body).ok()
}

/// Returns the configuration for a connection to `address`: of several secrets, the newest of those that the process
/// there names. Returns `None` without a secret.
pub(crate) async fn choose(address: SocketAddr, credentials: &Credentials) -> Option<ClientTls> {
    let clients = credentials.clients();
    if clients.len() <= 1 {
        return clients.into_iter().next();
    }
    let theirs = ask(address).await.unwrap_or_default().ids();
    let is_common = |client: &&ClientTls| theirs.contains(&client.id);
    clients.iter().find(is_common).or_else(|| clients.first()).cloned()
}

/// Returns true if a client that sends this server name knows a secret. If the name is unknown, the file is read again,
/// which may have a new secret.
pub(super) async fn knows(credentials: &Credentials, name: Option<&str>) -> bool {
    if credentials.knows(name) {
        return true;
    }
    read_again(credentials).await;
    credentials.knows(name)
}

/// Reads the file of the secrets again, to which another one may have been added. Does not wait for a file system that does not
/// answer.
pub(crate) async fn read_again(credentials: &Credentials) {
    let _ = timeout(limits::READ_AGAIN_PATIENCE, credentials.read_again(clock::now())).await;
}

/// Reads the own secrets again, and waits until the other process may have done so: in a second attempt, both know a secret that
/// was added before the first one.
pub(crate) async fn await_newer_secrets(credentials: &Credentials) {
    read_again(credentials).await;
    clock::until(Some(clock::now() + READ_INTERVAL + limits::READ_AGAIN_PATIENCE)).await;
}
