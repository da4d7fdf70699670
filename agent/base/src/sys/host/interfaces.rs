//! The network interfaces of this machine, and their addresses.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use nix::{
    ifaddrs::getifaddrs,
    net::if_::{InterfaceFlags, if_nametoindex},
};

use super::ThisHost;
use crate::sys::limits;

/// An interface of this machine.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Interface {
    /// Its name, such as `eth0`.
    pub name: String,
    /// Its number.
    pub index: u32,
    /// Its IPv4 addresses.
    pub v4: Vec<Ipv4Addr>,
    /// True if it has an IPv6 address that is not link-local.
    pub has_v6: bool,
    /// True if it is a loopback interface.
    pub is_loopback: bool,
}

impl ThisHost {
    /// The addresses of all interfaces, loopback last.
    pub fn addresses(self) -> Vec<IpAddr> {
        let mut addresses: Vec<IpAddr> =
            self.interface_addresses().into_iter().map(|(_, address)| address).collect();
        addresses.sort_by_key(|address| (address.is_loopback(), *address));
        addresses.dedup();
        addresses
    }

    /// The addresses of this machine, each with the name of its interface.
    pub fn interface_addresses(self) -> Vec<(String, IpAddr)> {
        getifaddrs()
            .into_iter()
            .flatten()
            .filter_map(|interface| {
                let address = interface.address?;
                let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
                let ip = v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))?;
                Some((interface.interface_name, ip))
            })
            .collect()
    }

    /// The interfaces that can multicast, restricted to `name` if given; loopback only if there is
    /// no other.
    pub fn multicast_interfaces(self, name: Option<&str>) -> Vec<Interface> {
        let mut found: BTreeMap<String, Interface> = BTreeMap::new();
        for entry in getifaddrs().into_iter().flatten() {
            let flags = entry.flags;
            let is_loopback = flags.contains(InterfaceFlags::IFF_LOOPBACK);
            let can = is_loopback || flags.contains(InterfaceFlags::IFF_MULTICAST);
            let is_wanted = name.is_none_or(|name| name == entry.interface_name);
            let Some(address) = entry.address.filter(|_| can && is_wanted) else { continue };
            if !flags.contains(InterfaceFlags::IFF_UP) {
                continue;
            }
            let Ok(index) = if_nametoindex(entry.interface_name.as_str()) else { continue };
            let name = entry.interface_name.clone();
            let interface = found.entry(entry.interface_name).or_insert_with(|| Interface {
                name,
                index,
                v4: Vec::new(),
                has_v6: false,
                is_loopback,
            });
            interface.v4.extend(address.as_sockaddr_in().map(|address| address.ip()));
            let v6 = address.as_sockaddr_in6().map(|address| address.ip());
            interface.has_v6 |= v6.is_some_and(|address| !address.is_unicast_link_local());
        }
        let has_others = found.values().any(|interface| !interface.is_loopback);
        let is_used = |interface: &Interface| !(interface.is_loopback && has_others);
        found.into_values().filter(is_used).take(limits::MAX_INTERFACES).collect()
    }

    /// The name of the interface that has `address`.
    pub fn interface_of(self, address: IpAddr) -> Option<String> {
        let mut all = self.interface_addresses().into_iter();
        all.find(|(_, own)| *own == address).map(|(name, _)| name)
    }

    /// Returns true if one of this machine's interfaces has `address`.
    pub fn owns(self, address: IpAddr) -> bool {
        let is_whole_net = |ip: IpAddr| match ip {
            IpAddr::V4(v4) => v4.is_loopback() || v4 == Ipv4Addr::UNSPECIFIED,
            IpAddr::V6(v6) => v6.is_loopback() || v6 == Ipv6Addr::UNSPECIFIED,
        };
        let address = address.to_canonical();
        is_whole_net(address) || self.addresses().contains(&address)
    }
}
