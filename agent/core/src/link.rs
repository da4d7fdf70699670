//! Decides when to send keep-alives, when to dial again, and when the lease is over.
//!
//! ```text
//!         dial fails                 echo missing for 600 ms: dial beside it
//! Dialing ──────────▶ Dialing      Attending ─────────────▶ Attending + Dialing
//!    │  welcome                        ▲                          │ welcome on the newer one
//!    └─────────────────────────────────┴──────────────────────────┘
//! ```
//!
//! The lease runs from the *sending* of the last keep-alive that was echoed, on whichever stream.
//! When it is over the keeper kills the workers; [`Effect::LeaseLost`] says so once.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use ragent_rendezvous::{ids::AttendNumber, settings::Leases};

use crate::limits;

/// What must be done.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Effect {
    /// Try to attend, under this number.
    Dial(AttendNumber),
    /// Send a keep-alive on this stream.
    KeepAlive {
        /// The stream.
        attend: AttendNumber,
        /// Its number.
        sequence: u64,
    },
    /// Forget this stream.
    Drop(AttendNumber),
    /// Workers may run until then.
    Lease(Instant),
    /// The lease is over.
    LeaseLost,
}

/// One node's attendance.
#[derive(Debug)]
pub struct Link {
    newest: AttendNumber,
    current: Option<AttendNumber>,
    /// Attempts under way: when they were begun, and when their attend was sent.
    dials: BTreeMap<AttendNumber, Dial>,
    next_dial: Option<Instant>,
    leases: Leases,
    sequence: u64,
    next_keep_alive: Option<Instant>,
    /// Keep-alives that were not echoed yet, by number, with the moment of sending.
    unanswered: BTreeMap<u64, Instant>,
    /// The end of the lease; none while there is no lease.
    lease: Option<Instant>,
    effects: VecDeque<Effect>,
}

#[derive(Clone, Copy, Debug)]
struct Dial {
    begun: Instant,
    attended: Option<Instant>,
}

impl Link {
    /// A link that dials at once.
    pub fn new(now: Instant) -> Self {
        Self {
            newest: AttendNumber(0),
            current: None,
            dials: BTreeMap::new(),
            next_dial: Some(now),
            leases: Leases::default(),
            sequence: 0,
            next_keep_alive: None,
            unanswered: BTreeMap::new(),
            lease: None,
            effects: VecDeque::new(),
        }
    }

    /// The stream that counts.
    pub fn current(&self) -> Option<AttendNumber> {
        self.current
    }

    /// Whether a stream counts or is being opened, and was not dropped.
    pub fn knows(&self, attend: AttendNumber) -> bool {
        self.current == Some(attend) || self.dials.contains_key(&attend)
    }

    /// The attend has been sent on a stream that was dialed.
    pub fn handle_opened(&mut self, now: Instant, attend: AttendNumber) {
        if let Some(dial) = self.dials.get_mut(&attend) {
            dial.attended = Some(now);
        }
    }

    /// The coordinator has welcomed a stream: it counts from now on if it is the newest.
    pub fn handle_welcome(&mut self, now: Instant, attend: AttendNumber, leases: Leases) {
        let attended = self.dials.remove(&attend).and_then(|dial| dial.attended);
        if self.current.is_some_and(|current| current >= attend) {
            return self.effects.push_back(Effect::Drop(attend));
        }
        let Some(attended) = attended.filter(|attended| now < *attended + leases.agent) else {
            // It took longer than a lease to be answered, and so proves nothing: what it says was
            // said to a node that may be lost by now.
            self.effects.push_back(Effect::Drop(attend));
            self.next_dial = Some(now);
            return;
        };
        if let Some(old) = self.current.replace(attend) {
            self.effects.push_back(Effect::Drop(old));
        }
        let outdated: Vec<_> = self.dials.range(..attend).map(|(&older, _)| older).collect();
        for older in outdated {
            self.dials.remove(&older);
            self.effects.push_back(Effect::Drop(older));
        }
        self.leases = leases;
        self.next_dial = None;
        self.unanswered.clear();
        self.extend_lease(now, attended);
        self.keep_alive(now, attend);
    }

    /// The coordinator has echoed a keep-alive.
    pub fn handle_echo(&mut self, now: Instant, sequence: u64) {
        let Some(sent) = self.unanswered.remove(&sequence) else {
            return;
        };
        self.unanswered = self.unanswered.split_off(&sequence);
        if self.current.is_some() {
            self.next_dial = None;
        }
        self.extend_lease(now, sent);
    }

    /// A stream has ended, or could not be opened.
    pub fn handle_ended(&mut self, now: Instant, attend: AttendNumber) {
        let dialed = self.dials.remove(&attend);
        if self.current == Some(attend) {
            self.current = None;
            self.next_keep_alive = None;
            self.next_dial = Some(now);
        } else if let Some(dial) = dialed
            && self.wants_dial()
        {
            let next = (dial.begun + self.redial_interval()).max(now);
            self.next_dial = Some(self.next_dial.map_or(next, |other| other.min(next)));
        }
    }

    /// The earliest moment at which something is to be done.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let suspicion = self.suspicion();
        [self.next_dial, self.next_keep_alive, self.lease, suspicion].into_iter().flatten().min()
    }

    /// Applies every moment that has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.lease.is_some_and(|lease| lease <= now) {
            self.lease = None;
            // Whatever may still be waiting on that stream was said to a node that is no longer
            // counted; a new one starts from what holds.
            if let Some(current) = self.current.take() {
                self.effects.push_back(Effect::Drop(current));
                self.next_keep_alive = None;
                self.next_dial = Some(now);
            }
            self.effects.push_back(Effect::LeaseLost);
        }
        if self.suspicion().is_some_and(|at| at <= now) {
            self.next_dial = Some(now);
        }
        if self.next_dial.is_some_and(|at| at <= now) {
            self.dial(now);
        }
        if let Some(attend) = self.current
            && self.next_keep_alive.is_some_and(|at| at <= now)
        {
            self.keep_alive(now, attend);
        }
    }

    /// Hands out what must be done, until nothing must.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// When the oldest unanswered keep-alive makes the current stream suspect, unless it is already.
    fn suspicion(&self) -> Option<Instant> {
        if self.next_dial.is_some() || self.current.is_none() {
            return None;
        }
        let oldest = self.unanswered.values().next()?;
        Some(*oldest + limits::SUSPECT_AFTER)
    }

    /// Whether a further attempt is worth it: there is no stream, or the one there is is suspect.
    fn wants_dial(&self) -> bool {
        self.current.is_none() || self.next_dial.is_some()
    }

    fn redial_interval(&self) -> Duration {
        if self.lease.is_some() { limits::REDIAL_INTERVAL } else { limits::REDIAL_INTERVAL_LOST }
    }

    fn dial(&mut self, now: Instant) {
        if self.dials.len() >= limits::MAX_DIALS {
            // The oldest has been silent for longer than a connection may take to open.
            if let Some((oldest, _)) = self.dials.pop_first() {
                self.effects.push_back(Effect::Drop(oldest));
            }
        }
        self.newest = AttendNumber(self.newest.0 + 1);
        self.dials.insert(self.newest, Dial { begun: now, attended: None });
        self.effects.push_back(Effect::Dial(self.newest));
        self.next_dial = Some(now + self.redial_interval());
    }

    fn keep_alive(&mut self, now: Instant, attend: AttendNumber) {
        self.sequence += 1;
        self.unanswered.insert(self.sequence, now);
        if self.unanswered.len() > MAX_UNANSWERED {
            self.unanswered.pop_first();
        }
        self.next_keep_alive = Some(now + self.leases.keep_alive_interval);
        self.effects.push_back(Effect::KeepAlive { attend, sequence: self.sequence });
    }

    fn extend_lease(&mut self, now: Instant, sent: Instant) {
        let until = sent + self.leases.agent;
        // What was answered too late proves nothing any more.
        if until > now && self.lease.is_none_or(|lease| lease < until) {
            self.lease = Some(until);
            self.effects.push_back(Effect::Lease(until));
        }
    }
}

/// Keep-alives that may be on their way: those of one lease, and then some.
const MAX_UNANSWERED: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const ONE: AttendNumber = AttendNumber(1);
    const TWO: AttendNumber = AttendNumber(2);

    struct Fixture {
        link: Link,
        now: Instant,
        start: Instant,
    }

    impl Fixture {
        fn new() -> Self {
            let now = crate::some_instant();
            Self { link: Link::new(now), now, start: now }
        }

        /// A link that attends since time zero, with its first keep-alive under way.
        fn attending() -> Self {
            let mut t = Self::new();
            assert_eq!(t.advance(0), [Effect::Dial(ONE)]);
            t.link.handle_opened(t.now, ONE);
            let keep_alive = Effect::KeepAlive { attend: ONE, sequence: 1 };
            assert_eq!(t.welcome(ONE), [Effect::Lease(t.now + 2400 * MS), keep_alive]);
            t
        }

        fn effects(&mut self) -> Vec<Effect> {
            std::iter::from_fn(|| self.link.poll_effect()).collect()
        }

        fn welcome(&mut self, attend: AttendNumber) -> Vec<Effect> {
            self.link.handle_welcome(self.now, attend, Leases::default());
            self.effects()
        }

        fn echo(&mut self, sequence: u64) -> Vec<Effect> {
            self.link.handle_echo(self.now, sequence);
            self.effects()
        }

        /// Lets `ms` pass, stopping at every deadline on the way.
        fn advance(&mut self, ms: u32) -> Vec<Effect> {
            let end = self.now + ms * MS;
            let mut effects = Vec::new();
            while let Some(next) = self.link.poll_timeout().filter(|next| *next <= end) {
                self.now = next.max(self.now);
                self.link.handle_timeout(self.now);
                effects.extend(self.effects());
            }
            self.now = end;
            effects
        }

        fn dials(effects: &[Effect]) -> usize {
            effects.iter().filter(|effect| matches!(effect, Effect::Dial(_))).count()
        }
    }

    /// The lease runs from the sending of what was echoed, not from the echo.
    #[test]
    fn lease_runs_from_the_sending() {
        let mut t = Fixture::attending();
        t.advance(200);
        // Echoed 200 ms late, it still only proves what held when it was sent.
        assert_eq!(t.echo(1), []);
        let sent = t.start + 300 * MS;
        assert_eq!(t.advance(100), [Effect::KeepAlive { attend: ONE, sequence: 2 }]);
        t.advance(150);
        assert_eq!(t.echo(2), [Effect::Lease(sent + 2400 * MS)]);
    }

    /// A silence of 600 ms opens a second connection, and a fresh attempt every 250 ms; the stream
    /// that is welcomed first goes on, and the lease never ended.
    #[test]
    fn blip_of_1500_ms_costs_nothing() {
        let mut t = Fixture::attending();
        t.echo(1);
        let effects = t.advance(900 + 599);
        assert!(!effects.contains(&Effect::LeaseLost));
        assert_eq!(Fixture::dials(&effects), 3, "{effects:?}");
        t.link.handle_opened(t.now, TWO);
        let effects = t.welcome(TWO);
        assert_eq!(effects[0], Effect::Drop(ONE));
        assert_eq!(effects[1], Effect::Lease(t.now + 2400 * MS));
        assert_eq!(t.link.current(), Some(TWO));
    }

    /// What comes back on the first stream after all ends the suspicion.
    #[test]
    fn late_echo_ends_the_suspicion() {
        let mut t = Fixture::attending();
        assert_eq!(Fixture::dials(&t.advance(700)), 1);
        t.echo(1);
        t.echo(3);
        assert_eq!(Fixture::dials(&t.advance(500)), 0);
    }

    /// Without any echo the lease ends when it was said to end, once, and dialing goes on.
    #[test]
    fn silence_loses_the_lease_once() {
        let mut t = Fixture::attending();
        let effects = t.advance(10_000);
        let lost = effects.iter().filter(|effect| **effect == Effect::LeaseLost).count();
        assert_eq!(lost, 1);
        assert_eq!(t.link.lease, None);
        assert!(Fixture::dials(&t.advance(1000)) >= 1);
    }

    /// A stream that ends is replaced at once; one that cannot be opened is tried at intervals.
    #[test]
    fn refused_dials_are_spaced() {
        let mut t = Fixture::attending();
        t.link.handle_ended(t.now, ONE);
        assert_eq!(t.advance(0), [Effect::Dial(TWO)]);
        t.link.handle_ended(t.now, TWO);
        assert_eq!(Fixture::dials(&t.advance(1000)), 4);
    }

    /// Attempts that hang are bounded: the oldest makes room.
    #[test]
    fn hanging_dials_are_bounded() {
        let mut t = Fixture::new();
        let effects = t.advance(60_000);
        let drops = effects.iter().filter(|effect| matches!(effect, Effect::Drop(_))).count();
        assert_eq!(Fixture::dials(&effects) - drops, limits::MAX_DIALS);
    }

    /// A welcome that comes later than a lease after its attend counts for nothing: another dial
    /// starts from what holds then.
    #[test]
    fn welcome_that_is_too_late_does_not_count() {
        let mut t = Fixture::new();
        t.advance(0);
        t.link.handle_opened(t.now, ONE);
        t.now += 2400 * MS;
        assert_eq!(t.welcome(ONE), [Effect::Drop(ONE)]);
        assert_eq!(t.link.current(), None);
        assert_eq!(t.advance(0), [Effect::Dial(TWO)]);
    }

    /// An echo that is read after the lease is over does not stop the dialing.
    #[test]
    fn late_echo_without_a_stream_stops_no_dial() {
        let mut t = Fixture::attending();
        t.now += 2400 * MS;
        t.link.handle_timeout(t.now);
        t.effects();
        t.echo(1);
        assert_eq!(Fixture::dials(&t.advance(1000)), 2);
    }

    /// An older stream that is welcomed late is dropped.
    #[test]
    fn newest_stream_counts() {
        let mut t = Fixture::new();
        t.advance(600);
        t.link.handle_opened(t.now, TWO);
        t.welcome(TWO);
        t.link.handle_opened(t.now, ONE);
        assert_eq!(t.welcome(ONE), [Effect::Drop(ONE)]);
        assert_eq!(t.link.current(), Some(TWO));
    }
}
