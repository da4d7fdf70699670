//! Measures how this agent reaches the other nodes of its job, for `ragent doctor --peers`.
//!
//! 1. It connects to the port of each other agent.
//! 2. It asks that agent to open a free port, as workers do, and connects to it. A firewall may let only the agents' port pass.
//!
//! The measurement must not become a port scanner for strangers:
//!
//! - A request cannot name addresses. Only registered nodes are tried.
//! - A node is tried only if its stream comes from the address that it announces.
//! - One measurement runs at a time, at most once a second.
//! - A free port is closed after one connection, or after six seconds. At most 32 are open at the same time.

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
use ragent_base::{
    net::{
        self, Endpoint, Reach,
        http_client::{self, HttpPage},
    },
    secret::Credentials,
    sys::clock,
};
use ragent_rendezvous::snapshot::{NodeSnapshot, Snapshot};
use serde::{Deserialize, Serialize};
use tokio::{net::TcpListener, sync::Semaphore, task::JoinSet, time::timeout};

use crate::{client, driver, limits, role::Role};

/// The path at which an agent reports how it reaches the others.
pub const REACH_PATH: &str = "/v1/reach";

/// The path at which an agent opens a free port for one connection.
pub(crate) const PORT_PATH: &str = "/v1/reach/port";

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
    /// The time of the fastest of a few connections to the agent's port.
    pub millis: Option<f64>,
    /// The reason if that port, or a free one, could not be reached.
    pub error: Option<String>,
}

/// The measurement of this agent.
#[derive(Clone, Debug)]
pub(crate) struct ReachMeasurement {
    /// The role of the agent's port.
    pub role: Arc<Role>,
    /// Its credentials.
    pub credentials: Credentials,
}

/// Reports how this agent reaches the other nodes of its job.
pub(crate) async fn report(State(reach): State<ReachMeasurement>) -> Response {
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
        Err(elsewhere) => match elsewhere.endpoint.parse::<Endpoint>() {
            Ok(endpoint) => {
                let job = client::job(&endpoint, &credentials).await;
                (job.ok().flatten().map(|job| *job), addresses_of(&endpoint).await)
            }
            Err(_) => (None, Vec::new()),
        },
    };
    match snapshot {
        Some(snapshot) => {
            let reached = measure(&snapshot, &credentials).await;
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
async fn measure(snapshot: &Snapshot, credentials: &Credentials) -> Vec<ReachedNode> {
    let places = Arc::new(Semaphore::new(limits::REACH_AT_ONCE));
    let nodes = snapshot.nodes.iter().take(limits::MAX_REACHED);
    let tried: JoinSet<ReachedNode> = nodes
        .cloned()
        .map(|node| {
            let (places, credentials) = (Arc::clone(&places), credentials.clone());
            async move {
                // The semaphore is never closed; an error would only lift the limit.
                let _place = places.acquire().await;
                reach(&node, &credentials).await
            }
        })
        .collect();
    let mut reached = tried.join_all().await;
    reached.sort_by(|one, other| one.node_id.cmp(&other.node_id));
    reached
}

async fn reach(node: &NodeSnapshot, credentials: &Credentials) -> ReachedNode {
    let node_id = node.node_id.to_string();
    let tried = match observed_address(node) {
        Ok(address) => best_of_some(address).await.map(|millis| (millis, address)),
        Err(error) => Err(error),
    };
    match tried {
        Ok((millis, address)) => {
            let error = reach_free_port(address, credentials).await.err();
            ReachedNode { node_id, millis: Some(millis), error }
        }
        Err(error) => ReachedNode { node_id, millis: None, error: Some(error) },
    }
}

/// Returns the address of the node's agent. An address that a node only announces may belong to any host, so it is not probed.
fn observed_address(node: &NodeSnapshot) -> Result<SocketAddr, String> {
    match (node.address.parse::<IpAddr>(), node.observed) {
        (Ok(ip), Some(observed)) if ip.to_canonical() == observed => {
            Ok((ip, node.agent_port).into())
        }
        (Ok(ip), Some(observed)) => {
            Err(format!("not tried: it announces {ip}, but its stream comes from {observed}"))
        }
        (Ok(_), None) => Err("not tried: it is not registered".to_owned()),
        (Err(_), _) => Err(format!("`{}` is not an IP address", node.address)),
    }
}

/// Lets the agent at `address` open a free port, and connects to it.
async fn reach_free_port(address: SocketAddr, credentials: &Credentials) -> Result<(), String> {
    let (len_max, limit) = (limits::MAX_IDENTITY_LEN, limits::IDENTIFY_TIMEOUT);
    let asked = http_client::get_as_member(address, credentials, PORT_PATH, len_max, limit).await;
    let page = HttpPage::parse(&asked.received).filter(|page| page.status == 200);
    let port: u16 = page
        .and_then(|page| page.body.trim().parse().ok())
        .ok_or_else(|| format!("the agent at {address} opened no port for this test"))?;
    let address = SocketAddr::new(address.ip(), port);
    let tried = net::dial_twice(address).await;
    tried.map(drop).map_err(|error| format!("{address}, a free port such as workers use: {error}"))
}

/// Opens a free port for one connection, and answers with its number.
pub(crate) async fn open_port() -> Response {
    static OPEN: Semaphore = Semaphore::const_new(limits::REACH_AT_ONCE);
    let unavailable = |why: String| (StatusCode::SERVICE_UNAVAILABLE, why + "\n").into_response();
    let Ok(place) = OPEN.try_acquire() else {
        return unavailable("too many ports are open for tests".to_owned());
    };
    let opened = net::listen(Reach::Everywhere, 0).and_then(TcpListener::from_std);
    match opened.and_then(|listener| Ok((listener.local_addr()?.port(), listener))) {
        Ok((port, listener)) => {
            tokio::spawn(async move {
                let _ = timeout(limits::FREE_PORT_TIMEOUT, listener.accept()).await;
                drop(place);
            });
            format!("{port}\n").into_response()
        }
        Err(error) => unavailable(error.to_string()),
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
            let reached = reach(&node(elsewhere), &Credentials::default()).await;
            assert!(reached.error.unwrap().starts_with("not tried"));
        }
        let nobody = timeout(std::time::Duration::ZERO, listener.accept()).await;
        assert!(nobody.is_err(), "somebody has connected");
        assert_eq!(observed_address(&node(Some("127.0.0.1"))), Ok(listener.local_addr().unwrap()));
    }
}
