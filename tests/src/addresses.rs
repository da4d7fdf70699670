//! Gives the hosts in a world their addresses.

use ragent_rendezvous::ids::VoterAddress;

/// The port of a listed host.
pub(crate) const LISTED_PORT: u16 = 29_400;

/// The place of a voter. It is reached only while a process with that port runs on that host.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Place {
    pub(crate) host: usize,
    pub(crate) port: u16,
}

impl Place {
    /// Returns the place of the voter on a host that the user listed.
    pub(crate) fn listed(host: usize) -> Self {
        Self { host, port: LISTED_PORT }
    }

    pub(crate) fn address(self) -> VoterAddress {
        let Self { host, port } = self;
        VoterAddress::new(format!("host{host}:{port}"))
    }

    /// Returns the place with this address. Returns `None` if no host in a world has it.
    pub(crate) fn of(address: &VoterAddress) -> Option<Self> {
        let (host, port) = address.as_str().strip_prefix("host")?.split_once(':')?;
        Some(Self { host: host.parse().ok()?, port: port.parse().ok()? })
    }
}

/// Returns the address of the voter on a host that the user listed.
pub(crate) fn address(host: usize) -> VoterAddress {
    Place::listed(host).address()
}

/// Returns the host with this address. Returns `None` if no host in a world has it.
pub(crate) fn host_of(address: &VoterAddress) -> Option<usize> {
    Place::of(address).map(|place| place.host)
}
