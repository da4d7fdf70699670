//! Checks an endpoint: the names of this host and of the endpoint, the owner of the address, the process that answers there, and its clock.

use std::{
    io::ErrorKind,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use ragent_base::{
    net::{
        self, Endpoint,
        http_client::{self, Exchange, ExchangeEnd},
    },
    secret::Credentials,
    sys::{clock, host::ThisHost, port_holder},
};
use ragent_coordinator::pages::identity::{IDENTITY_PATH, Identity};
use ragent_node::endpoint::identity;
use ragent_rendezvous::message::PROTOCOL_VERSION;

use super::{Finding, secret};
use crate::commands::doctor::limits;

/// Checks the addresses of this host's own name, which torch and NCCL look up.
pub(super) async fn own_name() -> Finding {
    let name = ThisHost.name();
    let endpoint = Endpoint { host: name.clone(), port: 0 };
    match net::resolve(&endpoint).await {
        Ok(addresses) => {
            let ips: Vec<IpAddr> = addresses.iter().map(SocketAddr::ip).collect();
            judge_own_name(&name, &ips, |ip| ThisHost.owns(ip))
        }
        Err(error) => Finding::warn(
            "hostname",
            error.to_string(),
            "libraries resolve it: add an entry to /etc/hosts or to DNS",
        ),
    }
}

fn judge_own_name(name: &str, ips: &[IpAddr], is_own: impl Fn(IpAddr) -> bool) -> Finding {
    let text = format!("`{name}` resolves to {}", list(ips));
    if !ips.iter().any(|ip| is_own(*ip)) {
        let hint = "that is another machine: update the entry in /etc/hosts or in DNS";
        return Finding::fail("hostname", text, hint);
    }
    if ips.iter().all(IpAddr::is_loopback) {
        let hint =
            "other nodes cannot use a loopback address: give `--local-addr`, or correct /etc/hosts";
        return Finding::warn("hostname", text, hint);
    }
    Finding::pass("hostname", text)
}

/// The role of the process at an endpoint.
#[derive(Clone, Copy, Debug)]
pub(super) enum Purpose {
    /// It coordinates the job.
    Coordinator,
    /// It takes part in the election of the coordinator.
    Voter,
}

/// The findings about an endpoint.
#[derive(Debug)]
pub(super) struct Examined {
    pub(super) findings: Vec<Finding>,
    /// True if ragent answers there.
    pub(super) is_served: bool,
}

/// Checks the addresses of an endpoint, and the process that answers there.
pub(super) async fn examine(
    endpoint: &Endpoint,
    purpose: Purpose,
    credentials: &Credentials,
) -> Examined {
    let addresses = match net::resolve(endpoint).await {
        Ok(addresses) => addresses,
        Err(error) => {
            let hint = "check the spelling, and that this node can resolve the name";
            let findings = vec![Finding::fail("endpoint", error.to_string(), hint)];
            return Examined { findings, is_served: false };
        }
    };
    let ips: Vec<IpAddr> = addresses.iter().map(SocketAddr::ip).collect();
    let owned = ips.iter().copied().find(|ip| ThisHost.owns(*ip));
    let mut findings = vec![whose(endpoint, &ips, owned, purpose)];
    let mut last = String::new();
    for address in &addresses {
        let unsecured = Credentials::default();
        match ask(*address, &unsecured).await {
            Ok(answer) => {
                let identity = identity::identity(&answer.received);
                let is_served = identity.is_some();
                let mut full = ask(*address, credentials).await;
                for _ in 1..limits::ATTEMPTS {
                    // It has not answered in time.
                    if full.as_ref().is_ok_and(|full| full.received.is_empty()) {
                        full = ask(*address, credentials).await;
                    }
                }
                let has_answered = full.as_ref().is_ok_and(|full| !full.received.is_empty());
                if let Some(identity) = &identity {
                    let found = secret::of_peer(credentials, *address, identity, has_answered);
                    findings.extend(found.await);
                }
                // A process with a secret or a certificate shows its job and its time only to processes of its own job.
                let full = match full {
                    Ok(full) if credentials.is_secured() => full,
                    Ok(_) | Err(_) => answer,
                };
                let identity = identity::identity(&full.received).or(identity);
                findings.extend(judge_answer(*address, &full, identity));
                return Examined { findings, is_served };
            }
            Err(error) => last = format!("{address}: {error}"),
        }
    }
    findings.push(match owned {
        Some(_) => port_here(endpoint.port),
        None => Finding::warn(
            "port",
            format!("no program answers at {last}"),
            "expected if the job has not been started yet; otherwise check the firewall",
        ),
    });
    Examined { findings, is_served: false }
}

fn whose(endpoint: &Endpoint, ips: &[IpAddr], owned: Option<IpAddr>, purpose: Purpose) -> Finding {
    let text = format!("{endpoint} resolves to {}", list(ips));
    let role = match purpose {
        Purpose::Coordinator => "hosts the coordinator",
        Purpose::Voter => "is this voter",
    };
    match owned {
        Some(ip) if ip.is_loopback() => Finding::warn(
            "endpoint",
            format!("{text}: a loopback address, which refers to each machine itself"),
            "for several nodes, give an address that all of them reach",
        ),
        Some(ip) => {
            let interface = ThisHost.interface_of(ip).unwrap_or_else(|| "an interface".to_owned());
            Finding::pass("endpoint", format!("{text}, of {interface} here: this node {role}"))
        }
        None => Finding::pass("endpoint", format!("{text}: another node {role}")),
    }
}

fn port_here(number: u16) -> Finding {
    match net::listen(net::Reach::Everywhere, number) {
        Ok(_) => Finding::pass("port", format!("port {number} is free")),
        Err(error) if error.kind() != ErrorKind::AddrInUse => Finding::fail(
            "port",
            format!("cannot listen on port {number}: {error}"),
            "use a port that this user may listen on",
        ),
        Err(error) => {
            let holder =
                port_holder::holder(number).map_or_else(String::new, |who| format!(" by {who}"));
            let text = format!("cannot listen on port {number}: {error}; it is held{holder}");
            Finding::fail("port", text, "end that program, or use another port for the job")
        }
    }
}

/// An answer, and how long it took.
struct TimedAnswer {
    received: Vec<u8>,
    sent_at: Duration,
    took: Duration,
}

async fn ask(address: SocketAddr, credentials: &Credentials) -> std::io::Result<TimedAnswer> {
    let (begun, sent_at) = (clock::now(), clock::wall_time());
    let (len_max, limit) = (limits::MAX_IDENTITY_LEN, limits::IDENTIFY_TIMEOUT);
    let path = IDENTITY_PATH;
    let asked = http_client::get_as_member(address, credentials, path, len_max, limit);
    let Exchange { received, end } = asked.await;
    match end {
        ExchangeEnd::Failed(error) if received.is_empty() => return Err(error),
        // A process that accepts a connection is present, even if its answer is invalid.
        ExchangeEnd::Complete | ExchangeEnd::Failed(_) | ExchangeEnd::TimedOut => {}
    }
    Ok(TimedAnswer { received, sent_at, took: clock::now() - begun })
}

fn judge_answer(
    address: SocketAddr,
    answer: &TimedAnswer,
    identity: Option<Identity>,
) -> Vec<Finding> {
    let Some(identity) = identity else {
        let what = identity::looks_like(&answer.received);
        let holder =
            ThisHost.owns(address.ip()).then(|| port_holder::holder(address.port())).flatten();
        let holder = holder.map_or_else(String::new, |who| format!(", {who}"));
        let text = format!("{address} is served by a program other than ragent{holder}: {what}");
        return vec![Finding::fail(
            "port",
            text,
            "end that program, or use another port for the job",
        )];
    };
    let millis = answer.took.as_secs_f64() * 1000.0;
    let job = &identity.run_id;
    let job = if job.is_empty() { String::new() } else { format!(", job `{job}`") };
    let text = format!(
        "{address} is served by ragent{job}, after {millis:.1} ms; `--peers` tests the ports between its nodes"
    );
    let middle = answer.sent_at + answer.took / 2;
    let mut findings = vec![Finding::pass("port", text), version(&identity)];
    findings.extend(identity.unix_ms.map(|theirs| clocks(theirs, middle, answer.took)));
    findings
}

fn version(identity: &Identity) -> Finding {
    let ours = env!("CARGO_PKG_VERSION");
    let text = format!("ragent {ours} here, {} there", identity.ragent);
    if identity.protocol != PROTOCOL_VERSION {
        let text = format!("{text}: protocols {PROTOCOL_VERSION} and {}", identity.protocol);
        return Finding::fail("version", text, "install the same version of ragent on all nodes");
    }
    if identity.ragent != ours {
        return Finding::warn("version", text, "install the same version of ragent on all nodes");
    }
    Finding::pass("version", text)
}

/// Compares two clocks. They are uncertain by half the time that the answer took.
fn clocks(theirs_ms: u64, ours: Duration, took: Duration) -> Finding {
    let offset = theirs_ms as f64 - ours.as_secs_f64() * 1000.0;
    let uncertain = took.as_secs_f64() * 500.0;
    let text = format!(
        "the endpoint's clock differs from this one by {offset:+.0} ms (uncertainty: \
         {uncertain:.0} ms)"
    );
    if offset.abs() > 1000.0 + uncertain {
        let hint = "timestamps in the nodes' logs will disagree, and certificates may be \
                    refused: check that chrony or NTP runs";
        return Finding::warn("clock", text, hint);
    }
    Finding::pass("clock", text)
}

fn list(ips: &[IpAddr]) -> String {
    ips.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::CheckVerdict;

    fn ips(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    /// A host name with only loopback addresses is a warning. A name with only addresses of other machines fails.
    #[test]
    fn own_name_is_judged() {
        let judge = |texts: &[&str]| {
            let own = |ip: IpAddr| ip.is_loopback() || ip.to_string() == "10.0.0.1";
            judge_own_name("n1", &ips(texts), own).verdict
        };
        assert_eq!(judge(&["10.0.0.1"]), CheckVerdict::Pass);
        assert_eq!(judge(&["127.0.1.1"]), CheckVerdict::Warn);
        assert_eq!(judge(&["127.0.1.1", "10.0.0.1"]), CheckVerdict::Pass);
        assert_eq!(judge(&["10.0.0.2"]), CheckVerdict::Fail);
    }

    /// Clocks that differ by more than a second plus the uncertainty are a warning.
    #[test]
    fn clocks_are_judged() {
        let ours = Duration::from_secs(1_000_000);
        let judge = |theirs, took| clocks(theirs, ours, Duration::from_millis(took)).verdict;
        assert_eq!(judge(1_000_000_400, 2), CheckVerdict::Pass);
        assert_eq!(judge(999_998_500, 2), CheckVerdict::Warn);
        assert_eq!(judge(999_998_500, 2000), CheckVerdict::Pass);
    }

    /// Another protocol fails. Another version is a warning.
    #[test]
    fn versions_are_judged() {
        let judge = |ragent: &str, protocol| {
            let (ragent, run_id) = (ragent.to_owned(), String::new());
            let auth = ragent_base::secret::NamedAuth::default();
            version(&Identity { ragent, protocol, run_id, auth, unix_ms: None, search: None })
                .verdict
        };
        assert_eq!(judge(env!("CARGO_PKG_VERSION"), PROTOCOL_VERSION), CheckVerdict::Pass);
        assert_eq!(judge("9.9.9", PROTOCOL_VERSION), CheckVerdict::Warn);
        assert_eq!(judge("9.9.9", PROTOCOL_VERSION + 1), CheckVerdict::Fail);
    }
}
