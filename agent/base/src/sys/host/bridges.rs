//! Bridges of container engines and hypervisors, which lead only to this machine.

use std::net::IpAddr;

/// Prefixes of bridge names, from their documentation.
const BRIDGES: [&str; 4] = ["docker0", "cni0", "virbr", "podman"];

/// Returns the bridge whose own address is `address`, if other interfaces have addresses that lead
/// to other machines.
pub fn bridge_with(address: IpAddr, all: &[(String, IpAddr)]) -> Option<&str> {
    // Docker names those of its users by a hexadecimal number; `br-ex` and others lead to other machines.
    let is_of_user = |name: &str| {
        let number = name.strip_prefix("br-").unwrap_or_default();
        !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_hexdigit())
    };
    let is_bridge =
        |name: &str| is_of_user(name) || BRIDGES.iter().any(|bridge| name.starts_with(bridge));
    let (bridge, _) = all.iter().find(|(name, own)| is_bridge(name) && *own == address)?;
    let leads_out = |(name, own): &(String, IpAddr)| !is_bridge(name) && is_global(*own);
    all.iter().any(leads_out).then_some(bridge.as_str())
}

fn is_global(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found<'a>(address: &str, all: &'a [(String, IpAddr)]) -> Option<&'a str> {
        bridge_with(address.parse().unwrap(), all)
    }

    /// A bridge is found by its address, unless no other interface leads to other machines.
    #[test]
    fn bridges_are_found() {
        let of = |(name, address): (&str, &str)| (name.to_owned(), address.parse().unwrap());
        let mut all = [
            ("lo", "127.0.0.1"),
            ("docker0", "172.17.0.1"),
            ("br-3a07f1", "172.18.0.1"),
            ("br0", "10.0.0.5"),
            ("br-ex", "10.0.0.6"),
            ("eth0", "fe80::1"),
        ]
        .map(of)
        .to_vec();
        assert_eq!(found("172.17.0.1", &all), Some("docker0"));
        assert_eq!(found("172.18.0.1", &all), Some("br-3a07f1"));
        assert_eq!(found("10.0.0.5", &all), None);
        assert_eq!(found("10.0.0.6", &all), None);
        assert_eq!(found("127.0.0.1", &all), None);
        all.retain(|(name, _)| !["br0", "br-ex"].contains(&name.as_str()));
        assert_eq!(found("172.17.0.1", &all), None);
    }
}
