//! Admission of connections to a store.

use std::collections::BTreeSet;
use std::net::IpAddr;

/// The rule by which connections are accepted.
///
/// It is applied once, when a connection begins. An IPv4 address and the same address written as
/// IPv6 (`::ffff:10.0.0.1`) are equal.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum AdmissionRule {
    /// No connections yet: they wait in the listener's backlog until some are admitted or the store
    /// is closed. A connection that was handed over cannot return there, and is refused.
    #[default]
    Nobody,
    /// All connections.
    Anybody,
    /// Connections from other hosts by their address, and those from this host by their user.
    Only {
        /// Addresses of other hosts. Loopback addresses, which every host has, are ignored. Leave
        /// this host's own addresses out, too, as all its users share them.
        addresses: BTreeSet<IpAddr>,
        /// The users of this host.
        local_uids: BTreeSet<u32>,
        /// Most connections that have not sent their `VALIDATE`; for a further one, the connection
        /// that has waited longest is closed.
        silent_max: usize,
    },
}

/// The decision on a connection by its address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Access {
    /// The connection is accepted.
    Admitted,
    /// The connection is refused.
    Refused,
    /// The connection is accepted if it belongs to one of the listed users of this host.
    DependsOnOwner,
}

impl AdmissionRule {
    /// Returns the rule with canonical addresses, and without addresses that every host has.
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

    /// Decides on a connection from `peer` by its address.
    pub(super) fn of_address(&self, peer: IpAddr) -> Access {
        match self {
            Self::Nobody => Access::Refused,
            Self::Anybody => Access::Admitted,
            Self::Only { addresses, .. } if !addresses.contains(&peer) => Access::DependsOnOwner,
            Self::Only { .. } => Access::Admitted,
        }
    }

    /// Returns true if a connection of user `uid` of this host is admitted.
    pub(super) fn of_user(&self, uid: u32) -> bool {
        match self {
            Self::Nobody => false,
            Self::Anybody => true,
            Self::Only { local_uids, .. } => local_uids.contains(&uid),
        }
    }

    /// Returns the most connections that may be silent.
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

    fn only(addresses: &[&str]) -> AdmissionRule {
        let addresses = addresses.iter().map(|text| ip(text)).collect();
        let local_uids = [7].into();
        AdmissionRule::Only { addresses, local_uids, silent_max: 1 }.canonical()
    }

    /// Members may be listed with either spelling of their address; other peers are admitted only
    /// if they belong to a listed user of this host.
    #[test]
    fn spelling_does_not_matter() {
        let plain = only(&["10.0.0.1", "2001:db8::1"]);
        let mapped = only(&["::ffff:10.0.0.1"]);
        assert_eq!(plain.of_address(ip("10.0.0.1")), Access::Admitted);
        assert_eq!(mapped.of_address(ip("10.0.0.1")), Access::Admitted);
        assert_eq!(plain.of_address(ip("2001:db8::1")), Access::Admitted);
        for peer in ["10.0.0.2", "127.0.0.1", "::1", "2001:db8::2"] {
            for some in [&plain, &mapped] {
                assert_eq!(some.of_address(ip(peer)), Access::DependsOnOwner);
            }
            assert_eq!(AdmissionRule::Anybody.of_address(ip(peer)), Access::Admitted);
            assert_eq!(AdmissionRule::Nobody.of_address(ip(peer)), Access::Refused);
        }
        assert!(plain.of_user(7) && !plain.of_user(0) && !AdmissionRule::Nobody.of_user(7));
    }

    /// An address that every host has does not admit a connection.
    #[test]
    fn loopback_is_no_address() {
        let lax = only(&["127.0.0.1", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::"]);
        for peer in ["127.0.0.1", "::1", "0.0.0.0", "::"] {
            assert_eq!(lax.of_address(ip(peer)), Access::DependsOnOwner);
        }
    }
}
