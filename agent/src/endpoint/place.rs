//! The place of an agent in its job: the services on its port, and the endpoint of its coordinator.
//!
//! The agent either hosts the coordinator on the endpoint's port, or joins an existing one and
//! names its endpoint to clients of the agent's own port.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener},
    path::PathBuf,
};

use ragent_core::agent::AgentSettings;
use ragent_proto::convert::NotHere;
use ragent_rendezvous::{
    Rendezvous,
    ids::{JobUid, NodeId, RoundId},
    message::{Heard, NodeDescription},
    settings::{Leases, Memory, Settings},
};
use ragent_store::{StoreHandle, StoreThread};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};
use tracing::{error, info, warn};

use super::{
    error::{LocateError, PlaceError, system},
    locate::{self, Located},
    plain_store::plain_store,
    search::driver::{Beacon, Found, Search},
};
use crate::{
    coordinator::{
        driver::{self as coordinator_driver, Input, Inputs},
        proofs::{Key, Proofs},
        service::{self, Role},
        state_file,
    },
    limits,
    net::{
        self, Reach,
        port::{self, Attended, PortProtocols, StoreDoor},
    },
    node::{driver::AgentSpec, node_id::new_node_id, worker_stores::StorePlace},
    report::{news::round_lines::RoundLines, telemetry::Log},
    spec::{Endpoint, JobSpec, Meeting, Placed, SearchSpec},
    sys::{
        clock,
        host::{ThisHost, bridges::bridge_with},
        random::random_id,
    },
};

/// The place of an agent in its job.
pub(crate) struct Place {
    /// The endpoint, by the name that all nodes use.
    pub(crate) endpoint: Endpoint,
    /// The connections that its worker stores accept.
    reach: Reach,
    /// The address at which this agent registers; on a host that of its own listener, even if the
    /// endpoint resolves to another one.
    attend_at: Endpoint,
    /// The address by which other nodes reach this one, if the endpoint determines it.
    address: Option<IpAddr>,
    port: u16,
    pub(crate) node_id: NodeId,
    heard: Heard,
    state_file: Option<PathBuf>,
    not_here: watch::Sender<NotHere>,
    hosted: Option<Hosted>,
    /// The channel for the store of a round to its port, if the store is served there.
    door: Option<watch::Sender<Option<StoreHandle>>>,
    server: Server,
    /// Answers other agents that look for the endpoint.
    beacon: Option<Beacon>,
}

/// A running coordinator, and its inputs.
pub(crate) struct Hosted {
    pub(crate) inputs: Inputs,
    pub(crate) coordinator: JoinHandle<()>,
}

/// A port that is served until this value is dropped.
pub(crate) struct Server(JoinHandle<()>);

impl Server {
    fn start(listener: TcpListener, protocols: PortProtocols) -> Self {
        Self(tokio::spawn(async move {
            if let Err(error) = port::serve_port(listener, protocols).await {
                error!(%error, "failed to serve the agent's port");
            }
        }))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Finds the host, and takes this node's place. `waits` receives the reason for waiting whenever it
/// changes.
///
/// # Errors
///
/// Returns [`PlaceError`] if there is no host and this node cannot host.
pub(crate) async fn take(
    spec: &JobSpec,
    stores: &StoreThread,
    waits: impl Fn(&str),
) -> Result<Place, PlaceError> {
    let (endpoint, is_host) = match &spec.meeting {
        Meeting::Standalone => {
            let localhost = Ipv4Addr::LOCALHOST.into();
            let listener = net::listen(Reach::of(localhost), 0).map_err(system("listen"))?;
            let port = listener.local_addr().map_err(system("listen"))?.port();
            let endpoint = Endpoint { host: localhost.to_string(), port };
            return Place::host(spec, stores, listener, localhost, endpoint);
        }
        Meeting::Search(search) => return look(spec, search, stores).await,
        Meeting::Endpoint { is_host, .. } => (spec.meeting.endpoint(), *is_host),
        Meeting::Static { node_rank, .. } => (spec.meeting.endpoint(), Some(*node_rank == 0)),
    };
    if let (Some(Placed { launcher, node_rank: 0, .. }), None) = (&spec.placed, is_host) {
        locate::check_head(&endpoint, *launcher).await?;
    }
    match locate::locate(&endpoint, is_host, spec.shared.timeouts.join, waits).await? {
        Located::Here { listener, address } => {
            let port = listener.local_addr().map_err(system("listen"))?.port();
            let endpoint = Endpoint { port, ..endpoint };
            let address = own_address(spec, &endpoint, address);
            Place::host(spec, stores, listener, address, endpoint)
        }
        Located::There(address) => Place::join(spec, address, endpoint),
    }
}

/// Finds the place of this node if no address is given.
async fn look(
    spec: &JobSpec,
    search: &SearchSpec,
    stores: &StoreThread,
) -> Result<Place, PlaceError> {
    let join_timeout = spec.shared.timeouts.join;
    let deadline = clock::now() + join_timeout;
    let mut looking = Search::begin(search, &spec.run_id).map_err(LocateError::Search)?;
    let mut cause = "no agent that may host the job answered".to_owned();
    let mut place = loop {
        let left = deadline.saturating_duration_since(clock::now());
        let found = looking.find(left).await.ok_or_else(|| LocateError::TimedOut {
            endpoint: spec.meeting.endpoint().to_string(),
            waited: join_timeout,
            cause: cause.clone(),
        })?;
        match found {
            Found::Here(address) => {
                // Another job may have the port; the search announces the port in use.
                let listener = net::listen(Reach::of(address), search.port)
                    .or_else(|_| net::listen(Reach::of(address), 0))
                    .map_err(system("listen"))?;
                let port = listener.local_addr().map_err(system("listen"))?.port();
                let endpoint = Endpoint { host: address.to_string(), port };
                break Place::host(spec, stores, listener, address, endpoint)?;
            }
            Found::There(at) => {
                info!(endpoint = %at, "found the coordinator");
                let endpoint = Endpoint { host: at.ip().to_string(), port: at.port() };
                let patience = limits::SENT_TIMEOUT.min(left);
                match locate::locate(&endpoint, None, patience, |_| {}).await {
                    Ok(Located::Here { listener, address }) => {
                        break Place::host(spec, stores, listener, address, endpoint)?;
                    }
                    Ok(Located::There(address)) => {
                        break Place::join(spec, address, endpoint)?;
                    }
                    // The answer may be outdated; another agent may know the present endpoint.
                    Err(error) => {
                        cause = error.to_string();
                        looking.in_vain();
                    }
                }
            }
        }
    };
    let known = place.not_here.subscribe();
    place.beacon = Some(match (&place.hosted, place.address) {
        (Some(Hosted { inputs, .. }), Some(address)) => {
            looking.hosts((address, place.port).into(), inputs.clone(), known)
        }
        (None, _) | (_, None) => looking.goes_on(known),
    });
    Ok(place)
}

/// Returns the address by which others reach this host, if its endpoint resolves to `resolved`.
fn own_address(spec: &JobSpec, endpoint: &Endpoint, resolved: IpAddr) -> IpAddr {
    if Reach::of_endpoint(endpoint, resolved) == Reach::of(resolved) {
        if resolved.is_loopback() && spec.shared.nodes.max() > 1 {
            warn!(
                %endpoint,
                "the endpoint is a loopback address: only agents of this machine can reach it"
            );
        }
        let all = ThisHost.interface_addresses();
        let bridge = bridge_with(resolved, &all).filter(|_| spec.shared.nodes.max() > 1);
        if let Some(interface) = bridge {
            warn!(
                %endpoint, interface, address = %resolved,
                "the endpoint is the address of a container bridge: only this machine can reach \
                 it; use the address of another interface in `--rdzv-endpoint`"
            );
        }
        if ThisHost.owns(resolved) {
            return resolved;
        }
    }
    // A name that resolves to a loopback address on its own machine only, as in many an /etc/hosts,
    // or an address that is forwarded to this machine.
    let own = ThisHost.addresses().into_iter().find(|address| !address.is_loopback());
    let own = own.unwrap_or(resolved);
    if spec.local_addr.is_none() && spec.shared.nodes.max() > 1 {
        warn!(
            %endpoint, resolved = %resolved, address = %own,
            "other nodes cannot reach the endpoint's address; using another address of this \
             machine (set it with `--local-addr`)"
        );
    }
    own
}

/// Returns the reach of a worker store on an agent whose listeners have `reach`, so that workers
/// reach it at `local_addr`, the address that the user has given this node.
fn store_reach(reach: Reach, local_addr: Option<&str>) -> Reach {
    match (reach, local_addr) {
        (Reach::Everywhere, _) | (Reach::Loopback(_), None | Some("localhost")) => reach,
        (Reach::Loopback(_), Some(address)) => address.parse().map_or(Reach::Everywhere, Reach::of),
    }
}

impl Place {
    fn host(
        spec: &JobSpec,
        stores: &StoreThread,
        listener: TcpListener,
        address: IpAddr,
        endpoint: Endpoint,
    ) -> Result<Self, PlaceError> {
        let bound = listener.local_addr().map_err(system("listen"))?;
        let node_id = new_node_id();
        let state_file = match spec.meeting {
            Meeting::Standalone => None,
            Meeting::Endpoint { .. } | Meeting::Search(_) | Meeting::Static { .. } => {
                Some(state_file::memory_path(&spec.run_id, &endpoint))
            }
        };
        let mut memory = state_file.as_deref().and_then(state_file::read_memory);
        // Read after the port is bound: see `Obituary::deliver`.
        let is_buried = state_file
            .as_deref()
            .zip(memory.as_ref())
            .is_some_and(|(path, memory)| state_file::is_buried(path, memory));
        if let Some(Memory { host: Some(seat), .. }) = &mut memory
            && is_buried
            && !seat.is_buried
        {
            info!(
                node = %seat.node,
                "the previous host's agent and all of its processes have ended"
            );
            seat.is_buried = true;
        }
        let seat = memory.as_ref().filter(|memory| memory.host.is_some());
        let heard = seat.map_or_else(Heard::default, |memory| Heard {
            round: RoundId { term: memory.term, round: memory.round },
            size: memory.round_size,
            group_rank: memory.host.as_ref().map(|seat| seat.rank),
        });
        let settings = Settings {
            run_id: spec.run_id.clone(),
            coordinator: node_id.to_string(),
            host: Some(node_id.clone()),
            shared: Some(spec.shared),
            keeps_charges: ThisHost.service_dir().is_some(),
            leases: Leases::default(),
        };
        let attended = watch::Sender::new(Attended::default());
        let (door, store) = match spec.meeting {
            // The worker stores of this node open a store for each round.
            Meeting::Static { .. } => {
                let (door, store) = watch::channel(None);
                (Some(door), store)
            }
            Meeting::Standalone | Meeting::Endpoint { .. } | Meeting::Search(_) => {
                (None, plain_store(stores, attended.subscribe())?)
            }
        };
        let not_here = NotHere { term: heard.round.term, endpoint: endpoint.to_string() };
        let (not_here, _) = watch::channel(not_here);
        let key = state_file.as_deref().and_then(state_file::read_key);
        let port = ServedPort { listener, store, attended, key };
        let (hosted, server) =
            host_endpoint(port, settings, memory, state_file.clone(), not_here.clone())?;
        info!(
            %endpoint, run_id = %spec.run_id, nodes = %spec.shared.nodes, "coordinating the job"
        );
        Ok(Self {
            reach: Reach::of_endpoint(&endpoint, address),
            attend_at: Endpoint { host: reachable_here(bound).to_string(), port: bound.port() },
            endpoint,
            address: Some(address),
            port: bound.port(),
            node_id,
            heard,
            state_file,
            not_here,
            hosted: Some(hosted),
            door,
            server,
            beacon: None,
        })
    }

    fn join(
        spec: &JobSpec,
        coordinator: SocketAddr,
        endpoint: Endpoint,
    ) -> Result<Self, PlaceError> {
        // A stream to any loopback address has the first one of its family as its source.
        let reach = match coordinator.ip() {
            IpAddr::V4(ip) if ip.is_loopback() => Reach::Loopback(Ipv4Addr::LOCALHOST.into()),
            ip => Reach::of(ip),
        };
        let listener = net::listen(reach, 0).map_err(system("listen"))?;
        let port = listener.local_addr().map_err(system("listen"))?.port();
        let heard = Heard::default();
        let not_here = NotHere { term: heard.round.term, endpoint: endpoint.to_string() };
        let (not_here, known) = watch::channel(not_here);
        let http = service::router(spec.run_id.as_str(), Role::Elsewhere(known));
        Ok(Self {
            attend_at: endpoint.clone(),
            endpoint,
            address: None,
            reach,
            port,
            node_id: new_node_id(),
            heard,
            state_file: None,
            not_here,
            hosted: None,
            door: None,
            server: Server::start(
                listener,
                PortProtocols {
                    http,
                    store: None,
                    attended: watch::channel(Attended::default()).1,
                },
            ),
            beacon: None,
        })
    }

    /// Returns the settings of this node's agent.
    pub(crate) fn agent_spec(&self, spec: &JobSpec, log: &Log) -> AgentSpec {
        let address = self.address.map(|address| address.to_string());
        let node = NodeDescription {
            node_id: self.node_id.clone(),
            host_name: ThisHost.name(),
            // If it is not known here, the stream's own address is used.
            address: spec.local_addr.clone().or(address).unwrap_or_default(),
            addresses: ThisHost.addresses(),
            agent_port: self.port,
            role: spec.role.clone(),
            local_world_size: spec.local_world_size,
            node_rank: spec.node_rank,
        };
        AgentSpec {
            lines: RoundLines::new(&spec.shared, spec.output.first_node_lines),
            log: log.clone(),
            run_id: spec.run_id.clone(),
            endpoint: self.attend_at.clone(),
            shared: spec.shared,
            node,
            local_addr: spec.local_addr.clone(),
            settings: AgentSettings {
                stop_grace: spec.shared.timeouts.stop_grace,
                join_timeout: spec.shared.timeouts.join,
                heard: self.heard,
                runs_unleased: self.runs_unleased(spec),
                leases: Leases::default().for_nodes(spec.shared.nodes),
                seed: rand::random(),
            },
            state_file: self.state_file.clone(),
            not_here: self.not_here.clone(),
        }
    }

    /// Returns the place of this node's worker stores.
    pub(crate) fn store_place(&mut self, spec: &JobSpec) -> StorePlace {
        match self.door.take() {
            Some(door) => StorePlace::OnePort { port: self.port, door },
            None => StorePlace::Ports {
                reach: store_reach(self.reach, spec.local_addr.as_deref()),
                ports: spec.store_ports,
                is_served: spec.shares_store,
            },
        }
    }

    /// Returns true if workers need no lease: the job has one node, whose process is also the
    /// coordinator, so that a pause of one cannot make the other start a second group.
    ///
    /// A host that was chosen by search may still give way to another one.
    fn runs_unleased(&self, spec: &JobSpec) -> bool {
        let may_give_way = matches!(spec.meeting, Meeting::Search(_));
        self.hosted.is_some() && spec.shared.nodes.max() == 1 && !may_give_way
    }

    /// Returns the newest known endpoint of the coordinator.
    pub(crate) fn coordinator(&self) -> watch::Receiver<NotHere> {
        self.not_here.subscribe()
    }

    /// Takes the coordinator that this agent hosts, if any.
    pub(crate) fn hosted(&mut self) -> Option<Hosted> {
        self.hosted.take()
    }

    /// Stops serving the port.
    pub(crate) fn leave(self) {
        drop((self.server, self.beacon));
    }
}

/// Returns the address at which this process reaches its own listener.
fn reachable_here(bound: SocketAddr) -> IpAddr {
    match bound.ip() {
        // A listener on all addresses accepts IPv4, too.
        ip if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        ip => ip,
    }
}

/// The listener of an endpoint, and further parts of its port.
pub(crate) struct ServedPort {
    pub(crate) listener: TcpListener,
    pub(crate) store: StoreDoor,
    /// The registered nodes, published to the port.
    pub(crate) attended: watch::Sender<Attended>,
    /// The key of proofs of an earlier coordinator.
    pub(crate) key: Option<Key>,
}

/// Starts a coordinator with the endpoint in `not_here`, and serves its port.
pub(crate) fn host_endpoint(
    port: ServedPort,
    settings: Settings,
    memory: Option<Memory>,
    state_file: Option<PathBuf>,
    not_here: watch::Sender<NotHere>,
) -> Result<(Hosted, Server), PlaceError> {
    if let Some(own) = state_file.clone() {
        // A slow disk does not delay the start, and remaining files are removed next time.
        drop(tokio::task::spawn_blocking(move || state_file::clean(&own)));
    }
    let (inputs, queue) = mpsc::channel::<Input>(limits::COORDINATOR_QUEUE);
    let run_id = settings.run_id.clone();
    let memory = memory.unwrap_or_else(|| Memory::fresh(JobUid::new(random_id())));
    let rendezvous = Rendezvous::new(clock::now(), settings, memory);
    let (known, endpoint) = (not_here.subscribe(), not_here.borrow().endpoint.clone());
    let role = Role::Coordinator { inputs: inputs.clone(), endpoint, known };
    let ServedPort { listener, store, attended, key } = port;
    let protocols_attended = attended.subscribe();
    let proofs = Proofs::new(key);
    let coordinator =
        coordinator_driver::drive(rendezvous, queue, state_file, not_here, attended, proofs);
    let coordinator = tokio::spawn(coordinator);
    let http = service::router(run_id.as_str(), role);
    let protocols = PortProtocols { http, store: Some(store), attended: protocols_attended };
    let server = Server::start(listener, protocols);
    Ok((Hosted { inputs, coordinator }, server))
}
