//! Several nodes with real processes, all on this machine: what a failure, a loss, a newcomer or a
//! restart of the coordinator means for each of them.
//!
//! Time-outs are set so that a test which would pass by waiting fails by its deadline instead.
#![expect(clippy::unwrap_used, reason = "what cannot be is a failure of the test")]

mod coordinator;
mod failure;
mod fixed_ranks;
mod job;
mod leaving;
mod loss;
mod members;
mod refusals;
mod status;

#[path = "../support/mod.rs"]
mod support;
