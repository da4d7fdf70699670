//! Chooses the addresses of a node: the announced ones, and the source address that the coordinator observes.

use std::net::IpAddr;

use ragent_base::net::connection::PeerAddress;

/// Puts the source address of a node's stream first among its addresses. Behind NAT, its workers connect from it, too.
///
/// A source address of this machine is not added, because all users of the machine have it.
pub(super) fn add_source(addresses: &mut Vec<IpAddr>, from: Option<PeerAddress>) {
    if let Some(PeerAddress { ip, is_here: false, .. }) = from {
        addresses.retain(|address| *address != ip);
        addresses.insert(0, ip);
    }
}

/// Returns the source address of a node's stream. A stream from this machine may have any address
/// of the machine. The announced address is used instead, if it belongs to the machine.
pub(super) fn observed(
    from: PeerAddress,
    announced: &str,
    is_own: impl Fn(IpAddr) -> bool,
) -> IpAddr {
    let announced = announced.parse().ok().filter(|announced| from.is_here && is_own(*announced));
    announced.unwrap_or(from.ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn from(text: &str, is_here: bool) -> PeerAddress {
        PeerAddress { ip: ip(text), is_here, is_own_user: is_here }
    }

    /// The source address comes first, once. Addresses of this machine do not count.
    #[test]
    fn source_comes_first() {
        let added = |source| {
            let mut addresses = ["10.0.0.1", "10.0.0.2"].map(ip).to_vec();
            add_source(&mut addresses, source);
            addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>()
        };
        let nat = from("192.0.2.7", false);
        assert_eq!(added(Some(nat)), ["192.0.2.7", "10.0.0.1", "10.0.0.2"]);
        assert_eq!(added(Some(from("10.0.0.2", false))), ["10.0.0.2", "10.0.0.1"]);
        assert_eq!(added(Some(from("127.0.0.1", true))), ["10.0.0.1", "10.0.0.2"]);
        assert_eq!(added(None), ["10.0.0.1", "10.0.0.2"]);
    }

    /// An announced address counts only for a stream from this machine, and only if it belongs to
    /// this machine.
    #[test]
    fn announced_address_must_be_plausible() {
        let is_own = |address: IpAddr| address == ip("10.0.0.1");
        for (source, announced, expected) in [
            (from("127.0.0.1", true), "10.0.0.1", "10.0.0.1"),
            (from("127.0.0.1", true), "10.0.0.2", "127.0.0.1"),
            (from("127.0.0.1", true), "node0", "127.0.0.1"),
            (from("10.0.0.9", false), "10.0.0.1", "10.0.0.9"),
        ] {
            assert_eq!(observed(source, announced, is_own), ip(expected), "{source:?} {announced}");
        }
    }
}
