//! Serves the identity of an agent, by which others recognise ragent at an address.

use axum::{Json, extract::State};
use ragent_rendezvous::{ids::RunId, message::PROTOCOL_VERSION};
use serde::{Deserialize, Serialize};

pub use ragent_base::net::authentication::IDENTITY_PATH;
use ragent_base::{
    net::authentication,
    secret::{Credentials, NamedAuth},
    sys::clock,
};

/// The identity of the agent on a port.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Identity {
    /// The program's version.
    pub ragent: String,
    /// The version of the registration protocol.
    pub protocol: u32,
    /// The run id of the job; empty for a client that does not know the secret.
    pub run_id: String,
    /// The credentials of the agent.
    #[serde(flatten)]
    pub auth: NamedAuth,
    /// The agent's clock in milliseconds since 1970. Commands compare clocks with it; no decision depends on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unix_ms: Option<u64>,
}

/// The page with the identity of this agent.
#[derive(Clone, Debug)]
pub(super) struct IdentityPage {
    /// The run id of the job; `None` for clients that do not know the secret.
    pub run_id: Option<RunId>,
    /// The credentials of this agent.
    pub credentials: Credentials,
}

/// Answers with the identity of this agent. Strangers receive no run id and no time.
pub(super) async fn page(State(page): State<IdentityPage>) -> Json<Identity> {
    let IdentityPage { run_id, credentials } = page;
    // A process with a new secret compares it before it connects, so the files of secrets are read again here.
    authentication::read_again(&credentials).await;
    let unix_ms = u64::try_from(clock::wall_time().as_millis()).ok();
    Json(Identity {
        ragent: env!("CARGO_PKG_VERSION").to_owned(),
        protocol: PROTOCOL_VERSION,
        unix_ms: unix_ms.filter(|_| run_id.is_some()),
        run_id: run_id.map_or_else(String::new, |run_id| run_id.to_string()),
        auth: NamedAuth::of(&credentials),
    })
}
