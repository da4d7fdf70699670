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
use tokio::{task::JoinSet, time::timeout};
use tracing::{info, warn};

use super::search::sockets::SocketsError;
use crate::{
    coordinator::service::{IDENTITY_PATH, Identity},
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
            Answer::Nobody(error) => last = format!("{address}: {error}"),
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

/// The answer of an address.
enum Answer {
    Ragent,
    Silent,
    Other(String),
    Nobody(String),
}

async fn ask_all(addresses: &[SocketAddr]) -> Vec<(SocketAddr, Answer)> {
    let asked: JoinSet<_> = addresses.iter().map(|&a| async move { (a, ask(a).await) }).collect();
    let mut answers = asked.join_all().await;
    answers.sort_by_key(|(address, _)| *address);
    answers
}

async fn ask(address: SocketAddr) -> Answer {
    let mut stream = match net::dial(address).await {
        Ok(stream) => stream,
        Err(error) => return Answer::Nobody(error.to_string()),
    };
    let mut text = Vec::new();
    let limit = limits::MAX_IDENTITY_LEN;
    let exchange = net::get_on(&mut stream, address, IDENTITY_PATH, limit, &mut text);
    let ended = timeout(limits::IDENTIFY_TIMEOUT, exchange).await;
    match (identity(&text), ended) {
        (Some(identity), _) => {
            if identity.ragent != env!("CARGO_PKG_VERSION") {
                warn!(
                    theirs = identity.ragent,
                    ours = env!("CARGO_PKG_VERSION"),
                    "the coordinator \
                       runs another version of ragent"
                );
            }
            Answer::Ragent
        }
        // An agent that ends at this moment counts as absent. A process that sent anything else
        // counts as present, even if a reset follows, as from an sshd that is asked for a page.
        (None, Ok(Err(error))) if may_be_cut(&text) => Answer::Nobody(error.to_string()),
        (None, Err(_)) if text.is_empty() => Answer::Silent,
        (None, Ok(_) | Err(_)) => Answer::Other(looks_like(&text)),
    }
}

/// Returns true if `answer` may be the beginning of an answer with our identity.
fn may_be_cut(answer: &[u8]) -> bool {
    answer.iter().zip(OURS.as_bytes()).all(|(one, other)| one == other)
}

/// The beginning of every answer with our identity.
const OURS: &str = "HTTP/1.1 200";

/// Returns a description of the program at `address`, if it answers and is not ragent.
pub(crate) async fn stranger(address: SocketAddr) -> Option<String> {
    match ask(address).await {
        Answer::Other(what) => Some(what),
        // A stalled coordinator is silent, too.
        Answer::Ragent | Answer::Silent | Answer::Nobody(_) => None,
    }
}

/// Returns the identity in an HTTP answer, if there is one.
pub(crate) fn identity(answer: &[u8]) -> Option<Identity> {
    let text = std::str::from_utf8(answer).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    head.starts_with(OURS).then(|| serde_json::from_str(body).ok())?
}

pub(crate) fn looks_like(answer: &[u8]) -> String {
    let line = answer.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let line = String::from_utf8_lossy(&line[..line.len().min(60)]);
    let line = line.trim();
    if line.is_empty() {
        "it accepts connections but sends nothing (as a TCPStore of torchrun does)".to_owned()
    } else {
        format!("it answers `{}`", line.escape_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only an answer with our identity counts as ragent's.
    #[test]
    fn identity_is_recognised() {
        let ours =
            b"HTTP/1.1 200 OK\r\na: b\r\n\r\n{\"ragent\":\"1\",\"protocol\":1,\"run_id\":\"x\"}";
        assert_eq!(identity(ours).unwrap().run_id, "x");
        assert_eq!(identity(b"HTTP/1.1 200 OK\r\n\r\n<html>"), None);
        assert_eq!(identity(b"HTTP/1.1 404 Not Found\r\n\r\n{}"), None);
        assert_eq!(identity(b"SSH-2.0-OpenSSH\r\n"), None);
        assert_eq!(identity(b""), None);
    }

    /// An answer that was cut off may have been ours only if it began like ours.
    #[test]
    fn cut_answers() {
        let ours: [&[u8]; 3] = [b"", b"HTTP/1.1", b"HTTP/1.1 200 OK\r\n\r\n{\"rag"];
        assert!(ours.into_iter().all(may_be_cut));
        let others: [&[u8]; 2] = [b"SSH-2.0-X\r\n", b"HTTP/1.1 404 Not Found\r\n"];
        assert!(!others.into_iter().any(may_be_cut));
    }

    /// The answer of another program is shown, shortened and without control characters.
    #[test]
    fn strangers_are_described() {
        assert_eq!(looks_like(b"SSH-2.0-X\r\nmore"), "it answers `SSH-2.0-X`");
        assert!(looks_like(b"").contains("sends nothing"));
        assert!(looks_like(&[0x1b; 500]).len() < 500);
    }
}
