//! Describes why an agent does not find the host of its job, or can neither host nor join.

use std::{borrow::Cow, io, net::SocketAddr, time::Duration};

use ragent_base::{secret::Mismatch, sys::system_error::SystemError};
#[cfg(feature = "etcd")]
use ragent_leadership::etcd::EtcdError;
use ragent_options::scheduler::Launcher;

use super::search::sockets::SocketsError;

/// The reason why an agent can neither host nor join.
#[derive(Debug, thiserror::Error)]
pub enum HostOrJoinError {
    /// The system refused something that every launch needs.
    #[error(transparent)]
    System(#[from] SystemError),
    /// No process hosts the endpoint, and this node cannot.
    #[error("failed to find or host the coordinator")]
    Locate(#[from] LocateError),
}

/// The reason why there is no host, and no node can become one.
#[derive(Debug, thiserror::Error)]
pub enum LocateError {
    /// The process at the endpoint has another secret, or a certificate is not accepted.
    #[error(transparent)]
    Auth(#[from] Mismatch),
    /// The port cannot be bound, although it is not in use.
    #[error("failed to listen on {address}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// Another program holds the port on this machine, and does not answer.
    #[error("port {} is in use by another program on this machine{}", address.port(), of(holder))]
    Held {
        /// The address.
        address: SocketAddr,
        /// The program, if it is known.
        holder: Option<String>,
    },
    #[cfg(feature = "etcd")]
    /// etcd refuses this agent, or this agent cannot use it.
    #[error("failed to find the coordinator through etcd")]
    Etcd(#[source] EtcdError),
    #[cfg(feature = "etcd")]
    /// No member of etcd answered during the whole join timeout.
    #[error("no member of etcd answered within {} s", waited.as_secs())]
    EtcdAway {
        /// The time waited.
        waited: Duration,
        /// The last failure.
        #[source]
        source: EtcdError,
    },
    #[cfg(not(feature = "etcd"))]
    /// This program was built without the feature `etcd`.
    #[error(
        "failed to find the coordinator through etcd: this build of ragent lacks the feature `etcd`"
    )]
    NoEtcd,
    /// The first agent of a launcher does not run on the machine of the endpoint.
    #[error(
        "{launcher} has started the first agent on {here}, but the endpoint {endpoint} is \
         another machine"
    )]
    NotHere {
        /// The launcher.
        launcher: Launcher,
        /// This machine.
        here: String,
        /// The endpoint.
        endpoint: String,
    },
    /// Another program answers at the endpoint.
    #[error("{address} is served by a program other than ragent{}: {what}", of(holder))]
    Other {
        /// The address.
        address: SocketAddr,
        /// A description of its answer.
        what: String,
        /// The program, if it runs on this machine and is known.
        holder: Option<String>,
    },
    /// Two endpoints of voters are one address, so one process would count as two voters.
    #[error("the endpoints {first} and {second} of the voters lead to the same address, {address}")]
    SameAddress {
        /// The endpoint that is listed first.
        first: String,
        /// The other endpoint.
        second: String,
        /// The address.
        address: SocketAddr,
    },
    /// The search for the other agents failed.
    #[error("failed to search for the job's other agents")]
    Search(#[source] SocketsError),
    /// The search found no host during the whole join timeout.
    #[error("no host of the job was found within {} s: {cause}", waited.as_secs())]
    NotFound {
        /// The time waited.
        waited: Duration,
        /// The last failure.
        cause: String,
    },
    /// The endpoint's name did not resolve during the whole join timeout.
    #[error("no agent served {endpoint} within {} s: {cause}", waited.as_secs())]
    Unresolved {
        /// The endpoint.
        endpoint: String,
        /// The time waited.
        waited: Duration,
        /// The last failure.
        cause: String,
    },
    /// No process answered during the whole join timeout.
    #[error("no agent served {endpoint} within {} s: {cause}", waited.as_secs())]
    TimedOut {
        /// The endpoint.
        endpoint: String,
        /// The time waited.
        waited: Duration,
        /// The last failure.
        cause: String,
    },
}

/// The hint for a host name without an address.
pub const CHECK_NAME: &str = "check the host name in `--rdzv-endpoint`, and that this machine can resolve it: `getent hosts \
     NAME` uses /etc/hosts and DNS as ragent does";

/// Formats the program that holds a port.
fn of(holder: &Option<String>) -> String {
    holder.as_ref().map_or_else(String::new, |holder| format!(" ({holder})"))
}

impl LocateError {
    /// Adds the program that holds the port. `find` returns it if it is known.
    pub(super) fn with_holder(mut self, find: impl FnOnce(SocketAddr) -> Option<String>) -> Self {
        if let Self::Held { address, holder } | Self::Other { address, holder, .. } = &mut self {
            *holder = find(*address);
        }
        self
    }

    /// Returns the hint for the user.
    pub fn hint(&self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Self::Auth(mismatch) => return mismatch.hint().into(),
            Self::Other { .. } | Self::Held { .. } => {
                "end that program, or use another port on all nodes (`--rdzv-endpoint`, or \
                 `--master-port`); `ragent doctor --rdzv-endpoint HOST:PORT` checks a port"
            }
            Self::TimedOut { endpoint, .. } if endpoint.starts_with('[') => {
                "check that the agent on the endpoint's host is running, and that no firewall \
                 blocks its port; an IPv6 address with a port is written in brackets: `[fd00::1]:29400`"
            }
            Self::TimedOut { .. } => {
                "check that the agent on the endpoint's host is running, and that no firewall \
                 blocks its port"
            }
            Self::Unresolved { .. } => CHECK_NAME,
            #[cfg(feature = "etcd")]
            Self::Etcd(EtcdError::Record { .. }) => {
                "use another `--rdzv-id`, or another `etcd_prefix` in `--rdzv-conf`; all nodes must run the \
                 same version of ragent"
            }
            #[cfg(feature = "etcd")]
            Self::Etcd(EtcdError::Tls { .. }) => {
                "check `cacert`, `cert`, `key` and `protocol` in `--rdzv-conf`, and that the certificates of etcd have \
                 the names in `--rdzv-endpoint`"
            }
            #[cfg(feature = "etcd")]
            Self::Etcd(_) => {
                "check RAGENT_ETCD_USER, the password in RAGENT_ETCD_PASSWORD_FILE, the files in `--rdzv-conf`, and \
                 that this user of etcd may read and write keys below `etcd_prefix` (default /ragent)"
            }
            #[cfg(feature = "etcd")]
            Self::EtcdAway { .. } => {
                "check the addresses of etcd's members in `--rdzv-endpoint`, `protocol` in `--rdzv-conf`, and that \
                 no firewall blocks their ports"
            }
            #[cfg(not(feature = "etcd"))]
            Self::NoEtcd => {
                "install a package of ragent, or build it with the feature `etcd`; or choose another way with \
                 `--rdzv-backend`"
            }
            Self::NotFound { .. } => {
                "check that the other agents are running with the same `--rdzv-id` and the same secret; `ragent doctor \
                 --rdzv-endpoint auto` checks the network"
            }
            Self::Search(SocketsError::NoInterface { .. }) => {
                "list hosts of the job in `--discover-hosts`, or give its endpoint with \
                 `--rdzv-endpoint`"
            }
            Self::Search(SocketsError::Bind { .. }) => {
                "use another port on all nodes: `--rdzv-endpoint auto:PORT`"
            }
            Self::SameAddress { .. } => {
                "list each host once in `--rdzv-endpoint`, and check that each name resolves to its own host; or use \
                 one coordinator: `--rdzv-conf voters=1`"
            }
            Self::NotHere { .. } => {
                "give the first agent's host as `--rdzv-endpoint HOST:PORT` on all nodes"
            }
            Self::Bind { .. } => {
                "check that this user may listen on that port, and that this machine has the \
                 address"
            }
        })
    }
}
