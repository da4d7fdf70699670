//! Finds the host of an endpoint: a process that answers there, this node, or none yet.
//!
//! 1. Ask every address of the endpoint.
//! 2. If ragent answers at one, join it. If another program answers, report it and end.
//! 3. If none answers, the machine that owns the lowest address binds the port and hosts. All
//!    others wait, and start again with 1.
//!
//! `Locator` decides. This file asks, binds and reports.

use std::{
    io,
    net::{IpAddr, SocketAddr, TcpListener},
    time::Duration,
};

use ragent_base::{
    net::{self, Endpoint, Reach, ResolveError},
    secret::Credentials,
    sys::{clock, host::ThisHost, port_holder},
};
use ragent_options::scheduler::Launcher;
use tracing::{info, warn};

use super::{
    error::LocateError,
    identity,
    locator::{Effect, Input, Locator, LocatorSettings},
};

/// The host of an endpoint.
#[derive(Debug)]
pub(super) enum Located {
    /// This node may host.
    Here {
        /// The listener.
        listener: TcpListener,
        /// The address of the endpoint on this machine.
        address: IpAddr,
    },
    /// Another process answered at this address.
    There(SocketAddr),
}

/// Checks that the first agent of a launcher runs on the endpoint's machine. Otherwise no node would host.
///
/// # Errors
///
/// Returns [`LocateError::NotHere`] if the endpoint is another machine.
pub(super) async fn check_head(endpoint: &Endpoint, launcher: Launcher) -> Result<(), LocateError> {
    if net::may_lead_here(endpoint).await {
        return Ok(());
    }
    let (here, endpoint) = (ThisHost.name(), endpoint.to_string());
    Err(LocateError::NotHere { launcher, here, endpoint })
}

/// Looks for the host of `endpoint`, at most for `join_timeout`. `waits` receives the reason for
/// waiting whenever it changes.
///
/// # Errors
///
/// Returns [`LocateError`] as `Locator` decides.
pub(super) async fn locate(
    credentials: &Credentials,
    endpoint: &Endpoint,
    is_host: Option<bool>,
    join_timeout: Duration,
    waits: impl Fn(&str),
) -> Result<Located, LocateError> {
    let reports = |effect: &Effect| match effect {
        Effect::Report(cause) => {
            waits(cause);
            info!(%endpoint, cause, "waiting for the coordinator");
        }
        Effect::Warn { cause, is_resolved, left } => {
            let advice = if *is_resolved {
                "check that the agent on that host is running, that it has the same port, and that no firewall blocks it"
            } else {
                "check the host name, /etc/hosts and DNS"
            };
            warn!(
                "the coordinator has not been reached yet at {endpoint}: {cause}; {advice} (this \
                 agent gives up in {} s)",
                left.as_secs()
            );
        }
        Effect::Ask | Effect::Bind(_) | Effect::Join(_) | Effect::GiveUp(_) => {}
    };
    let (endpoint_asked, seed) = (endpoint.clone(), rand::random());
    let settings = LocatorSettings { endpoint: endpoint_asked, is_host, join_timeout, seed };
    let mut locator = Locator::new(clock::now(), settings);
    loop {
        let Some(effect) = locator.poll_effect() else {
            clock::until(locator.poll_timeout()).await;
            locator.handle_timeout(clock::now());
            continue;
        };
        match effect {
            Effect::Ask => {
                let input = ask(endpoint, credentials).await;
                locator.handle(clock::now(), input);
            }
            Effect::Bind(address) => match bind(endpoint, address) {
                Ok(listener) => return Ok(Located::Here { listener, address: address.ip() }),
                Err(error) => locator.handle(clock::now(), Input::NotBound(error)),
            },
            Effect::Join(address) => return Ok(Located::There(address)),
            Effect::Report(_) | Effect::Warn { .. } => reports(&effect),
            Effect::GiveUp(error) => return Err(error.with_holder(holder)),
        }
    }
}

/// Returns the program that holds a port of this machine, if known.
fn holder(address: SocketAddr) -> Option<String> {
    ThisHost.owns(address.ip()).then(|| port_holder::holder(address.port())).flatten()
}

async fn ask(endpoint: &Endpoint, credentials: &Credentials) -> Input {
    let addresses = match net::resolve(endpoint).await {
        Ok(addresses) => addresses,
        Err(error) => return Input::Unresolved(describe(&error)),
    };
    let Some(&lowest) = addresses.first() else {
        return Input::Unresolved(format!("{endpoint} has no address"));
    };
    // Port zero means any free port, so no process can be there already.
    let answers = if endpoint.port == 0 {
        Vec::new()
    } else {
        identity::ask_all(&addresses, credentials).await
    };
    Input::Answered { lowest: (lowest, ThisHost.owns(lowest.ip())), answers }
}

fn describe(error: &ResolveError) -> String {
    match error {
        ResolveError::Resolver { source, .. } => format!("{error}: {source}"),
        ResolveError::NoAddress(_) | ResolveError::Silent(_) => error.to_string(),
    }
}

/// Listens at an address of an endpoint.
pub(super) fn bind(endpoint: &Endpoint, address: SocketAddr) -> io::Result<TcpListener> {
    net::listen(Reach::of_endpoint(endpoint, address.ip()), address.port())
}
