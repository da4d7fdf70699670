use super::*;

const MS: Duration = Duration::from_millis(1);
const ONE: StreamNumber = StreamNumber(1);
const TWO: StreamNumber = StreamNumber(2);

struct Fixture {
    link: Link,
    now: Instant,
    start: Instant,
}

impl Fixture {
    fn new() -> Self {
        let now = crate::some_instant();
        Self { link: Link::new(now, Leases::default(), 7, false), now, start: now }
    }

    /// A link that is connected since time zero, with its first keep-alive under way.
    fn registered() -> Self {
        let mut t = Self::new();
        assert_eq!(t.advance(0), [Effect::Dial(ONE)]);
        t.link.handle_opened(t.now, ONE);
        let keep_alive = Effect::KeepAlive { stream: ONE, sequence: 1 };
        assert_eq!(t.welcome(ONE), [Effect::Lease(t.now + 2400 * MS), keep_alive]);
        t
    }

    fn effects(&mut self) -> Vec<Effect> {
        std::iter::from_fn(|| self.link.poll_effect()).collect()
    }

    fn welcome(&mut self, stream: StreamNumber) -> Vec<Effect> {
        self.link.handle_welcome(self.now, stream, Leases::default(), None);
        self.effects()
    }

    fn echo(&mut self, sequence: u64) -> Vec<Effect> {
        self.link.handle_echo(self.now, sequence, None);
        self.effects()
    }

    /// Advances the clock by `ms`, stopping at every deadline on the way.
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

    fn drops(effects: &[Effect]) -> usize {
        effects.iter().filter(|effect| matches!(effect, Effect::Drop(_))).count()
    }
}

/// The lease runs from the sending of the echoed keep-alive, not from the echo.
#[test]
fn lease_runs_from_the_sending() {
    let mut t = Fixture::registered();
    t.advance(200);
    // An echo that is 200 ms late only proves the state at the time of sending.
    assert_eq!(t.echo(1), []);
    let sent = t.start + 300 * MS;
    assert_eq!(t.advance(100), [Effect::KeepAlive { stream: ONE, sequence: 2 }]);
    t.advance(150);
    assert_eq!(t.echo(2), [Effect::Lease(sent + 2400 * MS)]);
}

/// A silence of 600 ms opens a second connection, once. The stream that is welcomed first is used, and
/// the lease does not end.
#[test]
fn blip_of_1500_ms_costs_nothing() {
    let mut t = Fixture::registered();
    t.echo(1);
    let effects = t.advance(300 + 600);
    assert_eq!(Fixture::dials(&effects), 1, "{effects:?}");
    t.link.handle_opened(t.now, TWO);
    // The coordinator's kernel accepted the connection. Its process answers when it resumes.
    let effects = t.advance(600);
    assert_eq!(Fixture::dials(&effects), 0, "{effects:?}");
    assert!(!effects.contains(&Effect::LeaseLost));
    let sent = t.now - 600 * MS;
    let effects = t.welcome(TWO);
    assert_eq!(effects[0], Effect::Drop(ONE));
    assert_eq!(effects[1], Effect::Lease(sent + 2400 * MS));
    assert_eq!(t.link.current(), Some(TWO));
}

/// While there is a lease to save, an attempt that is not connected is replaced twice a second.
#[test]
fn unconnected_attempts_are_replaced_while_leased() {
    let mut t = Fixture::registered();
    let effects = t.advance(2_399);
    assert_eq!(Fixture::dials(&effects), 4, "{effects:?}");
    assert_eq!(Fixture::drops(&effects), 3, "{effects:?}");
}

/// A connected attempt is kept as long as a welcome on it can count, and no other begins.
#[test]
fn connected_attempt_is_kept_for_a_lease() {
    let mut t = Fixture::new();
    t.advance(0);
    t.link.handle_opened(t.now, ONE);
    assert_eq!(t.advance(2_399), []);
    assert_eq!(t.advance(1), [Effect::Drop(ONE)]);
    // The pause is at least half of the first one.
    assert_eq!(t.advance(62), []);
    assert_eq!(t.advance(63), [Effect::Dial(TWO)]);
}

/// A late echo on the first stream ends the suspicion.
#[test]
fn late_echo_ends_the_suspicion() {
    let mut t = Fixture::registered();
    assert_eq!(Fixture::dials(&t.advance(700)), 1);
    assert_eq!(t.echo(1), [Effect::Drop(TWO)]);
    t.echo(3);
    assert_eq!(Fixture::dials(&t.advance(500)), 0);
}

/// A registration that was sent replaces the first stream, so its answer is awaited.
#[test]
fn late_echo_does_not_abandon_what_was_sent() {
    let mut t = Fixture::registered();
    t.advance(700);
    t.link.handle_opened(t.now, TWO);
    assert_eq!(t.echo(3), [Effect::Lease(t.start + 3_000 * MS)]);
    t.welcome(TWO);
    assert_eq!(t.link.current(), Some(TWO));
}

/// A stream that replaced a suspect one has twice the time, until an echo was prompt.
#[test]
fn suspicion_doubles_until_an_echo_is_prompt() {
    let mut t = Fixture::registered();
    t.advance(600);
    t.link.handle_opened(t.now, TWO);
    t.welcome(TWO);
    assert_eq!(Fixture::dials(&t.advance(1_199)), 0);
    assert_eq!(Fixture::dials(&t.advance(1)), 1);
    let three = StreamNumber(3);
    t.link.handle_opened(t.now, three);
    t.welcome(three);
    let sequence = t.link.sequence;
    t.advance(299);
    t.echo(sequence);
    assert_eq!(Fixture::dials(&t.advance(600)), 0);
    assert_eq!(Fixture::dials(&t.advance(1)), 1);
}

/// Without any echo the lease ends at its deadline, once, and dialing goes on.
#[test]
fn silence_loses_the_lease_once() {
    let mut t = Fixture::registered();
    let effects = t.advance(10_000);
    let lost = effects.iter().filter(|effect| **effect == Effect::LeaseLost).count();
    assert_eq!(lost, 1);
    assert_eq!(t.link.lease, None);
    assert!(Fixture::dials(&t.advance(15_000)) >= 1);
}

/// A stream that ends is replaced at once. Refused attempts are followed by others after pauses that
/// double up to half a second, with jitter.
#[test]
fn refused_dials_back_off() {
    let mut t = Fixture::registered();
    t.link.handle_ended(t.now, ONE);
    assert_eq!(t.advance(0), [Effect::Dial(TWO)]);
    let mut pauses = Vec::new();
    for number in 2..12 {
        t.link.handle_ended(t.now, StreamNumber(number));
        let next = t.link.next_dial.expect("an attempt follows");
        pauses.push(next - t.now);
        t.advance(500);
    }
    for (pause, longest) in pauses.iter().zip([125, 250, 500, 500, 500, 500, 500, 500, 500]) {
        assert!(*pause > longest * MS / 2 - MS && *pause <= longest * MS, "{pauses:?}");
    }
    assert!(pauses[3] != pauses[4], "no jitter: {pauses:?}");
}

/// Streams that are connected and then closed without a welcome are followed by longer pauses:
/// each is work for the coordinator.
#[test]
fn rejected_streams_back_off_further() {
    let mut t = Fixture::new();
    let mut pause = Duration::ZERO;
    t.advance(0);
    for number in 1..12 {
        t.link.handle_opened(t.now, StreamNumber(number));
        t.link.handle_ended(t.now, StreamNumber(number));
        pause = t.link.next_dial.expect("an attempt follows") - t.now;
        t.advance(4_000);
    }
    assert!(2_000 * MS <= pause && pause <= 4_000 * MS, "{pause:?}");
}

/// One attempt is under way at a time, and a hanging attempt is abandoned in the end.
#[test]
fn hanging_dials_are_bounded() {
    let mut t = Fixture::new();
    let effects = t.advance(60_000);
    assert_eq!(Fixture::dials(&effects) - Fixture::drops(&effects), 1);
    assert!((4..=6).contains(&Fixture::dials(&effects)), "{effects:?}");
}

/// All intervals are scaled with the lease.
#[test]
fn large_jobs_are_slower_throughout() {
    let leases =
        Leases { keep_alive_interval: 3_000 * MS, agent: 24_000 * MS, coordinator: 30_000 * MS };
    let mut t = Fixture::new();
    t.advance(0);
    t.link.handle_opened(t.now, ONE);
    t.link.handle_welcome(t.now, ONE, leases, None);
    t.effects();
    assert_eq!(Fixture::dials(&t.advance(5_999)), 0);
    assert_eq!(Fixture::dials(&t.advance(1)), 1);
    assert_eq!(Fixture::dials(&t.advance(4_999)), 0);
    t.link.handle_opened(t.now, TWO);
    t.link.handle_ended(t.now, ONE);
    assert_eq!(Fixture::dials(&t.advance(23_999)), 0);
}

/// All nodes of a large job may lose their streams at once: each dials after a pause of its own.
#[test]
fn nodes_of_a_large_job_dial_after_different_pauses() {
    let leases =
        Leases { keep_alive_interval: 3_000 * MS, agent: 24_000 * MS, coordinator: 30_000 * MS };
    let pause = |seed| {
        let now = crate::some_instant();
        let mut link = Link::new(now, Leases::default(), seed, false);
        link.handle_timeout(now);
        link.handle_opened(now, ONE);
        link.handle_welcome(now, ONE, leases, None);
        link.handle_ended(now, ONE);
        let dial = link.next_dial.expect("it dials again");
        dial.checked_duration_since(now).expect("not before it has lost the stream")
    };
    let pauses: std::collections::BTreeSet<Duration> = (0..8).map(pause).collect();
    assert_eq!(pauses.len(), 8, "{pauses:?}");
    assert!(pauses.iter().all(|pause| *pause <= 9 * limits::REDIAL_FIRST), "{pauses:?}");
}

/// A welcome that arrives later than a lease after its registration does not count: the node dials
/// again, and reports its state at that time.
#[test]
fn welcome_that_is_too_late_does_not_count() {
    let mut t = Fixture::new();
    t.advance(0);
    t.link.handle_opened(t.now, ONE);
    t.now += 2400 * MS;
    assert_eq!(t.welcome(ONE), [Effect::Drop(ONE)]);
    assert_eq!(t.link.current(), None);
    assert_eq!(t.advance(125), [Effect::Dial(TWO)]);
}

/// An echo that is read after the lease is over does not stop the dialing.
#[test]
fn late_echo_without_a_stream_stops_no_dial() {
    let mut t = Fixture::registered();
    t.now += 2400 * MS;
    t.link.handle_timeout(t.now);
    t.effects();
    t.echo(1);
    assert!(t.link.next_dial.is_some() || t.link.attempt.is_some());
}

/// The lease does not outlast that of an elected coordinator, counted from the sending of what was answered.
#[test]
fn lease_is_bounded_by_the_coordinators() {
    let mut t = Fixture::new();
    t.advance(0);
    t.link.handle_opened(t.now, ONE);
    t.link.handle_welcome(t.now, ONE, Leases::default(), Some(1000 * MS));
    assert!(t.effects().contains(&Effect::Lease(t.start + 1000 * MS)));
    t.advance(200);
    t.link.handle_echo(t.now, 1, Some(1500 * MS));
    assert_eq!(t.effects(), [Effect::Lease(t.start + 1500 * MS)]);
    t.advance(100);
    t.link.handle_echo(t.now, 2, Some(Duration::ZERO));
    assert_eq!(t.effects(), [], "a lease that was granted is not shortened");
}

/// A welcome that took longer than what was left of the coordinator's lease proves nothing: the node dials again.
#[test]
fn late_welcome_of_an_elected_coordinator_does_not_count() {
    let mut t = Fixture::new();
    t.advance(0);
    t.link.handle_opened(t.now, ONE);
    t.advance(300);
    t.link.handle_welcome(t.now, ONE, Leases::default(), Some(200 * MS));
    assert_eq!(t.effects(), [Effect::Drop(ONE)]);
    assert_eq!(t.link.current(), None);
}

/// Another leader is dialed at once, in place of an attempt or a pause, unless answers still arrive on a stream.
#[test]
fn new_leader_is_dialed_at_once() {
    let mut t = Fixture::registered();
    t.link.handle_new_leader(t.now);
    assert_eq!(t.advance(0), [], "the stream is healthy");
    t.link.handle_ended(t.now, ONE);
    assert_eq!(t.advance(0), [Effect::Dial(TWO)]);
    t.link.handle_new_leader(t.now);
    let three = StreamNumber(3);
    assert_eq!(t.effects(), [Effect::Drop(TWO)]);
    assert_eq!(t.advance(0), [Effect::Dial(three)]);
    t.link.handle_ended(t.now, three);
    assert_eq!(t.advance(0), [], "a pause");
    t.link.handle_new_leader(t.now);
    assert_eq!(t.advance(0), [Effect::Dial(StreamNumber(4))]);
    let mut t = Fixture::registered();
    t.advance(1_300);
    t.link.handle_new_leader(t.now);
    assert_eq!(t.effects(), [Effect::Drop(three)], "the stream is silent");
    assert_eq!(t.advance(0), [Effect::Dial(StreamNumber(4))]);
}

/// A voter that does not answer a registration is given up soon if others can be dialed. A voter that has accepted it may wait for an election.
#[test]
fn voters_that_do_not_accept_are_replaced() {
    let dials = |is_opened: bool, accepted: Option<StreamNumber>| {
        let mut t = Fixture::new();
        t.link.handle_alternatives();
        assert_eq!(t.advance(0), [Effect::Dial(ONE)]);
        if is_opened {
            t.link.handle_opened(t.now, ONE);
        }
        accepted.into_iter().for_each(|stream| t.link.handle_accepted(stream));
        Fixture::dials(&t.advance(1_500))
    };
    assert_eq!(dials(false, None), 1);
    assert_eq!(dials(true, None), 1);
    assert_eq!(dials(true, Some(TWO)), 1, "another stream");
    assert_eq!(dials(true, Some(ONE)), 0);
}

/// Each echo is reported once, with its round trip and the time that was left of the lease before it was renewed.
#[test]
fn echoes_are_reported() {
    let mut t = Fixture::registered();
    assert_eq!(t.link.take_echo(), None);
    t.advance(40);
    t.echo(1);
    let first = Echo { round_trip: 40 * MS, lease_left: Some(2360 * MS) };
    assert_eq!(t.link.take_echo(), Some(first));
    assert_eq!(t.link.take_echo(), None);
    t.echo(1);
    assert_eq!(t.link.take_echo(), None, "it is not awaited any more");
}

/// A voter that does not lead, and names no new leader, is followed by another attempt after a pause.
#[test]
fn redirect_to_a_known_leader_is_followed_by_a_pause() {
    let mut t = Fixture::new();
    t.advance(0);
    t.link.handle_not_leading(t.now, ONE, false);
    assert_eq!(t.advance(62), []);
    assert_eq!(t.advance(63), [Effect::Dial(TWO)]);
}
