//! Tests several nodes with real processes, all on this machine: how a failure, a loss, a newcomer or a restart of the coordinator affects
//! each of them.
//!
//! Timeouts are long, so that a test that would pass by waiting fails by its deadline instead.
#![expect(clippy::unwrap_used, reason = "what cannot be is a failure of the test")]

mod certificates;
mod coordinator;
mod failure;
mod fixed_ranks;
mod health;
mod job;
mod journal;
mod leaving;
mod lines;
mod loss;
mod members;
mod notices;
mod progress;
mod refusals;
mod secrets;
mod status;
mod takeover;
#[cfg(feature = "top")]
mod top;

#[path = "../support/mod.rs"]
mod support;
