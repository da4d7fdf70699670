//! Decides which addresses from datagrams are tried as the host.
//!
//! False datagrams must not prevent attempts at the other addresses. So each sender has few places, and a slow attempt makes room for a new
//! one.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use crate::endpoint::limits;

/// The places of one search.
#[derive(Debug)]
pub(super) struct Places {
    /// The minimum time of an attempt, and the pause before a place is tried again.
    pause: Duration,
    tried: BTreeMap<SocketAddr, PlaceAttempt>,
    /// Places at which there was no host, until the next attempt.
    resting: BTreeMap<SocketAddr, Instant>,
}

#[derive(Clone, Copy, Debug)]
struct PlaceAttempt {
    /// The sender of the datagram.
    source: IpAddr,
    since: Instant,
}

/// The answer to a datagram that names a place.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum PlaceChoice {
    /// Try it.
    Try,
    /// Try it, and stop trying the place at this address.
    TryInsteadOf(SocketAddr),
    /// Nothing: it is being tried, was tried a moment ago, or there is no room.
    Ignore,
}

impl Places {
    /// Creates an empty set of places.
    pub(super) fn new(pause: Duration) -> Self {
        Self { pause, tried: BTreeMap::new(), resting: BTreeMap::new() }
    }

    /// Notes that a datagram of `source` names the place `at`.
    pub(super) fn handle_named(
        &mut self,
        now: Instant,
        at: SocketAddr,
        source: IpAddr,
    ) -> PlaceChoice {
        self.resting.retain(|_, until| now < *until);
        if self.tried.contains_key(&at) || self.resting.contains_key(&at) {
            return PlaceChoice::Ignore;
        }
        let of_source = self.tried.values().filter(|attempt| attempt.source == source).count();
        let is_from_full_source = of_source >= limits::MAX_PLACES_OF_SOURCE;
        if !is_from_full_source && self.tried.len() < limits::MAX_PLACES {
            self.tried.insert(at, PlaceAttempt { source, since: now });
            return PlaceChoice::Try;
        }
        let rivals = self
            .tried
            .iter()
            .filter(|(_, attempt)| !is_from_full_source || attempt.source == source);
        let oldest = rivals.min_by_key(|(_, attempt)| attempt.since);
        // A host answers in milliseconds. A slower one is named again.
        let replaced = oldest.filter(|(_, attempt)| now >= attempt.since + self.pause);
        let Some((&replaced, _)) = replaced else { return PlaceChoice::Ignore };
        self.handle_failed(now, replaced);
        self.tried.insert(at, PlaceAttempt { source, since: now });
        PlaceChoice::TryInsteadOf(replaced)
    }

    /// Notes that there is no host of the job at `at`.
    pub(super) fn handle_failed(&mut self, now: Instant, at: SocketAddr) {
        self.tried.remove(&at);
        if self.resting.len() >= limits::MAX_RESTING_PLACES
            && let Some(first) = self.resting.iter().min_by_key(|(_, until)| **until)
        {
            let first = *first.0;
            self.resting.remove(&first);
        }
        self.resting.insert(at, now + self.pause);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ragent_base::sys::clock;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(number: u8) -> SocketAddr {
        ([10, 0, 0, number], 29400).into()
    }

    fn source(number: u8) -> IpAddr {
        [10, 1, 0, number].into()
    }

    /// One attempt at a place runs at a time. After a failure, it is tried again after a pause.
    #[test]
    fn places_rest() {
        let now = clock::now_blocking();
        let mut places = Places::new(SECOND);
        assert_eq!(places.handle_named(now, at(1), source(1)), PlaceChoice::Try);
        assert_eq!(places.handle_named(now + 5 * SECOND, at(1), source(2)), PlaceChoice::Ignore);
        places.handle_failed(now + 6 * SECOND, at(1));
        assert_eq!(places.handle_named(now + 6 * SECOND, at(1), source(1)), PlaceChoice::Ignore);
        assert_eq!(places.handle_named(now + 7 * SECOND, at(1), source(1)), PlaceChoice::Try);
    }

    /// Datagrams of one sender do not prevent attempts at places that others name.
    #[test]
    fn one_source_has_few_places() {
        let now = clock::now_blocking();
        let mut places = Places::new(SECOND);
        let choices = [1, 2, 3].map(|number| places.handle_named(now, at(number), source(1)));
        assert_eq!(choices, [PlaceChoice::Try, PlaceChoice::Try, PlaceChoice::Ignore]);
        assert_eq!(places.handle_named(now, at(4), source(2)), PlaceChoice::Try);
        let later = places.handle_named(now + SECOND, at(3), source(1));
        assert_eq!(later, PlaceChoice::TryInsteadOf(at(1)));
    }

    /// If all places are taken, the oldest is replaced after a while.
    #[test]
    fn oldest_place_is_replaced() {
        let now = clock::now_blocking();
        let mut places = Places::new(SECOND);
        let most = limits::MAX_PLACES as u8;
        for number in 0..most {
            let choice = places.handle_named(now, at(number), source(number));
            assert_eq!(choice, PlaceChoice::Try);
        }
        assert_eq!(places.handle_named(now, at(99), source(99)), PlaceChoice::Ignore);
        let later = places.handle_named(now + SECOND, at(99), source(99));
        assert_eq!(later, PlaceChoice::TryInsteadOf(at(0)));
    }

    proptest! {
        /// For any datagrams, the number of places is limited, in total and for each sender, and so is the memory. A place that a new
        /// sender names is tried within the pause.
        #[test]
        fn places_are_bounded(
            names in proptest::collection::vec((0..200_u8, 0..20_u8, 0..300_u32, any::<bool>()), 1..300),
        ) {
            let mut now = clock::now_blocking();
            let mut places = Places::new(SECOND);
            for (number, sender, millis, fails) in names {
                now += Duration::from_millis(millis.into());
                if fails {
                    places.handle_failed(now, at(number));
                } else if let PlaceChoice::TryInsteadOf(replaced) = places.handle_named(now, at(number), source(sender)) {
                    prop_assert!(!places.tried.contains_key(&replaced));
                }
                prop_assert!(places.tried.len() <= limits::MAX_PLACES);
                prop_assert!(places.resting.len() <= limits::MAX_RESTING_PLACES);
                for sender in 0..20 {
                    let of_sender = places.tried.values().filter(|attempt| attempt.source == source(sender));
                    prop_assert!(of_sender.count() <= limits::MAX_PLACES_OF_SOURCE);
                }
            }
            let choice = places.handle_named(now + SECOND, at(250), source(250));
            prop_assert_ne!(choice, PlaceChoice::Ignore);
        }
    }
}
