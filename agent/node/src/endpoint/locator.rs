//! Decides how an agent finds the host of its endpoint: join, host, ask again, or give up.
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
//! - A program other than ragent ends the search at once.
//! - A silent process may be a paused coordinator, so it gets 20 s.
//! - A port in use may belong to an agent that will answer soon, so it gets 2 s.
//! - In all other cases the agent asks again until the join timeout.

use std::{
    collections::VecDeque,
    io,
    net::SocketAddr,
    time::{Duration, Instant},
};

use ragent_base::net::Endpoint;
use ragent_core::{limits::WAIT_REPEAT, reported_causes::ReportedCauses};
use ragent_rendezvous::jitter::Pauses;

use super::{
    error::LocateError,
    identity::{IdentityAnswer, looks_like},
};
use crate::endpoint::limits;

/// The result of an attempt.
#[derive(Debug)]
pub(super) enum Input {
    /// The endpoint's name has no address.
    Unresolved(String),
    /// The addresses were asked.
    Answered {
        /// The lowest address, and whether it belongs to this machine.
        lowest: (SocketAddr, bool),
        /// The answers, in the order of the addresses. Empty if any free port will do.
        answers: Vec<(SocketAddr, IdentityAnswer)>,
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
    /// Report the reason for waiting. It has changed.
    Report(String),
    /// Warn that the coordinator was not reached: for each reason, and every 30 s.
    Warn {
        /// The reason.
        cause: String,
        /// True if the endpoint's name has an address.
        is_resolved: bool,
        /// The time until the search gives up.
        left: Duration,
    },
    /// End the search.
    GiveUp(LocateError),
}

/// The parameters of a search.
#[derive(Debug)]
pub(super) struct LocatorSettings {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// True if this node hosts. `None`: it hosts if the endpoint is an address of this machine.
    pub is_host: Option<bool>,
    /// The time after which the search gives up.
    pub join_timeout: Duration,
    /// The seed of the random pauses.
    pub seed: u64,
}

#[derive(Clone, Copy, Debug)]
enum LocatorState {
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
    state: LocatorState,
    /// The start of the first of consecutive attempts with a silent process.
    silent_since: Option<Instant>,
    /// The time at which the port was first in use.
    held_since: Option<Instant>,
    pauses: Pauses,
    /// True if the endpoint's name had an address in the last attempt.
    is_resolved: bool,
    /// The last reason that was reported.
    reported: String,
    warned: ReportedCauses,
    /// The next warning comes at this time, also for a known reason.
    warns_at: Instant,
    effects: VecDeque<Effect>,
}

impl Locator {
    /// Begins a search.
    pub(super) fn new(now: Instant, settings: LocatorSettings) -> Self {
        let pauses = Pauses::new(limits::LOCATE_FIRST, limits::LOCATE_INTERVAL, settings.seed);
        Self {
            settings,
            begun: now,
            state: LocatorState::Asking(now),
            silent_since: None,
            held_since: None,
            pauses,
            is_resolved: true,
            reported: String::new(),
            warned: ReportedCauses::default(),
            warns_at: now + limits::WAIT_WARNING,
            effects: VecDeque::from([Effect::Ask]),
        }
    }

    /// Handles the result of an attempt, known at `now`.
    pub(super) fn handle(&mut self, now: Instant, input: Input) {
        match (input, self.state) {
            (Input::Unresolved(cause), LocatorState::Asking(_)) => {
                self.is_resolved = false;
                self.not_found(now, cause);
            }
            (Input::Answered { lowest, answers }, LocatorState::Asking(since)) => {
                self.is_resolved = true;
                self.handle_answers(now, since, lowest, answers);
            }
            (Input::NotBound(error), LocatorState::Binding(address)) => {
                self.handle_not_bound(now, address, error);
            }
            (Input::Unresolved(_) | Input::Answered { .. }, LocatorState::Binding(_))
            | (Input::NotBound(_), LocatorState::Asking(_))
            | (_, LocatorState::Pausing(_) | LocatorState::Ended) => {}
        }
    }

    /// Returns the time of the next attempt, if the machine waits for one.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        match self.state {
            LocatorState::Pausing(until) => Some(until),
            LocatorState::Asking(_) | LocatorState::Binding(_) | LocatorState::Ended => None,
        }
    }

    /// Begins the next attempt if it is due.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.poll_timeout().is_some_and(|due| due <= now) {
            self.state = LocatorState::Asking(now);
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
        answers: Vec<(SocketAddr, IdentityAnswer)>,
    ) {
        let mut last = format!("{} has no address", self.settings.endpoint);
        for (address, answer) in answers {
            match answer {
                IdentityAnswer::Ragent => return self.end(Effect::Join(address)),
                IdentityAnswer::Mismatch(mismatch) => {
                    return self.end(Effect::GiveUp(LocateError::Auth(mismatch)));
                }
                IdentityAnswer::Silent | IdentityAnswer::Closed => {
                    return self.handle_silence(now, since, address);
                }
                IdentityAnswer::Other(what) => {
                    return self.end(Effect::GiveUp(LocateError::Other {
                        address,
                        what,
                        holder: None,
                    }));
                }
                IdentityAnswer::None(error) => last = format!("{address}: {error}"),
            }
        }
        if self.settings.is_host.unwrap_or(is_own) {
            self.state = LocatorState::Binding(lowest);
            self.effects.push_back(Effect::Bind(lowest));
        } else {
            self.not_found(now, last);
        }
    }

    fn handle_silence(&mut self, now: Instant, since: Instant, address: SocketAddr) {
        let since = *self.silent_since.get_or_insert(since);
        // A coordinator that is paused, busy with other connections or killed at this moment is silent, too.
        if now.saturating_duration_since(since) >= limits::SILENT_TIMEOUT {
            let what = looks_like(&[]);
            return self.end(Effect::GiveUp(LocateError::Other { address, what, holder: None }));
        }
        self.try_again(now, format!("{address} accepts connections but does not answer"));
    }

    fn handle_not_bound(&mut self, now: Instant, address: SocketAddr, source: io::Error) {
        if source.kind() != io::ErrorKind::AddrInUse {
            return self.end(Effect::GiveUp(LocateError::Bind { address, source }));
        }
        // Another agent of this machine may have bound the port a moment ago. The next request waits for its answer.
        let since = *self.held_since.get_or_insert(now);
        if now.saturating_duration_since(since) >= limits::HELD_TIMEOUT {
            return self.end(Effect::GiveUp(LocateError::Held { address, holder: None }));
        }
        self.not_found(now, format!("{address} is in use"));
    }

    /// Notes that nothing serves the endpoint, and that no process was silent in this attempt.
    fn not_found(&mut self, now: Instant, cause: String) {
        self.silent_since = None;
        self.try_again(now, cause);
    }

    /// Pauses before the next attempt. Gives up if the time is over.
    fn try_again(&mut self, now: Instant, cause: String) {
        let waited = self.settings.join_timeout;
        let deadline = self.begun + waited;
        if now >= deadline {
            let endpoint = self.settings.endpoint.to_string();
            return self.end(Effect::GiveUp(if self.is_resolved {
                LocateError::TimedOut { endpoint, waited, cause }
            } else {
                LocateError::Unresolved { endpoint, waited, cause }
            }));
        }
        if cause != self.reported && self.held_since.is_none() {
            self.effects.push_back(Effect::Report(cause.clone()));
            self.reported.clone_from(&cause);
        }
        // Agents of a job rarely start in the same second.
        let is_late = now.saturating_duration_since(self.begun) >= limits::WAIT_WARNING;
        if is_late && (self.warned.insert(&cause) || self.warns_at <= now) {
            self.warns_at = now + WAIT_REPEAT;
            let (is_resolved, left) = (self.is_resolved, deadline.saturating_duration_since(now));
            self.effects.push_back(Effect::Warn { cause, is_resolved, left });
        }
        self.state = LocatorState::Pausing((now + self.pauses.after_failure()).min(deadline));
    }

    fn end(&mut self, effect: Effect) {
        self.effects.push_back(effect);
        self.state = LocatorState::Ended;
    }
}

#[cfg(test)]
mod tests;
