//! The addresses of the hosts in a world.

use ragent_rendezvous::ids::VoterAddress;

/// Returns the address of the voter on a host.
pub(crate) fn address(host: usize) -> VoterAddress {
    VoterAddress::new(format!("host{host}:29400"))
}

/// Returns the host with this address; `None` if it is not one of a world.
pub(crate) fn host_of(address: &VoterAddress) -> Option<usize> {
    address.as_str().strip_prefix("host")?.strip_suffix(":29400")?.parse().ok()
}
