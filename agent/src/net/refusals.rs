//! The processes that a port has refused: each address is logged once.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Mutex, PoisonError},
};

use ragent_rendezvous::snapshot::{REFUSED_PEERS_MAX, RefusedPeer};
use tracing::{debug, info};

/// The refused addresses of one port, of which a limited number is kept.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Mutex<BTreeMap<IpAddr, RefusedPeer>>);

impl Refusals {
    /// Logs that a process at `ip` was refused, and the reason.
    pub(crate) fn handle_refused(&self, ip: IpAddr, why: &str) {
        if self.is_new(ip, why) {
            info!(peer = %ip, why, "connection refused; further ones from there are not logged");
        } else {
            debug!(peer = %ip, why, "connection refused");
        }
    }

    /// Returns the addresses with the number of refusals and the last reason.
    pub(crate) fn list(&self) -> Vec<RefusedPeer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Counts a refusal; returns true for the first one of an address.
    fn is_new(&self, ip: IpAddr, why: &str) -> bool {
        let mut peers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let has_room = peers.len() < REFUSED_PEERS_MAX;
        match peers.get_mut(&ip) {
            Some(peer) => {
                peer.count = peer.count.saturating_add(1);
                if peer.reason != why {
                    why.clone_into(&mut peer.reason);
                }
                false
            }
            None if has_room => {
                peers.insert(ip, RefusedPeer { address: ip, count: 1, reason: why.to_owned() });
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    /// However many strangers there are, the log and the list stay short.
    #[test]
    fn refusals_are_logged_once() {
        let refusals = Refusals::default();
        let address = |number: u32| IpAddr::from(Ipv4Addr::from(number));
        assert!(refusals.is_new(address(0), "one"));
        assert!(!refusals.is_new(address(0), "other"));
        let logged = (1..1000).filter(|number| refusals.is_new(address(*number), "one")).count();
        assert_eq!(logged, REFUSED_PEERS_MAX - 1);
        let list = refusals.list();
        assert_eq!((list.len(), list[0].count, list[0].reason.as_str()), (64, 2, "other"));
    }
}
