//! Reads the method of the rendezvous and its endpoint, by torchrun's rules.

use std::{net::IpAddr, num::NonZeroU32, time::Duration};

use ragent_base::{
    net::{Endpoint, EndpointError},
    sys::host::Host,
};
use ragent_rendezvous::settings::{NodeRange, NodeRangeError, Timeouts};

use super::{
    Argument, EtcdSpec, RdzvConf, SearchSpec, UsageError, VoterList, argument::ADDRESS_HINT,
    arguments::Arguments, voters::check_asked_voters,
};
use crate::cli::{JobArgs, LaunchArgs, ProgramName};

/// The method by which the nodes find each other, with its endpoint.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum RendezvousMethod {
    /// There is one node, which hosts on a free port of its loopback interface.
    #[default]
    Standalone,
    /// All nodes connect to an endpoint.
    Endpoint {
        /// The endpoint.
        endpoint: Endpoint,
        /// True if this node hosts it, false if another one does; `None` if the user has not
        /// decided.
        is_host: Option<bool>,
    },
    /// All nodes connect to the voters, which elect the coordinator among themselves.
    Voters(VoterList),
    /// All nodes find the coordinator, which any of their agents may host, through etcd.
    Etcd(EtcdSpec),
    /// Agents find each other on the local network.
    Search(SearchSpec),
    /// All nodes connect to node 0, on the port of the workers' store; ranks are fixed.
    Static {
        /// The address of node 0, as in `MASTER_ADDR`, and its port.
        master: Endpoint,
        /// The group rank of this node.
        node_rank: u32,
    },
}

/// The method by which nodes find each other.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Backend {
    C10d,
    Etcd,
    Static,
}

/// The default port of a static master; the same as torch's.
const DEFAULT_MASTER_PORT: u16 = 29500;
/// The time that nodes wait for each other with `static`; the same as torch's.
const STATIC_TIMEOUT: Duration = Duration::from_secs(900);

impl RendezvousMethod {
    /// Returns true if agents of other machines may take part, as far as the endpoint shows.
    pub fn may_reach_other_machines(&self) -> bool {
        let is_loopback = |endpoint: &Endpoint| {
            let ip = endpoint.host.parse::<IpAddr>();
            endpoint.host == "localhost" || ip.is_ok_and(|ip| ip.to_canonical().is_loopback())
        };
        match self {
            Self::Standalone => false,
            Self::Endpoint { endpoint, .. } | Self::Static { master: endpoint, .. } => {
                !is_loopback(endpoint)
            }
            Self::Voters(list) => !list.endpoints().iter().all(is_loopback),
            Self::Etcd(_) | Self::Search(_) => true,
        }
    }

    /// Returns the endpoint as text, in the form of `--rdzv-endpoint`: the whole list if there are
    /// voters, a default one if there is one node.
    pub fn endpoint_text(&self) -> String {
        match self {
            Self::Standalone => Endpoint::default().to_string(),
            Self::Endpoint { endpoint, .. } => endpoint.to_string(),
            Self::Voters(voters) => voters.to_string(),
            Self::Etcd(etcd) => etcd.to_string(),
            Self::Search(search) => search.name(),
            Self::Static { master, .. } => master.to_string(),
        }
    }

    /// Returns torchrun's name of the backend.
    pub fn backend(&self) -> &'static str {
        match self {
            Self::Standalone | Self::Endpoint { .. } | Self::Voters(_) | Self::Search(_) => "c10d",
            Self::Etcd(_) => "etcd",
            Self::Static { .. } => "static",
        }
    }

    /// Applies the settings of this method: with `static` all nodes take part.
    pub(super) fn adapt(
        &self,
        nodes: NodeRange,
        conf: &RdzvConf,
        timeouts: &mut Timeouts,
    ) -> NodeRange {
        match self {
            Self::Standalone | Self::Endpoint { .. } | Self::Voters(_) | Self::Search(_) => nodes,
            Self::Etcd(_) => {
                if let Some(timeout) = conf.timeout.filter(|_| !conf.has_join_timeout) {
                    timeouts.join = timeout;
                }
                nodes
            }
            Self::Static { .. } => {
                if !conf.has_join_timeout {
                    timeouts.join = conf.timeout.unwrap_or(STATIC_TIMEOUT);
                }
                NodeRange::new(nodes.max(), nodes.max()).unwrap_or(nodes)
            }
        }
    }
}

impl<H: Host> Arguments<'_, H> {
    pub(super) fn nodes(&self, conf: &RdzvConf) -> Result<NodeRange, UsageError> {
        let given = self.argument("nnodes", &self.args.job.nnodes);
        let nodes = self.placement.as_ref().map_or(1, |placement| placement.size);
        let given = given.unwrap_or_else(|| Argument::new("--nnodes", &nodes.to_string()));
        let nodes = self.started(given.nodes()?)?;
        let Some(unit) = conf.node_unit.map(NonZeroU32::get) else { return Ok(nodes) };
        if nodes.unit() != 1 && nodes.unit() != unit {
            let message =
                format!("`--nnodes {nodes}` and `node_unit={unit}` contradict each other");
            return Err(UsageError::new(message));
        }
        let (min, max) = (nodes.min(), nodes.max());
        let none = NodeRangeError::NoMultiple { min, max, unit };
        NodeRange::in_units(min, max, unit).ok_or_else(|| given.invalid(none))
    }

    /// Returns the backend that is named, or `static` if a flag is given that only `static` has, or if the program was
    /// called as `torchrun`, whose default it is.
    pub(super) fn backend(&self) -> Result<Option<Backend>, UsageError> {
        let args = self.args;
        if let Some(given) = self.argument("rdzv_backend", &args.rdzv_backend) {
            return given.backend().map(Some);
        }
        let endpoint = self.argument("rdzv_endpoint", &args.rdzv_endpoint);
        if endpoint.is_some_and(|given| given.is_list() || given.search_port().is_some()) {
            return Ok(Some(Backend::C10d));
        }
        let is_static = args.name == ProgramName::Torchrun
            || self.argument("node_rank", &args.node_rank).is_some()
            || self.argument("master_addr", &args.master_addr).is_some()
            || self.argument("master_port", &args.master_port).is_some();
        Ok(is_static.then_some(Backend::Static))
    }

    pub(super) fn rendezvous(
        &self,
        nodes: NodeRange,
        backend: Option<Backend>,
        conf: &RdzvConf,
    ) -> Result<RendezvousMethod, UsageError> {
        if let Some(placement) = &self.placement {
            return self.launcher_rendezvous(placement, nodes, conf);
        }
        let method = self.given_rendezvous(nodes, backend, conf)?;
        check_asked_voters(conf, nodes, &method)?;
        Ok(method)
    }

    /// Returns the rendezvous that flags determine.
    fn given_rendezvous(
        &self,
        nodes: NodeRange,
        backend: Option<Backend>,
        conf: &RdzvConf,
    ) -> Result<RendezvousMethod, UsageError> {
        let is_single = nodes.max() == 1;
        if self.switch("standalone", self.args.standalone)? {
            return if is_single {
                Ok(RendezvousMethod::Standalone)
            } else {
                Err(standalone_nodes(nodes))
            };
        }
        let endpoint = self.not_empty("rdzv_endpoint", &self.args.rdzv_endpoint);
        let search_port = endpoint.as_ref().and_then(Argument::search_port).transpose()?;
        if search_port.is_none()
            && self.argument("discover_hosts", &self.args.discover_hosts).is_some()
        {
            return Err(UsageError::new("`--discover-hosts` requires `--rdzv-endpoint auto`")
                .with_hint("give both flags, or an endpoint without `--discover-hosts`"));
        }
        if backend == Some(Backend::Etcd) {
            return self.etcd(nodes, endpoint.as_ref(), conf).map(RendezvousMethod::Etcd);
        }
        if let Some(key) = conf.etcd.given_key() {
            let problem = format!("`--rdzv-conf` has `{key}`, which only the etcd backends use");
            return Err(
                UsageError::new(problem).with_hint("omit it, or use `--rdzv-backend etcd-v2`")
            );
        }
        if let Some(given) = endpoint.as_ref().filter(|given| given.is_list()) {
            return voters(given, backend, conf);
        }
        match (backend, search_port) {
            (Some(Backend::Static), Some(_)) => Err(static_search()),
            (Some(Backend::Static), None) => self.static_rendezvous(nodes, endpoint),
            // An etcd backend is handled above.
            (Some(Backend::C10d | Backend::Etcd) | None, Some(port)) => {
                Ok(RendezvousMethod::Search(self.search(port, conf)?))
            }
            (None, None) if is_single && endpoint.is_none() => Ok(RendezvousMethod::Standalone),
            (Some(Backend::C10d | Backend::Etcd) | None, None) => {
                let endpoint = match endpoint {
                    Some(given) => checked(given.endpoint()?, &given.source, is_single)?,
                    None => Endpoint::default(),
                };
                Ok(RendezvousMethod::Endpoint { endpoint, is_host: conf.is_host })
            }
        }
    }

    fn static_rendezvous(
        &self,
        nodes: NodeRange,
        endpoint: Option<Argument>,
    ) -> Result<RendezvousMethod, UsageError> {
        let is_single = nodes.max() == 1;
        let port = self.argument("master_port", &self.args.master_port);
        if is_single && endpoint.is_none() && port.is_none() {
            return Ok(RendezvousMethod::Standalone);
        }
        let (master, source) = match endpoint {
            Some(given) => {
                let (host, port) = given.host_and_port()?;
                let port = port.ok_or_else(|| given.not_an_endpoint(EndpointError::NoPort))?;
                (Endpoint { host, port }, given.source)
            }
            None => (self.master(port)?, "--master-addr".to_owned()),
        };
        let master = checked(master, &source, is_single)?;
        let node_rank = self.number("node_rank", &self.args.node_rank, 0)?;
        if node_rank >= nodes.max() {
            return Err(UsageError::new(format!(
                "`--node-rank {node_rank}` is out of range: the job has {} nodes, and ranks begin \
                 at 0",
                nodes.max()
            )));
        }
        Ok(RendezvousMethod::Static { master, node_rank })
    }

    /// Reads `--master-addr` and `--master-port`.
    fn master(&self, port: Option<Argument>) -> Result<Endpoint, UsageError> {
        let address = self.argument("master_addr", &self.args.master_addr);
        let address = address.unwrap_or_else(|| Argument::new("--master-addr", "127.0.0.1"));
        let (host, None) = address.host_and_port()? else {
            return Err(address.not_an_endpoint(EndpointError::PortInAddress));
        };
        let port = port.map_or(Ok(DEFAULT_MASTER_PORT), |given| given.port(&given.text, 0))?;
        Ok(Endpoint { host, port })
    }
}

impl Argument {
    fn backend(&self) -> Result<Backend, UsageError> {
        let hint = match self.text.as_str() {
            "c10d" => return Ok(Backend::C10d),
            "etcd" | "etcd-v2" => return Ok(Backend::Etcd),
            "static" => return Ok(Backend::Static),
            _ => "supported backends: `c10d`, `etcd`, `etcd-v2` and `static`",
        };
        Err(self.is_not("supported").with_hint(hint))
    }
}

/// Returns the number of nodes that a command about a job was given, in `--nnodes` or a variable; `None` if it was given none.
///
/// # Errors
///
/// Returns [`UsageError`] if it is not a range of nodes.
pub fn asked_nodes(
    typed: Option<String>,
    host: &impl Host,
) -> Result<Option<NodeRange>, UsageError> {
    let job = JobArgs { nnodes: typed, ..JobArgs::default() };
    let args = LaunchArgs { job, ..LaunchArgs::default() };
    let arguments = Arguments { args: &args, host, placement: None };
    arguments.argument("nnodes", &args.job.nnodes).map(|given| given.nodes()).transpose()
}

/// The range of a job of one node.
pub fn one_node() -> NodeRange {
    NodeRange::new(1, 1).expect("one node is a range")
}

fn standalone_nodes(nodes: NodeRange) -> UsageError {
    UsageError::new(format!("`--standalone` runs one node, but `--nnodes` is {nodes}"))
        .with_hint("for several nodes, give `--rdzv-endpoint HOST:PORT` instead")
}

fn static_search() -> UsageError {
    UsageError::new("`--rdzv-endpoint auto` requires the backend `c10d`, not `static`").with_hint(
        "use `c10d`: with `--rdzv-endpoint auto`, `--node-rank 0` hosts the coordinator there too",
    )
}

/// Reads the rendezvous at a list of voters.
fn voters(
    given: &Argument,
    backend: Option<Backend>,
    conf: &RdzvConf,
) -> Result<RendezvousMethod, UsageError> {
    if backend == Some(Backend::Static) {
        let problem = "is a list, which requires the backend `c10d`, not `static`";
        let hint = "use `c10d`, or give the endpoint of node 0 alone: with `static`, the job \
                    depends on that node";
        return Err(given.invalid(problem).with_hint(hint));
    }
    if conf.is_host.is_some() {
        let problem = "is a list, whose hosts elect the coordinator, so `is_host` in \
                       `--rdzv-conf` has no meaning";
        let hint = "omit `is_host`, or give one endpoint";
        return Err(given.invalid(problem).with_hint(hint));
    }
    given.voters().map(RendezvousMethod::Voters)
}

/// Returns `endpoint` if it means the same on all nodes.
fn checked(endpoint: Endpoint, source: &str, is_single: bool) -> Result<Endpoint, UsageError> {
    let given = Argument::new(source, &endpoint.to_string());
    if !is_single && endpoint.host.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified()) {
        let problem = "refers to a different machine on each node, but the job has several nodes";
        return Err(given.invalid(problem).with_hint(ADDRESS_HINT));
    }
    if !is_single && endpoint.port == 0 {
        let problem = "selects a free port, which the other nodes cannot know";
        return Err(given.invalid(problem).with_hint("use the same fixed port on all nodes"));
    }
    Ok(endpoint)
}
