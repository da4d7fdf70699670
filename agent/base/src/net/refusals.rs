//! The processes that a port has refused: each address is logged once.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use ragent_proto::printable;
use ragent_rendezvous::snapshot::{REFUSED_PEERS_MAX, RefusedPeer};
use tracing::{debug, info, warn};

use crate::net::limits;

/// The refused addresses of one port, up to a limit, and the number of refusals.
#[derive(Debug, Default)]
pub struct Refusals {
    peers: Mutex<BTreeMap<IpAddr, RefusedPeer>>,
    total: AtomicU64,
}

impl Refusals {
    /// Logs that a process at `ip` was refused, and the reason.
    pub fn handle_refused(&self, ip: IpAddr, why: &str) {
        if self.record(ip, why) {
            info!(peer = %ip, why, "connection refused; further ones from there are not logged");
        } else {
            debug!(peer = %ip, why, "connection refused");
        }
    }

    /// Warns that an agent at `ip` was refused as a node of the job, and of the reason.
    pub fn handle_refused_node(&self, ip: IpAddr, why: &str) {
        if self.record(ip, why) {
            warn!(
                "an agent at {ip} was refused as a node of this job: {why}; further ones from there are not logged"
            );
        }
    }

    /// Returns the number of refusals.
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// Returns the addresses with the number of refusals and the last reason.
    pub fn list(&self) -> Vec<RefusedPeer> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Counts a refusal; returns true if it is to be logged: the first one of each of the first addresses.
    fn record(&self, ip: IpAddr, why: &str) -> bool {
        self.total.fetch_add(1, Ordering::Relaxed);
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        let reason: String = printable(why).chars().take(limits::MAX_REASON_CHARS).collect();
        if let Some(peer) = peers.get_mut(&ip) {
            peer.count = peer.count.saturating_add(1);
            peer.reason = reason;
            return false;
        }
        let is_full = peers.len() >= REFUSED_PEERS_MAX;
        if is_full {
            // Addresses that try again and again stay.
            let fewest = peers.values().min_by_key(|peer| peer.count).map(|peer| peer.address);
            fewest.and_then(|address| peers.remove(&address));
        }
        peers.insert(ip, RefusedPeer { address: ip, count: 1, reason });
        !is_full
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
        assert!(refusals.record(address(0), "one"));
        assert!(!refusals.record(address(0), "other"));
        let long = "\u{1b}é".repeat(500);
        let logged = (1..1000).filter(|number| refusals.record(address(*number), &long)).count();
        assert_eq!(logged, REFUSED_PEERS_MAX - 1);
        assert_eq!(refusals.total(), 1001);
        let list = refusals.list();
        assert_eq!((list.len(), list[0].count, list[0].reason.as_str()), (64, 2, "other"));
        assert_eq!(list[63].address, address(999), "the last one is listed");
        assert!(list[63].reason.len() <= 256 && !list[63].reason.contains('\u{1b}'));
    }
}
