//! Measures how this agent reaches the other nodes of its job, for `ragent doctor --peers`.
//!
//! The measurement must not become a port scanner for strangers:
//!
//! - A request cannot name addresses. Only registered nodes are tried.
//! - A node is tried only if its stream comes from the address that it announces.
//! - One measurement runs at a time, at most once a second.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use ragent_base::{net, secret::Credentials, spec::Endpoint, sys::clock};
use ragent_rendezvous::snapshot::{NodeSnapshot, Snapshot};
use serde::{Deserialize, Serialize};
use tokio::{sync::Semaphore, task::JoinSet};

use super::{client, driver, role::Role};
use crate::limits;

/// The path at which an agent reports how it reaches the others.
pub const REACH_PATH: &str = "/v1/reach";

/// The report of one node.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct ReachReport {
    /// The addresses that the endpoint's name has on that node. Empty if that node coordinates, or
    /// if the name does not resolve.
    pub endpoint: Vec<IpAddr>,
    /// The other nodes, and how that node reaches them.
    pub reached: Vec<ReachedNode>,
}

/// The connection to one node.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct ReachedNode {
    /// The id of the node.
    pub node_id: String,
    /// The time of the fastest of a few connections.
    pub millis: Option<f64>,
    /// The reason if no connection could be opened.
    pub error: Option<String>,
}

/// The measurement of this agent.
#[derive(Clone, Debug)]
pub(super) struct ReachMeasurement {
    /// The role of the agent's port.
    pub role: Arc<Role>,
    /// Its credentials.
    pub credentials: Credentials,
}

/// Reports how this agent reaches the other nodes of its job.
pub(super) async fn report(State(reach): State<ReachMeasurement>) -> Response {
    let ReachMeasurement { role, credentials } = reach;
    static ONE_AT_A_TIME: Semaphore = Semaphore::const_new(1);
    let Ok(turn) = ONE_AT_A_TIME.try_acquire() else {
        return (StatusCode::TOO_MANY_REQUESTS, "another measurement is in progress\n")
            .into_response();
    };
    // The permit is released after the measurement, but not before the interval is over.
    let turn = Arc::new(turn);
    let (kept, next) = (Arc::clone(&turn), clock::now() + limits::REACH_INTERVAL);
    tokio::spawn(async move {
        clock::until(Some(next)).await;
        drop(kept);
    });
    let (snapshot, endpoint) = match role.coordinator_to_read() {
        Ok(inputs) => (driver::snapshot(&inputs).await, Vec::new()),
        Err(not_here) => match not_here.endpoint.parse::<Endpoint>() {
            Ok(endpoint) => {
                let job = client::job(&endpoint, &credentials).await;
                (job.ok().flatten().map(|job| *job), addresses_of(&endpoint).await)
            }
            Err(_) => (None, Vec::new()),
        },
    };
    match snapshot {
        Some(snapshot) => {
            let reached = measure(&snapshot).await;
            Json(ReachReport { endpoint, reached }).into_response()
        }
        None => {
            (StatusCode::SERVICE_UNAVAILABLE, "the coordinator does not answer\n").into_response()
        }
    }
}

async fn addresses_of(endpoint: &Endpoint) -> Vec<IpAddr> {
    let addresses = net::resolve(endpoint).await.unwrap_or_default();
    addresses.iter().map(SocketAddr::ip).collect()
}

/// Opens connections to all nodes of `snapshot`.
async fn measure(snapshot: &Snapshot) -> Vec<ReachedNode> {
    let places = Arc::new(Semaphore::new(limits::REACH_AT_ONCE));
    let nodes = snapshot.nodes.iter().take(limits::MAX_REACHED);
    let tried: JoinSet<ReachedNode> = nodes
        .cloned()
        .map(|node| {
            let places = Arc::clone(&places);
            async move {
                // The semaphore is never closed; an error would only lift the limit.
                let _place = places.acquire().await;
                reach(&node).await
            }
        })
        .collect();
    let mut reached = tried.join_all().await;
    reached.sort_by(|one, other| one.node_id.cmp(&other.node_id));
    reached
}

async fn reach(node: &NodeSnapshot) -> ReachedNode {
    let node_id = node.node_id.to_string();
    // An address that a node only announces may belong to any host, so it is not probed.
    let tried = match (node.address.parse::<IpAddr>(), node.observed) {
        (Ok(ip), Some(observed)) if ip.to_canonical() == observed => {
            best_of_some((ip, node.agent_port).into()).await
        }
        (Ok(ip), Some(observed)) => {
            Err(format!("not tried: it announces {ip}, but its stream comes from {observed}"))
        }
        (Ok(_), None) => Err("not tried: it is not registered".to_owned()),
        (Err(_), _) => Err(format!("`{}` is not an IP address", node.address)),
    };
    match tried {
        Ok(millis) => ReachedNode { node_id, millis: Some(millis), error: None },
        Err(error) => ReachedNode { node_id, millis: None, error: Some(error) },
    }
}

/// Returns the best time of a few connections. The first one may wait for address resolution or a processor.
async fn best_of_some(address: SocketAddr) -> Result<f64, String> {
    let mut best = f64::INFINITY;
    for _ in 0..limits::REACH_TRIES {
        let begun = clock::now();
        net::dial(address).await.map_err(|error| format!("{address}: {error}"))?;
        best = best.min((clock::now() - begun).as_secs_f64() * 1000.0);
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use ragent_rendezvous::snapshot::NodeStateName;
    use tokio::net::TcpListener;

    use super::*;

    /// Announced addresses alone are not probed. Otherwise any registered host could make the
    /// agents scan ports in their networks.
    #[tokio::test]
    async fn only_observed_addresses_are_tried() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let node = |observed: Option<&str>| NodeSnapshot {
            node_id: ragent_rendezvous::ids::NodeId::new("n"),
            host_name: "h".to_owned(),
            address: "127.0.0.1".to_owned(),
            observed: observed.map(|observed| observed.parse().unwrap()),
            agent_port: listener.local_addr().unwrap().port(),
            group_rank: None,
            first_global_rank: None,
            local_world_size: 1,
            state: NodeStateName::Joined,
            last_seen_ms: 0,
            reason: None,
            progress: None,
            progress_age_ms: None,
            standbys: None,
            load: None,
            unhealthy: None,
            excluded: None,
        };
        for elsewhere in [Some("192.0.2.1"), None] {
            let reached = reach(&node(elsewhere)).await;
            assert!(reached.error.unwrap().starts_with("not tried"));
        }
        let nobody = tokio::time::timeout(std::time::Duration::ZERO, listener.accept()).await;
        assert!(nobody.is_err(), "somebody has connected");
        assert!(reach(&node(Some("127.0.0.1"))).await.millis.is_some());
    }
}
