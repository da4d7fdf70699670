//! Decides who may connect to a store.

use std::collections::BTreeSet;
use std::net::IpAddr;

/// From which addresses connections are accepted.
///
/// It is asked once, when a connection begins. Addresses of IPv4 are the same written as IPv6
/// (`::ffff:10.0.0.1`). Loopback is an address like any other: list it if the own host takes part.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum Admission {
    /// From none yet: a connection waits in the listener's backlog until some are admitted or the
    /// store is closed. One that was handed over cannot go back there, and is refused.
    #[default]
    Nobody,
    /// From all.
    Anybody,
    /// From these.
    Only(BTreeSet<IpAddr>),
}

impl Admission {
    /// Returns the same with one spelling of each address.
    pub(super) fn canonical(self) -> Self {
        match self {
            Self::Nobody | Self::Anybody => self,
            Self::Only(members) => {
                Self::Only(members.into_iter().map(|member| member.to_canonical()).collect())
            }
        }
    }

    /// Tells whether a connection from `peer` is accepted; both are in their canonical spelling.
    pub(super) fn admits(&self, peer: IpAddr) -> bool {
        match self {
            Self::Nobody => false,
            Self::Anybody => true,
            Self::Only(members) => members.contains(&peer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// Members may be listed under either spelling of their address; others are not admitted.
    #[test]
    fn spelling_does_not_matter() {
        let plain = Admission::Only([ip("10.0.0.1"), ip("2001:db8::1")].into()).canonical();
        let mapped = Admission::Only([ip("::ffff:10.0.0.1")].into()).canonical();
        assert!(plain.admits(ip("10.0.0.1")) && mapped.admits(ip("10.0.0.1")));
        assert!(plain.admits(ip("2001:db8::1")));
        for peer in ["10.0.0.2", "127.0.0.1", "::1", "2001:db8::2"] {
            assert!(!plain.admits(ip(peer)) && !mapped.admits(ip(peer)));
            assert!(Admission::Anybody.admits(ip(peer)));
            assert!(!Admission::Nobody.admits(ip(peer)));
        }
    }
}
