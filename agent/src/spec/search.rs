//! Reads how agents find each other without an address: `--rdzv-endpoint auto`.

use super::{
    DEFAULT_PORT, Endpoint, JobSpecError, RdzvConf,
    given::{Given, Typed},
    meeting::no_endpoint,
};
use crate::{
    cli::LaunchArgs,
    limits,
    sys::host::{Host, ThisHost},
};

/// The permission of an agent to host.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Eligible {
    /// The agent hosts unless another one hosts already.
    Always,
    /// The agent hosts if it is the lowest candidate.
    IfLowest,
    /// The agent waits for a host.
    Never,
}

/// The method by which agents search for each other.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SearchSpec {
    /// The port of the datagrams, and of the endpoint if it is free.
    pub port: u16,
    /// The only interface that is used; `None` for all.
    pub interface: Option<String>,
    /// The time to live of datagrams: one more than the number of routers that they may pass.
    pub ttl: u32,
    /// Hosts that are asked in addition to the local network.
    pub hosts: Vec<Endpoint>,
    /// The condition under which this agent may host.
    pub eligible: Eligible,
    /// The rank of this agent among the eligible agents: 0 if it must host.
    pub rank: u32,
}

/// Reads the endpoint for a command that asks a job: from the argument, else from
/// `PET_RDZV_ENDPOINT`.
///
/// # Errors
///
/// Returns [`JobSpecError`] if it is not an endpoint.
pub(crate) fn asked_endpoint(
    typed: Option<String>,
    host: &impl Host,
) -> Result<AskedEndpoint, JobSpecError> {
    let args = LaunchArgs { rdzv_endpoint: typed, ..LaunchArgs::default() };
    let given = Given { args: &args, host, placement: None };
    let endpoint = given.typed("rdzv_endpoint", &args.rdzv_endpoint);
    let Some(endpoint) = endpoint.filter(|given| !given.text.is_empty()) else {
        return Ok(AskedEndpoint::NotGiven);
    };
    match Given::<'_, ThisHost>::search_port(&endpoint) {
        Some(port) => port.map(|_| AskedEndpoint::Found),
        None => endpoint.text.parse().map(AskedEndpoint::At).map_err(no_endpoint(&endpoint)),
    }
}

/// The endpoint that a command asks about a job.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum AskedEndpoint {
    /// An address.
    At(Endpoint),
    /// `auto`: the job's agents find it.
    Found,
    /// No endpoint is given.
    NotGiven,
}

impl<H: Host> Given<'_, H> {
    /// Returns the port of `auto` or `auto:PORT`, or `None` if the endpoint is an address.
    pub(super) fn search_port(endpoint: &Typed) -> Option<Result<u16, JobSpecError>> {
        let rest = endpoint.text.trim().strip_prefix("auto")?;
        if rest.is_empty() {
            return Some(Ok(DEFAULT_PORT));
        }
        let port = rest.strip_prefix(':')?.parse().ok().filter(|port| *port > 0);
        Some(port.ok_or_else(|| JobSpecError::Port {
            source_: endpoint.source.clone(),
            value: endpoint.text.clone(),
            least: 1,
        }))
    }

    /// Returns the method by which this agent searches for the others at `port`.
    pub(super) fn search(&self, port: u16, conf: &RdzvConf) -> Result<SearchSpec, JobSpecError> {
        if self.typed("rdzv_id", &self.args.rdzv_id).is_none() && self.launchers_name().is_none() {
            return Err(JobSpecError::SearchWithoutName);
        }
        let node_rank = self.optional_number("node_rank", &self.args.node_rank)?;
        let node_rank =
            node_rank.or_else(|| self.placement.as_ref().map(|placement| placement.rank));
        let eligible = match (conf.is_host, node_rank) {
            (Some(true), _) | (None, Some(0)) => Eligible::Always,
            (Some(false), _) | (None, Some(_)) => Eligible::Never,
            (None, None) => Eligible::IfLowest,
        };
        if let Some(name) = &conf.discover_interface
            && !self.host.exists(&std::path::Path::new("/sys/class/net").join(name))
        {
            return Err(JobSpecError::Interface { name: name.clone() });
        }
        Ok(SearchSpec {
            port,
            interface: conf.discover_interface.clone(),
            ttl: conf.discover_ttl.unwrap_or(1),
            hosts: self.discover_hosts(port)?,
            eligible,
            // An agent that must host has the lowest rank for all others.
            rank: if eligible == Eligible::Always { 0 } else { u32::MAX },
        })
    }

    /// Reads the hosts of `--discover-hosts`.
    pub(super) fn discover_hosts(&self, port: u16) -> Result<Vec<Endpoint>, JobSpecError> {
        let Some(given) = self.typed("discover_hosts", &self.args.discover_hosts) else {
            return Ok(Vec::new());
        };
        let mut hosts = Vec::new();
        for part in given.text.split(',') {
            let (host, own_port) = Endpoint::split(part).map_err(|error| {
                let (source_, value) = (given.source.clone(), given.text.clone());
                JobSpecError::Endpoint { source_, value, error }
            })?;
            hosts.push(Endpoint { host, port: own_port.unwrap_or(port) });
        }
        if hosts.len() > limits::MAX_DISCOVER_HOSTS {
            return Err(JobSpecError::ManyHosts { hosts: hosts.len() });
        }
        Ok(hosts)
    }
}
