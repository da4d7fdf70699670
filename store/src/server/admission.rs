//! Decides who may connect to a store.

use std::collections::BTreeSet;
use std::net::IpAddr;

/// The rule by which connections are accepted.
///
/// It is asked once, when a connection begins. Addresses of IPv4 are the same written as IPv6
/// (`::ffff:10.0.0.1`).
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum Admission {
    /// None yet: a connection waits in the listener's backlog until some are admitted or the
    /// store is closed. One that was handed over cannot go back there, and is refused.
    #[default]
    Nobody,
    /// All connections.
    Anybody,
    /// Those of other hosts by their address, and those of this host by their user.
    Only {
        /// Addresses of other hosts. Every host has the loopback addresses, so they are ignored
        /// here; leave this host's own addresses out, too, as all its users share them.
        addresses: BTreeSet<IpAddr>,
        /// The users of this host.
        local_uids: BTreeSet<u32>,
        /// How many may be connected without having sent their `VALIDATE`; the one that has waited
        /// longest is closed for a further one.
        silent_max: usize,
    },
}

/// The decision on a connection by its address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Verdict {
    /// It is accepted.
    Admitted,
    /// It is refused.
    Refused,
    /// It is accepted if it belongs to one of the listed users of this host.
    DependsOnOwner,
}

impl Admission {
    /// Returns the rule with canonical addresses, and without those that every host has.
    pub(super) fn canonical(self) -> Self {
        match self {
            Self::Nobody | Self::Anybody => self,
            Self::Only { addresses, local_uids, silent_max } => {
                let is_ones_own = |ip: &IpAddr| !ip.is_loopback() && !ip.is_unspecified();
                let addresses = addresses.into_iter().map(|ip| ip.to_canonical());
                let addresses = addresses.filter(is_ones_own).collect();
                Self::Only { addresses, local_uids, silent_max }
            }
        }
    }

    /// Decides on a connection from `peer`, as far as its address goes.
    pub(super) fn of_address(&self, peer: IpAddr) -> Verdict {
        match self {
            Self::Nobody => Verdict::Refused,
            Self::Anybody => Verdict::Admitted,
            Self::Only { addresses, .. } if addresses.contains(&peer) => Verdict::Admitted,
            Self::Only { .. } => Verdict::DependsOnOwner,
        }
    }

    /// Decides on a connection whose other end is known to belong to `uid` of this host.
    pub(super) fn of_user(&self, uid: u32) -> bool {
        match self {
            Self::Nobody => false,
            Self::Anybody => true,
            Self::Only { local_uids, .. } => local_uids.contains(&uid),
        }
    }

    /// How many connections may be silent.
    pub(super) fn silent_max(&self) -> usize {
        match self {
            Self::Nobody | Self::Anybody => usize::MAX,
            Self::Only { silent_max, .. } => *silent_max,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn only(addresses: &[&str]) -> Admission {
        let addresses = addresses.iter().map(|text| ip(text)).collect();
        Admission::Only { addresses, local_uids: [7].into(), silent_max: 1 }.canonical()
    }

    /// Members may be listed under either spelling of their address; others are admitted only if
    /// they are a user of this host.
    #[test]
    fn spelling_does_not_matter() {
        let plain = only(&["10.0.0.1", "2001:db8::1"]);
        let mapped = only(&["::ffff:10.0.0.1"]);
        assert_eq!(plain.of_address(ip("10.0.0.1")), Verdict::Admitted);
        assert_eq!(mapped.of_address(ip("10.0.0.1")), Verdict::Admitted);
        assert_eq!(plain.of_address(ip("2001:db8::1")), Verdict::Admitted);
        for peer in ["10.0.0.2", "127.0.0.1", "::1", "2001:db8::2"] {
            for some in [&plain, &mapped] {
                assert_eq!(some.of_address(ip(peer)), Verdict::DependsOnOwner);
            }
            assert_eq!(Admission::Anybody.of_address(ip(peer)), Verdict::Admitted);
            assert_eq!(Admission::Nobody.of_address(ip(peer)), Verdict::Refused);
        }
        assert!(plain.of_user(7) && !plain.of_user(0) && !Admission::Nobody.of_user(7));
    }

    /// An address that every host has does not admit a connection.
    #[test]
    fn loopback_is_no_address() {
        let lax = only(&["127.0.0.1", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::"]);
        for peer in ["127.0.0.1", "::1", "0.0.0.0", "::"] {
            assert_eq!(lax.of_address(ip(peer)), Verdict::DependsOnOwner);
        }
    }
}
