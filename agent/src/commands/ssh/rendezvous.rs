//! Decides how the agents of a launch find each other, if the user has not specified it.
//!
//! They meet at the first host that is reached, or at voters that are chosen among the hosts. The addresses are those at which ssh has
//! reached the hosts.

use std::ffi::OsString;

use ragent_base::net::Endpoint;
use ragent_options::{
    cli::LaunchArgs,
    spec::{RendezvousMethod, voters_among},
};
use ragent_rendezvous::{settings::NodeRange, voter_count::VoterCount};

use super::order::{HostAddress, HostNumber};
use crate::commands::ssh::limits;

/// The way in which the agents of a launch find each other.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct RendezvousPlan {
    kind: RendezvousKind,
    /// The value of `--rdzv-conf`, without `voters`.
    conf: String,
    /// The number of voters that the user has asked for.
    voters: Option<VoterCount>,
    /// The job's name, if the user has not given one.
    run_id: Option<String>,
    /// The number of nodes of the job.
    nodes: NodeRange,
}

/// The user's settings of the rendezvous.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Conf {
    /// The value of `--rdzv-conf`, without `voters`.
    pub(super) without_voters: String,
    /// The number of voters that the user has asked for.
    pub(super) voters: Option<VoterCount>,
}

impl Conf {
    /// Splits a value of `--rdzv-conf` that asks for this number of voters.
    pub(super) fn new(text: &str, voters: Option<VoterCount>) -> Self {
        if voters.is_none() {
            return Self { without_voters: text.to_owned(), voters };
        }
        let is_other =
            |entry: &&str| entry.split('=').next().is_none_or(|key| key.trim() != "voters");
        let others: Vec<&str> = text.split(',').filter(is_other).collect();
        Self { without_voters: others.join(","), voters }
    }
}

#[derive(Clone, Debug, Eq, PartialEq)]
enum RendezvousKind {
    /// There is only one node.
    Alone,
    /// At the endpoint or the voters that the user has given, or by search.
    Given,
    /// At the first reached host that has an address for other hosts. If no host has one, at the first host. Or at voters on several
    /// reached hosts.
    ReachedHosts,
    /// Through the etcd cluster that the user has given.
    Etcd,
    /// With fixed ranks, at the node with rank 0. Its address is given by the user, or is the address of the first reached host.
    Static { has_master: bool },
}

/// A setting that depends on the hosts that were reached.
enum OwnConf {
    /// True if this host hosts the coordinator.
    IsHost(bool),
    /// The number of voters, as in the list of endpoints.
    Voters(usize),
}

impl RendezvousPlan {
    pub(super) fn of(
        args: &LaunchArgs,
        rendezvous: &RendezvousMethod,
        (nodes, hosts): (NodeRange, usize),
        conf: Conf,
        generated_id: &str,
    ) -> Self {
        let has_endpoint = args.rdzv_endpoint.as_ref().is_some_and(|text| !text.is_empty());
        let kind = match rendezvous {
            RendezvousMethod::Static { .. } => {
                RendezvousKind::Static { has_master: has_endpoint || args.master_addr.is_some() }
            }
            RendezvousMethod::Voters(_) | RendezvousMethod::Search(_) => RendezvousKind::Given,
            RendezvousMethod::Etcd(_) => RendezvousKind::Etcd,
            RendezvousMethod::Standalone | RendezvousMethod::Endpoint { .. } if has_endpoint => {
                RendezvousKind::Given
            }
            // With more hosts than nodes, the others are spares. They need the endpoint too.
            RendezvousMethod::Standalone | RendezvousMethod::Endpoint { .. }
                if nodes.max() == 1 && hosts < 2 =>
            {
                RendezvousKind::Alone
            }
            RendezvousMethod::Standalone | RendezvousMethod::Endpoint { .. } => {
                RendezvousKind::ReachedHosts
            }
        };
        Self {
            kind,
            conf: conf.without_voters,
            voters: conf.voters,
            run_id: args.rdzv_id.is_none().then(|| generated_id.to_owned()),
            nodes,
        }
    }

    /// Returns true if the coordinator is found through etcd.
    pub(super) fn is_in_etcd(&self) -> bool {
        matches!(self.kind, RendezvousKind::Etcd)
    }

    /// The rendezvous at this number of reached hosts.
    #[cfg(test)]
    pub(super) fn at_hosts(voters: VoterCount) -> Self {
        let nodes = NodeRange::new(2, 2).expect("it is a range");
        let (kind, conf) = (RendezvousKind::ReachedHosts, String::new());
        Self { kind, conf, voters: Some(voters), run_id: None, nodes }
    }

    /// Returns true if each node has a fixed rank.
    pub(super) fn has_fixed_ranks(&self) -> bool {
        matches!(self.kind, RendezvousKind::Static { .. })
    }

    /// Returns true if the launch chooses the voters, or the only host of the coordinator.
    pub(super) fn chooses_voters(&self) -> bool {
        matches!(self.kind, RendezvousKind::Alone | RendezvousKind::ReachedHosts)
    }

    /// Returns the reached hosts that are to host the coordinator, if the user has not specified them: the voters, or one host.
    ///
    /// They are chosen among the hosts with an address that other hosts can use. If there are too few of these, they are chosen among all.
    /// With fixed ranks it is always the first host.
    pub(super) fn coordinators(&self, reached: &[(HostNumber, HostAddress)]) -> Vec<HostNumber> {
        let numbers = |hosts: Vec<&(HostNumber, HostAddress)>| -> Vec<HostNumber> {
            hosts.into_iter().map(|(host, _)| *host).collect()
        };
        match self.kind {
            RendezvousKind::Alone
            | RendezvousKind::Given
            | RendezvousKind::Etcd
            | RendezvousKind::Static { has_master: true } => Vec::new(),
            RendezvousKind::Static { has_master: false } => {
                numbers(reached.first().into_iter().collect())
            }
            RendezvousKind::ReachedHosts => {
                let asked = voters_among(self.voters, self.nodes, reached.len());
                let has_address =
                    |(_, host_address): &&(HostNumber, HostAddress)| host_address.address.is_some();
                let mut hosts: Vec<_> = reached.iter().filter(has_address).collect();
                if hosts.len() < asked.number().min(3) {
                    hosts = reached.iter().collect();
                }
                let chosen = asked.at_most(hosts.len()).choose(hosts.len());
                numbers(chosen.into_iter().map(|index| hosts[index]).collect())
            }
        }
    }

    /// Returns a warning if there are fewer `coordinators` than the voters that the user has asked for.
    pub(super) fn voters_warning(&self, coordinators: &[HostNumber]) -> Option<String> {
        let asked = self.voters.filter(|asked| asked.number() > coordinators.len())?;
        (self.chooses_voters() && asked.is_several()).then(|| {
            let has = match coordinators.len() {
                0 | 1 => "one coordinator, which is not elected,".to_owned(),
                voters => format!("{voters} voters"),
            };
            format!("too few hosts were reached: the job has {has} instead of {asked} voters")
        })
    }

    /// Returns the endpoint at the host `name`, the same for all hosts. It has the address at which ssh has reached that host, else its
    /// name. If all hosts are this machine, it has the loopback address.
    pub(super) fn endpoint(
        &self,
        name: &str,
        own: &HostAddress,
        reached: &[(HostNumber, HostAddress)],
    ) -> Endpoint {
        let is_here = |(_, host_address): &(HostNumber, HostAddress)| {
            host_address.address.is_none()
                && host_address.host_name == own.host_name
                && !own.host_name.is_empty()
        };
        let is_localhost = name == "localhost" || name.starts_with("127.");
        let host = match own.address {
            Some(address) => address.to_string(),
            None if reached.len() > 1 && reached.iter().all(is_here) => "127.0.0.1".to_owned(),
            // On every machine that name means the machine itself.
            None if is_localhost && !own.host_name.is_empty() => own.host_name.clone(),
            None => name.to_owned(),
        };
        Endpoint { host, port: own.port }
    }

    /// Returns true if the launch has chosen the job's name, so that no earlier job has it.
    pub(super) fn has_new_name(&self) -> bool {
        self.run_id.is_some()
    }

    /// Returns the flags of all agents.
    pub(super) fn common_flags(&self) -> Vec<OsString> {
        let run_id = self.run_id.iter().map(|id| format!("--rdzv-id={id}").into());
        let backend = match self.kind {
            // An etcd backend is one of the user's flags.
            RendezvousKind::Alone | RendezvousKind::Etcd => None,
            RendezvousKind::Given | RendezvousKind::ReachedHosts => {
                Some("--rdzv-backend=c10d".into())
            }
            RendezvousKind::Static { .. } => Some("--rdzv-backend=static".into()),
        };
        run_id.chain(backend).collect()
    }

    /// Returns the flags of the agent with `rank` on one of `reached` hosts. The coordinator is at `endpoints`, or is elected there.
    pub(super) fn own_flags(
        &self,
        rank: usize,
        is_coordinator: bool,
        reached: usize,
        endpoints: &[Endpoint],
    ) -> Vec<OsString> {
        let node_rank = format!("--node-rank={rank}");
        let flags = match (&self.kind, endpoints) {
            (RendezvousKind::Alone, _) => Vec::new(),
            (
                RendezvousKind::Given
                | RendezvousKind::Etcd
                | RendezvousKind::Static { has_master: true },
                _,
            )
            | (_, []) => {
                vec![node_rank]
            }
            (RendezvousKind::Static { has_master: false }, [endpoint, ..]) => {
                vec![node_rank, format!("--master-addr={}", endpoint.host)]
            }
            (RendezvousKind::ReachedHosts, endpoints) => {
                let own = match endpoints.len() {
                    1 => OwnConf::IsHost(is_coordinator),
                    voters => OwnConf::Voters(voters),
                };
                let conf = self.conf(own, reached);
                let list: Vec<String> = endpoints.iter().map(Endpoint::to_string).collect();
                vec![
                    node_rank,
                    format!("--rdzv-endpoint={}", list.join(",")),
                    format!("--rdzv-conf={conf}"),
                ]
            }
        };
        flags.into_iter().map(OsString::from).collect()
    }

    /// Returns the user's settings, with additions that depend on the host and the number of
    /// reached hosts.
    fn conf(&self, own: OwnConf, reached: usize) -> String {
        let has = |key: &str| {
            let keys = self.conf.split(',').filter_map(|entry| entry.split_once('='));
            keys.into_iter().any(|(known, _)| known.trim() == key)
        };
        let given = Some(self.conf.clone()).filter(|conf| !conf.trim().is_empty());
        let own = match own {
            OwnConf::IsHost(is_host) => {
                (!has("is_host")).then(|| format!("is_host={}", u8::from(is_host)))
            }
            OwnConf::Voters(voters) => Some(format!("voters={voters}")),
        };
        // All reached hosts register at once, and no other host will.
        let is_short = reached < self.nodes.max() as usize && !has("last_call_timeout");
        let last_call = || format!("last_call_timeout={}", limits::LAUNCH_LAST_CALL.as_secs());
        let entries = given.into_iter().chain(own).chain(is_short.then(last_call));
        entries.collect::<Vec<_>>().join(",")
    }
}
