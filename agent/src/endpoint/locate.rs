//! Finds the host of an endpoint: a process that answers there, this node, or none yet.
//!
//! Every address of the endpoint is asked first. If one answers as ragent, it is joined; if another
//! program answers, the agent reports it and ends at once. If none answers, the node whose machine
//! owns the lowest address binds the port and hosts; all others wait.

use std::{
    io,
    net::{IpAddr, SocketAddr, TcpListener},
    time::{Duration, Instant},
};

use ragent_core::reported_causes::ReportedCauses;
use tracing::{info, warn};

use super::{
    identity::{Answer, ask_all, looks_like},
    search::sockets::SocketsError,
};
use crate::{
    limits,
    net::{self, Reach, ResolveError},
    scheduler::Launcher,
    spec::Endpoint,
    sys::{clock, host::ThisHost},
};

/// The host of an endpoint.
#[derive(Debug)]
pub enum Located {
    /// This node hosts, on this listener.
    Here {
        /// The listener.
        listener: TcpListener,
        /// The address of the endpoint on this machine.
        address: IpAddr,
    },
    /// Another process answered at this address.
    There(SocketAddr),
}

/// The reason why there is no host, and no node can become one.
#[derive(Debug, thiserror::Error)]
pub enum LocateError {
    /// The port cannot be bound, for another reason than being in use.
    #[error("failed to listen on {address}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// Another program holds the port on this machine and does not answer.
    #[error("port {} is in use by another program on this machine", address.port())]
    Held {
        /// The address.
        address: SocketAddr,
    },
    /// The first agent of a launcher runs on another machine than the endpoint's.
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
    #[error("{address} is served by a program other than ragent: {what}")]
    Other {
        /// The address.
        address: SocketAddr,
        /// A description of its answer.
        what: String,
    },
    /// The search for the other agents failed.
    #[error("failed to search for the job's other agents")]
    Search(#[source] SocketsError),
    /// No process answered for as long as nodes wait for each other.
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

/// Checks that the first agent of a launcher runs on the endpoint's machine: no other node will
/// host.
///
/// # Errors
///
/// Returns [`LocateError::NotHere`] if the endpoint is another machine.
pub async fn check_head(endpoint: &Endpoint, launcher: Launcher) -> Result<(), LocateError> {
    if net::may_lead_here(endpoint).await {
        return Ok(());
    }
    let (here, endpoint) = (ThisHost.name(), endpoint.to_string());
    Err(LocateError::NotHere { launcher, here, endpoint })
}

/// Looks for the host of `endpoint` for at most `join_timeout`. `waits` receives the reason for
/// waiting whenever it changes.
///
/// # Errors
///
/// Returns [`LocateError`] at once if another program answers, after [`limits::SILENT_TIMEOUT`] if one
/// accepts connections without answering, and after `join_timeout` otherwise.
pub async fn locate(
    endpoint: &Endpoint,
    is_host: Option<bool>,
    join_timeout: Duration,
    waits: impl Fn(&str),
) -> Result<Located, LocateError> {
    let start = clock::now();
    let deadline = start + join_timeout;
    let (mut logged, mut warned) = (String::new(), ReportedCauses::default());
    let mut binds = 0;
    let mut silent_since = None;
    loop {
        let asked_at = clock::now();
        let cause = match look(endpoint, is_host).await? {
            Seen::Located(located) => return Ok(located),
            // Another agent of this machine may have bound the port a moment earlier, and answers
            // soon.
            Seen::Held(address) if binds < MAX_BINDS => {
                binds += 1;
                silent_since = None;
                format!("{address} is in use")
            }
            Seen::Held(address) => return Err(LocateError::Held { address }),
            Seen::Silent(address) => {
                let since = *silent_since.get_or_insert(asked_at);
                // A coordinator that is stalled, or busy with other connections, is silent too.
                if clock::now().saturating_duration_since(since) >= limits::SILENT_TIMEOUT {
                    return Err(LocateError::Other { address, what: looks_like(&[]) });
                }
                format!("{address} accepts connections but does not answer")
            }
            Seen::Nobody(cause) => {
                silent_since = None;
                cause
            }
        };
        let now = clock::now();
        if now >= deadline {
            let endpoint = endpoint.to_string();
            return Err(LocateError::TimedOut { endpoint, waited: join_timeout, cause });
        }
        if cause != logged && binds == 0 {
            waits(&cause);
            info!(%endpoint, cause, "waiting for the coordinator; is the agent on that host up?");
            logged.clone_from(&cause);
        }
        // Agents of a job rarely start in the same second.
        let waited = now.saturating_duration_since(start);
        if waited >= limits::WAIT_WARNING && warned.insert(&cause) {
            let give_up_after_s = join_timeout.as_secs();
            warn!(
                %endpoint, cause, give_up_after_s,
                "the coordinator has not been reached yet; is the agent on that host running?"
            );
        }
        clock::until(Some(retry_at(now, deadline))).await;
    }
}

/// The number of times that a port may be held by a silent process: two agents that start at once
/// on one machine need two.
const MAX_BINDS: u32 = 4;

fn retry_at(now: Instant, deadline: Instant) -> Instant {
    (now + limits::LOCATE_INTERVAL).min(deadline)
}

enum Seen {
    Located(Located),
    Held(SocketAddr),
    Silent(SocketAddr),
    Nobody(String),
}

async fn look(endpoint: &Endpoint, is_host: Option<bool>) -> Result<Seen, LocateError> {
    let addresses = match net::resolve(endpoint).await {
        Ok(addresses) => addresses,
        Err(error) => return Ok(Seen::Nobody(describe(&error))),
    };
    // Port zero means any free port; no process can be there already.
    let causes = if endpoint.port == 0 { Vec::new() } else { ask_all(&addresses).await };
    let mut last = format!("{endpoint} has no address");
    for (address, answer) in causes {
        match answer {
            Answer::Ragent => return Ok(Seen::Located(Located::There(address))),
            Answer::Silent => return Ok(Seen::Silent(address)),
            Answer::Other(what) => return Err(LocateError::Other { address, what }),
            Answer::None(error) => last = format!("{address}: {error}"),
        }
    }
    let Some(&lowest) = addresses.first() else {
        return Ok(Seen::Nobody(last));
    };
    let may_host = is_host.unwrap_or_else(|| ThisHost.owns(lowest.ip()));
    if !may_host {
        return Ok(Seen::Nobody(last));
    }
    bind(endpoint, lowest)
}

fn describe(error: &ResolveError) -> String {
    match error {
        ResolveError::Resolver { source, .. } => format!("{error}: {source}"),
        ResolveError::NoAddress(_) | ResolveError::Silent(_) => error.to_string(),
    }
}

fn bind(endpoint: &Endpoint, address: SocketAddr) -> Result<Seen, LocateError> {
    match net::listen(Reach::of_endpoint(endpoint, address.ip()), address.port()) {
        Ok(listener) => Ok(Seen::Located(Located::Here { listener, address: address.ip() })),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(Seen::Held(address)),
        Err(source) => Err(LocateError::Bind { address, source }),
    }
}
