//! Decides how the agents of a launch find each other if the user has not specified it: at the
//! first host that is reached, at the address at which ssh has reached it.

use std::ffi::OsString;

use ragent_rendezvous::settings::NodeRange;

use super::order::{HostAddress, HostNumber};
use crate::{
    cli::LaunchArgs,
    commands::ssh::limits,
    spec::{Endpoint, RendezvousMethod},
};

/// The way in which the agents of a launch find each other.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct RendezvousPlan {
    kind: Kind,
    /// The value of `--rdzv-conf`.
    conf: String,
    /// The job's name, if the user has not given one.
    run_id: Option<String>,
    /// The maximum number of nodes in a round.
    max: usize,
}

#[derive(Clone, Debug, Eq, PartialEq)]
enum Kind {
    /// There is one node only.
    Alone,
    /// At the endpoint or the voters that the user has given, or by search.
    Given,
    /// At the first reached host with an address that other hosts can use, else the first one.
    FirstHost,
    /// With fixed ranks, at the node with rank 0. The address is given by the user, or is that of
    /// the first reached host.
    Static { has_master: bool },
}

impl RendezvousPlan {
    pub(super) fn of(
        args: &LaunchArgs,
        rendezvous: &RendezvousMethod,
        (nodes, hosts): (NodeRange, usize),
        fresh_id: &str,
    ) -> Self {
        let has_endpoint = args.rdzv_endpoint.as_ref().is_some_and(|text| !text.is_empty());
        let kind = match rendezvous {
            RendezvousMethod::Static { .. } => {
                Kind::Static { has_master: has_endpoint || args.master_addr.is_some() }
            }
            RendezvousMethod::Voters(_)
            | RendezvousMethod::Etcd(_)
            | RendezvousMethod::Search(_) => Kind::Given,
            RendezvousMethod::Standalone | RendezvousMethod::Endpoint { .. } if has_endpoint => {
                Kind::Given
            }
            // With more hosts than nodes the others are spares, which also need the endpoint.
            RendezvousMethod::Standalone | RendezvousMethod::Endpoint { .. }
                if nodes.max() == 1 && hosts < 2 =>
            {
                Kind::Alone
            }
            RendezvousMethod::Standalone | RendezvousMethod::Endpoint { .. } => Kind::FirstHost,
        };
        Self {
            kind,
            conf: args.rdzv_conf.clone().unwrap_or_default(),
            run_id: args.rdzv_id.is_none().then(|| fresh_id.to_owned()),
            max: nodes.max() as usize,
        }
    }

    /// The default.
    #[cfg(test)]
    pub(super) fn at_first_host() -> Self {
        Self { kind: Kind::FirstHost, conf: String::new(), run_id: None, max: 2 }
    }

    /// Returns true if each node has a fixed rank.
    pub(super) fn has_fixed_ranks(&self) -> bool {
        matches!(self.kind, Kind::Static { .. })
    }

    /// Returns true if the coordinator is on one of the hosts and the user has not specified which.
    pub(super) fn is_at_a_host(&self) -> bool {
        matches!(self.kind, Kind::FirstHost | Kind::Static { has_master: false })
    }

    /// Returns which of the reached hosts is to host the coordinator, if the user has not specified
    /// it: the first one with an address that other hosts can use, else the first one. With fixed
    /// ranks it is always the first one.
    pub(super) fn coordinator(&self, reached: &[(HostNumber, HostAddress)]) -> Option<HostNumber> {
        let has_address =
            |(_, host_address): &&(HostNumber, HostAddress)| host_address.address.is_some();
        let found = match self.kind {
            Kind::Alone | Kind::Given | Kind::Static { has_master: true } => None,
            Kind::Static { has_master: false } => reached.first(),
            Kind::FirstHost => reached.iter().find(has_address).or_else(|| reached.first()),
        };
        found.map(|(host, _)| *host)
    }

    /// Returns the endpoint at the host `name` for all hosts: the address at which ssh has reached
    /// it, else its name; if all hosts are this machine, the loopback address.
    pub(super) fn endpoint(
        &self,
        name: &str,
        own: &HostAddress,
        reached: &[(HostNumber, HostAddress)],
    ) -> Endpoint {
        let is_here = |(_, host_address): &(HostNumber, HostAddress)| {
            host_address.address.is_none() && host_address.host_name == own.host_name
        };
        let host = match own.address {
            Some(address) => address.to_string(),
            None if reached.len() > 1 && reached.iter().all(is_here) => "127.0.0.1".to_owned(),
            // On every machine that name means the machine itself.
            None if name == "localhost" || name.starts_with("127.") => own.host_name.clone(),
            None => name.to_owned(),
        };
        Endpoint { host, port: own.port }
    }

    /// Returns the flags of all agents.
    pub(super) fn common_flags(&self) -> Vec<OsString> {
        let run_id = self.run_id.iter().map(|id| format!("--rdzv-id={id}").into());
        let backend = match self.kind {
            Kind::Alone => None,
            Kind::Given | Kind::FirstHost => Some("--rdzv-backend=c10d".into()),
            Kind::Static { .. } => Some("--rdzv-backend=static".into()),
        };
        run_id.chain(backend).collect()
    }

    /// Returns the flags of the agent with `rank` on one of `reached` hosts; the coordinator is at
    /// `endpoint`.
    pub(super) fn own_flags(
        &self,
        rank: usize,
        is_coordinator: bool,
        reached: usize,
        endpoint: Option<&Endpoint>,
    ) -> Vec<OsString> {
        let node_rank = format!("--node-rank={rank}");
        let flags = match (&self.kind, endpoint) {
            (Kind::Alone, _) => Vec::new(),
            (Kind::Given | Kind::Static { has_master: true }, _) | (_, None) => vec![node_rank],
            (Kind::Static { has_master: false }, Some(endpoint)) => {
                vec![node_rank, format!("--master-addr={}", endpoint.host)]
            }
            (Kind::FirstHost, Some(endpoint)) => {
                let conf = self.conf(is_coordinator, reached);
                vec![
                    node_rank,
                    format!("--rdzv-endpoint={endpoint}"),
                    format!("--rdzv-conf={conf}"),
                ]
            }
        };
        flags.into_iter().map(OsString::from).collect()
    }

    /// Returns the user's settings, with additions that depend on the host and the number of
    /// reached hosts.
    fn conf(&self, is_host: bool, reached: usize) -> String {
        let has = |key: &str| {
            let keys = self.conf.split(',').filter_map(|entry| entry.split_once('='));
            keys.into_iter().any(|(known, _)| known.trim() == key)
        };
        let given = Some(self.conf.clone()).filter(|conf| !conf.trim().is_empty());
        let host = (!has("is_host")).then(|| format!("is_host={}", u8::from(is_host)));
        // All reached hosts register at once, and no other host does.
        let is_short = reached < self.max && !has("last_call_timeout");
        let last_call = || format!("last_call_timeout={}", limits::LAUNCH_LAST_CALL.as_secs());
        let entries = given.into_iter().chain(host).chain(is_short.then(last_call));
        entries.collect::<Vec<_>>().join(",")
    }
}
