//! The processes that a port has refused: each address is logged once.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    sync::{Mutex, PoisonError},
};

use tracing::{debug, info};

use crate::net::limits;

/// The refused addresses of one port.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Mutex<BTreeSet<IpAddr>>);

impl Refusals {
    /// Logs that a process at `ip` was refused, and the reason.
    pub(crate) fn handle_refused(&self, ip: IpAddr, why: &str) {
        if self.is_new(ip) {
            info!(peer = %ip, why, "connection refused; further ones from there are not logged");
        } else {
            debug!(peer = %ip, why, "connection refused");
        }
    }

    fn is_new(&self, ip: IpAddr) -> bool {
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        logged.len() < limits::MAX_REFUSED && logged.insert(ip)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    /// However many strangers there are, the log stays short.
    #[test]
    fn refusals_are_logged_once() {
        let refusals = Refusals::default();
        let address = |number: u32| IpAddr::from(Ipv4Addr::from(number));
        assert!(refusals.is_new(address(0)));
        assert!(!refusals.is_new(address(0)));
        let logged = (1..1000).filter(|number| refusals.is_new(address(*number))).count();
        assert_eq!(logged, limits::MAX_REFUSED - 1);
    }
}
