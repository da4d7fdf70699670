//! The decisions about connections, with a simulated clock.

use std::time::Duration;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

struct Fixture {
    door: Door,
    now: Instant,
}

impl Fixture {
    fn new(quotas: Quotas) -> Self {
        Self { door: Door::new(quotas), now: crate::sys::clock::now_blocking() }
    }

    fn accept(&mut self, peer: &str, origin: Origin) -> Visitor {
        let nobody = |_| false;
        self.door.handle_accepted(self.now, peer.parse().unwrap(), origin, 2, nobody)
    }

    fn stranger(&mut self, peer: &str) -> Visitor {
        self.accept(peer, Origin::Stranger)
    }

    fn closed(&mut self) -> Vec<Visitor> {
        let closed: Vec<_> = std::iter::from_fn(|| self.door.poll_closing()).collect();
        closed.iter().for_each(|visitor| self.door.handle_ended(*visitor));
        closed
    }

    /// Advances the clock, stopping at every deadline on the way.
    fn advance(&mut self, time: Duration) -> Vec<Visitor> {
        let end = self.now + time;
        let mut closed = Vec::new();
        while let Some(next) = self.door.poll_timeout().filter(|next| *next <= end) {
            self.now = next;
            self.door.handle_timeout(next);
            closed.extend(self.closed());
        }
        self.now = end;
        closed
    }
}

/// A stranger has 5 s for its first request; a served connection has no deadline.
#[test]
fn first_request_has_a_deadline() {
    let mut t = Fixture::new(Quotas::default());
    let (slow, quick) = (t.stranger("10.0.0.1"), t.stranger("10.0.0.1"));
    t.door.handle_served(quick);
    assert_eq!(t.advance(5 * SECOND - Duration::from_nanos(1)), []);
    assert_eq!(t.advance(SECOND), [slow]);
    assert_eq!(t.advance(100 * SECOND), []);
    assert_eq!(t.door.len, 1);
    t.door.handle_ended(quick);
    assert_eq!(t.door.len, 0);
}

/// A store client whose resolver does not answer is silent for 12 s and more. The number of
/// such clients is bounded; a connection with another protocol has the short time limit.
#[test]
fn store_clients_may_be_silent() {
    let mut t = Fixture::new(Quotas::default());
    let known = [(); 3].map(|()| t.accept("10.0.0.1", Origin::Known));
    assert_eq!(t.advance(15 * SECOND), known[2..], "only two may take their time");
    t.door.handle_hurried(t.now, known[0]);
    let next = t.accept("10.0.0.1", Origin::Known);
    assert_eq!(t.advance(6 * SECOND), [known[0]]);
    assert_eq!(t.advance(60 * SECOND), [known[1], next]);
    assert_eq!((t.door.patient, t.door.len), (0, 0));
}

/// The number of waiting strangers per address is bounded, and the first one is closed; IPv6
/// addresses count by network.
#[test]
fn one_address_has_a_quota() {
    let quotas = Quotas { places: 100, strangers: 50, strangers_per_address: 2 };
    for (same, other) in [
        (["10.0.0.1", "10.0.0.1", "::ffff:10.0.0.1"], "10.0.0.2"),
        (["2001:db8::1", "2001:db8::2", "2001:db8::3"], "2001:db8:0:1::1"),
    ] {
        let mut t = Fixture::new(quotas);
        let first = t.stranger(same[0]);
        t.stranger(other);
        t.stranger(same[1]);
        t.stranger(same[2]);
        for _ in 0..5 {
            t.accept(same[0], Origin::Known);
        }
        assert_eq!(t.advance(SECOND - Duration::from_nanos(1)), []);
        assert_eq!(t.advance(Duration::from_nanos(1)), [first]);
    }
}

/// Connections that send a request at once do not count, as from thousands of agents of one
/// machine before any is known.
#[test]
fn those_who_ask_at_once_do_not_count() {
    let quotas = Quotas { places: 5000, strangers: 2, strangers_per_address: 1 };
    let mut t = Fixture::new(quotas);
    for _ in 0..4000 {
        let visitor = t.stranger("10.0.0.1");
        t.door.handle_served(visitor);
    }
    assert_eq!(t.advance(10 * SECOND), []);
    assert_eq!(t.door.len, 4000);
}

/// Strangers of many addresses together have a quota, too.
#[test]
fn strangers_have_a_quota() {
    let quotas = Quotas { places: 100, strangers: 3, strangers_per_address: 2 };
    let mut t = Fixture::new(quotas);
    let all: Vec<_> = (0..5).map(|n| t.stranger(&format!("10.0.0.{n}"))).collect();
    assert_eq!(t.advance(SECOND), all[..2]);
}

/// If all places are taken, a stranger makes room: the one with the longest wait, even within
/// the grace period, or the oldest served one. Known connections do not.
#[test]
fn full_house_makes_room() {
    let mut t = Fixture::new(Quotas { places: 3, ..Quotas::default() });
    let known = t.accept("10.0.0.1", Origin::Known);
    t.door.handle_served(known);
    let (first, second) = (t.stranger("10.0.0.2"), t.stranger("10.0.0.2"));
    t.door.handle_served(first);
    let third = t.stranger("10.0.0.3");
    assert_eq!(t.closed(), [second]);
    t.door.handle_served(third);
    let newcomer = t.accept("10.0.0.4", Origin::Known);
    assert_eq!(t.closed(), [first]);
    t.door.handle_served(newcomer);
    let last = t.accept("10.0.0.5", Origin::Known);
    assert_eq!(t.closed(), [third]);
    assert!(!t.door.has_room(), "all are known");
    for visitor in [known, newcomer, last] {
        t.door.handle_ended(visitor);
    }
    assert_eq!((t.door.len, t.door.has_room()), (0, true));
}

/// A stranger whose address has become known since, as that of a registered agent, does not
/// make room.
#[test]
fn stranger_may_become_known() {
    let mut t = Fixture::new(Quotas { places: 2, ..Quotas::default() });
    let (agent, other) = (t.stranger("10.0.0.1"), t.stranger("10.0.0.2"));
    t.door.handle_served(agent);
    t.door.handle_served(other);
    let is_agent = |ip: IpAddr| ip.to_string() == "10.0.0.1";
    t.door.handle_accepted(t.now, [10, 0, 0, 3].into(), Origin::Known, 2, is_agent);
    assert_eq!(t.closed(), [other]);
    assert!(!t.door.make_room(is_agent));
}

/// Strangers that are served once and stay connected cannot take all places: newcomers are
/// served.
#[test]
fn served_strangers_leave_room() {
    let mut t = Fixture::new(Quotas { places: 100, ..Quotas::default() });
    for _ in 0..1000 {
        let visitor = t.stranger("10.0.0.1");
        t.door.handle_served(visitor);
        assert!(!t.closed().contains(&visitor));
    }
    assert_eq!((t.door.len, t.door.has_room()), (100, true));
    t.accept("10.0.0.2", Origin::Known);
    assert_eq!(t.closed().len(), 1);
}

/// A flood of idle strangers never holds more than its quota after the grace period, and does
/// not close known connections.
#[test]
fn flood_leaves_the_known_alone() {
    let mut t = Fixture::new(Quotas::default());
    let known: Vec<_> = (0..100).map(|_| t.accept("10.0.0.9", Origin::Known)).collect();
    known.iter().for_each(|visitor| t.door.handle_served(*visitor));
    for _ in 0..25_000 {
        t.stranger("10.0.0.1");
        t.closed();
    }
    assert!(t.door.len <= limits::MAX_CONNECTIONS);
    let closed = t.advance(SECOND);
    assert!(closed.iter().all(|visitor| !known.contains(visitor)));
    assert_eq!(t.door.len, known.len() + limits::MAX_STRANGERS_PER_ADDRESS);
    assert!(t.door.has_room());
}
