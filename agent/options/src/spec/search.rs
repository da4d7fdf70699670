//! Reads how agents find each other without an address: `--rdzv-endpoint auto`.

use super::limits;
use super::{Argument, RdzvConf, UsageError, VoterList, arguments::Arguments, rendezvous::Backend};
use ragent_base::{
    net::{DEFAULT_PORT, Endpoint},
    sys::host::Host,
};

use crate::cli::LaunchArgs;

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

impl SearchSpec {
    /// Returns the value of `--rdzv-endpoint`, with the port.
    pub fn name(&self) -> String {
        format!("auto:{}", self.port)
    }
}

/// Reads the endpoint or the voters for a command that asks a job: from the argument, else from
/// `PET_RDZV_ENDPOINT`.
///
/// # Errors
///
/// Returns [`UsageError`] if it is neither an endpoint nor a list of voters.
pub fn asked_endpoint(
    typed: Option<String>,
    host: &impl Host,
) -> Result<AskedEndpoint, UsageError> {
    let args = LaunchArgs { rdzv_endpoint: typed, ..LaunchArgs::default() };
    let arguments = Arguments { args: &args, host, placement: None };
    let Some(endpoint) = arguments.not_empty("rdzv_endpoint", &args.rdzv_endpoint) else {
        return Ok(AskedEndpoint::NotGiven);
    };
    if arguments.backend()? == Some(Backend::Etcd) {
        // The endpoint is that of etcd; the agents on this machine know the coordinator.
        return Ok(AskedEndpoint::NotGiven);
    }
    match endpoint.search_port() {
        Some(port) => port.map(|_| AskedEndpoint::Found),
        None if endpoint.is_list() => {
            endpoint.voters().map(|voters| AskedEndpoint::At(JobEndpoint::Voters(voters)))
        }
        None => endpoint.endpoint().map(|endpoint| AskedEndpoint::At(JobEndpoint::One(endpoint))),
    }
}

/// The endpoint that a command asks about a job.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum AskedEndpoint {
    /// An address, or several.
    At(JobEndpoint),
    /// `auto`: the job's agents find it.
    Found,
    /// No endpoint is given.
    NotGiven,
}

/// The addresses at which a job can be asked.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum JobEndpoint {
    /// The endpoint of the job, or of one of its agents.
    One(Endpoint),
    /// The voters; any of them may answer.
    Voters(VoterList),
}

impl JobEndpoint {
    /// Parses the text of an endpoint or of a list of voters.
    pub fn of_text(text: &str) -> Option<Self> {
        if text.contains(',') {
            text.parse().ok().map(Self::Voters)
        } else {
            text.parse().ok().map(Self::One)
        }
    }
}

impl Argument {
    /// Returns the port of `auto` or `auto:PORT`, or `None` if the endpoint is an address.
    pub(super) fn search_port(&self) -> Option<Result<u16, UsageError>> {
        let rest = self.text.trim().strip_prefix("auto").filter(|_| !self.is_list())?;
        if rest.is_empty() {
            return Some(Ok(DEFAULT_PORT));
        }
        Some(self.port(rest.strip_prefix(':')?, 1))
    }
}

impl<H: Host> Arguments<'_, H> {
    /// Returns the method by which this agent searches for the others at `port`.
    pub(super) fn search(&self, port: u16, conf: &RdzvConf) -> Result<SearchSpec, UsageError> {
        let is_named = self.argument("rdzv_id", &self.args.rdzv_id).is_some();
        if !is_named && self.launchers_name().is_none() {
            return Err(UsageError::new(
                "`--rdzv-endpoint auto` finds agents by `--rdzv-id`, which is not given",
            )
            .with_hint("give the same `--rdzv-id NAME` on all nodes"));
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
            return Err(UsageError::new(format!(
                "`--rdzv-conf` has `discover_interface={name}`, but this machine has no such \
                 interface"
            ))
            .with_hint("`ip -brief address` lists the interfaces"));
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
    pub(super) fn discover_hosts(&self, port: u16) -> Result<Vec<Endpoint>, UsageError> {
        let Some(given) = self.argument("discover_hosts", &self.args.discover_hosts) else {
            return Ok(Vec::new());
        };
        let mut hosts = Vec::new();
        for part in given.text.split(',') {
            let (host, own_port) =
                Endpoint::split(part).map_err(|error| given.not_an_endpoint(error))?;
            hosts.push(Endpoint { host, port: own_port.unwrap_or(port) });
        }
        if hosts.len() > limits::MAX_DISCOVER_HOSTS {
            return Err(UsageError::new(format!(
                "`--discover-hosts` lists {} hosts, but at most {} are allowed",
                hosts.len(),
                limits::MAX_DISCOVER_HOSTS
            ))
            .with_hint("list fewer hosts: one host of a running agent is enough"));
        }
        Ok(hosts)
    }
}
