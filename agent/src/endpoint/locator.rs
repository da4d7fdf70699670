//! Decides how an agent with an endpoint finds its host: whether it joins, hosts, asks again or gives
//! up, and which reason it reports.
//!
//! ```text
//!            no process answers, and this node may host
//! Asking ──────────────────────────────────────────────▶ Binding ──▶ (hosts)
//!  ▲  │ no process answers, or a silent one                │ the port is in use
//!  │  ▼                                                    │
//! Pausing ◀────────────────────────────────────────────────┘
//!
//! Asking ──▶ Ended: joins, or gives up     Binding ──▶ Ended: gives up
//! ```
//!
//! A program other than ragent ends the search at once. A silent one may be a stalled coordinator, and
//! a port in use may be that of an agent that answers soon: both have a limit. Anything else is asked
//! again until the join timeout.

use std::{
    collections::VecDeque,
    io,
    net::SocketAddr,
    time::{Duration, Instant},
};

use ragent_core::reported_causes::ReportedCauses;

use super::{
    error::LocateError,
    identity::{Answer, looks_like},
};
use crate::{limits, spec::Endpoint};

/// The result of an attempt.
#[derive(Debug)]
pub(super) enum Input {
    /// The endpoint's name has no address, for this reason.
    Unresolved(String),
    /// The addresses were asked.
    Answered {
        /// The lowest address, and whether it belongs to this machine.
        lowest: (SocketAddr, bool),
        /// The answers in the order of the addresses; none if the port is any free one.
        answers: Vec<(SocketAddr, Answer)>,
    },
    /// The port cannot be bound.
    NotBound(io::Error),
}

/// An action for the driver.
#[derive(Debug)]
pub(super) enum Effect {
    /// Resolve the endpoint, and ask all of its addresses.
    Ask,
    /// Listen on this address, and host there.
    Bind(SocketAddr),
    /// Join the host at this address.
    Join(SocketAddr),
    /// Report the reason for waiting, which has changed.
    Report(String),
    /// Warn that the coordinator was not reached for this reason.
    Warn(String),
    /// End the search.
    GiveUp(LocateError),
}

/// The parameters of a search.
#[derive(Debug)]
pub(super) struct LocatorSettings {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// True if this node hosts; `None`: it does if the endpoint is an address of this machine.
    pub is_host: Option<bool>,
    /// The time after which it gives up.
    pub join_timeout: Duration,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// The addresses are being asked, since this time.
    Asking(Instant),
    /// This address is being bound.
    Binding(SocketAddr),
    /// The next attempt begins at this time.
    Pausing(Instant),
    Ended,
}

/// The search for the host of one endpoint.
#[derive(Debug)]
pub(super) struct Locator {
    settings: LocatorSettings,
    begun: Instant,
    state: State,
    /// The begin of the first of consecutive attempts in which a process was silent.
    silent_since: Option<Instant>,
    /// The number of attempts in which the port was in use.
    binds: u32,
    /// The reason that was reported last.
    reported: String,
    warned: ReportedCauses,
    effects: VecDeque<Effect>,
}

/// The number of times that a port may be held by a silent process: two agents that start at once
/// on one machine need two.
const MAX_BINDS: u32 = 4;

impl Locator {
    /// Begins a search.
    pub(super) fn new(now: Instant, settings: LocatorSettings) -> Self {
        Self {
            settings,
            begun: now,
            state: State::Asking(now),
            silent_since: None,
            binds: 0,
            reported: String::new(),
            warned: ReportedCauses::default(),
            effects: VecDeque::from([Effect::Ask]),
        }
    }

    /// Handles the result of an attempt, known at `now`.
    pub(super) fn handle(&mut self, now: Instant, input: Input) {
        match (input, self.state) {
            (Input::Unresolved(cause), State::Asking(_)) => self.not_found(now, cause),
            (Input::Answered { lowest, answers }, State::Asking(since)) => {
                self.handle_answers(now, since, lowest, answers);
            }
            (Input::NotBound(error), State::Binding(address)) => {
                self.handle_not_bound(now, address, error);
            }
            (Input::Unresolved(_) | Input::Answered { .. }, State::Binding(_))
            | (Input::NotBound(_), State::Asking(_))
            | (_, State::Pausing(_) | State::Ended) => {}
        }
    }

    /// Returns the time of the next attempt, if one is waited for.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        match self.state {
            State::Pausing(until) => Some(until),
            State::Asking(_) | State::Binding(_) | State::Ended => None,
        }
    }

    /// Begins the next attempt if it is due.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.poll_timeout().is_some_and(|due| due <= now) {
            self.state = State::Asking(now);
            self.effects.push_back(Effect::Ask);
        }
    }

    /// Returns the next effect; `None` if there are none.
    pub(super) fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    fn handle_answers(
        &mut self,
        now: Instant,
        since: Instant,
        (lowest, is_own): (SocketAddr, bool),
        answers: Vec<(SocketAddr, Answer)>,
    ) {
        let mut last = format!("{} has no address", self.settings.endpoint);
        for (address, answer) in answers {
            match answer {
                Answer::Ragent => return self.end(Effect::Join(address)),
                Answer::Silent => return self.handle_silence(now, since, address),
                Answer::Other(what) => {
                    return self.end(Effect::GiveUp(LocateError::Other { address, what }));
                }
                Answer::None(error) => last = format!("{address}: {error}"),
            }
        }
        if self.settings.is_host.unwrap_or(is_own) {
            self.state = State::Binding(lowest);
            self.effects.push_back(Effect::Bind(lowest));
        } else {
            self.not_found(now, last);
        }
    }

    fn handle_silence(&mut self, now: Instant, since: Instant, address: SocketAddr) {
        let since = *self.silent_since.get_or_insert(since);
        // A coordinator that is stalled, or busy with other connections, is silent too.
        if now.saturating_duration_since(since) >= limits::SILENT_TIMEOUT {
            let what = looks_like(&[]);
            return self.end(Effect::GiveUp(LocateError::Other { address, what }));
        }
        self.try_again(now, format!("{address} accepts connections but does not answer"));
    }

    fn handle_not_bound(&mut self, now: Instant, address: SocketAddr, source: io::Error) {
        if source.kind() != io::ErrorKind::AddrInUse {
            return self.end(Effect::GiveUp(LocateError::Bind { address, source }));
        }
        // Another agent of this machine may have bound the port a moment earlier, and answers soon.
        if self.binds == MAX_BINDS {
            return self.end(Effect::GiveUp(LocateError::Held { address }));
        }
        self.binds += 1;
        self.not_found(now, format!("{address} is in use"));
    }

    /// Notes that no process was silent in this attempt, and none serves the endpoint.
    fn not_found(&mut self, now: Instant, cause: String) {
        self.silent_since = None;
        self.try_again(now, cause);
    }

    /// Pauses before the next attempt, unless the time is up.
    fn try_again(&mut self, now: Instant, cause: String) {
        let waited = self.settings.join_timeout;
        let deadline = self.begun + waited;
        if now >= deadline {
            let endpoint = self.settings.endpoint.to_string();
            return self.end(Effect::GiveUp(LocateError::TimedOut { endpoint, waited, cause }));
        }
        if cause != self.reported && self.binds == 0 {
            self.effects.push_back(Effect::Report(cause.clone()));
            self.reported.clone_from(&cause);
        }
        // Agents of a job rarely start in the same second.
        let is_late = now.saturating_duration_since(self.begun) >= limits::WAIT_WARNING;
        if is_late && self.warned.insert(&cause) {
            self.effects.push_back(Effect::Warn(cause));
        }
        self.state = State::Pausing((now + limits::LOCATE_INTERVAL).min(deadline));
    }

    fn end(&mut self, effect: Effect) {
        self.effects.push_back(effect);
        self.state = State::Ended;
    }
}

#[cfg(test)]
mod tests {
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
            let now = crate::sys::clock::now();
            let endpoint = Endpoint { host: "n".to_owned(), port: 29400 };
            let settings = LocatorSettings { endpoint, is_host, join_timeout: JOIN_TIMEOUT };
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
                    effect => format!("{effect:?}").replace('"', ""),
                });
            }
            effects
        }

        fn handle(&mut self, input: Input) -> Vec<String> {
            self.machine.handle(self.now, input);
            self.effects()
        }

        /// Answers from addresses whose last numbers count up from 1; the first belongs to another
        /// machine.
        fn answers(&mut self, answers: &[Answer]) -> Vec<String> {
            self.handle(answered(false, answers))
        }

        /// Finds no process at the endpoint, an address of this machine.
        fn nobody_here(&mut self) -> Vec<String> {
            self.handle(answered(true, &[refused()]))
        }

        fn in_use(&mut self) -> Vec<String> {
            self.handle(Input::NotBound(io::ErrorKind::AddrInUse.into()))
        }

        /// Waits for the next attempt; returns the time since the begin.
        fn next(&mut self) -> Duration {
            self.now = self.machine.poll_timeout().expect("there is another attempt");
            self.machine.handle_timeout(self.now);
            assert_eq!(self.effects(), ["Ask"]);
            self.now - self.begun
        }

        /// Repeats an attempt until something is warned or ended; returns the time since the begin,
        /// and the effects.
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

    fn answered(is_own: bool, answers: &[Answer]) -> Input {
        let address = |number: u8| SocketAddr::from(([10, 0, 0, number], 29400));
        let answers = (1..).map(address).zip(answers.iter().cloned()).collect();
        Input::Answered { lowest: (address(1), is_own), answers }
    }

    fn refused() -> Answer {
        Answer::None("refused".to_owned())
    }

    /// The first address in order that is served decides, by ragent or another program; addresses
    /// without an answer do not.
    #[test]
    fn first_answer_decides() {
        let mut joins = Fixture::new(None);
        let other = || Answer::Other("it answers `x`".to_owned());
        let effects = joins.answers(&[refused(), Answer::Ragent, other()]);
        assert_eq!(effects, ["Join(10.0.0.2:29400)"]);
        let mut fails = Fixture::new(Some(true));
        let effects = fails.answers(&[refused(), other(), Answer::Ragent]);
        let what = "10.0.0.2:29400 is served by a program other than ragent: it answers `x`";
        assert_eq!(effects, [format!("GiveUp({what})")]);
        // Nothing follows the end.
        assert_eq!(fails.machine.poll_timeout(), None);
        assert_eq!(fails.answers(&[Answer::Ragent]), [""; 0]);
    }

    /// Without an answer, the node hosts that owns the lowest address, or that was chosen by the
    /// user; others wait.
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
        // Any free port: no process can be there already.
        assert_eq!(Fixture::new(None).handle(answered(true, &[])), ["Bind(10.0.0.1:29400)"]);
    }

    /// Attempts follow each other at an interval. A reason is reported when it changes; from five
    /// seconds on, each reason is warned of once.
    #[test]
    fn reasons_are_reported_once() {
        let mut t = Fixture::new(None);
        assert_eq!(t.answers(&[refused()]), ["Report(10.0.0.1:29400: refused)"]);
        assert_eq!(t.next(), SECOND / 2);
        assert_eq!(t.answers(&[refused()]), [""; 0]);
        assert_eq!(t.next(), SECOND);
        assert_eq!(t.handle(Input::Unresolved("no name".to_owned())), ["Report(no name)"]);
        t.next();
        let (at, effects) = t.repeat(|t| t.handle(Input::Unresolved("no name".to_owned())));
        assert_eq!((at, effects), (5 * SECOND, vec!["Warn(no name)".to_owned()]));
        t.next();
        let again = ["Report(10.0.0.1:29400: refused)", "Warn(10.0.0.1:29400: refused)"];
        assert_eq!(t.answers(&[refused()]), again);
        t.next();
        assert_eq!(t.handle(Input::Unresolved("no name".to_owned())), ["Report(no name)"]);
    }

    /// The search ends with the last reason once the join timeout has passed, after one more attempt
    /// at that time.
    #[test]
    fn join_timeout_ends_the_search() {
        let mut t = Fixture::new(None);
        let (at, effects) = t.repeat(|t| {
            let effects = t.answers(&[refused()]);
            effects.into_iter().filter(|effect| effect.starts_with("GiveUp")).collect()
        });
        let what = "no agent served n:29400 within 60 s: 10.0.0.1:29400: refused";
        assert_eq!((at, effects), (JOIN_TIMEOUT, vec![format!("GiveUp({what})")]));
    }

    /// A process that accepts connections without an answer is another program only after
    /// [`limits::SILENT_TIMEOUT`], counted from the first of consecutive requests.
    #[test]
    fn silence_is_limited() {
        let mut t = Fixture::new(None);
        let silent = "10.0.0.1:29400 accepts connections but does not answer";
        t.now += 3 * SECOND;
        assert_eq!(t.answers(&[Answer::Silent, Answer::Ragent]), [format!("Report({silent})")]);
        let interrupted = t.next();
        t.answers(&[refused()]);
        let since = t.next();
        assert!(since > interrupted);
        let (at, effects) = t.repeat(|t| {
            let effects = t.answers(&[Answer::Silent]);
            effects.into_iter().filter(|effect| effect.starts_with("GiveUp")).collect()
        });
        assert_eq!(at, since + limits::SILENT_TIMEOUT);
        let what = "10.0.0.1:29400 is served by a program other than ragent: it accepts \
                    connections but sends nothing (as a TCPStore of torchrun does)";
        assert_eq!(effects, [format!("GiveUp({what})")]);
    }

    /// A port in use is that of an agent that answers soon; if none has after some attempts, another
    /// program holds it. The user sees no reason meanwhile.
    #[test]
    fn held_port_is_tried_again() {
        let mut t = Fixture::new(Some(true));
        for _ in 0..MAX_BINDS {
            assert_eq!(t.nobody_here(), ["Bind(10.0.0.1:29400)"]);
            assert_eq!(t.in_use(), [""; 0]);
            t.next();
        }
        t.nobody_here();
        let what = "port 29400 is in use by another program on this machine";
        assert_eq!(t.in_use(), [format!("GiveUp({what})")]);
        let mut joins = Fixture::new(Some(true));
        joins.nobody_here();
        joins.in_use();
        joins.next();
        assert_eq!(joins.answers(&[Answer::Ragent]), ["Join(10.0.0.1:29400)"]);
    }

    /// A port that cannot be bound for another reason than being in use ends the search.
    #[test]
    fn other_errors_of_the_port_are_final() {
        let mut t = Fixture::new(Some(true));
        t.nobody_here();
        let effects = t.handle(Input::NotBound(io::ErrorKind::PermissionDenied.into()));
        assert_eq!(effects, ["GiveUp(failed to listen on 10.0.0.1:29400)"]);
    }
}
