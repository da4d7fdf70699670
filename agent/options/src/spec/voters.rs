//! Reads a list of voters: the endpoints of three or five hosts that elect the coordinator.

use std::{fmt, net::IpAddr, str::FromStr};

use ragent_base::net::{DEFAULT_PORT, Endpoint, EndpointError};
use ragent_rendezvous::{settings::NodeRange, voter_count::VoterCount};

use super::limits::MAX_VOTERS;
use super::{Argument, RdzvConf, RendezvousMethod, UsageError};
use crate::scheduler::Launcher;

/// The endpoints of the first voters, as the user ordered them: three or five, all different; or one,
/// if only members become further voters.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct VoterList(Vec<Endpoint>);

/// The reason why endpoints are not a [`VoterList`].
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum VoterListError {
    /// An entry has no text.
    #[error("one of its entries is empty")]
    EmptyEntry,
    /// An entry is not an endpoint.
    #[error("its entry `{entry}` is not valid: {error}")]
    Entry {
        /// The text of the entry.
        entry: String,
        /// The cause.
        error: EndpointError,
    },
    /// An entry is `auto`, with or without a port.
    #[error("it contains `auto`, which is not the address of a host")]
    Auto,
    /// An address refers to a different machine on each host.
    #[error("`{0}` refers to a different machine on each node")]
    Unspecified(Endpoint),
    /// An endpoint has port 0.
    #[error("port 0 selects a free port, which the other nodes cannot know")]
    FreePort,
    /// Two entries are the same endpoint.
    #[error("it contains `{0}` twice")]
    Twice(Endpoint),
    /// There are fewer than three entries.
    #[error("it has fewer than 3 entries")]
    TooFew,
    /// There is an even number of entries.
    #[error("{0} hosts tolerate no more failures than {odd}", odd = .0 - 1)]
    Even(usize),
    /// There are more than `MAX_VOTERS` entries.
    #[error("it has {0} entries, but at most {MAX_VOTERS} are allowed")]
    TooMany(usize),
}

impl VoterList {
    /// Checks the endpoints of a list.
    ///
    /// # Errors
    ///
    /// Returns [`VoterListError`] if voters cannot be elected from them.
    pub fn new(endpoints: Vec<Endpoint>) -> Result<Self, VoterListError> {
        for (index, endpoint) in endpoints.iter().enumerate() {
            if endpoint.port == 0 {
                return Err(VoterListError::FreePort);
            }
            let ip = endpoint.host.parse::<IpAddr>();
            if ip.is_ok_and(|ip| ip.is_unspecified()) {
                return Err(VoterListError::Unspecified(endpoint.clone()));
            }
            if endpoints[..index].iter().any(|earlier| is_same(earlier, endpoint)) {
                return Err(VoterListError::Twice(endpoint.clone()));
            }
        }
        match endpoints.len() {
            count if count > MAX_VOTERS => Err(VoterListError::TooMany(count)),
            count if count > 1 && count.is_multiple_of(2) => Err(VoterListError::Even(count)),
            count if count < 3 => Err(VoterListError::TooFew),
            _ => Ok(Self(endpoints)),
        }
    }

    /// Returns the list of a job with one endpoint.
    pub fn single(endpoint: Endpoint) -> Self {
        Self(vec![endpoint])
    }

    /// Returns the endpoints as the user ordered them.
    pub fn endpoints(&self) -> &[Endpoint] {
        &self.0
    }

    /// Returns the number of voters.
    pub fn count(&self) -> VoterCount {
        VoterCount::of(self.0.len()).unwrap_or_default()
    }

    /// Returns the number of voters of a job that begins with this list, if as many nodes register.
    pub fn count_for(&self, nodes: NodeRange) -> VoterCount {
        let most = usize::try_from(nodes.max()).unwrap_or(usize::MAX);
        VoterCount::for_job(nodes.min(), most).max(self.count())
    }

    /// Returns a warning if the job needs more voters than MIN of `--nnodes`.
    pub fn majority_warning(&self, nodes: NodeRange) -> Option<String> {
        majority_warning(self.count(), nodes, "to begin and to continue")
    }
}

/// Returns a warning if a job with this number of voters needs more of them for a purpose than MIN of `--nnodes`.
pub fn majority_warning(count: VoterCount, nodes: NodeRange, purpose: &str) -> Option<String> {
    (count > VoterCount::for_job(nodes.min(), count.number())).then(|| {
        format!(
            "the job needs {} of its {count} voters {purpose}, although `--nnodes {nodes}` allows fewer nodes",
            count.majority()
        )
    })
}

/// Returns the number of voters of a job whose voters are chosen among `hosts` hosts.
pub fn voters_among(asked: Option<VoterCount>, nodes: NodeRange, hosts: usize) -> VoterCount {
    asked.unwrap_or_else(|| VoterCount::for_job(nodes.min(), hosts))
}

/// Returns the number of voters that a value of `--rdzv-conf` asks for, if it does.
pub fn asked_voters(conf: &str) -> Result<Option<VoterCount>, UsageError> {
    RdzvConf::parse(conf).map(|conf| conf.asked_voters())
}

impl RdzvConf {
    /// Returns the number of voters that the user has asked for: also one, by choosing the only host of the
    /// coordinator.
    pub fn asked_voters(&self) -> Option<VoterCount> {
        self.voters.or_else(|| self.is_host.map(|_| VoterCount::One))
    }
}

/// Returns the number of voters of a job, if as many nodes register. `launcher` has started the agents, if any has.
pub(super) fn voters_of_job(
    conf: &RdzvConf,
    nodes: NodeRange,
    method: &RendezvousMethod,
    launcher: Option<Launcher>,
) -> VoterCount {
    let most = usize::try_from(nodes.max()).unwrap_or(usize::MAX);
    match method {
        // MPI launchers end all agents when they lose one host.
        RendezvousMethod::Endpoint { .. } | RendezvousMethod::Search(_)
            if launcher.is_some_and(|it| it != Launcher::Slurm) =>
        {
            VoterCount::One
        }
        RendezvousMethod::Endpoint { .. } => {
            voters_among(conf.asked_voters(), nodes, most).at_most(most)
        }
        // Here `is_host` determines which agent is the first voter.
        RendezvousMethod::Search(_) => voters_among(conf.voters, nodes, most).at_most(most),
        RendezvousMethod::Voters(list) => conf.voters.unwrap_or_else(|| list.count_for(nodes)),
        RendezvousMethod::Standalone
        | RendezvousMethod::Etcd(_)
        | RendezvousMethod::Static { .. } => VoterCount::One,
    }
}

/// Reports `voters` in `--rdzv-conf` if it does not fit the method of the rendezvous.
pub(super) fn check_asked_voters(
    conf: &RdzvConf,
    nodes: NodeRange,
    method: &RendezvousMethod,
) -> Result<(), UsageError> {
    let Some(asked) = conf.voters else { return Ok(()) };
    let error = |why: &str| UsageError::new(format!("`--rdzv-conf` has `voters={asked}`, {why}"));
    let (why, hint) = match method {
        RendezvousMethod::Voters(list) if list.count() != asked => {
            let why = format!("but `--rdzv-endpoint` lists {} hosts", list.endpoints().len());
            return Err(error(&why).with_hint("omit `voters`: all listed hosts are voters"));
        }
        RendezvousMethod::Voters(_) => return Ok(()),
        _ if !asked.is_several() => return Ok(()),
        RendezvousMethod::Standalone => {
            ("but one node alone has no other voters", "omit it, or list the hosts of the voters")
        }
        RendezvousMethod::Endpoint { is_host: Some(_), .. } => (
            "whose hosts elect the coordinator, so `is_host` has no meaning",
            "omit one of the two",
        ),
        RendezvousMethod::Endpoint { .. } | RendezvousMethod::Search(_)
            if asked.number() as u64 > u64::from(nodes.max()) =>
        {
            let why = format!("but `--nnodes {nodes}` allows fewer nodes");
            return Err(
                error(&why).with_hint("omit it: the number of voters is limited by the nodes")
            );
        }
        RendezvousMethod::Endpoint { .. } | RendezvousMethod::Search(_) => return Ok(()),
        RendezvousMethod::Static { .. } => (
            "but with the backend `static` the coordinator is always that of node 0",
            "omit it, or use the backend `c10d`",
        ),
        RendezvousMethod::Etcd(_) => (
            "but with an etcd backend there are no voters: any agent can become the coordinator",
            "omit it",
        ),
    };
    Err(error(why).with_hint(hint))
}

/// Returns true if two endpoints have the same text, apart from case, or the same address.
fn is_same(a: &Endpoint, b: &Endpoint) -> bool {
    let same_host = match (a.host.parse::<IpAddr>(), b.host.parse::<IpAddr>()) {
        (Ok(a), Ok(b)) => a == b,
        (Ok(_), Err(_)) | (Err(_), Ok(_)) => false,
        (Err(_), Err(_)) => a.host.eq_ignore_ascii_case(&b.host),
    };
    same_host && a.port == b.port
}

impl fmt::Display for VoterList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, endpoint) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "," };
            write!(f, "{separator}{endpoint}")?;
        }
        Ok(())
    }
}

impl FromStr for VoterList {
    type Err = VoterListError;

    /// Reads endpoints that are separated by commas. A port of the last one is also that of all
    /// others that have none.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let entries = text.split(',').map(split_entry);
        let entries = entries.collect::<Result<Vec<_>, _>>()?;
        let last_port = entries.last().and_then(|(_, port)| *port);
        let endpoint = |(host, port): (String, Option<u16>)| {
            let port = port.or(last_port).unwrap_or(DEFAULT_PORT);
            Endpoint { host, port }
        };
        Self::new(entries.into_iter().map(endpoint).collect())
    }
}

/// Splits an entry into the host, and the port if there is one.
fn split_entry(entry: &str) -> Result<(String, Option<u16>), VoterListError> {
    let entry = entry.trim();
    if entry.is_empty() {
        return Err(VoterListError::EmptyEntry);
    }
    let (host, port) = Endpoint::split(entry)
        .map_err(|error| VoterListError::Entry { entry: entry.to_owned(), error })?;
    if host == "auto" { Err(VoterListError::Auto) } else { Ok((host, port)) }
}

impl Argument {
    /// Returns true if this endpoint is a list.
    pub(super) fn is_list(&self) -> bool {
        self.text.contains(',')
    }

    /// Reads a list of voters.
    pub fn voters(&self) -> Result<VoterList, UsageError> {
        self.text.parse().map_err(|error: VoterListError| {
            let hint = match error {
                VoterListError::FreePort => "use the same fixed ports on all nodes",
                VoterListError::Auto => {
                    "give `auto` alone, or the addresses of 3 or 5 hosts, such as \
                     `node0,node1,node2:29400`"
                }
                VoterListError::EmptyEntry
                | VoterListError::Entry { .. }
                | VoterListError::Unspecified(_)
                | VoterListError::Twice(_)
                | VoterListError::TooFew
                | VoterListError::Even(_)
                | VoterListError::TooMany(_) => LIST_HINT,
            };
            self.is_not(format_args!("a valid list of endpoints: {error}")).with_hint(hint)
        })
    }
}

/// The hint for a list of other than three or five endpoints.
const LIST_HINT: &str = "give the addresses of 3 or 5 different hosts, such as \
                         `node0,node1,node2:29400`";

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<String, VoterListError> {
        text.parse::<VoterList>().map(|voters| voters.to_string())
    }

    /// A port of the last entry holds for all entries without one; the default is that of a single
    /// endpoint. The text of a list parses as the same list.
    #[test]
    fn forms_of_a_list() {
        for (text, expected) in [
            ("a,b,c", "a:29400,b:29400,c:29400"),
            ("a,b,c:29500", "a:29500,b:29500,c:29500"),
            (" a:1, b ,c:3", "a:1,b:3,c:3"),
            ("a:1,b,c", "a:1,b:29400,c:29400"),
            ("a:1,a:2,a:3", "a:1,a:2,a:3"),
            ("e,d,c,b,a", "e:29400,d:29400,c:29400,b:29400,a:29400"),
            ("::1,[::2],[::3]:7", "[::1]:7,[::2]:7,[::3]:7"),
            ("10.0.0.1,node-b,auto2", "10.0.0.1:29400,node-b:29400,auto2:29400"),
        ] {
            assert_eq!(parse(text).as_deref(), Ok(expected), "{text}");
            assert_eq!(parse(expected).as_deref(), Ok(expected));
        }
    }

    /// Each reason to refuse a list has an error of its own.
    #[test]
    fn refused_lists() {
        let entry = |entry: &str, error| VoterListError::Entry { entry: entry.to_owned(), error };
        let twice = |text: &str| VoterListError::Twice(text.parse().unwrap());
        for (text, error) in [
            ("a", VoterListError::TooFew),
            ("a,b", VoterListError::Even(2)),
            ("a,b,c,d", VoterListError::Even(4)),
            ("a,b,c,d,e,f", VoterListError::TooMany(6)),
            ("a,b,c,d,e,f,g", VoterListError::TooMany(7)),
            ("a,b,", VoterListError::EmptyEntry),
            (",", VoterListError::EmptyEntry),
            ("a,,b,c", VoterListError::EmptyEntry),
            ("a,b,A:29400", twice("A:29400")),
            ("::1,a,[0:0::1]:29400", twice("[0:0::1]:29400")),
            ("a,b,c:0", VoterListError::FreePort),
            ("a:0,b,c:1", VoterListError::FreePort),
            ("a,b,0.0.0.0", VoterListError::Unspecified("0.0.0.0:29400".parse().unwrap())),
            ("auto,b,c", VoterListError::Auto),
            ("a,b,auto:29400", VoterListError::Auto),
            ("a,b c,d", entry("b c", EndpointError::Host)),
            ("a,:1,c", entry(":1", EndpointError::NoHost)),
            ("a,b,http://c", entry("http://c", EndpointError::Url)),
            ("a,b:x,c", entry("b:x", EndpointError::Port)),
        ] {
            assert_eq!(parse(text), Err(error), "{text}");
        }
    }

    /// A job that may have fewer nodes than a majority of its voters has a warning.
    #[test]
    fn majorities() {
        let warning = |voters: &str, nodes: &str| {
            voters.parse::<VoterList>().unwrap().majority_warning(nodes.parse().unwrap())
        };
        let text = "the job needs 2 of its 3 voters to begin and to continue, although \
                    `--nnodes 1:4` allows fewer nodes";
        assert_eq!(warning("a,b,c", "1:4").as_deref(), Some(text));
        assert_eq!(warning("a,b,c", "2:4"), None);
        assert!(warning("a,b,c,d,e", "2:4").unwrap().contains("3 of its 5 voters"));
        assert_eq!(warning("a,b,c,d,e", "3"), None);
    }
}
