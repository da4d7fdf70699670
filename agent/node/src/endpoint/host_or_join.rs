//! Finds the host of a job, then hosts the coordinator here or joins it there.

use std::net::{Ipv4Addr, TcpListener};

use ragent_base::{
    net::{self, Endpoint, Reach},
    report::{news::with_causes, telemetry},
    sys::system_error::system,
};
use ragent_options::spec::{JobSpec, LauncherGroup, RendezvousMethod, SearchSpec, VoterList};
use ragent_store::StoreThread;
use tracing::{info, warn};

use super::{
    error::{HostOrJoinError, LocateError},
    host::{announced_address, host},
    join::join,
    locate::{self, Located},
    node_services::NodeServices,
    search::{
        driver::{Found, Search},
        home::endpoint_at,
    },
    voters::{self, FirstVoters, OwnEndpoint},
};

/// Finds the host, and hosts or joins. `waits` receives the reason for waiting whenever it changes.
///
/// # Errors
///
/// Returns [`HostOrJoinError`] if there is no host and this node cannot host.
pub async fn host_or_join(
    spec: &JobSpec,
    stores: &StoreThread,
    waits: impl Fn(&str),
) -> Result<NodeServices, HostOrJoinError> {
    let (endpoint, is_host) = match &spec.rendezvous {
        RendezvousMethod::Standalone => {
            let address = Ipv4Addr::LOCALHOST.into();
            let listener = net::listen(Reach::of(address), 0).map_err(system("listen"))?;
            let endpoint = endpoint_at((address, port_of(&listener)?).into());
            return host(spec, stores, listener, address, endpoint);
        }
        RendezvousMethod::Search(search) => return find(spec, search, stores).await,
        RendezvousMethod::Endpoint { endpoint, is_host } => (endpoint.clone(), *is_host),
        RendezvousMethod::Voters(list) => {
            return voters::take_part(spec, list, stores, waits).await;
        }
        #[cfg(feature = "etcd")]
        RendezvousMethod::Etcd(etcd) => {
            return super::in_etcd::take_part(spec, etcd, stores, waits).await;
        }
        #[cfg(not(feature = "etcd"))]
        RendezvousMethod::Etcd(_) => return Err(LocateError::NoEtcd.into()),
        RendezvousMethod::Static { master, node_rank } => (master.clone(), Some(*node_rank == 0)),
    };
    if let (Some(LauncherGroup { launcher, node_rank: 0, .. }), None) =
        (&spec.launcher_group, is_host)
    {
        locate::check_head(&endpoint, *launcher).await?;
    }
    let list = spec.voters.is_several().then(|| VoterList::single(endpoint.clone()));
    if let Some(list) = list.as_ref().filter(|list| voters::knows_voters(&spec.run_id, list)) {
        // This agent knows the voters, so it does not depend on the host of the endpoint.
        return voters::take_part(spec, list, stores, waits).await;
    }
    let (credentials, join_timeout) = (&spec.credentials, spec.shared.timeouts.join);
    match (locate::locate(credentials, &endpoint, is_host, join_timeout, waits).await?, list) {
        (Located::Here { listener, address }, None) => {
            let endpoint = Endpoint { port: port_of(&listener)?, ..endpoint };
            let address = announced_address(spec, &endpoint, address);
            host(spec, stores, listener, address, endpoint)
        }
        (Located::Here { listener, address }, Some(list)) => {
            let own = OwnEndpoint { endpoint, listener, address };
            voters::vote(spec, &FirstVoters::listed(&list), stores, own)
        }
        (Located::There(address), None) => join(spec, address, endpoint),
        (Located::There(_), Some(list)) => {
            voters::join(spec, &FirstVoters::listed(&list), stores).await
        }
    }
}

/// Searches for the host without an address, and hosts or joins. An agent that knows the voters of the job does not need the search.
async fn find(
    spec: &JobSpec,
    search_spec: &SearchSpec,
    stores: &StoreThread,
) -> Result<NodeServices, HostOrJoinError> {
    let is_elected = spec.voters.is_several();
    let begin = || Search::begin(search_spec, &spec.run_id, &spec.credentials);
    if let Some(first) = FirstVoters::remembered(&spec.run_id, search_spec).filter(|_| is_elected) {
        let mut services = voters::join(spec, &first, stores).await?;
        match begin() {
            Ok(search) => services.answer_searching_agents(search, None),
            Err(error) => warn!(
                "failed to listen for agents that search for the job; they cannot find it through this agent: {}",
                with_causes(&error)
            ),
        }
        return Ok(services);
    }
    let mut search = begin().map_err(LocateError::Search)?;
    let (mut services, found) = match search.find(spec.shared.timeouts.join).await? {
        Found::Here(address, listener) => {
            if search.is_alone() && spec.shared.nodes.max() > 1 {
                telemetry::line(&format!(
                    "no other agent of job {} was found on {}; this agent hosts the coordinator",
                    spec.run_id,
                    search.interfaces()
                ));
            }
            let endpoint = endpoint_at((address, port_of(&listener)?).into());
            let own = OwnEndpoint { endpoint, listener, address };
            (host_found(spec, search_spec, stores, own)?, None)
        }
        Found::There(at) => {
            info!(endpoint = %at, "found the coordinator");
            let services = if is_elected {
                let first = FirstVoters::found(search_spec, endpoint_at(at));
                voters::join(spec, &first, stores).await?
            } else {
                join(spec, at, endpoint_at(at))?
            };
            (services, Some(at))
        }
    };
    services.answer_searching_agents(search, found);
    Ok(services)
}

/// Hosts at an endpoint that other agents find by a search. If the coordinator is elected, this agent is the first voter.
fn host_found(
    spec: &JobSpec,
    search: &SearchSpec,
    stores: &StoreThread,
    own: OwnEndpoint,
) -> Result<NodeServices, HostOrJoinError> {
    if spec.voters.is_several() {
        let first = FirstVoters::found(search, own.endpoint.clone());
        return voters::vote(spec, &first, stores, own);
    }
    let OwnEndpoint { endpoint, listener, address } = own;
    host(spec, stores, listener, address, endpoint)
}

fn port_of(listener: &TcpListener) -> Result<u16, HostOrJoinError> {
    Ok(listener.local_addr().map_err(system("listen"))?.port())
}
