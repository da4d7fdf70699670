//! Starts this node's services as the host of the coordinator.
//!
//! If an earlier coordinator has left its state, the new one recovers the job from it.

use std::{
    net::{IpAddr, SocketAddr, TcpListener},
    path::PathBuf,
    time::Instant,
};

use ragent_base::{
    net::{Endpoint, Reach},
    secret::Credentials,
    sys::{clock, host::ThisHost, system_error::system},
};
use ragent_leadership::{
    fixed,
    replica_file::ReplicaFile,
    state_file::{self, is_first_warning},
};
use ragent_options::spec::{JobSpec, RendezvousMethod};
use ragent_proto::convert::CoordinatorAddress;
use ragent_rendezvous::{
    ids::{NodeId, RoundId, RunId},
    message::KnownRound,
    settings::{JobState, Leases, NodeRange},
    voter_count::VoterCount,
};
use ragent_store::StoreThread;
use tracing::{info, warn};

use super::{
    address::{EndpointHere, Unreachable},
    error::HostOrJoinError,
    hosted::{self, kept_for},
    node_services::{NodePlace, NodePort, NodeServices},
};
use crate::node::destination::Destination;

/// Hosts the coordinator of `endpoint` on `listener`. Other nodes reach this one at `address`.
pub(super) fn host(
    spec: &JobSpec,
    stores: &StoreThread,
    listener: TcpListener,
    address: IpAddr,
    endpoint: Endpoint,
) -> Result<NodeServices, HostOrJoinError> {
    let bound = listener.local_addr().map_err(system("listen"))?;
    // Read after the port is bound: see `DeathNotice::deliver`.
    let (state_file, job_state) = recover(spec, &endpoint);
    let known_round = job_state.as_ref().map_or_else(KnownRound::default, known_round_of);
    let here = CoordinatorAddress { term: known_round.round.term, endpoint: endpoint.to_string() };
    let reach = Reach::of_endpoint(&endpoint, address);
    let place = NodePlace { listener, endpoint, address, reach };
    let services = NodeServices::start(spec, stores, place, |node| {
        let NodePort { port, mut own, dialed, .. } = node;
        own.registered.send_replace(here);
        own.settings.voter_count = VoterCount::One;
        own.settings.begins_at = begins_at(spec.shared.nodes, spec.is_first_start());
        let kept = kept_for(spec.shared.nodes, spec.shared.timeouts);
        let file = state_file.clone().map(|path| ReplicaFile::new(path, kept));
        let (hosted, server) = hosted::host(port, own, fixed::start(file, job_state), None)?;
        Ok((hosted, server, Destination::endpoint(dialed.clone(), dialed)))
    })?;
    let endpoint = &services.name;
    info!(%endpoint, run_id = %spec.run_id, nodes = %spec.shared.nodes, "coordinating the job");
    warn_if_open(spec, bound);
    Ok(NodeServices { known_round, state_file, ..services })
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

/// Returns the state file of the job, and the state of an earlier coordinator with the death notice of its host.
fn recover(spec: &JobSpec, endpoint: &Endpoint) -> (Option<PathBuf>, Option<JobState>) {
    let path = match spec.rendezvous {
        RendezvousMethod::Standalone => return (None, None),
        RendezvousMethod::Endpoint { .. }
        | RendezvousMethod::Voters(_)
        | RendezvousMethod::Etcd(_)
        | RendezvousMethod::Search(_)
        | RendezvousMethod::Static { .. } => state_file::job_state_path(&spec.run_id, endpoint),
    };
    let mut job_state = state_file::read_job_state(&path);
    if let Some(job_state) = &mut job_state
        && state_file::has_death_notice(&path, job_state)
        && let Some(node) = confirm_dead(job_state)
    {
        info!(%node, "the previous host's agent and all of its processes have ended");
    }
    (Some(path), job_state)
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
