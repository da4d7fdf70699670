//! Finds the host of a job, and then hosts the coordinator here or joins it there.

use std::net::{IpAddr, Ipv4Addr, TcpListener};

use ragent_store::StoreThread;
use tracing::{info, warn};

use super::{
    error::{HostOrJoinError, LocateError},
    finder::{Finder, Input, Step},
    host::{announced_address, host},
    in_etcd,
    join::join,
    locate::{self, Located},
    node_services::NodeServices,
    search::driver::Search,
    voters::{self, FirstVoters, OwnEndpoint},
};
use crate::{
    net::{self, Reach},
    report::{news::with_causes, telemetry},
    spec::{Endpoint, JobSpec, LauncherGroup, RendezvousMethod, SearchSpec, VoterList},
    sys::{clock, system_error::system},
};

/// Finds the host, and hosts or joins. `waits` receives the reason for waiting whenever it
/// changes.
///
/// # Errors
///
/// Returns [`HostOrJoinError`] if there is no host and this node cannot host.
pub(crate) async fn host_or_join(
    spec: &JobSpec,
    stores: &StoreThread,
    waits: impl Fn(&str),
) -> Result<NodeServices, HostOrJoinError> {
    let (endpoint, is_host) = match &spec.rendezvous {
        RendezvousMethod::Standalone => {
            let OwnEndpoint { endpoint, listener, address } =
                bind_at(Ipv4Addr::LOCALHOST.into(), 0)?;
            return host(spec, stores, listener, address, endpoint);
        }
        RendezvousMethod::Search(search) => return find(spec, search, stores).await,
        RendezvousMethod::Endpoint { endpoint, is_host } => (endpoint.clone(), *is_host),
        RendezvousMethod::Voters(list) => {
            return voters::take_part(spec, list, stores, waits).await;
        }
        RendezvousMethod::Etcd(etcd) => return in_etcd::take_part(spec, etcd, stores, waits).await,
        RendezvousMethod::Static { master, node_rank } => (master.clone(), Some(*node_rank == 0)),
    };
    if let (Some(LauncherGroup { launcher, node_rank: 0, .. }), None) =
        (&spec.launcher_group, is_host)
    {
        locate::check_head(&endpoint, *launcher).await?;
    }
    let list = spec.voters.is_several().then(|| VoterList::single(endpoint.clone()));
    if let Some(list) = list.as_ref().filter(|list| voters::knows_voters(&spec.run_id, list)) {
        // This agent knows the voters, and does not depend on the host of the endpoint.
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

/// Searches for the host if no address is given, and hosts or joins. An agent that knows the voters of the job does not
/// depend on the search.
async fn find(
    spec: &JobSpec,
    search_spec: &SearchSpec,
    stores: &StoreThread,
) -> Result<NodeServices, HostOrJoinError> {
    let is_elected = spec.voters.is_several();
    if let Some(first) = FirstVoters::remembered(&spec.run_id, search_spec).filter(|_| is_elected) {
        let mut services = voters::join(spec, &first, stores).await?;
        match Search::begin(search_spec, &spec.run_id, &spec.credentials) {
            Ok(search) => services.answer_searching_agents(search),
            Err(error) => warn!(
                "failed to listen for agents that search for the job; they cannot find it through this agent: {}",
                with_causes(&error)
            ),
        }
        return Ok(services);
    }
    let mut finder = Finder::new(clock::now(), spec.shared.timeouts.join);
    let mut search =
        Search::begin(search_spec, &spec.run_id, &spec.credentials).map_err(LocateError::Search)?;
    let mut step = finder.first();
    let mut services = loop {
        let input = match step {
            Step::Search(limit) => search.find(limit).await.map_or(Input::NotFound, Input::Found),
            Step::Host(address) => {
                if search.is_alone() && spec.shared.nodes.max() > 1 {
                    telemetry::line(&format!(
                        "no other agent of job {} was found on {}; this agent hosts the coordinator",
                        spec.run_id,
                        search.interfaces()
                    ));
                    if let Some(unlike) = search.unlike() {
                        warn!("{unlike}");
                    }
                }
                let own = bind_at(address, search_spec.port)?;
                break host_found(spec, search_spec, stores, own)?;
            }
            Step::Locate(at, limit) => {
                info!(endpoint = %at, "found the coordinator");
                let endpoint = Endpoint { host: at.ip().to_string(), port: at.port() };
                match locate::locate(&spec.credentials, &endpoint, None, limit, |_| {}).await {
                    Ok(Located::Here { listener, address }) => {
                        let own = OwnEndpoint { endpoint, listener, address };
                        break host_found(spec, search_spec, stores, own)?;
                    }
                    Ok(Located::There(_)) if is_elected => {
                        let first = FirstVoters::found(search_spec, endpoint);
                        break voters::join(spec, &first, stores).await?;
                    }
                    Ok(Located::There(address)) => break join(spec, address, endpoint)?,
                    Err(error @ LocateError::Auth(_)) => return Err(error.into()),
                    Err(error) => {
                        search.handle_no_coordinator(at);
                        Input::NotLocated(error.to_string())
                    }
                }
            }
            Step::GiveUp(error) => return Err(error.into()),
        };
        step = finder.handle(clock::now(), input);
    };
    services.answer_searching_agents(search);
    Ok(services)
}

/// Hosts at an endpoint that other agents find by a search, as the first voter if the coordinator is elected.
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

/// Listens at `address` on `port`, or on a free port if another job has that one: the other agents
/// receive the port in use.
fn bind_at(address: IpAddr, port: u16) -> Result<OwnEndpoint, HostOrJoinError> {
    let reach = Reach::of(address);
    let listener =
        net::listen(reach, port).or_else(|_| net::listen(reach, 0)).map_err(system("listen"))?;
    let endpoint = Endpoint { host: address.to_string(), port: port_of(&listener)? };
    Ok(OwnEndpoint { endpoint, listener, address })
}

fn port_of(listener: &TcpListener) -> Result<u16, HostOrJoinError> {
    Ok(listener.local_addr().map_err(system("listen"))?.port())
}
