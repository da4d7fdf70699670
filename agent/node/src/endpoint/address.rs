//! Chooses the addresses at which a host and its stores are reached.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ragent_base::{
    net::{Endpoint, Reach},
    sys::host::bridges::bridge_with,
};

/// The address of an endpoint on the machine that hosts it.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndpointHere<'a> {
    /// The endpoint.
    pub endpoint: &'a Endpoint,
    /// The address that it resolves to on this machine.
    pub resolved: IpAddr,
    /// True if that address belongs to this machine.
    pub is_own: bool,
    /// The addresses of this machine, each with the name of its interface.
    pub interfaces: &'a [(String, IpAddr)],
}

/// The reason why other nodes may not reach the endpoint.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Unreachable {
    /// Its address belongs to the container bridge with this name.
    Bridge(String),
    /// Its address is a loopback address.
    Loopback,
    /// Its address is valid only on this machine, so another one is announced.
    Replaced,
}

impl EndpointHere<'_> {
    /// Returns the address for other nodes, and the reason if they may not reach it.
    pub(super) fn announced(&self) -> (IpAddr, Option<Unreachable>) {
        let Self { endpoint, resolved, is_own, interfaces } = *self;
        let bridge_of = |address| bridge_with(address, interfaces);
        let all = || interfaces.iter().map(|(_, address)| *address);
        let own = || all().filter(|address| !address.is_loopback());
        // Each machine has its own container bridges, often with the same addresses.
        let best = own().filter(|address| bridge_of(*address).is_none()).min();
        let is_name = endpoint.host.parse::<IpAddr>().is_err();
        let is_bridge_by_name = is_name && bridge_of(resolved).is_some() && best.is_some();
        if is_own
            && !is_bridge_by_name
            && Reach::of_endpoint(endpoint, resolved) == Reach::of(resolved)
        {
            let bridge = bridge_of(resolved).map(str::to_owned);
            let reason = match bridge {
                _ if resolved.is_loopback() => Some(Unreachable::Loopback),
                bridge => bridge.map(Unreachable::Bridge),
            };
            return (resolved, reason);
        }
        // The name resolves to an address of its own machine only, as in many /etc/hosts files, or
        // the address is forwarded to this machine.
        (best.or_else(|| own().min()).unwrap_or(resolved), Some(Unreachable::Replaced))
    }
}

/// Returns the address at which a process reaches its own listener.
pub(super) fn reachable_here(bound: SocketAddr) -> IpAddr {
    match bound.ip() {
        // A listener on all addresses accepts IPv4, too.
        ip if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        ip => ip,
    }
}

/// Returns the reach of the port of an agent that has joined at `coordinator`.
pub(super) fn member_reach(coordinator: IpAddr) -> Reach {
    match coordinator {
        // A stream to any loopback address comes from the first one of its family.
        IpAddr::V4(ip) if ip.is_loopback() => Reach::Loopback(Ipv4Addr::LOCALHOST.into()),
        ip => Reach::of(ip),
    }
}

/// Returns the reach of a worker store. Listeners of the agent have `reach`; workers use
/// `local_addr`, which the user gave this node.
pub(super) fn store_reach(reach: Reach, local_addr: Option<&str>) -> Reach {
    match (reach, local_addr) {
        (Reach::Everywhere, _) | (Reach::Loopback(_), None | Some("localhost")) => reach,
        (Reach::Loopback(_), Some(address)) => address.parse().map_or(Reach::Everywhere, Reach::of),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn loopback(text: &str) -> Reach {
        Reach::Loopback(ip(text))
    }

    /// A host announces the address of its endpoint if other nodes may reach it. Otherwise it announces its lowest address that is not a
    /// loopback address or a container bridge. Obstacles for other nodes are reported.
    #[test]
    fn announced_addresses() {
        let of = |(name, address): (&str, &str)| (name.to_owned(), ip(address));
        let interfaces = [
            ("lo", "127.0.0.1"),
            ("eth1", "192.168.0.7"),
            ("eth0", "192.168.0.5"),
            ("docker0", "172.17.0.1"),
        ];
        let interfaces = interfaces.map(of);
        let bridge = Unreachable::Bridge("docker0".to_owned());
        for (host, resolved, is_own, expected) in [
            ("192.168.0.7", "192.168.0.7", true, ("192.168.0.7", None)),
            ("node0", "192.168.0.7", true, ("192.168.0.7", None)),
            ("127.0.0.1", "127.0.0.1", true, ("127.0.0.1", Some(Unreachable::Loopback))),
            ("localhost", "127.0.0.1", true, ("127.0.0.1", Some(Unreachable::Loopback))),
            ("172.17.0.1", "172.17.0.1", true, ("172.17.0.1", Some(bridge))),
            // A name in /etc/hosts.
            ("node0", "127.0.1.1", true, ("192.168.0.5", Some(Unreachable::Replaced))),
            ("node0", "172.17.0.1", true, ("192.168.0.5", Some(Unreachable::Replaced))),
            // A forwarded address.
            ("192.0.2.1", "192.0.2.1", false, ("192.168.0.5", Some(Unreachable::Replaced))),
        ] {
            let endpoint = Endpoint { host: host.to_owned(), port: 29400 };
            let resolved = ip(resolved);
            let here =
                EndpointHere { endpoint: &endpoint, resolved, is_own, interfaces: &interfaces };
            let (address, reason) = expected;
            assert_eq!(here.announced(), (ip(address), reason), "{host} {resolved}");
        }
    }

    /// A machine that has only loopback addresses announces the address of the endpoint.
    #[test]
    fn lone_machine_announces_what_it_has() {
        let endpoint = Endpoint { host: "node0".to_owned(), port: 29400 };
        let interfaces = [("lo".to_owned(), ip("127.0.0.1"))];
        let resolved = ip("127.0.1.1");
        let here =
            EndpointHere { endpoint: &endpoint, resolved, is_own: true, interfaces: &interfaces };
        assert_eq!(here.announced(), (resolved, Some(Unreachable::Replaced)));
    }

    /// A process reaches a listener on all addresses at a loopback address.
    #[test]
    fn own_listeners_are_reached() {
        for (bound, reached) in
            [("[::]:1", "127.0.0.1"), ("0.0.0.0:1", "127.0.0.1"), ("127.0.0.2:1", "127.0.0.2")]
        {
            assert_eq!(reachable_here(bound.parse().unwrap()), ip(reached), "{bound}");
        }
    }

    /// A member of a job on one machine serves its port on the source address of its stream.
    #[test]
    fn members_serve_their_port_where_others_are() {
        for (coordinator, reach) in [
            ("127.0.0.1", loopback("127.0.0.1")),
            ("127.0.1.1", loopback("127.0.0.1")),
            ("::1", loopback("::1")),
            ("10.0.0.1", Reach::Everywhere),
        ] {
            assert_eq!(member_reach(ip(coordinator)), reach, "{coordinator}");
        }
    }

    /// A worker store accepts connections at the address that the user has given the node.
    #[test]
    fn stores_are_reached_at_the_given_address() {
        let own = loopback("127.0.0.1");
        for (reach, local_addr, expected) in [
            (own, None, own),
            (own, Some("localhost"), own),
            (own, Some("127.0.0.3"), loopback("127.0.0.3")),
            (own, Some("10.0.0.1"), Reach::Everywhere),
            (own, Some("node0"), Reach::Everywhere),
            (Reach::Everywhere, Some("127.0.0.1"), Reach::Everywhere),
            (Reach::Everywhere, None, Reach::Everywhere),
        ] {
            assert_eq!(store_reach(reach, local_addr), expected, "{reach:?} {local_addr:?}");
        }
    }
}
