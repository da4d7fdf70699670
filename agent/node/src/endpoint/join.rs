//! Starts this node's services if another process hosts the coordinator.

use std::net::SocketAddr;

use ragent_base::{
    net::{self, Endpoint},
    sys::system_error::system,
};
use ragent_options::spec::JobSpec;
use ragent_proto::convert::CoordinatorAddress;
use ragent_rendezvous::message::KnownRound;
use tokio::sync::watch;

use super::{
    address::member_reach, error::HostOrJoinError, node_services::NodeServices, server::Server,
};
use crate::node::{destination::Destination, node_id::new_node_id};

/// Joins the job at `endpoint`, where the process at `coordinator` has answered. This agent's port
/// redirects clients to the endpoint.
pub(super) fn join(
    spec: &JobSpec,
    coordinator: SocketAddr,
    endpoint: Endpoint,
) -> Result<NodeServices, HostOrJoinError> {
    let reach = member_reach(coordinator.ip());
    let listener = net::listen(reach, 0).map_err(system("listen"))?;
    let port = listener.local_addr().map_err(system("listen"))?.port();
    let known_round = KnownRound::default();
    let address =
        CoordinatorAddress { term: known_round.round.term, endpoint: endpoint.to_string() };
    let (coordinator, known) = watch::channel(address);
    Ok(NodeServices {
        name: endpoint.to_string(),
        destination: Destination::endpoint(endpoint.clone(), endpoint),
        address: None,
        reach,
        port,
        node_id: new_node_id(),
        known_round,
        state_file: None,
        coordinator,
        hosted: None,
        store_sender: None,
        server: Server::elsewhere(listener, &spec.run_id, known, &spec.credentials)?,
        search_responder: None,
    })
}
