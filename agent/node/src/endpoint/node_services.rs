//! Bundles the services that a node has on its port, and the endpoint of its coordinator.

use std::{
    net::{IpAddr, SocketAddr, TcpListener},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use ragent_base::{
    net::{
        Endpoint, Reach,
        port::{PortStore, RegisteredNodes},
    },
    report::{measures::NodeMeasures, telemetry::Log},
    sys::{host::ThisHost, memory, system_error::system},
};
use ragent_coordinator::pages::metrics::MetricsPage;
use ragent_core::{
    agent::AgentSettings,
    memory::{MemoryLeft, MemorySettings},
};
use ragent_election::claim;
use ragent_leadership::Leadership;
use ragent_options::spec::{JobSpec, RendezvousMethod};
use ragent_proto::convert::CoordinatorAddress;
use ragent_rendezvous::{
    ids::NodeId,
    message::{KnownRound, NodeDescription},
    settings::{Leases, Settings},
};
use ragent_store::{StoreHandle, StoreThread};
use tokio::sync::watch;

use super::{
    address::{reachable_here, store_reach},
    error::HostOrJoinError,
    hosted::{EndpointPort, Hosted, OwnCoordinator},
    plain_store::plain_store,
    search::{
        driver::{Search, SearchResponder},
        home::Home,
    },
    server::Server,
};
use crate::{
    memory::{MemoryService, MemoryServiceSettings},
    node::{
        destination::Destination, driver::AgentSpec, node_id::new_node_id,
        worker_stores::StorePortMode,
    },
};

/// The services of a node on its port, and the endpoint of its coordinator.
pub struct NodeServices {
    /// The endpoint or the list of voters, by the names that all nodes use.
    pub name: String,
    /// The connections that the node's worker stores accept.
    pub(super) reach: Reach,
    /// The address at which this agent registers. A host registers at its own listener, even if the
    /// endpoint resolves to another address.
    pub(super) destination: Destination,
    /// The address by which other nodes reach this one, if the endpoint determines it.
    pub(super) address: Option<IpAddr>,
    pub(super) port: u16,
    /// The name of this agent process in its job.
    pub node_id: NodeId,
    pub(super) known_round: KnownRound,
    pub(super) state_file: Option<PathBuf>,
    pub(super) coordinator: watch::Sender<CoordinatorAddress>,
    pub(super) hosted: Option<Hosted>,
    /// The channel by which the store of a round reaches the port, if the port serves it.
    pub(super) store_sender: Option<watch::Sender<Option<StoreHandle>>>,
    pub(super) server: Server,
    /// Answers other agents that search for the endpoint.
    pub(super) search_responder: Option<SearchResponder>,
}

/// The port of a node that may lead its job, and how others reach it.
pub(super) struct NodePlace {
    pub(super) listener: TcpListener,
    /// The endpoint at which others reach this process.
    pub(super) endpoint: Endpoint,
    /// The address that its node registers with.
    pub(super) address: IpAddr,
    pub(super) reach: Reach,
}

/// A node that may lead its job, before its port is served.
pub(super) struct NodePort {
    pub(super) port: EndpointPort,
    pub(super) own: OwnCoordinator,
    /// The name of this agent process in its job.
    pub(super) process: NodeId,
    /// The endpoint, as this process reaches it.
    pub(super) dialed: Endpoint,
}

/// The part of a node that may lead, the port that it is served on, and the destination of its agent.
type Leading = (Hosted, Server, Destination);

impl NodeServices {
    /// Starts the services of a node that may lead. `lead` starts the part that leads.
    pub(super) fn start(
        spec: &JobSpec,
        stores: &StoreThread,
        place: NodePlace,
        lead: impl FnOnce(NodePort) -> Result<Leading, HostOrJoinError>,
    ) -> Result<Self, HostOrJoinError> {
        let NodePlace { listener, endpoint, address, reach } = place;
        let bound = listener.local_addr().map_err(system("listen"))?;
        let node_id = new_node_id();
        let (registered_nodes, registered) = watch::channel(RegisteredNodes::default());
        let (store_sender, store) = open_store(spec, stores, registered)?;
        let coordinator = watch::Sender::new(CoordinatorAddress::unknown());
        let name = endpoint.to_string();
        let (hosted, server, destination) = lead(NodePort {
            port: EndpointPort {
                listener,
                store,
                credentials: spec.credentials.clone(),
                registered_nodes,
                journal: spec.journal.clone(),
                exclude_command: spec.exclude_command.clone(),
            },
            own: OwnCoordinator {
                settings: settings(spec, &node_id),
                endpoint,
                registered: coordinator.clone(),
            },
            process: node_id.clone(),
            dialed: Endpoint { host: reachable_here(bound).to_string(), port: bound.port() },
        })?;
        Ok(Self {
            name,
            reach,
            destination,
            address: Some(address),
            port: bound.port(),
            node_id,
            known_round: KnownRound::default(),
            state_file: None,
            coordinator,
            hosted: Some(hosted),
            store_sender,
            server,
            search_responder: None,
        })
    }

    /// Continues `search` for other agents that search for the endpoint. `found` is the host that it has found.
    pub(super) fn answer_searching_agents(&mut self, search: Search, found: Option<SocketAddr>) {
        self.server.show_standing(search.standing());
        let hosted = self.hosted.as_ref();
        let leading = hosted.map(|hosted| (hosted.leadership().clone(), hosted.elected()));
        let home = Home::new(leading, self.coordinator.subscribe(), found);
        self.search_responder = Some(search.answer(self.port, home));
    }

    /// Returns the settings of this node's agent.
    pub fn agent_spec(
        &self,
        spec: &Arc<JobSpec>,
        log: &Log,
        measures: Arc<NodeMeasures>,
        since: Option<Instant>,
    ) -> AgentSpec {
        let address = self.address.map(|address| address.to_string());
        let leadership = self.hosted.as_ref().map(Hosted::leadership);
        let member = leadership.and_then(Leadership::member);
        let node = NodeDescription {
            node_id: self.node_id.clone(),
            host_name: ThisHost.name(),
            // If the address is not known here, the source address of the stream is used.
            address: spec.local_addr.clone().or(address).unwrap_or_default(),
            observed: None,
            addresses: ThisHost.addresses(),
            agent_port: self.port,
            role: spec.role.clone(),
            script: spec.command.name(),
            // Measured at each registration.
            load: String::new(),
            failure_domain: spec.memory.failure_domain.clone(),
            local_world_size: spec.local_world_size,
            node_rank: spec.node_rank,
            voter: member.cloned(),
        };
        // No coordinator is elected until the voters, or a silence in etcd, have shown that no earlier job runs.
        let leases = Leases::default().for_nodes(spec.shared.nodes);
        let silence = match spec.rendezvous {
            RendezvousMethod::Etcd(_) => claim::ClaimTimers::for_nodes(spec.shared.nodes).silence,
            _ if member.is_some() && since.is_some() => leases.coordinator,
            _ => Duration::ZERO,
        };
        AgentSpec {
            job: Arc::clone(spec),
            log: log.clone(),
            measures,
            destination: self.destination.clone(),
            node,
            leadership: leadership.cloned(),
            since,
            settings: AgentSettings {
                memory: memory_settings(spec),
                shared: spec.shared,
                silence,
                known_round: self.known_round,
                runs_unleased: self.runs_unleased(spec),
                has_voters: matches!(
                    spec.rendezvous,
                    RendezvousMethod::Voters(_) | RendezvousMethod::Etcd(_)
                ) || spec.voters.is_several(),
                has_standbys: !spec.standby.is_empty(),
                leases,
                seed: rand::random(),
            },
            state_file: self.state_file.clone(),
            coordinator: self.coordinator.clone(),
        }
    }

    /// Returns what keeps checkpoints in memory on this node. Other agents reach it if the job has several nodes and a
    /// secret.
    pub fn memory_service(&mut self, spec: &JobSpec) -> MemoryService {
        // Without copies, a new node still fetches what is the same on all nodes.
        let is_reached = spec.shared.nodes.max() > 1
            && spec.memory.limit != Some(0)
            && spec.credentials.is_secured();
        let connections = self.server.memory_connections();
        MemoryService::new(MemoryServiceSettings {
            credentials: spec.credentials.clone(),
            socket_dir: ThisHost.socket_dir(),
            connections: is_reached.then_some(connections),
        })
    }

    /// Returns the ports of this node's worker stores.
    pub fn store_port_mode(&mut self, spec: &JobSpec) -> StorePortMode {
        match self.store_sender.take() {
            Some(store_sender) => StorePortMode::OnePort { port: self.port, store_sender },
            None => StorePortMode::Ports {
                reach: store_reach(self.reach, spec.local_addr.as_deref()),
                ports: spec.store_ports,
                is_served: spec.shares_store,
            },
        }
    }

    /// Returns true if workers need no lease: the job has one node, and its process is also the only coordinator. If
    /// that process is paused, no other one can start a second group.
    ///
    /// A host that was found by a search may still step down for another one, so its workers need a lease.
    fn runs_unleased(&self, spec: &JobSpec) -> bool {
        let may_step_down = matches!(spec.rendezvous, RendezvousMethod::Search(_));
        self.is_fixed() && spec.shared.nodes.max() == 1 && !may_step_down
    }

    /// Returns true if this process has the only coordinator of the job.
    fn is_fixed(&self) -> bool {
        self.hosted.as_ref().is_some_and(|hosted| hosted.leadership().is_fixed())
    }

    /// Returns the newest known endpoint of the coordinator.
    pub fn coordinator(&self) -> watch::Receiver<CoordinatorAddress> {
        self.coordinator.subscribe()
    }

    /// Returns the page with the metrics.
    pub fn metrics(&self) -> Arc<MetricsPage> {
        self.server.metrics()
    }

    /// Takes the part that may lead the job, if there is one.
    pub fn hosted(&mut self) -> Option<Hosted> {
        self.hosted.take()
    }

    /// Stops serving the port.
    pub fn stop(self) {
        self.server.stop();
        drop(self.search_responder);
    }
}

/// Returns the settings of a coordinator in the process of this node.
fn settings(spec: &JobSpec, node_id: &NodeId) -> Settings {
    Settings {
        run_id: spec.run_id.clone(),
        coordinator: node_id.to_string(),
        host: Some(node_id.clone()),
        shared: Some(spec.shared),
        // The leadership knows them.
        voters: Vec::new(),
        voter_count: spec.voters,
        keeps_charges: ThisHost.service_dir().is_some(),
        leases: Leases::default(),
        begins_at: None,
    }
}

/// The sender of the stores that a port serves.
type PortStoreSender = watch::Sender<Option<StoreHandle>>;

/// Opens the store that the endpoint's port serves. If each round has its own store, returns the sender for it.
fn open_store(
    spec: &JobSpec,
    stores: &StoreThread,
    registered_nodes: watch::Receiver<RegisteredNodes>,
) -> Result<(Option<PortStoreSender>, Option<PortStore>), HostOrJoinError> {
    match spec.rendezvous {
        // The worker stores of this node open a store for each round.
        RendezvousMethod::Static { .. } => {
            let (store_sender, store) = watch::channel(None);
            Ok((Some(store_sender), Some(store)))
        }
        RendezvousMethod::Standalone
        | RendezvousMethod::Endpoint { .. }
        | RendezvousMethod::Voters(_)
        | RendezvousMethod::Etcd(_)
        | RendezvousMethod::Search(_) => {
            Ok((None, plain_store(stores, registered_nodes, &spec.credentials)?))
        }
    }
}

/// The part of the memory that checkpoints may use without `--memory-limit`.
const LIMIT_PART: u64 = 3;
/// The part of the memory that stays free for workers.
const RESERVE_PART: u64 = 10;
/// The least memory that stays free: 2 GiB.
const RESERVE_MIN: u64 = 2 << 30;

fn memory_settings(spec: &JobSpec) -> MemorySettings {
    let total = memory::total().unwrap_or(0);
    MemorySettings {
        workers: spec.local_world_size,
        host_name: ThisHost.name(),
        limit: spec.memory.limit.unwrap_or(total / LIMIT_PART),
        reserve: (total / RESERVE_PART).max(RESERVE_MIN),
        has_copies: spec.shared.memory_copies > 0,
        is_secured: spec.credentials.is_secured(),
        address: None,
        left: MemoryLeft {
            available: memory::available().unwrap_or(0),
            oom_kills: memory::oom_kills(),
        },
    }
}
