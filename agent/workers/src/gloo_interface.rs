//! Chooses the network interface that gloo uses in workers, if this machine's own name does not lead to an address that other nodes reach.
//!
//! gloo listens at the first address of the machine's name that belongs to the machine. On Debian that is often 127.0.1.1. Without any such
//! address it takes a loopback address. The agent knows an address that the others reach, and so the interface. NCCL does not look at the
//! name.

use std::net::{IpAddr, SocketAddr};

use ragent_base::{
    net::{self, Endpoint, ResolveError},
    sys::host::ThisHost,
};
use tokio::sync::OnceCell;
use tracing::warn;

/// The variable that names the interface for gloo.
pub const VARIABLE: &str = "GLOO_SOCKET_IFNAME";

/// The choice of the interface, which is made once.
#[derive(Debug, Default)]
pub(crate) struct GlooInterface {
    chosen: OnceCell<Option<String>>,
}

impl GlooInterface {
    /// Returns the name of the interface with `address`, at which other nodes reach this one, if workers need it.
    pub(crate) async fn towards_others(&self, address: Option<IpAddr>) -> Option<String> {
        let address = address.filter(|address| !address.is_loopback())?;
        let choose = || async move {
            let endpoint = Endpoint { host: ThisHost.name(), port: 0 };
            let found = net::resolve(&endpoint).await;
            let problem = problem(&endpoint.host, found, |ip| ThisHost.owns(ip))?;
            let interface = ThisHost.interface_of(address)?;
            warn!(
                "{problem}, so gloo would listen where other nodes do not reach it; workers get {VARIABLE}={interface}, the interface of \
                 {address} (to avoid this, add a line `{address} {}` to /etc/hosts, or set the variable)",
                endpoint.host
            );
            Some(interface)
        };
        self.chosen.get_or_init(choose).await.clone()
    }
}

/// Returns the problem with this machine's own name, if other nodes would not reach gloo at its addresses.
fn problem(
    name: &str,
    found: Result<Vec<SocketAddr>, ResolveError>,
    is_own: impl Fn(IpAddr) -> bool,
) -> Option<String> {
    let ips = match found {
        Ok(addresses) => addresses.into_iter().map(|address| address.ip()),
        Err(error) => return Some(error.to_string()),
    };
    let ips: Vec<IpAddr> = ips.collect();
    // The system gives loopback first.
    if ips.iter().all(|ip| !ip.is_loopback()) && ips.iter().any(|ip| is_own(*ip)) {
        return None;
    }
    let list: Vec<String> = ips.iter().map(IpAddr::to_string).collect();
    Some(format!("this machine's name `{name}` resolves to {}", list.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name that leads to an own address, and not to loopback, is left to gloo.
    #[test]
    fn names_that_gloo_cannot_use() {
        let is_own = |ip: IpAddr| ip.is_loopback() || ip.to_string() == "10.0.0.5";
        for (ips, expected) in [
            (&["10.0.0.5"][..], None),
            (&["10.0.0.9", "10.0.0.5"], None),
            (
                &["10.0.0.5", "127.0.1.1"],
                Some("this machine's name `node1` resolves to 10.0.0.5, 127.0.1.1"),
            ),
            (&["10.0.0.9"], Some("this machine's name `node1` resolves to 10.0.0.9")),
        ] {
            let found = ips.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), 0)).collect();
            assert_eq!(problem("node1", Ok(found), is_own).as_deref(), expected, "{ips:?}");
        }
        let unknown = Err(ResolveError::NoAddress("node1".to_owned()));
        let text = problem("node1", unknown, is_own);
        assert_eq!(text.as_deref(), Some("`node1` does not resolve to an address"));
    }

    /// A node that others reach at a loopback address runs on one machine with them.
    #[tokio::test]
    async fn jobs_on_one_machine_are_left_alone() {
        for address in [None, Some(IpAddr::from([127, 0, 0, 1]))] {
            assert_eq!(GlooInterface::default().towards_others(address).await, None);
        }
    }
}
