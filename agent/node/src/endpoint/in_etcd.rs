//! Starts this node's services in a job with a leader in etcd.
//!
//! Any agent of the job may lead, so each has a port that others reach.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use ragent_base::{
    net::{self, Endpoint},
    sys::{clock, system_error::system},
};
use ragent_core::limits::WAIT_REPEAT;
use ragent_election::claim;
use ragent_leadership::etcd::{self, CandidateSpec, EtcdClient, EtcdError};
use ragent_options::spec::{EtcdSpec, JobSpec};
use ragent_rendezvous::{ids::RunId, jitter::Pauses, voter_count::VoterCount};
use ragent_store::StoreThread;
use tracing::{info, warn};

use super::{
    address::member_reach,
    error::{HostOrJoinError, LocateError},
    host::warn_if_open,
    hosted,
    node_services::{NodePlace, NodePort, NodeServices},
};
use crate::{endpoint::limits, node::destination::Destination};

/// Takes part in a job with a leader in `etcd`. `waits` receives the reason for waiting whenever it changes.
///
/// # Errors
///
/// Returns [`HostOrJoinError`] if etcd refuses this agent, or does not answer during the whole join timeout.
pub(super) async fn take_part(
    spec: &JobSpec,
    etcd: &EtcdSpec,
    stores: &StoreThread,
    waits: impl Fn(&str),
) -> Result<NodeServices, HostOrJoinError> {
    let member = reach_etcd(etcd, &spec.run_id, spec.shared.timeouts.join, waits).await?;
    let address = own_address(spec, member);
    let reach = member_reach(address);
    let listener = net::listen(reach, 0).map_err(system("listen"))?;
    let bound = listener.local_addr().map_err(system("listen"))?;
    warn_if_open(spec, bound);
    let host = spec.local_addr.clone().unwrap_or_else(|| address.to_string());
    let endpoint = Endpoint { host, port: bound.port() };
    let place = NodePlace { listener, endpoint, address, reach };
    NodeServices::start(spec, stores, place, |node| {
        let NodePort { port, mut own, process, dialed } = node;
        own.settings.voter_count = VoterCount::One;
        let endpoint = own.endpoint.clone();
        let running = etcd::start(CandidateSpec {
            etcd: etcd.clone(),
            run_id: spec.run_id.clone(),
            settings: claim::ClaimSettings {
                process,
                endpoint: endpoint.to_string(),
                timers: claim::ClaimTimers::for_nodes(spec.shared.nodes),
                seed: rand::random(),
            },
        })
        .map_err(system("start a thread"))?;
        info!(%endpoint, run_id = %spec.run_id, %etcd, "looking for the coordinator in etcd");
        let (hosted, server) = hosted::host(port, own, running, None)?;
        let destination = Destination::etcd(etcd, endpoint, dialed, hosted.leadership());
        Ok((hosted, server, destination))
    })
}

/// Waits until a member of etcd answers, and returns its address.
async fn reach_etcd(
    etcd: &EtcdSpec,
    run_id: &RunId,
    patience: Duration,
    waits: impl Fn(&str),
) -> Result<SocketAddr, LocateError> {
    let began = clock::now();
    let mut warn_at = began + limits::WAIT_WARNING;
    let mut client = EtcdClient::of_job(etcd.clone(), run_id, rand::random::<u8>().into());
    let mut pauses = Pauses::new(limits::RETRY_INTERVAL, limits::ETCD_RETRY_MAX, rand::random());
    // The members at which a repetition would fail, too.
    let mut unusable = BTreeSet::new();
    loop {
        let Err(error) = client.read().await else {
            match client.remote() {
                Some(remote) => return Ok(remote),
                None => continue,
            }
        };
        if error.is_permanent() {
            let is_last = match error.of_member() {
                Some(member) => {
                    unusable.insert(member.to_string());
                    unusable.len() == etcd.members.len()
                }
                None => true,
            };
            if is_last {
                return Err(LocateError::Etcd(error));
            }
        }
        waits(&error.to_string());
        let now = clock::now();
        if now >= began + patience {
            let waited = now.saturating_duration_since(began);
            return Err(LocateError::EtcdAway { waited, source: error });
        }
        if now >= warn_at {
            warn_at = now + WAIT_REPEAT;
            report_wait(&error, (began + patience).saturating_duration_since(now));
        }
        clock::until(Some((now + pauses.after_failure()).min(began + patience))).await;
    }
}

fn report_wait(error: &EtcdError, left: Duration) {
    warn!("no member of etcd has answered yet; retrying for {} s: {error}", left.as_secs());
}

/// Returns this node's address for other nodes: the given one, or else the source address of connections to etcd.
fn own_address(spec: &JobSpec, member: SocketAddr) -> IpAddr {
    let given = spec.local_addr.as_ref().and_then(|given| given.parse::<IpAddr>().ok());
    let seen = given.or_else(|| net::own_address_towards(member)).unwrap_or_else(|| member.ip());
    if seen.is_loopback() && given.is_none() && spec.shared.nodes.max() > 1 {
        warn!(
            "etcd is reached at a loopback address, so only agents of this machine can reach this agent at {seen}; \
             with several machines, give its address with `--local-addr`"
        );
    }
    seen
}
