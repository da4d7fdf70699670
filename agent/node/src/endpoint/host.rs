//! Starts this node's services as the host of the coordinator.
//!
//! If an earlier coordinator has left its state, the new one recovers the job from it.

use std::{
    net::{IpAddr, SocketAddr, TcpListener},
    time::Instant,
};

use ragent_base::{
    net::{
        Reach,
        port::{PortStore, RegisteredNodes},
    },
    secret::Credentials,
    spec::{Endpoint, JobSpec, RendezvousMethod},
    sys::{clock, host::ThisHost, system_error::system},
};
use ragent_leadership::{
    fixed::{self, RecoveredState},
    state_file::{self, is_first_warning},
};
use ragent_proto::convert::NotHere;
use ragent_rendezvous::{
    ids::{NodeId, RoundId, RunId},
    message::KnownRound,
    settings::{JobState, Leases, NodeRange, Settings},
    voter_count::VoterCount,
};
use ragent_store::{StoreHandle, StoreThread};
use tokio::sync::watch;
use tracing::{info, warn};

use super::{
    address::{EndpointHere, Unreachable, reachable_here},
    error::HostOrJoinError,
    hosted::{self, EndpointPort, OwnCoordinator},
    node_services::NodeServices,
    plain_store::plain_store,
};
use crate::node::{destination::Destination, node_id::new_node_id};

/// Hosts the coordinator of `endpoint` on `listener`. Other nodes reach this one at `address`.
pub(super) fn host(
    spec: &JobSpec,
    stores: &StoreThread,
    listener: TcpListener,
    address: IpAddr,
    endpoint: Endpoint,
) -> Result<NodeServices, HostOrJoinError> {
    let bound = listener.local_addr().map_err(system("listen"))?;
    let node_id = new_node_id();
    // Read after the port is bound: see `DeathNotice::deliver`.
    let recovered = recover(spec, &endpoint);
    let known_round = recovered.job_state.as_ref().map_or_else(KnownRound::default, known_round_of);
    let (registered_nodes, registered) = watch::channel(RegisteredNodes::default());
    let (store_sender, store) = open_store(spec, stores, registered)?;
    let not_here = NotHere { term: known_round.round.term, endpoint: endpoint.to_string() };
    let (not_here, _) = watch::channel(not_here);
    let state_file = recovered.state_file.clone();
    let credentials = spec.credentials.clone();
    let (journal, exclude_command) = (spec.journal.clone(), spec.exclude_command.clone());
    let port =
        EndpointPort { listener, store, credentials, registered_nodes, journal, exclude_command };
    let begins_at = begins_at(spec.shared.nodes, spec.is_first_start());
    let own = OwnCoordinator {
        settings: Settings { begins_at, ..settings(spec, &node_id, VoterCount::One) },
        endpoint: endpoint.clone(),
        registered: not_here.clone(),
    };
    let (hosted, server) = hosted::host(port, own, fixed::start(recovered), None)?;
    info!(%endpoint, run_id = %spec.run_id, nodes = %spec.shared.nodes, "coordinating the job");
    warn_if_open(spec, bound);
    let here = Endpoint { host: reachable_here(bound).to_string(), port: bound.port() };
    Ok(NodeServices {
        reach: Reach::of_endpoint(&endpoint, address),
        destination: Destination::endpoint(here.clone(), here),
        name: endpoint.to_string(),
        address: Some(address),
        port: bound.port(),
        node_id,
        known_round,
        state_file,
        not_here,
        hosted: Some(hosted),
        store_sender,
        server,
        search_responder: None,
    })
}

/// Returns the address by which others reach this host, if its endpoint resolves to `resolved`.
/// Warns if other nodes may not reach it.
pub(super) fn announced_address(spec: &JobSpec, endpoint: &Endpoint, resolved: IpAddr) -> IpAddr {
    let interfaces = ThisHost.interface_addresses();
    let is_own = ThisHost.owns(resolved);
    let here = EndpointHere { endpoint, resolved, is_own, interfaces: &interfaces };
    let (address, unreachable) = here.announced();
    if spec.shared.nodes.max() == 1 {
        return address;
    }
    match unreachable {
        Some(Unreachable::Loopback) => warn!(
            "the endpoint {endpoint} is a loopback address: only agents of this machine can reach it"
        ),
        Some(Unreachable::Bridge(interface)) => warn!(
            "the endpoint {endpoint} is the address {resolved} of the container bridge {interface}: \
             only this machine can reach it; use the address of another interface in \
             `--rdzv-endpoint`"
        ),
        Some(Unreachable::Replaced) if spec.local_addr.is_none() => warn!(
            "other nodes cannot reach {resolved}, the address of the endpoint {endpoint}; using \
             {address}, another address of this machine (set it with `--local-addr`). If the endpoint is another machine, \
             correct /etc/hosts here"
        ),
        Some(Unreachable::Replaced) | None => {}
    }
    address
}

/// Warns if the job has several nodes and any process that reaches the port at `bound` can take part.
pub(super) fn warn_if_open(spec: &JobSpec, bound: SocketAddr) {
    if spec.shared.nodes.max() > 1 {
        warn_of_open_port(&spec.credentials, &spec.run_id, bound);
    }
}

/// Warns if any process that reaches the port at `bound` can take part in the job, unless the user has asked for that. Warns once for each
/// name of a job.
pub fn warn_of_open_port(credentials: &Credentials, run_id: &RunId, bound: SocketAddr) {
    let is_open =
        !bound.ip().is_loopback() && !credentials.is_secured() && !credentials.is_declined();
    if !is_open || !is_first_warning(run_id) {
        return;
    }
    warn!(
        "every process that reaches port {} can control this job; make a secret (`ragent secret --init`), or accept it (`--auth none`)",
        bound.port()
    );
}

/// Reads the state of an earlier coordinator and the death notice of its host.
fn recover(spec: &JobSpec, endpoint: &Endpoint) -> RecoveredState {
    let path = match spec.rendezvous {
        RendezvousMethod::Standalone => return RecoveredState::default(),
        RendezvousMethod::Endpoint { .. }
        | RendezvousMethod::Voters(_)
        | RendezvousMethod::Etcd(_)
        | RendezvousMethod::Search(_)
        | RendezvousMethod::Static { .. } => state_file::job_state_path(&spec.run_id, endpoint),
    };
    let mut recovered = RecoveredState::from_file(path.clone());
    if let Some(job_state) = &mut recovered.job_state
        && state_file::has_death_notice(&path, job_state)
        && let Some(node) = confirm_dead(job_state)
    {
        info!(%node, "the previous host's agent and all of its processes have ended");
    }
    recovered
}

/// Notes that no process of the previous host is left. Returns its node id if that is new.
fn confirm_dead(job_state: &mut JobState) -> Option<NodeId> {
    let host = job_state.host.as_mut().filter(|host| !host.is_confirmed_dead)?;
    host.is_confirmed_dead = true;
    Some(host.node.clone())
}

/// Returns the newest round that this host is known to have run, and its rank in it.
fn known_round_of(job_state: &JobState) -> KnownRound {
    let Some(host) = &job_state.host else { return KnownRound::default() };
    KnownRound {
        round: RoundId { term: job_state.term, round: job_state.round },
        size: job_state.round_size,
        group_rank: Some(host.rank),
    }
}

/// Returns the earliest time at which a fixed coordinator completes the first round of a job. Workers of a lost coordinator may run for a
/// lease. Their agents can register here meanwhile, because the port already listens.
pub(crate) fn begins_at(nodes: NodeRange, is_first_start: bool) -> Option<Instant> {
    (!is_first_start).then(|| clock::now() + Leases::default().for_nodes(nodes).coordinator)
}

/// Returns the settings of a coordinator in the process of this node.
pub(super) fn settings(spec: &JobSpec, node_id: &NodeId, voter_count: VoterCount) -> Settings {
    Settings {
        run_id: spec.run_id.clone(),
        coordinator: node_id.to_string(),
        host: Some(node_id.clone()),
        shared: Some(spec.shared),
        // The leadership knows them.
        voters: Vec::new(),
        voter_count,
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

#[cfg(test)]
mod tests {
    use ragent_rendezvous::{
        ids::{GroupRank, JobUid, Round, Term},
        settings::HostMember,
    };

    use super::*;

    fn job_state(host: Option<HostMember>) -> JobState {
        let (term, round) = (Term(3), Round(7));
        JobState { term, round, round_size: 4, host, ..JobState::new(JobUid::new("u")) }
    }

    fn host_member(is_confirmed_dead: bool) -> HostMember {
        let (rank, node) = (GroupRank(2), NodeId::new("n"));
        HostMember { rank, node, host_name: "node1".to_owned(), is_confirmed_dead }
    }

    /// A host that restarts keeps its rank in the last round. Without a round it registers as new.
    #[test]
    fn rank_is_recovered() {
        let expected = KnownRound {
            round: RoundId { term: Term(3), round: Round(7) },
            size: 4,
            group_rank: Some(GroupRank(2)),
        };
        assert_eq!(known_round_of(&job_state(Some(host_member(false)))), expected);
        assert_eq!(known_round_of(&job_state(None)), KnownRound::default());
    }

    /// A death notice counts once, and only if there was a host.
    #[test]
    fn death_is_confirmed_once() {
        let mut with_host = job_state(Some(host_member(false)));
        assert_eq!(confirm_dead(&mut with_host), Some(NodeId::new("n")));
        assert_eq!(with_host, job_state(Some(host_member(true))));
        assert_eq!(confirm_dead(&mut with_host), None);
        assert_eq!(confirm_dead(&mut job_state(None)), None);
    }
}
