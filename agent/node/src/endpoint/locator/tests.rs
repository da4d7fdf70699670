//! The decisions of a search at an endpoint, with a simulated clock.

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const JOIN_TIMEOUT: Duration = Duration::from_secs(60);

/// A search, and its clock.
struct Fixture {
    machine: Locator,
    begun: Instant,
    now: Instant,
}

impl Fixture {
    /// Begins a search whose first request was sent.
    fn new(is_host: Option<bool>) -> Self {
        let now = ragent_base::sys::clock::now();
        let endpoint = Endpoint { host: "n".to_owned(), port: 29400 };
        let settings = LocatorSettings { endpoint, is_host, join_timeout: JOIN_TIMEOUT, seed: 7 };
        let mut fixture = Self { machine: Locator::new(now, settings), begun: now, now };
        assert_eq!(fixture.effects(), ["Ask"]);
        fixture
    }

    /// Takes all effects, as text.
    fn effects(&mut self) -> Vec<String> {
        let mut effects = Vec::new();
        while let Some(effect) = self.machine.poll_effect() {
            effects.push(match effect {
                Effect::GiveUp(error) => format!("GiveUp({error})"),
                Effect::Warn { cause, is_resolved: true, .. } => format!("Warn({cause})"),
                Effect::Warn { cause, is_resolved: false, .. } => format!("WarnOfName({cause})"),
                effect => format!("{effect:?}").replace('"', ""),
            });
        }
        effects
    }

    fn handle(&mut self, input: Input) -> Vec<String> {
        self.machine.handle(self.now, input);
        self.effects()
    }

    /// Answers from addresses that end in 1, 2, and so on. The first one belongs to another machine.
    fn answers(&mut self, answers: &[IdentityAnswer]) -> Vec<String> {
        self.handle(answered(false, answers))
    }

    /// Finds no process at the endpoint, an address of this machine.
    fn nobody_here(&mut self) -> Vec<String> {
        self.handle(answered(true, &[refused()]))
    }

    fn in_use(&mut self) -> Vec<String> {
        self.handle(Input::NotBound(io::ErrorKind::AddrInUse.into()))
    }

    /// Waits for the next attempt. Returns the time since the start.
    fn next(&mut self) -> Duration {
        self.now = self.machine.poll_timeout().expect("there is another attempt");
        self.machine.handle_timeout(self.now);
        assert_eq!(self.effects(), ["Ask"]);
        self.now - self.begun
    }

    /// Repeats an attempt until a warning or the end. Returns the time since the start, and the effects.
    fn repeat(
        &mut self,
        mut attempt: impl FnMut(&mut Self) -> Vec<String>,
    ) -> (Duration, Vec<String>) {
        loop {
            let effects = attempt(self);
            if !effects.is_empty() {
                return (self.now - self.begun, effects);
            }
            self.next();
        }
    }
}

fn answered(is_own: bool, answers: &[IdentityAnswer]) -> Input {
    let address = |number: u8| SocketAddr::from(([10, 0, 0, number], 29400));
    let answers = (1..).map(address).zip(answers.iter().cloned()).collect();
    Input::Answered { lowest: (address(1), is_own), answers }
}

fn refused() -> IdentityAnswer {
    IdentityAnswer::None("refused".to_owned())
}

/// The first address that is served decides, by ragent or by another program. Addresses without an answer do not.
#[test]
fn first_answer_decides() {
    let mut joins = Fixture::new(None);
    let other = || IdentityAnswer::Other("it answers `x`".to_owned());
    let effects = joins.answers(&[refused(), IdentityAnswer::Ragent, other()]);
    assert_eq!(effects, ["Join(10.0.0.2:29400)"]);
    let mut fails = Fixture::new(Some(true));
    let effects = fails.answers(&[refused(), other(), IdentityAnswer::Ragent]);
    let what = "10.0.0.2:29400 is served by a program other than ragent: it answers `x`";
    assert_eq!(effects, [format!("GiveUp({what})")]);
    // Nothing follows the end.
    assert_eq!(fails.machine.poll_timeout(), None);
    assert_eq!(fails.answers(&[IdentityAnswer::Ragent]), [""; 0]);
}

/// Without an answer, the node hosts that owns the lowest address, or that the user chose. Others wait.
#[test]
fn one_node_hosts() {
    for (is_host, is_own, hosts) in [
        (None, true, true),
        (None, false, false),
        (Some(true), false, true),
        (Some(false), true, false),
    ] {
        let effects = Fixture::new(is_host).handle(answered(is_own, &[refused(), refused()]));
        let expected =
            if hosts { "Bind(10.0.0.1:29400)" } else { "Report(10.0.0.2:29400: refused)" };
        assert_eq!(effects, [expected], "{is_host:?} {is_own}");
    }
    // The port is any free one, so no process can be there already.
    assert_eq!(Fixture::new(None).handle(answered(true, &[])), ["Bind(10.0.0.1:29400)"]);
}

/// A reason is reported when it changes. From five seconds on, there is one warning for each reason, and one every 30 s.
#[test]
fn reasons_are_reported_once() {
    let mut t = Fixture::new(None);
    assert_eq!(t.answers(&[refused()]), ["Report(10.0.0.1:29400: refused)"]);
    t.next();
    assert_eq!(t.answers(&[refused()]), [""; 0]);
    t.next();
    assert_eq!(t.handle(Input::Unresolved("no name".to_owned())), ["Report(no name)"]);
    t.next();
    let (at, effects) = t.repeat(|t| t.handle(Input::Unresolved("no name".to_owned())));
    assert_eq!(effects, ["WarnOfName(no name)"]);
    assert!(at >= 5 * SECOND && at < 5 * SECOND + limits::LOCATE_INTERVAL, "{at:?}");
    t.next();
    let again = ["Report(10.0.0.1:29400: refused)", "Warn(10.0.0.1:29400: refused)"];
    assert_eq!(t.answers(&[refused()]), again);
    t.next();
    assert_eq!(t.handle(Input::Unresolved("no name".to_owned())), ["Report(no name)"]);
    t.next();
    let (at, effects) = t.repeat(|t| t.handle(Input::Unresolved("no name".to_owned())));
    assert_eq!(effects, ["WarnOfName(no name)"]);
    assert!(at >= 35 * SECOND && at < 35 * SECOND + 3 * limits::LOCATE_INTERVAL, "{at:?}");
}

/// The pauses between attempts grow from milliseconds to the interval. If agents start at the same time, they find the host at once, for
/// any reason of a failed attempt.
#[test]
fn pauses_between_attempts_grow() {
    let attempts: [fn(&mut Fixture) -> Vec<String>; 2] =
        [|t| t.answers(&[refused()]), |t| t.handle(Input::Unresolved("no name".to_owned()))];
    for attempt in attempts {
        let mut t = Fixture::new(None);
        let mut before = Duration::ZERO;
        let mut pause = limits::LOCATE_FIRST;
        for _ in 0..10 {
            attempt(&mut t);
            let at = t.next();
            assert!(at - before >= pause / 2 && at - before < pause, "{before:?} {at:?}");
            before = at;
            pause = (pause * 2).min(limits::LOCATE_INTERVAL);
        }
        assert_eq!(pause, limits::LOCATE_INTERVAL);
    }
}

/// The search ends with the last reason after the join timeout, after one more attempt at that time.
#[test]
fn join_timeout_ends_the_search() {
    let mut t = Fixture::new(None);
    // The remaining time is not a multiple of the interval.
    t.now += SECOND / 3;
    let (at, effects) = t.repeat(|t| {
        let effects = t.answers(&[refused()]);
        effects.into_iter().filter(|effect| effect.starts_with("GiveUp")).collect()
    });
    let what = "no agent served n:29400 within 60 s: 10.0.0.1:29400: refused";
    assert_eq!((at, effects), (JOIN_TIMEOUT, vec![format!("GiveUp({what})")]));
}

/// A process that accepts connections without answering, or closes them, counts as another program only after
/// [`limits::SILENT_TIMEOUT`], counted from the first of consecutive requests.
#[test]
fn silence_is_limited() {
    for silence in [IdentityAnswer::Silent, IdentityAnswer::Closed] {
        assert_silence_is_limited(&silence);
    }
}

fn assert_silence_is_limited(silence: &IdentityAnswer) {
    let mut t = Fixture::new(None);
    let silent = "10.0.0.1:29400 accepts connections but does not answer";
    t.now += 3 * SECOND;
    assert_eq!(
        t.answers(&[silence.clone(), IdentityAnswer::Ragent]),
        [format!("Report({silent})")]
    );
    let interrupted = t.next();
    t.answers(&[refused()]);
    let since = t.next();
    assert!(since > interrupted);
    let (at, effects) = t.repeat(|t| {
        let effects = t.answers(std::slice::from_ref(silence));
        effects.into_iter().filter(|effect| effect.starts_with("GiveUp")).collect()
    });
    let limit = since + limits::SILENT_TIMEOUT;
    assert!(at >= limit && at < limit + limits::LOCATE_INTERVAL, "{at:?}");
    let what = "10.0.0.1:29400 is served by a program other than ragent: it accepts \
                connections but sends nothing (as a TCPStore of torchrun does)";
    assert_eq!(effects, [format!("GiveUp({what})")]);
}

/// A port in use belongs to an agent that will answer soon. If none answers for a while, another program holds it. The user sees no reason
/// meanwhile.
#[test]
fn held_port_is_tried_again() {
    let mut t = Fixture::new(Some(true));
    let (at, effects) = t.repeat(|t| {
        assert_eq!(t.nobody_here(), ["Bind(10.0.0.1:29400)"]);
        t.in_use()
    });
    let what = "port 29400 is in use by another program on this machine";
    assert_eq!(effects, [format!("GiveUp({what})")]);
    let limit = limits::HELD_TIMEOUT;
    assert!(at >= limit && at < limit + limits::LOCATE_INTERVAL, "{at:?}");
}

/// An agent that finds its port in use asks again within milliseconds, and joins the agent that has bound it.
#[test]
fn agent_that_loses_the_port_joins_at_once() {
    let mut t = Fixture::new(Some(true));
    t.nobody_here();
    t.in_use();
    assert!(t.next() <= limits::LOCATE_FIRST);
    // The other agent has bound the port but does not listen yet.
    assert_eq!(t.nobody_here(), ["Bind(10.0.0.1:29400)"]);
    t.in_use();
    assert!(t.next() <= 3 * limits::LOCATE_FIRST);
    assert_eq!(t.answers(&[IdentityAnswer::Ragent]), ["Join(10.0.0.1:29400)"]);
}

/// A port that cannot be bound, although it is not in use, ends the search.
#[test]
fn other_errors_of_the_port_are_final() {
    let mut t = Fixture::new(Some(true));
    t.nobody_here();
    let effects = t.handle(Input::NotBound(io::ErrorKind::PermissionDenied.into()));
    assert_eq!(effects, ["GiveUp(failed to listen on 10.0.0.1:29400)"]);
}
