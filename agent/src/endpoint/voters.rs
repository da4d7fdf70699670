//! Starts this node's services in a job whose coordinator is elected: as a voter if one of the listed
//! endpoints leads to this machine and its port is free, otherwise as an agent that does not vote.

use std::{
    collections::BTreeSet,
    io,
    net::{IpAddr, SocketAddr, TcpListener},
    time::{Duration, Instant},
};

use ragent_proto::convert::NotHere;
use ragent_rendezvous::{
    election::{message::Place, timers::Timers},
    ids::NodeId,
    message::KnownRound,
    settings::{Leases, Settings},
};
use ragent_store::StoreThread;
use tokio::sync::watch;
use tracing::info;

use super::{
    address::{member_reach, reachable_here},
    error::{HostOrJoinError, LocateError},
    host::announced_address,
    hosted_coordinator::EndpointPort,
    hosted_voter::{HostedVoterSpec, host_voter},
    identity,
    node_services::{Hosted, NodeServices},
    plain_store::plain_store,
    server::Server,
};
use crate::{
    coordinator::{role::Role, service},
    endpoint::limits,
    net::{
        self, Reach,
        port::{Attended, PortProtocols},
    },
    node::{destination::Destination, node_id::new_node_id},
    spec::{Endpoint, JobSpec, VoterList},
    sys::{clock, host::ThisHost, port_holder, system_error::system},
};

/// The endpoint of the list that this process serves.
pub(crate) struct OwnEndpoint {
    /// Its place in the list of voters.
    pub place: Place,
    /// Its position in the list as the user gave it.
    pub turn: usize,
    pub endpoint: Endpoint,
    pub listener: TcpListener,
    /// The address that it resolves to on this machine.
    pub address: IpAddr,
}

/// Takes part in a job with these voters. `waits` receives the reason for waiting whenever it changes.
///
/// # Errors
///
/// Returns [`HostOrJoinError`] if another program has the port of this machine's endpoint.
pub(super) async fn take_part(
    spec: &JobSpec,
    list: &VoterList,
    stores: &StoreThread,
    waits: impl Fn(&str),
) -> Result<NodeServices, HostOrJoinError> {
    let until = clock::now() + spec.shared.timeouts.join;
    match own_endpoint(list, until, waits).await? {
        Some(own) => vote(spec, list, stores, own),
        None => join(spec, list).await,
    }
}

/// Binds the first endpoint of the list that leads to this machine and is free; `None` if there is none.
///
/// If this machine's name does not resolve yet, waits for it until `until`: a name service may learn of a host
/// after the host has started.
///
/// # Errors
///
/// Returns [`LocateError`] if another program has the port, or the system refuses it.
pub(crate) async fn own_endpoint(
    list: &VoterList,
    until: Instant,
    waits: impl Fn(&str),
) -> Result<Option<OwnEndpoint>, LocateError> {
    loop {
        let mut unresolved = None;
        let mut owned = Vec::new();
        for (turn, endpoint) in list.endpoints().iter().enumerate() {
            match net::resolve(endpoint).await {
                Ok(addresses) => {
                    let own = addresses.into_iter().find(|address| ThisHost.owns(address.ip()));
                    owned.extend(own.map(|address| (turn, endpoint, address)));
                }
                Err(error) if is_this_host(endpoint) => unresolved = Some(error.to_string()),
                Err(_) => {}
            }
        }
        for (turn, endpoint, address) in &owned {
            // True if several of the listed endpoints are on this machine, with the same port.
            let shares_port =
                |other: &SocketAddr| other.port() == address.port() && other != address;
            let is_shared = owned.iter().any(|(_, _, other)| shares_port(other));
            if let Some(listener) = bind(endpoint, *address, is_shared).await? {
                let place = list.sorted().iter().position(|listed| listed == *endpoint);
                let place = Place(place.unwrap_or_default());
                let (turn, endpoint) = (*turn, (*endpoint).clone());
                return Ok(Some(OwnEndpoint {
                    place,
                    turn,
                    endpoint,
                    listener,
                    address: address.ip(),
                }));
            }
        }
        let Some(cause) = unresolved.filter(|_| clock::now() < until) else { return Ok(None) };
        waits(&cause);
        clock::until(Some(clock::now() + limits::LOCATE_INTERVAL)).await;
    }
}

/// Returns true if an endpoint has the name of this machine, with or without a domain.
fn is_this_host(endpoint: &Endpoint) -> bool {
    let label = |name: &str| name.split('.').next().unwrap_or_default().to_ascii_lowercase();
    label(&endpoint.host) == label(&ThisHost.name())
}

/// Listens at an endpoint; `None` if another agent of this machine already does.
///
/// Listens on that address alone if several of the listed endpoints are on this machine with the same port.
async fn bind(
    endpoint: &Endpoint,
    address: SocketAddr,
    is_shared: bool,
) -> Result<Option<TcpListener>, LocateError> {
    let listener = if is_shared {
        net::listen_on(address)
    } else {
        net::listen(Reach::of_endpoint(endpoint, address.ip()), address.port())
    };
    match listener {
        Ok(listener) => Ok(Some(listener)),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            match identity::describe_other_program(address).await {
                Some(what) => {
                    let holder = port_holder::holder(address.port());
                    Err(LocateError::Other { address, what, holder })
                }
                None => Ok(None),
            }
        }
        Err(source) => Err(LocateError::Bind { address, source }),
    }
}

/// Starts the services of a voter.
fn vote(
    spec: &JobSpec,
    list: &VoterList,
    stores: &StoreThread,
    own: OwnEndpoint,
) -> Result<NodeServices, HostOrJoinError> {
    let OwnEndpoint { place, turn, endpoint, listener, address: resolved } = own;
    let address = announced_address(spec, &endpoint, resolved);
    let bound = listener.local_addr().map_err(system("listen"))?;
    let node_id = new_node_id();
    let (attended, registered) = watch::channel(Attended::default());
    let port = EndpointPort { listener, store: plain_store(stores, registered)?, attended };
    let sorted = list.sorted();
    let voter = HostedVoterSpec {
        settings: settings(spec, &node_id),
        list: sorted.clone(),
        place,
        turn,
        process: node_id.clone(),
        timers: Timers::for_nodes(spec.shared.nodes),
        source: source(resolved),
        kept: kept_for(spec.shared.timeouts.join),
    };
    let (hosted, server) = host_voter(port, voter)?;
    let here = Endpoint { host: reachable_here(bound).to_string(), port: bound.port() };
    let own = Some((place.0, here));
    Ok(NodeServices {
        destination: Destination::voters(sorted, list.to_string(), own, place.0),
        name: list.to_string(),
        reach: Reach::of_endpoint(&endpoint, address),
        address: Some(address),
        port: bound.port(),
        node_id,
        known_round: KnownRound::default(),
        state_file: None,
        not_here: watch::Sender::new(NotHere::unknown()),
        hosted: Some(Hosted::Voter(hosted)),
        store_sender: None,
        server,
        search_responder: None,
    })
}

/// Starts the services of an agent that is not a voter. Its port redirects to the leader that it knows.
async fn join(spec: &JobSpec, list: &VoterList) -> Result<NodeServices, HostOrJoinError> {
    let sorted = list.sorted();
    let listener = net::listen(reach_of(&sorted).await, 0).map_err(system("listen"))?;
    let bound = listener.local_addr().map_err(system("listen"))?;
    info!(voters = %list, run_id = %spec.run_id, "this agent is not one of the voters");
    let not_here = watch::Sender::new(NotHere::unknown());
    let http = service::router(&spec.run_id, Role::Elsewhere(not_here.subscribe()));
    let attended = watch::channel(Attended::default()).1;
    let protocols = PortProtocols { http, store: None, voters: None, attended };
    let first = usize::from(rand::random::<u8>()) % sorted.len();
    Ok(NodeServices {
        destination: Destination::voters(sorted, list.to_string(), None, first),
        name: list.to_string(),
        reach: Reach::of(bound.ip()),
        address: None,
        port: bound.port(),
        node_id: new_node_id(),
        known_round: KnownRound::default(),
        state_file: None,
        not_here,
        hosted: None,
        store_sender: None,
        server: Server::start(listener, protocols),
        search_responder: None,
    })
}

/// Returns the reach of the port of an agent that is not a voter: this machine if all voters are at loopback
/// addresses.
async fn reach_of(voters: &[Endpoint]) -> Reach {
    let mut reaches = BTreeSet::new();
    for voter in voters {
        reaches.extend(net::resolve(voter).await.unwrap_or_default().into_iter().map(|a| a.ip()));
    }
    let is_local = !reaches.is_empty() && reaches.iter().all(IpAddr::is_loopback);
    reaches.first().filter(|_| is_local).map_or(Reach::Everywhere, |first| member_reach(*first))
}

/// Returns the address from which other voters expect connections, if it is one of this machine's.
pub(crate) fn source(resolved: IpAddr) -> Option<IpAddr> {
    (!resolved.is_loopback() && ThisHost.owns(resolved)).then_some(resolved)
}

/// Returns the time for which agents may wait for the next leader: a lease, then the join timeout.
pub(crate) fn kept_for(join_timeout: Duration) -> Duration {
    join_timeout.saturating_add(Leases::default().coordinator)
}

fn settings(spec: &JobSpec, node_id: &NodeId) -> Settings {
    Settings {
        run_id: spec.run_id.clone(),
        coordinator: node_id.to_string(),
        host: Some(node_id.clone()),
        shared: Some(spec.shared),
        keeps_charges: ThisHost.service_dir().is_some(),
        leases: Leases::default(),
        voters: spec.rendezvous.voters(),
    }
}
