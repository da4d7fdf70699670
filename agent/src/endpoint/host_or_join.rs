//! Finds the host of a job, and then hosts the coordinator here or joins it there.

use std::net::{IpAddr, Ipv4Addr, TcpListener};

use ragent_store::StoreThread;
use tracing::info;

use super::{
    error::{HostOrJoinError, LocateError},
    finder::{Finder, Input, Step},
    host::{announced_address, host},
    in_etcd,
    join::join,
    locate::{self, Located},
    node_services::NodeServices,
    search::driver::Search,
    voters::{self, OwnEndpoint},
};
use crate::{
    net::{self, Reach},
    report::telemetry,
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
            return host_at(spec, stores, Ipv4Addr::LOCALHOST.into(), 0);
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
            voters::vote(spec, &list, stores, OwnEndpoint { endpoint, listener, address })
        }
        (Located::There(address), None) => join(spec, address, endpoint),
        (Located::There(_), Some(list)) => voters::join(spec, &list, stores).await,
    }
}

/// Searches for the host if no address is given, and hosts or joins.
async fn find(
    spec: &JobSpec,
    search: &SearchSpec,
    stores: &StoreThread,
) -> Result<NodeServices, HostOrJoinError> {
    let mut finder = Finder::new(clock::now(), spec.shared.timeouts.join);
    let port = search.port;
    let mut search =
        Search::begin(search, &spec.run_id, &spec.credentials).map_err(LocateError::Search)?;
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
                }
                break host_at(spec, stores, address, port)?;
            }
            Step::Locate(at, limit) => {
                info!(endpoint = %at, "found the coordinator");
                let endpoint = Endpoint { host: at.ip().to_string(), port: at.port() };
                match locate::locate(&spec.credentials, &endpoint, None, limit, |_| {}).await {
                    Ok(Located::Here { listener, address }) => {
                        break host(spec, stores, listener, address, endpoint)?;
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

/// Hosts at `address` on `port`, or on a free port if another job has that one: the other agents
/// receive the port in use.
fn host_at(
    spec: &JobSpec,
    stores: &StoreThread,
    address: IpAddr,
    port: u16,
) -> Result<NodeServices, HostOrJoinError> {
    let reach = Reach::of(address);
    let listener =
        net::listen(reach, port).or_else(|_| net::listen(reach, 0)).map_err(system("listen"))?;
    let endpoint = Endpoint { host: address.to_string(), port: port_of(&listener)? };
    host(spec, stores, listener, address, endpoint)
}

fn port_of(listener: &TcpListener) -> Result<u16, HostOrJoinError> {
    Ok(listener.local_addr().map_err(system("listen"))?.port())
}
