//! Decides how an agent without an endpoint finds its host: whether it hosts, asks the address that
//! its search has found, searches again or gives up, and which reason it reports.
//!
//! ```text
//!             this agent is to host
//! Searching ────────────────────────▶ (hosts)
//!    │   ▲
//!    │   │ no coordinator there
//!    ▼   │
//! Locating ─────────────────────────▶ (joins, or hosts)
//! ```
//!
//! The address that a search has found may be outdated, so it is asked for a limited time only;
//! another agent may know the present one. Both together end with the join timeout.

use std::{
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use super::{error::LocateError, search::driver::Found};
use crate::endpoint::limits;

/// The result of a step.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Input {
    /// The search has found a host.
    Found(Found),
    /// The search has found no host within its limit.
    NotFound,
    /// No coordinator was at the address found, for this reason.
    NotLocated(String),
}

/// The next step, for the driver.
#[derive(Debug)]
pub(super) enum Step {
    /// Search for a host, for at most this time.
    Search(Duration),
    /// Host at this address of this machine.
    Host(IpAddr),
    /// Look for the coordinator at this address, for at most this time; join it, or host if the
    /// address belongs to this machine.
    Locate(SocketAddr, Duration),
    /// End the search.
    GiveUp(LocateError),
}

/// One agent's search for the host of its job.
#[derive(Debug)]
pub(super) struct Finder {
    join_timeout: Duration,
    deadline: Instant,
    /// The reason for which the last step has failed.
    cause: String,
}

impl Finder {
    /// Begins a search.
    pub(super) fn new(now: Instant, join_timeout: Duration) -> Self {
        let cause = "no agent that may host the job answered".to_owned();
        Self { join_timeout, deadline: now + join_timeout, cause }
    }

    /// Returns the first step.
    pub(super) fn first(&self) -> Step {
        Step::Search(self.join_timeout)
    }

    /// Handles the result of a step, known at `now`, and returns the next step.
    pub(super) fn handle(&mut self, now: Instant, input: Input) -> Step {
        let left = self.deadline.saturating_duration_since(now);
        match input {
            Input::Found(Found::Here(address)) => Step::Host(address),
            Input::Found(Found::There(at)) => Step::Locate(at, limits::SENT_TIMEOUT.min(left)),
            Input::NotFound => self.give_up(),
            Input::NotLocated(cause) => {
                self.cause = cause;
                if left.is_zero() { self.give_up() } else { Step::Search(left) }
            }
        }
    }

    fn give_up(&self) -> Step {
        let (waited, cause) = (self.join_timeout, self.cause.clone());
        Step::GiveUp(LocateError::NotFound { waited, cause })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const JOIN_TIMEOUT: Duration = Duration::from_secs(60);

    /// A search, and its clock.
    struct Fixture {
        machine: Finder,
        begun: Instant,
    }

    impl Fixture {
        fn new() -> Self {
            let begun = crate::sys::clock::now();
            Self { machine: Finder::new(begun, JOIN_TIMEOUT), begun }
        }

        /// Returns the step that follows `input`, received this many seconds after the begin.
        fn at(&mut self, seconds: u32, input: Input) -> String {
            match self.machine.handle(self.begun + seconds * SECOND, input) {
                Step::GiveUp(error) => error.to_string(),
                step => format!("{step:?}"),
            }
        }
    }

    fn there() -> Input {
        Input::Found(Found::There(([10, 0, 0, 1], 29400).into()))
    }

    fn not_located() -> Input {
        Input::NotLocated("refused".to_owned())
    }

    /// The chosen agent hosts; others ask at the address found, and search again if no coordinator
    /// is there.
    #[test]
    fn found_addresses_are_asked() {
        let mut t = Fixture::new();
        assert_eq!(format!("{:?}", t.machine.first()), "Search(60s)");
        assert_eq!(t.at(20, there()), "Locate(10.0.0.1:29400, 10s)");
        assert_eq!(t.at(30, not_located()), "Search(30s)");
        assert_eq!(t.at(31, Input::Found(Found::Here([10, 0, 0, 2].into()))), "Host(10.0.0.2)");
    }

    /// No step lasts longer than the join timeout, and its end is reported with the last reason.
    #[test]
    fn join_timeout_ends_the_search() {
        let given_up = |cause: &str| format!("no host of the job was found within 60 s: {cause}");
        let nobody = given_up("no agent that may host the job answered");
        assert_eq!(Fixture::new().at(60, Input::NotFound), nobody);
        let mut t = Fixture::new();
        assert_eq!(t.at(54, there()), "Locate(10.0.0.1:29400, 6s)");
        assert_eq!(t.at(58, not_located()), "Search(2s)");
        assert_eq!(t.at(60, Input::NotFound), given_up("refused"));
        let mut late = Fixture::new();
        assert_eq!(late.at(60, not_located()), given_up("refused"));
    }
}
