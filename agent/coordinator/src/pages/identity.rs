//! Serves the identity of an agent, by which others recognise ragent at an address.

use std::sync::{Arc, OnceLock};

use axum::{Json, extract::State};
use ragent_rendezvous::{ids::RunId, message::PROTOCOL_VERSION};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

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
    /// The part of the agent in its job, for agents that search for the job; `None` if the agent searches for none itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search: Option<SearchStanding>,
}

/// An agent that may become the host of a job that others search. The lowest candidate becomes it.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct Candidate {
    /// The rank that the user gave the node. Nodes without a rank come last.
    pub rank: u32,
    /// A random number of this agent.
    pub number: u64,
}

/// The part of an agent in a job that is found by a search.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct SearchStanding {
    /// The agent.
    pub by: Candidate,
    /// Its part.
    pub stage: SearchStage,
}

/// The stages of an agent in a job that is found by a search.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SearchStage {
    /// It searches, and may become the host.
    Candidate,
    /// It searches, and never becomes the host.
    Guest,
    /// It has joined another agent.
    Member,
    /// It hosts a job that has no round yet.
    Host,
    /// It leads a job that has a round.
    Leader,
}

/// The standing that an identity page shows, once there is one.
pub type ShownStanding = Arc<OnceLock<watch::Receiver<SearchStanding>>>;

/// The page with the identity of this agent.
#[derive(Clone, Debug)]
pub(crate) struct IdentityPage {
    /// The run id of the job; `None` for clients that do not know the secret.
    pub run_id: Option<RunId>,
    /// The credentials of this agent.
    pub credentials: Credentials,
    /// The part of this agent in a job that others search.
    pub standing: ShownStanding,
}

/// Answers with the identity of this agent. Strangers receive no run id, no time, and no part in the job.
pub(crate) async fn page(State(page): State<IdentityPage>) -> Json<Identity> {
    let IdentityPage { run_id, credentials, standing } = page;
    // A process with a new secret compares it before it connects, so the files of secrets are read again here.
    authentication::read_again(&credentials).await;
    let unix_ms = u64::try_from(clock::wall_time().as_millis()).ok();
    let search = standing.get().map(|standing| *standing.borrow());
    Json(Identity {
        ragent: env!("CARGO_PKG_VERSION").to_owned(),
        protocol: PROTOCOL_VERSION,
        unix_ms: unix_ms.filter(|_| run_id.is_some()),
        search: search.filter(|_| run_id.is_some()),
        run_id: run_id.map_or_else(String::new, |run_id| run_id.to_string()),
        auth: NamedAuth::of(&credentials),
    })
}
