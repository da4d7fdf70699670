//! Reads the place and the method by which the nodes meet, by torchrun's rules.

use std::{net::IpAddr, num::NonZeroU32, time::Duration};

use ragent_rendezvous::settings::{NodeRange, NodeRangeError, Timeouts};

use super::{
    Endpoint, EndpointError, JobSpecError, RdzvConf, SearchSpec,
    given::{Given, Typed, python_int},
};
use crate::sys::host::Host;

/// The place and the method by which the nodes meet.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum Meeting {
    /// There is one node, which hosts on a free port of its loopback interface.
    #[default]
    Standalone,
    /// The nodes meet at an endpoint.
    Endpoint {
        /// The candidates; exactly one at present.
        endpoints: Vec<Endpoint>,
        /// True if this node hosts it, false if another one does; `None` if the user has not
        /// decided.
        is_host: Option<bool>,
    },
    /// Agents find each other on the local network.
    Search(SearchSpec),
    /// The nodes meet at node 0, on the port of the workers' store; ranks are fixed.
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
    Static,
}

/// The default port of a static master; the same as torch's.
const DEFAULT_MASTER_PORT: u16 = 29500;
/// The time for which nodes wait for each other with `static`; the same as torch's.
const STATIC_TIMEOUT: Duration = Duration::from_secs(900);

impl Meeting {
    /// Returns the endpoint at which the nodes meet; a default one if there is one node.
    pub fn endpoint(&self) -> Endpoint {
        match self {
            Self::Standalone => Endpoint::default(),
            // The list has one entry until another agent can take over.
            Self::Endpoint { endpoints, .. } => endpoints[0].clone(),
            Self::Search(SearchSpec { port, .. }) => {
                Endpoint { host: "auto".to_owned(), port: *port }
            }
            Self::Static { master, .. } => master.clone(),
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
            Self::Standalone | Self::Endpoint { .. } | Self::Search(_) => nodes,
            Self::Static { .. } => {
                if !conf.has_join_timeout {
                    timeouts.join = conf.timeout.unwrap_or(STATIC_TIMEOUT);
                }
                NodeRange::new(nodes.max(), nodes.max()).unwrap_or(nodes)
            }
        }
    }
}

impl<H: Host> Given<'_, H> {
    pub(super) fn nodes(&self, conf: &RdzvConf) -> Result<NodeRange, JobSpecError> {
        let given = self.typed("nnodes", &self.args.nnodes);
        let nodes = self.placement.as_ref().map_or(1, |placement| placement.size);
        let given = given
            .unwrap_or_else(|| Typed { source: "--nnodes".to_owned(), text: nodes.to_string() });
        let parts: Vec<String> = given
            .text
            .split(':')
            .map(|part| python_int(part).unwrap_or_else(|| part.to_owned()))
            .collect();
        let wrong = |error| JobSpecError::Nodes {
            source_: given.source.clone(),
            value: given.text.clone(),
            error,
        };
        let nodes: NodeRange = parts.join(":").parse().map_err(wrong)?;
        let nodes = self.started(nodes)?;
        let Some(unit) = conf.node_unit.map(NonZeroU32::get) else { return Ok(nodes) };
        if nodes.unit() != 1 && nodes.unit() != unit {
            return Err(JobSpecError::TwoUnits { nodes, unit });
        }
        let (min, max) = (nodes.min(), nodes.max());
        let none = NodeRangeError::NoMultiple { min, max, unit };
        NodeRange::in_units(min, max, unit).ok_or_else(|| wrong(none))
    }

    /// Returns the backend that is named, or `static` if a flag is given that only `static` has.
    pub(super) fn backend(&self) -> Result<Option<Backend>, JobSpecError> {
        let args = self.args;
        match self.typed("rdzv_backend", &args.rdzv_backend) {
            Some(given) => match given.text.as_str() {
                "c10d" => Ok(Some(Backend::C10d)),
                "static" => Ok(Some(Backend::Static)),
                _ => Err(JobSpecError::Backend { source_: given.source, value: given.text }),
            },
            None => {
                let endpoint = self.typed("rdzv_endpoint", &args.rdzv_endpoint);
                if endpoint.is_some_and(|given| Self::search_port(&given).is_some()) {
                    return Ok(Some(Backend::C10d));
                }
                let is_static = self.typed("node_rank", &args.node_rank).is_some()
                    || self.typed("master_addr", &args.master_addr).is_some()
                    || self.typed("master_port", &args.master_port).is_some();
                Ok(is_static.then_some(Backend::Static))
            }
        }
    }

    pub(super) fn meeting(
        &self,
        nodes: NodeRange,
        backend: Option<Backend>,
        conf: &RdzvConf,
    ) -> Result<Meeting, JobSpecError> {
        if let Some(placement) = &self.placement {
            return self.placed_meeting(placement, conf);
        }
        let is_single = nodes.max() == 1;
        if self.switch("standalone", self.args.standalone)? {
            return if is_single {
                Ok(Meeting::Standalone)
            } else {
                Err(JobSpecError::StandaloneNodes { nodes })
            };
        }
        let endpoint = self.typed("rdzv_endpoint", &self.args.rdzv_endpoint);
        let endpoint = endpoint.filter(|given| !given.text.is_empty());
        let search_port = endpoint.as_ref().and_then(Self::search_port).transpose()?;
        if search_port.is_none()
            && self.typed("discover_hosts", &self.args.discover_hosts).is_some()
        {
            return Err(JobSpecError::HostsWithoutSearch);
        }
        if backend == Some(Backend::Static) {
            if search_port.is_some() {
                return Err(JobSpecError::StaticSearch);
            }
            return self.static_meeting(nodes, endpoint);
        }
        if let Some(port) = search_port {
            return Ok(Meeting::Search(self.search(port, conf)?));
        }
        let is_host = conf.is_host;
        let Some(given) = endpoint else {
            if is_single && backend.is_none() {
                return Ok(Meeting::Standalone);
            }
            return Ok(Meeting::Endpoint { endpoints: vec![Endpoint::default()], is_host });
        };
        let endpoint: Endpoint = given.text.parse().map_err(no_endpoint(&given))?;
        check(&endpoint, &given.source, is_single)?;
        Ok(Meeting::Endpoint { endpoints: vec![endpoint], is_host })
    }

    fn static_meeting(
        &self,
        nodes: NodeRange,
        endpoint: Option<Typed>,
    ) -> Result<Meeting, JobSpecError> {
        let is_single = nodes.max() == 1;
        let port = self.typed("master_port", &self.args.master_port);
        if is_single && endpoint.is_none() && port.is_none() {
            return Ok(Meeting::Standalone);
        }
        let (master, source) = match endpoint {
            Some(given) => {
                let (host, port) = Endpoint::split(&given.text).map_err(no_endpoint(&given))?;
                let port = port.ok_or(EndpointError::NoPort).map_err(no_endpoint(&given))?;
                (Endpoint { host, port }, given.source)
            }
            None => (self.master(port)?, "--master-addr".to_owned()),
        };
        check(&master, &source, is_single)?;
        let node_rank = self.number("node_rank", &self.args.node_rank, 0)?;
        if node_rank >= nodes.max() {
            return Err(JobSpecError::NodeRank { node_rank, nodes: nodes.max() });
        }
        Ok(Meeting::Static { master, node_rank })
    }

    /// Reads `--master-addr` and `--master-port`.
    fn master(&self, port: Option<Typed>) -> Result<Endpoint, JobSpecError> {
        let address = self.typed("master_addr", &self.args.master_addr);
        let address = address.unwrap_or_else(|| Typed {
            source: "--master-addr".to_owned(),
            text: "127.0.0.1".to_owned(),
        });
        let (host, None) = Endpoint::split(&address.text).map_err(no_endpoint(&address))? else {
            return Err(no_endpoint(&address)(EndpointError::PortInAddress));
        };
        let port = match port {
            None => DEFAULT_MASTER_PORT,
            Some(given) => python_int(&given.text)
                .and_then(|digits| digits.parse().ok())
                .ok_or(JobSpecError::Port { source_: given.source, value: given.text, least: 0 })?,
        };
        Ok(Endpoint { host, port })
    }
}

pub(crate) fn one_node() -> NodeRange {
    NodeRange::new(1, 1).expect("one node is a range")
}

pub(super) fn no_endpoint(given: &Typed) -> impl FnOnce(EndpointError) -> JobSpecError {
    let (source_, value) = (given.source.clone(), given.text.clone());
    move |error| JobSpecError::Endpoint { source_, value, error }
}

/// Returns an error unless `endpoint` means the same on all nodes.
fn check(endpoint: &Endpoint, source: &str, is_single: bool) -> Result<(), JobSpecError> {
    let (source_, value) = (source.to_owned(), endpoint.to_string());
    if !is_single && endpoint.host.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified()) {
        return Err(JobSpecError::Unspecified { source_, value });
    }
    if !is_single && endpoint.port == 0 {
        return Err(JobSpecError::FreePort { source_, value });
    }
    Ok(())
}
