//! The connections to a store that wait until their users are confirmed.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use crate::limits::{OWNER_CHECK_TIMEOUT, UNCHECKED_MAX, UNCHECKED_PER_ADDRESS_MAX};

/// A connection to a store whose user another host must confirm.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Unchecked {
    /// The number of the connection; unique in its store.
    pub number: u64,
    /// The client's end of the connection.
    pub client: SocketAddr,
    /// The store's end of the connection.
    pub store: SocketAddr,
}

/// The answers about connections that wait until their users are confirmed, by their numbers.
#[derive(Debug)]
pub(super) struct CheckAnswers {
    pub(super) confirmed: Vec<u64>,
    pub(super) denied: Vec<u64>,
}

/// Connections (`T`) that wait until their users are confirmed, each for at most [`OWNER_CHECK_TIMEOUT`].
///
/// Invariant: `per_address` counts the connections in `waiting` by their address.
#[derive(Debug)]
pub(super) struct Waiting<T> {
    /// By number. Numbers grow, and so do the deadlines.
    waiting: BTreeMap<u64, (Instant, SocketAddr, T)>,
    per_address: BTreeMap<IpAddr, usize>,
    last: u64,
}

impl<T> Default for Waiting<T> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), per_address: BTreeMap::new(), last: 0 }
    }
}

impl<T> Waiting<T> {
    /// Adds the connection of `client`; returns its number, or the connection if too many wait.
    pub(super) fn add(
        &mut self,
        now: Instant,
        client: SocketAddr,
        connection: T,
    ) -> Result<u64, T> {
        let count = self.per_address.get(&client.ip()).copied().unwrap_or(0);
        if UNCHECKED_PER_ADDRESS_MAX <= count || UNCHECKED_MAX <= self.waiting.len() {
            return Err(connection);
        }
        self.per_address.insert(client.ip(), count + 1);
        self.last += 1;
        self.waiting.insert(self.last, (now + OWNER_CHECK_TIMEOUT, client, connection));
        Ok(self.last)
    }

    /// Returns the number of connections.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Removes a connection and returns it with its client; `None` if it is not waiting.
    pub(super) fn take(&mut self, number: u64) -> Option<(SocketAddr, T)> {
        let (_, client, connection) = self.waiting.remove(&number)?;
        if let Some(count) = self.per_address.get_mut(&client.ip()) {
            *count -= 1;
            if *count == 0 {
                self.per_address.remove(&client.ip());
            }
        }
        Some((client, connection))
    }

    /// Removes a connection that has waited too long and returns it; `None` if there is none.
    pub(super) fn take_overdue(&mut self, now: Instant) -> Option<(SocketAddr, T)> {
        let (number, (deadline, ..)) = self.waiting.first_key_value()?;
        if now < *deadline {
            return None;
        }
        let number = *number;
        self.take(number)
    }

    /// Returns the time at which the next connection has waited too long.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.waiting.first_key_value().map(|(_, (deadline, ..))| *deadline)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::driver::now;
    use super::*;

    fn client(host: u8, port: u16) -> SocketAddr {
        ([10, 0, 0, host], port).into()
    }

    /// A connection waits until it is taken or times out, and is returned once.
    #[test]
    fn each_connection_is_returned_once() {
        let start = now();
        let mut waiting = Waiting::default();
        let first = waiting.add(start, client(1, 1), "first").unwrap();
        let later = start + Duration::from_secs(1);
        let second = waiting.add(later, client(1, 2), "second").unwrap();
        assert_eq!(waiting.poll_timeout(), Some(start + OWNER_CHECK_TIMEOUT));
        assert_eq!(waiting.take_overdue(later), None);
        assert_eq!(
            waiting.take_overdue(start + OWNER_CHECK_TIMEOUT),
            Some((client(1, 1), "first"))
        );
        assert_eq!(waiting.take(first), None);
        assert_eq!(waiting.take(second), Some((client(1, 2), "second")));
        assert_eq!((waiting.take(second), waiting.poll_timeout()), (None, None));
        assert!(waiting.per_address.is_empty());
    }

    /// One address cannot take the places of others, and the places in all are limited.
    #[test]
    fn places_are_limited() {
        let start = now();
        let mut waiting = Waiting::default();
        for port in 0..UNCHECKED_PER_ADDRESS_MAX as u16 {
            waiting.add(start, client(1, port), ()).unwrap();
        }
        assert_eq!(waiting.add(start, client(1, u16::MAX), ()), Err(()));
        for n in UNCHECKED_PER_ADDRESS_MAX..UNCHECKED_MAX {
            waiting.add(start, client(2 + (n / 1000) as u8, (n % 1000) as u16), ()).unwrap();
        }
        assert_eq!(waiting.add(start, client(254, 1), ()), Err(()));
        while waiting.take_overdue(start + OWNER_CHECK_TIMEOUT).is_some() {}
        assert!(waiting.add(start, client(1, 1), ()).is_ok());
    }
}
