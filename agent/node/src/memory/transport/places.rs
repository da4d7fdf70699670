//! Bounds the connections to and from other agents.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Places for connections, in all and for each address. A connection without one waits.
#[derive(Debug)]
pub(super) struct Places {
    all: Arc<Semaphore>,
    addresses: Mutex<HashMap<IpAddr, Arc<Semaphore>>>,
    max_per_address: usize,
}

/// A place. Dropping it makes it free.
#[derive(Debug)]
pub(super) struct Place {
    _of_address: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl Places {
    pub(super) fn new(max: usize, max_per_address: usize) -> Self {
        let all = Arc::new(Semaphore::new(max));
        Self { all, addresses: Mutex::default(), max_per_address }
    }

    /// Waits for a place; `None` if there will never be one.
    pub(super) async fn take(&self, address: IpAddr) -> Option<Place> {
        // A connection that waits for its address holds no place that another address could use.
        let of_address = self.of(address).acquire_owned().await.ok()?;
        let of_all = Arc::clone(&self.all).acquire_owned().await.ok()?;
        Some(Place { _of_address: of_address, _of_all: of_all })
    }

    fn of(&self, address: IpAddr) -> Arc<Semaphore> {
        let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        // An address without a place and without a wait has one owner: this table.
        addresses.retain(|_, places| Arc::strong_count(places) > 1);
        let new = || Arc::new(Semaphore::new(self.max_per_address));
        Arc::clone(addresses.entry(address.to_canonical()).or_insert_with(new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a place if one is free.
    async fn free(places: &Places, last: u8) -> Option<Place> {
        let take = places.take(IpAddr::from([10, 0, 0, last]));
        tokio::select! { biased; place = take => place, () = std::future::ready(()) => None }
    }

    /// An address has its number of places, and all together have theirs. An address that waits takes none from others.
    #[tokio::test]
    async fn places_are_bounded() {
        let places = Places::new(3, 2);
        let first = free(&places, 1).await.unwrap();
        let second = free(&places, 1).await.unwrap();
        assert!(free(&places, 1).await.is_none());
        let other = free(&places, 2).await.unwrap();
        assert!(free(&places, 3).await.is_none(), "all are taken");
        drop(other);
        assert!(free(&places, 1).await.is_none());
        drop(first);
        let third = free(&places, 1).await.unwrap();
        drop((second, third));
        assert!(free(&places, 3).await.is_some());
        assert_eq!(places.addresses.lock().unwrap().len(), 1, "unused addresses are forgotten");
    }
}
