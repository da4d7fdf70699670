//! Measures how this agent reaches the other nodes of its job, for `ragent doctor --peers`.
//!
//! Who asks names nobody: only nodes that attend are tried, one question at a time.

use std::{net::IpAddr, sync::Arc};

use ragent_rendezvous::snapshot::{NodeSnapshot, Snapshot};
use serde::{Deserialize, Serialize};
use tokio::{sync::Semaphore, task::JoinSet};

use crate::{clock, limits, net};

/// The path at which an agent says how it reaches the others.
pub const REACH_PATH: &str = "/v1/reach";

/// What one node says.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct ReachReport {
    /// What it takes the endpoint's name for; nothing where it hosts, or the name does not resolve.
    pub endpoint: Vec<IpAddr>,
    /// How it reaches the others.
    pub reached: Vec<Reached>,
}

/// How one node was reached.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Reached {
    /// Its agent.
    pub node_id: String,
    /// How long a connection took, the best of a few.
    pub millis: Option<f64>,
    /// Why there was none.
    pub error: Option<String>,
}

/// Opens connections to all nodes of `snapshot`.
pub async fn measure(snapshot: &Snapshot) -> Vec<Reached> {
    let places = Arc::new(Semaphore::new(limits::REACH_AT_ONCE));
    let nodes = snapshot.nodes.iter().take(limits::MAX_REACHED);
    let tried: JoinSet<Reached> = nodes
        .cloned()
        .map(|node| {
            let places = Arc::clone(&places);
            async move {
                // It is never closed; without a place it would only be tried at once with others.
                let _place = places.acquire().await;
                reach(&node).await
            }
        })
        .collect();
    let mut reached = tried.join_all().await;
    reached.sort_by(|one, other| one.node_id.cmp(&other.node_id));
    reached
}

async fn reach(node: &NodeSnapshot) -> Reached {
    let node_id = node.node_id.to_string();
    let tried = match node.address.parse::<IpAddr>() {
        Ok(ip) => best_of_some((ip, node.agent_port).into()).await,
        Err(_) => Err(format!("`{}` is no address", node.address)),
    };
    match tried {
        Ok(millis) => Reached { node_id, millis: Some(millis), error: None },
        Err(error) => Reached { node_id, millis: None, error: Some(error) },
    }
}

/// The first connection may wait for an address to be found, or for a processor.
async fn best_of_some(address: std::net::SocketAddr) -> Result<f64, String> {
    let mut best = f64::INFINITY;
    for _ in 0..limits::REACH_TRIES {
        let begun = clock::now();
        net::dial(address).await.map_err(|error| format!("{address}: {error}"))?;
        best = best.min((clock::now() - begun).as_secs_f64() * 1000.0);
    }
    Ok(best)
}
