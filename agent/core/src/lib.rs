//! Makes the decisions of one node, as state machines without I/O, clock or runtime.
//!
//! - [`Node`](node::Node) is what the driver sees. It combines [`Agent`](agent::Agent), which decides when
//!   the node joins, starts, stops and leaves, and [`Link`](link::Link), which decides when it dials and
//!   sends keep-alives.
//! - [`Targets`](targets::Targets) decides which voter is dialed.
//! - [`Supervisor`](supervisor::Supervisor) decides when the local worker group has failed or ended.
//! - [`HangWatch`](hang::HangWatch) decides when the group makes no progress.
//! - [`Health`](health::Health) decides when the machine is checked, and whether the node should get a place.
//! - [`Hardware`](hardware::Hardware) decides which reports of the hardware are joined with a failure.
//! - [`NamedHang`](named_hang::NamedHang) decides if a worker that the coordinator names as hung is killed.
//! - [`StepWatch`](steps::StepWatch) decides when the training steps of the workers are passed on.
//! - [`KeeperWatch`](keeper_watch::KeeperWatch) decides when the keeper does not answer.
//! - [`Standbys`](standby::Standbys) decides when interpreters for the next round are started.
//!
//! Each takes the time as an argument and returns effects. The crate `ragent-node` carries them out, and
//! `tests/simulation` runs the same machines with a simulated network.
//!
//! The crate links neither a runtime nor a system interface (`tests/purity` checks it).

#![forbid(unsafe_code)]

pub mod agent;
pub mod hang;
pub mod hardware;
pub mod health;
pub mod keeper_watch;
pub mod limits;
pub mod link;
pub mod memory;
pub mod named_hang;
pub mod node;
pub mod outage;
pub mod process_end;
pub mod reported_causes;
pub mod saves;
pub mod signal;
pub mod standby;
pub mod steps;
mod stopped_watch;
pub mod supervisor;
pub mod targets;
mod wait_reports;

/// An instant to start a test's clock from.
#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a made-up clock needs some instant to start from")]
fn some_instant() -> std::time::Instant {
    std::time::Instant::now()
}
