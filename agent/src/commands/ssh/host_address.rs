//! Finds the address at which other hosts can reach this one: the address at which ssh has reached it.

use std::net::{IpAddr, TcpListener};

use ragent_base::{
    net::{self, Reach},
    sys::host::{Host, ThisHost},
};

use super::order::HostAddress;

/// Returns the address of this host, and a listener that reserves the port until the agent is started. Otherwise another launch might take
/// the port.
pub(super) fn host_address() -> (HostAddress, Option<TcpListener>) {
    let connection = ThisHost.env("SSH_CONNECTION").unwrap_or_default();
    let listen = |port| net::listen(Reach::Everywhere, port).ok();
    let held = listen(net::DEFAULT_PORT).or_else(|| listen(0));
    let address = held.as_ref().and_then(|held| held.local_addr().ok());
    let host_address = HostAddress {
        host_name: ThisHost.name(),
        address: own_address(&connection.to_string_lossy()),
        port: address.map_or(net::DEFAULT_PORT, |address| address.port()),
    };
    (host_address, held)
}

/// Returns the address that another host has sent, without its name if the name is too long or cannot be a host name. The name may become a
/// part of the agents' command lines.
pub(super) fn checked(host_address: HostAddress) -> HostAddress {
    let is_valid = net::is_host(&host_address.host_name);
    let host_name = if is_valid { host_address.host_name } else { String::new() };
    HostAddress { host_name, ..host_address }
}

/// Returns the address at which ssh has reached this host, if other hosts can use it. It is the third word of `SSH_CONNECTION`.
fn own_address(connection: &str) -> Option<IpAddr> {
    let address: IpAddr = connection.split(' ').nth(2)?.parse().ok()?;
    let address = address.to_canonical();
    let is_everywhere = match address {
        IpAddr::V4(v4) => v4.is_loopback() || v4.is_link_local() || v4.is_unspecified(),
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unicast_link_local() || v6.is_unspecified(),
    };
    (!is_everywhere).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name of another host is short, and cannot add anything to the command lines of agents.
    #[test]
    fn names_of_other_hosts() {
        let name = |host_name: &str| {
            let host_name = host_name.to_owned();
            checked(HostAddress { host_name, address: None, port: 1 }).host_name
        };
        let longest = "n".repeat(253);
        for valid in ["node-1.example", "node_1", &longest] {
            assert_eq!(name(valid), valid);
        }
        for invalid in ["a,b", "a b", "a\n", "--x=1", &format!("{longest}n")] {
            assert_eq!(name(invalid), "", "{invalid}");
        }
    }

    /// Only an address that other hosts can use is accepted.
    #[test]
    fn address_of_a_connection() {
        let own = |text| own_address(text).map(|address| address.to_string());
        assert_eq!(own("10.0.0.9 50000 10.0.0.1 22").as_deref(), Some("10.0.0.1"));
        assert_eq!(own("fd00::9 50000 fd00::1 22").as_deref(), Some("fd00::1"));
        assert_eq!(own("x 1 ::ffff:10.0.0.1 22").as_deref(), Some("10.0.0.1"));
        for nowhere in ["", "127.0.0.1 5 127.0.0.1 22", "::1 5 ::1 22", "a 1 fe80::1%eth0 22"] {
            assert_eq!(own(nowhere), None, "{nowhere}");
        }
    }
}
