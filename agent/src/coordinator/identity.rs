//! The identity of an agent, by which others recognise ragent at an address.

use axum::{Json, extract::State};
use ragent_rendezvous::{ids::RunId, message::PROTOCOL_VERSION};
use serde::{Deserialize, Serialize};

use crate::sys::clock;

/// The path of an agent's identity.
pub(crate) const IDENTITY_PATH: &str = "/v1/identity";

/// The identity of the agent on a port.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Identity {
    /// The program's version.
    pub ragent: String,
    /// The version of the attend protocol.
    pub protocol: u32,
    /// The run id of the job.
    pub run_id: String,
    /// The agent's clock, in milliseconds since 1970, for the comparison of clocks; no decision
    /// depends on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unix_ms: Option<u64>,
}

/// Answers with the identity of this agent.
pub(super) async fn page(State(run_id): State<RunId>) -> Json<Identity> {
    Json(Identity {
        ragent: env!("CARGO_PKG_VERSION").to_owned(),
        protocol: PROTOCOL_VERSION,
        run_id: run_id.to_string(),
        unix_ms: u64::try_from(clock::wall_time().as_millis()).ok(),
    })
}
