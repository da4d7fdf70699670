//! The decisions of one node, as state machines without I/O, clock or runtime.
//!
//! [`Node`](node::Node) combines two of them for the driver: [`Agent`](agent::Agent) decides when the
//! node joins, starts, stops and leaves, [`Link`](link::Link) when it sends keep-alives and dials.
//! [`Supervisor`](supervisor::Supervisor) decides when the local worker group has failed or ended,
//! [`HangWatch`](hang::HangWatch) when it makes no progress,
//! [`StepWatch`](steps::StepWatch) when their training steps are passed on,
//! [`KeeperWatch`](keeper_watch::KeeperWatch) when the keeper does not answer, and
//! [`Standbys`](standby::Standbys) when interpreters for the next round are started. Each takes the time
//! as an argument and returns effects; the crate `ragent` carries them out, and `tests/simulation` runs the
//! same machines against a simulated network. [`Targets`](targets::Targets) decides which voter is dialed.
//!
//! The crate links neither a runtime nor a system interface; `tests/purity` verifies that.

#![forbid(unsafe_code)]

pub mod agent;
pub mod hang;
pub mod keeper_watch;
pub mod limits;
pub mod link;
pub mod node;
pub mod outage;
pub mod process_end;
pub mod reported_causes;
pub mod signal;
pub mod standby;
pub mod steps;
pub mod supervisor;
pub mod targets;
mod wait_reports;

/// An instant to start a test's clock from.
#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a made-up clock needs some instant to start from")]
fn some_instant() -> std::time::Instant {
    std::time::Instant::now()
}
