//! Starts this node's services in a job with an elected leader.
//!
//! - The agent is a *first voter* if a listed endpoint leads to this machine and its port is free, or if a search has chosen it.
//! - Otherwise it is a member, which becomes a voter when one is lost.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    net::{IpAddr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    time::Instant,
};

use ragent_base::{
    net::{self, Endpoint, Reach},
    sys::{clock, host::ThisHost, port_holder, system_error::system},
};
use ragent_core::limits::WAIT_REPEAT;
use ragent_election::election::timers::Timers;
use ragent_leadership::{Stored, state_file};
use ragent_options::spec::{JobSpec, SearchSpec, VoterList};
use ragent_rendezvous::ids::RunId;
use ragent_store::StoreThread;
use tracing::{info, warn};

use super::{
    address::{member_reach, reachable_here},
    error::{HostOrJoinError, LocateError},
    host::{announced_address, warn_if_open},
    hosted::{HostedVoterSpec, host_voter, kept_for},
    identity,
    node_services::{NodePlace, NodePort, NodeServices},
    voter_secrets,
};
use crate::{endpoint::limits, node::destination::Destination};

/// The first voters of a job, as an agent knows them at its start.
pub(super) struct FirstVoters {
    endpoints: Vec<Endpoint>,
    /// The user's list, or `auto` with its port. It distinguishes state files.
    name: String,
    /// True if a search has found the endpoints. They then differ between the agents of the job.
    are_found: bool,
}

impl FirstVoters {
    /// Returns the voters that the user has listed.
    pub(super) fn listed(list: &VoterList) -> Self {
        let name = list.to_string();
        Self { endpoints: list.endpoints().to_vec(), name, are_found: false }
    }

    /// Returns the only voter that a search has found: the leader, or another agent of the job.
    pub(super) fn found(search: &SearchSpec, endpoint: Endpoint) -> Self {
        Self { endpoints: vec![endpoint], name: search.name(), are_found: true }
    }

    /// Returns the voters from the state file of an earlier agent of this machine that found the job by a search, if the job has a round.
    pub(super) fn remembered(run_id: &RunId, search: &SearchSpec) -> Option<Self> {
        let name = search.name();
        let (_, copy) = copies(run_id, &name).into_iter().next()?;
        let voters = copy.voters_of_job();
        let endpoints: Vec<_> =
            voters.iter().filter_map(|voter| voter.as_str().parse().ok()).collect();
        (!endpoints.is_empty()).then_some(Self { endpoints, name, are_found: true })
    }
}

impl fmt::Display for FirstVoters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let endpoints: Vec<String> = self.endpoints.iter().map(ToString::to_string).collect();
        f.write_str(&endpoints.join(","))
    }
}

/// Returns the copies of the state in the state files of agents of this machine, with their ports, newest first.
fn copies(run_id: &RunId, name: &str) -> Vec<(u16, Stored)> {
    let read = |port| {
        let copy = state_file::read_copy(&state_file::member_path(run_id, name, port))?;
        Some((port, copy))
    };
    let ports = state_file::member_ports(run_id, name);
    let mut copies: Vec<_> = ports.into_iter().filter_map(read).collect();
    copies.sort_by_key(|(_, copy)| Reverse(copy.replica.knowledge()));
    copies
}

/// The endpoint of the list that this process serves.
pub struct OwnEndpoint {
    /// The endpoint, as given.
    pub endpoint: Endpoint,
    /// Its listener.
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
    voter_secrets::check(list, &spec.credentials).await?;
    let until = clock::now() + spec.shared.timeouts.join;
    let first = FirstVoters::listed(list);
    match own_endpoint(list, until, waits).await? {
        Some(own) => vote(spec, &first, stores, own),
        None => join(spec, &first, stores).await,
    }
}

/// Binds the first endpoint of the list that leads to this machine and is free; `None` if there is none.
///
/// If this machine's name does not resolve yet, waits for it until `until`: a name service may learn of a host only after the host has
/// started.
///
/// # Errors
///
/// Returns [`LocateError`] if another program has the port, if the system refuses it, or if two endpoints are one address.
pub async fn own_endpoint(
    list: &VoterList,
    until: Instant,
    waits: impl Fn(&str),
) -> Result<Option<OwnEndpoint>, LocateError> {
    let mut warn_at = clock::now() + limits::WAIT_WARNING;
    loop {
        let mut unresolved = None;
        let mut owned = Vec::new();
        let mut known = BTreeMap::new();
        for endpoint in list.endpoints() {
            match net::resolve(endpoint).await {
                Ok(addresses) => {
                    for address in &addresses {
                        check_distinct(&mut known, endpoint, *address)?;
                    }
                    let own = addresses.into_iter().find(|address| ThisHost.owns(address.ip()));
                    owned.extend(own.map(|address| (endpoint, address)));
                }
                Err(error) if is_this_host(endpoint) => unresolved = Some(error.to_string()),
                Err(_) => {}
            }
        }
        for (endpoint, address) in &owned {
            // True if several listed endpoints are on this machine with the same port.
            let shares_port =
                |other: &SocketAddr| other.port() == address.port() && other != address;
            let is_shared = owned.iter().any(|(_, other)| shares_port(other));
            if let Some(listener) = bind(endpoint, *address, is_shared).await? {
                let endpoint = (*endpoint).clone();
                return Ok(Some(OwnEndpoint { endpoint, listener, address: address.ip() }));
            }
        }
        let now = clock::now();
        let Some(cause) = unresolved.filter(|_| now < until) else { return Ok(None) };
        waits(&cause);
        if warn_at <= now {
            warn_at = now + WAIT_REPEAT;
            let left = until.saturating_duration_since(now).as_secs();
            warn!("this machine's own name has no address yet; asking again for {left} s: {cause}");
        }
        clock::until(Some(now + limits::LOCATE_INTERVAL)).await;
    }
}

/// Checks that an address of `endpoint` does not belong to an earlier endpoint, as in `known`.
///
/// # Errors
///
/// Returns [`LocateError::SameAddress`] if it does.
fn check_distinct<'a>(
    known: &mut BTreeMap<SocketAddr, &'a Endpoint>,
    endpoint: &'a Endpoint,
    address: SocketAddr,
) -> Result<(), LocateError> {
    match known.insert(address, endpoint) {
        Some(first) if first != endpoint => {
            let (first, second) = (first.to_string(), endpoint.to_string());
            Err(LocateError::SameAddress { first, second, address })
        }
        Some(_) | None => Ok(()),
    }
}

/// Returns true if an endpoint has the name of this machine, with or without a domain.
fn is_this_host(endpoint: &Endpoint) -> bool {
    let label = |name: &str| name.split('.').next().unwrap_or_default().to_ascii_lowercase();
    label(&endpoint.host) == label(&ThisHost.name())
}

/// Listens at an endpoint; `None` if another agent of this machine already does.
///
/// If several listed endpoints are on this machine with the same port, listens on this address alone.
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

/// Returns true if an agent of this machine outside the list has left a state file with the voters of the job.
pub(super) fn knows_voters(run_id: &RunId, list: &VoterList) -> bool {
    copies(run_id, &list.to_string()).iter().any(|(_, copy)| copy.replica.has_round())
}

/// Starts the services of a first voter.
pub(super) fn vote(
    spec: &JobSpec,
    first: &FirstVoters,
    stores: &StoreThread,
    own: OwnEndpoint,
) -> Result<NodeServices, HostOrJoinError> {
    let OwnEndpoint { endpoint, listener, address: resolved } = own;
    let address = announced_address(spec, &endpoint, resolved);
    let bound = listener.local_addr().map_err(system("listen"))?;
    warn_if_open(spec, bound);
    let state_file = if first.are_found {
        // The next agent of this machine may not be a first voter.
        state_file::member_path(&spec.run_id, &first.name, bound.port())
    } else {
        state_file::voter_path(&spec.run_id, &endpoint)
    };
    let reach = Reach::of_endpoint(&endpoint, address);
    let place = NodePlace { listener, endpoint, address, reach };
    serve(spec, first, stores, place, (state_file, source(resolved)))
}

/// Starts the services of a member. It becomes a voter when one is lost. It may have been a voter before.
pub(super) async fn join(
    spec: &JobSpec,
    first: &FirstVoters,
    stores: &StoreThread,
) -> Result<NodeServices, HostOrJoinError> {
    let reach = reach_of(&first.endpoints).await;
    let listener = listen_as_member(spec, first, reach).map_err(system("listen"))?;
    let bound = listener.local_addr().map_err(system("listen"))?;
    let state_file = state_file::member_path(&spec.run_id, &first.name, bound.port());
    let address = own_address(spec, first, &state_file, bound).await;
    let host = spec.local_addr.clone().unwrap_or_else(|| address.to_string());
    let endpoint = Endpoint { host, port: bound.port() };
    if !first.endpoints.contains(&endpoint) {
        info!(voters = %first, run_id = %spec.run_id, "this agent is not one of the first voters");
    }
    let place = NodePlace { listener, endpoint, address, reach: Reach::of(bound.ip()) };
    serve(spec, first, stores, place, (state_file, source(address)))
}

/// Starts the services of an agent with a voter. Its connections to other voters come from `source`.
fn serve(
    spec: &JobSpec,
    first: &FirstVoters,
    stores: &StoreThread,
    place: NodePlace,
    (state_file, source): (PathBuf, Option<IpAddr>),
) -> Result<NodeServices, HostOrJoinError> {
    let services = NodeServices::start(spec, stores, place, |node| {
        let NodePort { port, own, process, dialed } = node;
        let own_names = (own.endpoint.clone(), dialed);
        let voter = HostedVoterSpec {
            listed: first.endpoints.clone(),
            is_list_common: !first.are_found,
            state_file,
            process,
            timers: Timers::for_nodes(spec.shared.nodes),
            source,
            kept: kept_for(spec.shared.nodes, spec.shared.timeouts),
            is_first_start: spec.is_first_start(),
        };
        let (hosted, server) = host_voter(port, own, voter)?;
        let leadership = hosted.leadership();
        // At first they are from the state file.
        let known = leadership.stored.borrow().voters_of_job();
        let known = known.iter().filter_map(|voter| voter.as_str().parse().ok()).collect();
        let (listed, leader) = (first.endpoints.clone(), leadership.leader.clone());
        let destination =
            Destination::voters(listed, known, first.to_string(), own_names, rand::random());
        Ok((hosted, server, destination.with_leader(leader)))
    })?;
    Ok(NodeServices { name: first.to_string(), ..services })
}

/// Listens on the port of an earlier process whose voter has left its state file, so that this process continues as that voter. If there is
/// no such port, listens on a free one.
fn listen_as_member(spec: &JobSpec, first: &FirstVoters, reach: Reach) -> io::Result<TcpListener> {
    let ports = copies(&spec.run_id, &first.name).into_iter().map(|(port, _)| port);
    // If that agent still runs, its port is in use.
    let mut free = ports.filter_map(|port| net::listen(reach, port).ok());
    free.next().map_or_else(|| net::listen(reach, 0), Ok)
}

/// Returns this node's address for other nodes: the given one, or else its address in the list of voters, or else the source address of
/// connections to a first voter.
async fn own_address(
    spec: &JobSpec,
    first: &FirstVoters,
    state_file: &Path,
    bound: SocketAddr,
) -> IpAddr {
    let given = spec.local_addr.as_ref().and_then(|given| given.parse().ok());
    if let Some(own) = given.or_else(|| slot_address(state_file)) {
        return own;
    }
    for endpoint in &first.endpoints {
        let addresses = net::resolve(endpoint).await.unwrap_or_default();
        if let Some(own) = addresses.into_iter().find_map(net::own_address_towards) {
            return own;
        }
    }
    reachable_here(bound)
}

/// Returns the address of this state file's voter in the list of voters, if it belongs to this machine.
fn slot_address(state_file: &Path) -> Option<IpAddr> {
    let copy = state_file::read_copy(state_file)?;
    let voter = copy.voter.filter(|_| copy.replica.has_round())?;
    let slot = copy.replica.lists.slots().find(|slot| slot.voter == Some(voter))?;
    let endpoint: Endpoint = slot.address.as_str().parse().ok()?;
    endpoint.host.parse().ok().filter(|ip| ThisHost.owns(*ip))
}

/// Returns the reach of a member's port: only this machine if all voters are at loopback addresses.
async fn reach_of(voters: &[Endpoint]) -> Reach {
    let mut reaches = BTreeSet::new();
    for voter in voters {
        reaches.extend(net::resolve(voter).await.unwrap_or_default().into_iter().map(|a| a.ip()));
    }
    let is_local = !reaches.is_empty() && reaches.iter().all(IpAddr::is_loopback);
    reaches.first().filter(|_| is_local).map_or(Reach::Everywhere, |first| member_reach(*first))
}

/// Returns the address from which other voters expect connections, if it belongs to this machine.
pub fn source(resolved: IpAddr) -> Option<IpAddr> {
    (!resolved.is_loopback() && ThisHost.owns(resolved)).then_some(resolved)
}
