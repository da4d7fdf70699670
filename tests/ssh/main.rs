//! Tests jobs that are started over ssh: a real sshd in a namespace for each host, real ssh, real time.
#![expect(clippy::unwrap_used, reason = "what cannot be is a failure of the test")]

mod bad_input;
mod cluster;
mod ending;
mod output;
mod secret;
mod stalls;
mod starting;
mod unreachable;
mod voters;

#[path = "../support/mod.rs"]
mod support;
