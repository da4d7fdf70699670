//! The decisions about connections, with a simulated clock.

use std::time::Duration;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn nobody(_: IpAddr) -> bool {
    false
}

struct Fixture {
    quota: ConnectionQuota,
    now: Instant,
}

impl Fixture {
    fn new(bounds: Bounds) -> Self {
        Self { quota: ConnectionQuota::new(bounds), now: crate::sys::clock::now_blocking() }
    }

    fn accept(&mut self, peer: &str, origin: ConnectionOrigin) -> ConnectionId {
        self.quota.handle_accepted(self.now, peer.parse().unwrap(), origin, 2, nobody)
    }

    fn unknown(&mut self, peer: &str) -> ConnectionId {
        self.accept(peer, ConnectionOrigin::Unknown)
    }

    fn closed(&mut self) -> Vec<ConnectionId> {
        let closed: Vec<_> = std::iter::from_fn(|| self.quota.poll_closing()).collect();
        closed.iter().for_each(|id| self.quota.handle_ended(*id));
        closed
    }

    /// Advances the clock, stopping at every deadline on the way.
    fn advance(&mut self, time: Duration) -> Vec<ConnectionId> {
        let end = self.now + time;
        let mut closed = Vec::new();
        while let Some(next) = self.quota.poll_timeout().filter(|next| *next <= end) {
            self.now = next;
            self.quota.handle_timeout(next);
            closed.extend(self.closed());
        }
        self.now = end;
        closed
    }
}

/// An unknown connection has 5 s for its first request; a served connection has no deadline.
#[test]
fn first_request_has_a_deadline() {
    let mut t = Fixture::new(Bounds::default());
    let (slow, quick) = (t.unknown("10.0.0.1"), t.unknown("10.0.0.1"));
    t.quota.handle_served(quick, nobody);
    assert_eq!(t.advance(5 * SECOND - Duration::from_nanos(1)), []);
    assert_eq!(t.advance(SECOND), [slow]);
    assert_eq!(t.advance(100 * SECOND), []);
    assert_eq!(t.quota.len, 1);
    t.quota.handle_ended(quick);
    assert_eq!(t.quota.len, 0);
}

/// A store client whose resolver does not answer is silent for 12 s and more. The number of
/// such clients is bounded; a connection with another protocol has the short time limit.
#[test]
fn store_clients_may_be_silent() {
    let mut t = Fixture::new(Bounds::default());
    let known = [(); 3].map(|()| t.accept("10.0.0.1", ConnectionOrigin::Known));
    assert_eq!(t.advance(15 * SECOND), known[2..], "only two may take their time");
    t.quota.handle_not_store_client(t.now, known[0]);
    let next = t.accept("10.0.0.1", ConnectionOrigin::Known);
    assert_eq!(t.advance(6 * SECOND), [known[0]]);
    assert_eq!(t.advance(60 * SECOND), [known[1], next]);
    assert_eq!((t.quota.store_clients, t.quota.len), (0, 0));
}

/// The number of waiting unknown connections per address is bounded, and the first one is closed;
/// IPv6 addresses count by network.
#[test]
fn one_address_has_a_quota() {
    let bounds =
        Bounds { connections: 100, unknown: 50, unknown_per_address: 2, ..Bounds::default() };
    for (same, other) in [
        (["10.0.0.1", "10.0.0.1", "::ffff:10.0.0.1"], "10.0.0.2"),
        (["2001:db8::1", "2001:db8::2", "2001:db8::3"], "2001:db8:0:1::1"),
    ] {
        let mut t = Fixture::new(bounds);
        let first = t.unknown(same[0]);
        t.unknown(other);
        t.unknown(same[1]);
        t.unknown(same[2]);
        for _ in 0..5 {
            t.accept(same[0], ConnectionOrigin::Known);
        }
        assert_eq!(t.advance(SECOND - Duration::from_nanos(1)), []);
        assert_eq!(t.advance(Duration::from_nanos(1)), [first]);
    }
}

/// Served unknown connections have quotas of their own: in total, and for each address. Those whose address has become known,
/// as that of a registered node, do not count.
#[test]
fn served_unknown_connections_are_limited() {
    let bounds = Bounds { unknown: 2, served_per_address: 3, served: 4, ..Bounds::default() };
    let mut t = Fixture::new(bounds);
    let serve = |t: &mut Fixture, peer: &str, known: &str| {
        let id = t.unknown(peer);
        t.quota.handle_served(id, |ip| ip.to_string() == known);
        id
    };
    let of_one: Vec<_> = (0..4).map(|_| serve(&mut t, "10.0.0.1", "")).collect();
    assert_eq!(t.closed(), of_one[..1], "the oldest of the address");
    for _ in 0..10 {
        serve(&mut t, "10.0.0.9", "10.0.0.9");
    }
    let other = serve(&mut t, "10.0.0.2", "");
    assert_eq!(t.closed(), []);
    serve(&mut t, "10.0.0.3", "10.0.0.1");
    assert_eq!(t.closed(), [other], "the oldest of all that is not known");
    assert_eq!(t.advance(10 * SECOND), []);
    // Nodes of one network that have registered since do not close each other.
    let mut t = Fixture::new(bounds);
    let nodes: Vec<_> = (1..=3).map(|n| serve(&mut t, &format!("2001:db8::{n}"), "")).collect();
    serve(&mut t, "2001:db8::4", "2001:db8::1");
    assert_eq!(t.closed(), nodes[1..2], "the oldest that is not known");
}

/// Few unknown connections are read at once, and fewer of one address; the addresses take turns.
#[test]
fn addresses_take_turns_to_be_read() {
    let mut t = Fixture::new(Bounds { read: 3, read_per_address: 2, ..Bounds::default() });
    let flood: Vec<_> = (0..5).map(|_| t.unknown("10.0.0.1")).collect();
    let (one, two) = (t.unknown("10.0.0.2"), t.unknown("10.0.0.3"));
    flood.iter().chain([&one, &two]).for_each(|id| t.quota.handle_begun(*id));
    let read =
        |t: &mut Fixture| -> Vec<_> { std::iter::from_fn(|| t.quota.poll_read(t.now)).collect() };
    assert_eq!(read(&mut t), [flood[0], one, two]);
    t.quota.handle_served(one, nobody);
    assert_eq!(read(&mut t), [flood[1]]);
    t.quota.handle_authenticated(two);
    assert_eq!(read(&mut t), [], "the address has its two");
    t.quota.handle_ended(flood[2]);
    t.quota.handle_ended(flood[0]);
    assert_eq!(read(&mut t), [flood[3]]);
}

/// While no others are read, an address gets half of the places, so that its agents start together. The rest is for others.
#[test]
fn an_address_gets_idle_places() {
    let mut t = Fixture::new(Bounds { read: 8, read_per_address: 2, ..Bounds::default() });
    let read =
        |t: &mut Fixture| -> Vec<_> { std::iter::from_fn(|| t.quota.poll_read(t.now)).collect() };
    let crowd: Vec<_> = (0..6).map(|_| t.unknown("10.0.0.1")).collect();
    crowd.iter().for_each(|id| t.quota.handle_begun(*id));
    assert_eq!(read(&mut t), crowd[..4]);
    let others: Vec<_> = (0..3).map(|_| t.unknown("10.0.0.2")).collect();
    others.iter().for_each(|id| t.quota.handle_begun(*id));
    assert_eq!(read(&mut t), others[..2]);
    t.quota.handle_served(crowd[0], nobody);
    assert_eq!(read(&mut t), [], "more than half is taken");
    assert_eq!(
        t.advance(SECOND),
        [crowd[1], crowd[2], others[0]],
        "until each has less than its two"
    );
    assert_eq!(read(&mut t), [crowd[4], others[2]]);
}

/// If an address has taken all of its places, the oldest one is free after a second for another connection of that address.
#[test]
fn crowded_addresses_take_turns_as_well() {
    let mut t = Fixture::new(Bounds { read: 2, read_per_address: 1, ..Bounds::default() });
    let (slow, next) = (t.unknown("10.0.0.1"), t.unknown("10.0.0.1"));
    [slow, next].iter().for_each(|id| t.quota.handle_begun(*id));
    assert_eq!(t.quota.poll_read(t.now), Some(slow));
    assert_eq!(t.quota.poll_read(t.now), None);
    assert_eq!(t.advance(SECOND), [slow]);
    assert_eq!(t.quota.poll_read(t.now), Some(next));
    t.quota.handle_authenticated(next);
    assert!(t.quota.places.is_empty());
}

/// An unknown connection that is read for long makes room if others wait for its place, and only then.
#[test]
fn slow_connections_make_room_for_others() {
    let mut t = Fixture::new(Bounds { read: 1, ..Bounds::default() });
    let (slow, next) = (t.unknown("10.0.0.1"), t.unknown("10.0.0.2"));
    t.quota.handle_begun(slow);
    assert_eq!(t.quota.poll_read(t.now), Some(slow));
    assert_eq!(t.advance(2 * SECOND), []);
    t.quota.handle_begun(next);
    assert_eq!(t.quota.poll_read(t.now), None);
    assert_eq!(t.advance(Duration::from_nanos(1)), [slow]);
    assert_eq!(t.quota.poll_read(t.now), Some(next));
    t.quota.handle_authenticated(next);
    assert_eq!(t.quota.poll_read(t.now), None);
    assert_eq!(t.advance(10 * SECOND), [next], "it has sent no request");
    assert!(t.quota.places.is_empty());
}

/// Unknown connections of many addresses together have a quota, too.
#[test]
fn unknown_connections_are_limited() {
    let bounds =
        Bounds { connections: 100, unknown: 3, unknown_per_address: 2, ..Bounds::default() };
    let mut t = Fixture::new(bounds);
    let all: Vec<_> = (0..5).map(|n| t.unknown(&format!("10.0.0.{n}"))).collect();
    assert_eq!(t.advance(SECOND), all[..2]);
}

/// If all places are taken, an unknown connection makes room: the one with the longest wait, even
/// within the grace period, or the oldest served one. Known connections do if they have sent no request.
#[test]
fn full_port_makes_room() {
    let mut t = Fixture::new(Bounds { connections: 3, ..Bounds::default() });
    let known = t.accept("10.0.0.1", ConnectionOrigin::Known);
    t.quota.handle_served(known, nobody);
    let (first, second) = (t.unknown("10.0.0.2"), t.unknown("10.0.0.2"));
    t.quota.handle_served(first, nobody);
    let third = t.unknown("10.0.0.3");
    assert_eq!(t.closed(), [second]);
    t.quota.handle_served(third, nobody);
    let newcomer = t.accept("10.0.0.4", ConnectionOrigin::Known);
    assert_eq!(t.closed(), [first]);
    t.quota.handle_served(newcomer, nobody);
    let last = t.accept("10.0.0.5", ConnectionOrigin::Known);
    assert_eq!(t.closed(), [third]);
    let next = t.accept("10.0.0.1", ConnectionOrigin::Known);
    assert_eq!(t.closed(), [last]);
    t.quota.handle_served(next, nobody);
    assert!(!t.quota.has_room(), "all are known");
    for id in [known, newcomer, next] {
        t.quota.handle_ended(id);
    }
    assert_eq!((t.quota.len, t.quota.has_room()), (0, true));
}

/// An unknown connection whose address has become known since, as that of a registered agent, does
/// not make room.
#[test]
fn unknown_connection_may_become_known() {
    let mut t = Fixture::new(Bounds { connections: 2, ..Bounds::default() });
    let (agent, other) = (t.unknown("10.0.0.1"), t.unknown("10.0.0.2"));
    t.quota.handle_served(agent, nobody);
    t.quota.handle_served(other, nobody);
    let is_agent = |ip: IpAddr| ip.to_string() == "10.0.0.1";
    let known = ConnectionOrigin::Known;
    let known = t.quota.handle_accepted(t.now, [10, 0, 0, 3].into(), known, 2, is_agent);
    t.quota.handle_served(known, nobody);
    assert_eq!(t.closed(), [other]);
    assert!(!t.quota.make_room(is_agent));
}

/// Unknown connections that are served once and stay connected cannot take all places: newcomers
/// are served.
#[test]
fn served_unknown_connections_make_room() {
    let bounds =
        Bounds { connections: 100, served_per_address: 1000, served: 1000, ..Bounds::default() };
    let mut t = Fixture::new(bounds);
    for _ in 0..1000 {
        let id = t.unknown("10.0.0.1");
        t.quota.handle_served(id, nobody);
        assert!(!t.closed().contains(&id));
    }
    assert_eq!((t.quota.len, t.quota.has_room()), (100, true));
    t.accept("10.0.0.2", ConnectionOrigin::Known);
    assert_eq!(t.closed().len(), 1);
}

/// A flood of idle unknown connections never holds more than its quota after the grace period, and
/// does not close known connections.
#[test]
fn flood_leaves_the_known_alone() {
    let mut t = Fixture::new(Bounds::default());
    let known: Vec<_> = (0..100).map(|_| t.accept("10.0.0.9", ConnectionOrigin::Known)).collect();
    known.iter().for_each(|id| t.quota.handle_served(*id, nobody));
    for _ in 0..25_000 {
        t.unknown("10.0.0.1");
        t.closed();
    }
    assert!(t.quota.len <= limits::MAX_CONNECTIONS);
    let closed = t.advance(SECOND);
    assert!(closed.iter().all(|id| !known.contains(id)));
    assert_eq!(t.quota.len, known.len() + limits::MAX_UNKNOWN_PER_ADDRESS);
    assert!(t.quota.has_room());
}
